"""Tools for people who work on gpuyard; no part of an installation."""
