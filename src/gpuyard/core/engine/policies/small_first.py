"""Small tasks first: each GPU that a task asks for puts it back by an hour (6 × `aging_seconds`); then first come, first served.

Promise: more tasks run at once, and the mean time to completion is low although nobody says how long anything runs; and
nobody waits for ever, since each GPU is made up for by a finite wait: a task for eight goes before a task for one that comes
seven hours later. It stops nobody.
Choose it where run times are hours, unknown and much the same for small tasks and large ones. Where most tasks are short
and some very long, `default` is better, and where run times are known, `srtf`. It does not look at priorities or tenants.
"""

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import Task

AGES_A_GPU = 6.0


def _key(task: Task, now: float, settings: Settings) -> float:  # noqa: ARG001
    ask = task.spec.resources
    gpus = ask.share.fraction_milli / MILLI if ask.share is not None else ask.gpus * ask.nodes
    return task.submitted_at + AGES_A_GPU * settings.aging_seconds * gpus


POLICY: Policy = Policy("small_first", starts_all=True, key=_key)
