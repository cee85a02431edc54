"""The agent of a node: its GPUs, the tasks that run on it, and the connection to the scheduler."""
