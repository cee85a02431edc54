"""A job of a workload: its request and its real run time."""

from typing import NamedTuple

from gpuyard.core.domain.values import MILLI
from gpuyard.core.placement.speeds import Speeds


class Job(NamedTuple):
    """One row of a workload."""

    submit: float
    """Submission time, in seconds since the workload began."""
    seconds: float
    """Run time without interruption."""
    gpus: int
    user: str = ""
    pool: str = ""
    """The pool of the cluster it may run in; empty means all of them."""
    name: str = ""
    """The user's name for it; the same name suggests the same program."""
    fraction_milli: int = MILLI
    """Share of its GPU that it requests, in thousandths; less than all only for a job with one GPU."""
    models: tuple[str, ...] = ()
    """GPU models it can run on; empty means all."""
    speeds: Speeds = ()
    """Relative speed on GPU models; `seconds` is the time on the fastest. Empty means equal on all."""
    command: str = ""
    """Its command line, by which similar jobs without a name are recognized; empty: not recorded."""
