"""Training of policies (advisors) in the simulator."""
