"""The legacy API below /api, for clients of an older single-machine GPU scheduler: the same tasks with its names."""
