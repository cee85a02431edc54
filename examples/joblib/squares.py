"""Run with a scheduler at GPUYARD_SERVER: python squares.py"""

import math

import joblib
from gpuyard_joblib import on_cluster


def root(n):
    if n < 0:
        raise ValueError(f"{n} has no square root")
    return math.sqrt(n)


if __name__ == "__main__":
    with on_cluster(cpu_count=1, n_jobs=4):
        print(joblib.Parallel()(joblib.delayed(root)(n * n) for n in range(8)))
        try:
            joblib.Parallel()(joblib.delayed(root)(n) for n in (4, -1, 9))
        except ValueError as error:
            print("raised:", error)
