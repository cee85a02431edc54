"""The contract of worker pools, checked on actors of a given Ray cluster."""

import sys

from gpuyard.plan.workers.ray_actors import RayPool
from tests.contract.worker_pools import ECHO, PROMISES

if __name__ == "__main__":
    for promise in PROMISES:
        pool = RayPool(sys.argv[1], gpus=3, widest=2, runtimes=[ECHO])
        assert pool.hosts == [0, 0, 1]
        try:
            promise(pool)
        finally:
            pool.close()
        print(promise.__name__, flush=True)
