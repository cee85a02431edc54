"""Plans: offline workflows of model calls, planned, executed and served by workers."""
