"""Run-time estimates and performance predictions of a live cluster, and how accurate they were."""
