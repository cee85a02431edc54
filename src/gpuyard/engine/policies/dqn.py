"""Shortest remaining time first, with a learned adviser who may hold a task back for GPUs on which it is faster."""

from gpuyard.engine.policies import srtf
from gpuyard.engine.policies.policy import Policy

POLICY: Policy = Policy(
    "dqn", starts_all=False, key=srtf.POLICY.key, rank=srtf.POLICY.rank, margin=srtf.POLICY.margin, advised=True
)
