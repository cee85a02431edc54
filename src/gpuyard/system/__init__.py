"""Small operating-system helpers: atomic file replacement, lock files, exponential backoff. No gpuyard logic."""
