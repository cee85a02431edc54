"""The loops that have to be quick, compiled by Numba: numbers in columns go in, numbers in columns come out.

Compiled code is kept beside the source, so that only the first call on a machine waits for the compiler. Nothing here
uses fast-math, threads or the platform's logarithms: the same columns give the same plan everywhere.
"""
