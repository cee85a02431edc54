"""The waiting queue: who waits, in which order, and for which wake-up."""
