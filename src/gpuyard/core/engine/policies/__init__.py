"""Policies: the order of the queue. One policy a file, all of them in this dictionary; docs/howto/add_a_policy.md shows how.

A policy answers up to four questions, all of them pure:

- `key(task, now, settings)`: its place among the waiting, smallest first. It is asked when the task is queued and must
  be the same whenever it is asked while the task waits, so a policy with aging says "since when", not "for how long".
- `tenant_key(book, now, settings)`: comes before the key if there is one, and may change at any time (fair share).
- `rank(task, now, settings)`: how weakly it holds on to GPUs. A waiting task may stop running ones whose rank is higher
  than its own by more than `margin`, the highest first.
- `changes_at(running, now, settings)`: when does a running task's rank rise by itself?

A policy may also be `advised`: where there is a choice, somebody who looks at the present state is asked (gpuyard.core.engine.scheduling.advice).
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
