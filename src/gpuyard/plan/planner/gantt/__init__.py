"""Gantt charts: a lane for each GPU, time to the right, one panel per plan, all on one axis.

    bars (the content) ─► page (HTML: zoom, and hover for details of a bar) or figure (matplotlib: PNG, SVG)

Colors are models, hatched bars are switches, blank space is idle time. A line follows the critical path: from the last
end back to what each call waited for. A dashed line marks the lower bound.
"""
