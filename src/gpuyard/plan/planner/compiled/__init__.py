"""The inner loops, compiled by Numba: columns of numbers in, columns of numbers out.

Compiled code is cached next to the source, so only the first call on a machine waits for the compiler. Nothing here
uses fast-math, threads or the platform's logarithms: the same columns give the same plan everywhere.
"""
