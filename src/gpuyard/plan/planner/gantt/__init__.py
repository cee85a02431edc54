"""Plans as pictures: a lane for each GPU, time to the right, one panel a plan, all on one axis.

    bars (what is to be seen) ─► page (HTML: zoom, and hover for what a bar is) or figure (matplotlib: PNG, SVG)

Models by color, switches hatched, what is left blank is idle time. A line follows the critical path: from the last end
back to what each call waited for. A broken line stands where no plan can end before.
"""
