"""Write results: tables, JSON, errors, progress, and the output of a task."""
