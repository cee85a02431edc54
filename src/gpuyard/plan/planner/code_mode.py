"""Whether the inner loops of the planner are compiled in this process.

A command that should answer before they are compiled sets `plain` before it imports a strategy.
"""

plain = False
