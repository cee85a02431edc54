"""The rules of alerts and their evaluation: pure functions of samples, earlier states and the time."""
