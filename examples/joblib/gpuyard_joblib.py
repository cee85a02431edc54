"""A joblib backend that runs each batch of calls as a task of a gpuyard cluster.

    from gpuyard_joblib import on_cluster

    with on_cluster(gpus=1, timeout="1h"):
        results = joblib.Parallel(n_jobs=8)(joblib.delayed(train)(seed) for seed in range(100))

n_jobs is the number of tasks at a time; -1 means 1,000. scikit-learn and other libraries that use joblib need no change.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import joblib
from joblib.parallel import ParallelBackendBase

import gpuyard

NAME = "gpuyard"
ALL_JOBS = 1000


class GpuyardBackend(ParallelBackendBase):
    """Submits to the executor of a cluster. `fields` are those of a task."""

    supports_retrieve_callback = True

    def __init__(self, cluster=None, nesting_level=None, inner_max_num_threads=None, **fields):
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self.executor = (cluster or gpuyard.connect()).executor(**fields)

    def effective_n_jobs(self, n_jobs):
        return ALL_JOBS if n_jobs is None or n_jobs < 0 else max(1, n_jobs)

    def configure(self, n_jobs=1, parallel=None, **_):
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func, callback=None):
        future = self.executor.submit(run, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out):
        return out.result()

    def abort_everything(self, ensure_ready=True):  # noqa: ARG002 - joblib passes it
        """Stop what runs after one call has failed; joblib goes on with the same backend."""
        for future in self.executor.open_futures():
            future.cancel()


def run(batch):
    return batch()


@contextmanager
def on_cluster(cluster=None, n_jobs=-1, **fields) -> Iterator[None]:
    """Run what joblib runs in this block on a cluster."""
    joblib.register_parallel_backend(NAME, GpuyardBackend)
    with joblib.parallel_config(backend=NAME, n_jobs=n_jobs, cluster=cluster, **fields):
        yield
