"""Small operating-system helpers: atomic file replacement, lock files, exponential backoff, GPU clocks. No gpuyard logic."""
