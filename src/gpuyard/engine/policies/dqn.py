"""Shortest remaining time first, with a learned adviser who may hold a task back for GPUs on which it is faster.

Promise: as `srtf`, and where tasks can not be stopped and GPUs are of several models, the mean time to completion is lower: a
task does not begin on slow GPUs what it would have finished sooner on fast ones, and tasks that want the same GPUs are weighed
against each other (gpuyard.engine.advice). A model says which choice is better, and a guard keeps to `srtf` where that is not
sure. docs/manual/learning.md has the figures, and how to train a model on workloads of your own.
Choose it for yards with several GPU models and tasks that say how fast they are there (`gpu_speeds`), with backfill
`greedy`: while nodes are promised to anybody nobody is asked. Tasks that may be stopped are treated as by `srtf`. Like
there, long tasks can wait for ever while short ones keep coming. Without a model it is `srtf`.
Reference: Mnih et al., "Human-level control through deep reinforcement learning", 2015; Wang et al., "Dueling Network
Architectures for Deep Reinforcement Learning", 2016.
"""

from gpuyard.engine.policies import srtf
from gpuyard.engine.policies.policy import Policy

POLICY: Policy = Policy(
    "dqn", starts_all=False, key=srtf.POLICY.key, rank=srtf.POLICY.rank, margin=srtf.POLICY.margin, advised=True
)
