"""Policies: the order of the queue. One file for each policy, and a registry below; docs/howto/add_a_policy.md shows how.

A policy consists of up to six pure functions:

- `key(task, now, settings)`: the position of a waiting task; the smallest key is first. It is computed when the task is
  queued and must not depend on `now` while the task waits, so a policy with aging uses the submission time, not the
  waiting time.
- `tenant_key(usage, now, settings)`: sorts before the key, and may change at any time (fair share). `usage` is a
  `TenantUsage`.
- `rank(task, now, settings)`: how readily a task is preempted. A waiting task may preempt running tasks whose rank
  exceeds its own by more than `margin`, the highest rank first.
- `gained(task, settings)`: by how much the rank falls when the task starts, if it does. A task that waits with a rank
  that its running self would not have may not be placed on nodes that are reserved for another.
- `spares(waiting, running)`: whether a waiting task may not preempt a running one although its rank would allow it. It must
  depend only on what is fixed at submission and on priorities.
- `changes_at(running, now, settings)`: the time at which the rank of a running task rises next without an event.

A policy with `advised` consults an advisor, which looks at the current state and chooses among several candidates
(gpuyard.core.engine.scheduling.advice).
"""

from gpuyard.core.engine.policies import (
    default,
    dqn,
    fair_share,
    fifo,
    priority,
    qssf,
    sjf,
    small_first,
    srtf,
    tiresias,
)
from gpuyard.core.engine.policies.policy import Policy

POLICIES: dict[str, Policy] = {
    "default": default.POLICY,
    "fifo": fifo.POLICY,
    "priority": priority.POLICY,
    "fair_share": fair_share.POLICY,
    "sjf": sjf.POLICY,
    "qssf": qssf.POLICY,
    "srtf": srtf.POLICY,
    "tiresias": tiresias.POLICY,
    "small_first": small_first.POLICY,
    "dqn": dqn.POLICY,
}
