"""FOR PROGRAMS: the yard from Python."""
