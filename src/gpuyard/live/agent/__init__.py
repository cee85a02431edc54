"""ON THE NODE: its GPUs, the tasks that run on it, and the connection to the scheduler."""
