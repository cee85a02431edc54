"""Steps of a task that handlers share: attempts end, are retried, or wait for other tasks."""
