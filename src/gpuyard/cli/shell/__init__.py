"""What shells and readers of help ask: completions, man pages. Read from a table; no command is imported."""
