"""A voter that is connected: it decides, with the other voters, which of the schedulers leads."""
