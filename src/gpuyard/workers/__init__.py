"""WHO HOLDS THE MODELS: workers that load, hold, unload and call models for a plan: local processes, Ray actors."""
