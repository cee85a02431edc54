"""Public test helpers: builders, stories, and in-memory partners that obey the same contracts as the real ones.

    from gpuyard.testing import ClusterStory, task

    def test_a_task_runs():
        cluster = ClusterStory()
        cluster.has_nodes(1, gpus_each=4)
        cluster.submits(task("train", gpus=4))
        assert cluster.is_running("train")

A story checks every invariant after each step, so a test only states its own subject.
"""

from gpuyard.core.journal.stores.memory import MemoryJournal
from gpuyard.live.pool.memory import MemoryProvider
from gpuyard.simulator.world import TaskBehavior, World
from gpuyard.testing.builders import TaskBuilder, cpu_task, gang, node, share, task
from gpuyard.testing.full_journal import FullJournal
from gpuyard.testing.story import ClusterStory

__all__ = [
    "ClusterStory",
    "FullJournal",
    "MemoryJournal",
    "MemoryProvider",
    "TaskBehavior",
    "TaskBuilder",
    "World",
    "cpu_task",
    "gang",
    "node",
    "share",
    "task",
]
