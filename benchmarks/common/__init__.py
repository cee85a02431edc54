"""Code that benchmarks share, and the naive versions they compare with."""
