"""Decides: values, placement, the engine and its journal. No clock, no chance; only the journal touches a disk."""
