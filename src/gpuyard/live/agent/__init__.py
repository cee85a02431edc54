"""ON THE NODE: what it has, what runs on it, and the line to the scheduler."""
