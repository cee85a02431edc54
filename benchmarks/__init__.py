"""Benchmarks: one script per file, each with `--help`. README.md has the measured figures."""
