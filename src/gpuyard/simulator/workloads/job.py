"""A job: what somebody once submitted to some cluster, and how long it really ran."""

from typing import NamedTuple

from gpuyard.core.domain.values import MILLI
from gpuyard.core.placement.speeds import Speeds


class Job(NamedTuple):
    """One row of a workload."""

    submit: float
    """Seconds since the workload began."""
    seconds: float
    """How long it runs where nothing disturbs it."""
    gpus: int
    user: str = ""
    pool: str = ""
    """The part of the cluster it may run in; empty: all of it."""
    name: str = ""
    """What users call it; the same name again is a hint that it is the same program."""
    fraction_milli: int = MILLI
    """How much of its GPU it asks for, in thousandths; less than all only where it asks for one."""
    models: tuple[str, ...] = ()
    """GPU models it can run on; empty: all."""
    speeds: Speeds = ()
    """How fast it is on GPU models; `seconds` are those on the fastest. Empty: as fast on all."""
