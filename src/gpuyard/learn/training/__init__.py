"""How to decide better: training of advisors in the simulator."""
