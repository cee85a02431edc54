"""Small tasks first: each requested GPU counts as an hour (6 × `aging_seconds`) later; then first come, first served.

Promise: many tasks run at the same time, and the mean completion time is low although no run times are given. Every task
starts eventually, because a finite wait makes up for each GPU: a task with eight GPUs is before a task with one GPU that
arrives seven hours later. It preempts nothing.
Choose it where run times are hours, unknown, and similar for small and large tasks. Where most tasks are short and
some very long, `default` is better; where run times are known, `srtf`. It does not consider priorities or tenants.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask

AGES_A_GPU = 6.0


def _key(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    ask = task.spec.resources
    gpus = ask.share.fraction_milli / MILLI if ask.share is not None else ask.gpus * ask.nodes
    return task.submitted_at + AGES_A_GPU * settings.aging_seconds * gpus


POLICY: Policy = Policy("small_first", starts_all=True, key=_key)
