"""The terminal of a task in the terminal of the user: used by `run --pty`, `attach` and `shell`."""
