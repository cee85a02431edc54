"""Data that the scheduler keeps on disk in addition to the journal, and recovery from it."""
