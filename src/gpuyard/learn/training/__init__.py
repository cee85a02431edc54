"""How to decide better: training of advisers in the simulator."""
