"""Read a command line: shared options, the options of a task, suggestions for commands that do not exist."""
