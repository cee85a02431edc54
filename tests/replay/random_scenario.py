"""A random scenario drawn from a seed: the same seed gives the same scenario in any process.

    python -m tests.replay.random_scenario SEED STEPS

prints the SHA-256 of all its events, and of what they add up to.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any

import msgspec

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.tenant import Budget, QuotaMode
from gpuyard.core.domain.values import GpuHealth, NodeId, Outcome, Preemption
from gpuyard.core.engine.phases import ACTIVE
from gpuyard.core.engine.policies import POLICIES
from gpuyard.testing import ClusterStory, TaskBuilder, cpu_task, gang, node, share, task
from tests.replay.recovery import document

TENANTS = ("red", "green", "blue")


class RandomScenario:
    """A story of random steps."""

    def __init__(
        self, seed: int, *, policy: str | None = None, unpredictable: bool = False, kinds: bool = False
    ) -> None:
        self.draw = Random(seed)
        self.count = 0
        self.unpredictable = unpredictable
        """Whether every second task is marked as unpredictable."""
        self.kinds = kinds
        """Whether all tasks are of two kinds, one of which comes closer to its end while it runs."""
        drawn = self.draw.choice(sorted(POLICIES))
        settings: dict[str, Any] = {"policy": policy or drawn, "preemption_min_run_seconds": 20.0}
        backfill = self.draw.choice(("none", "greedy", "easy", "conservative"))
        self.story = ClusterStory(backfill=backfill, **settings)
        for place in range(4):
            model = self.draw.choice(("A100", "H100"))
            gpus = self.draw.choice((0, 2, 4, 8))
            self.story.has_node(node(f"n{place}", gpus=gpus, model=model, cpus=16, rack=f"r{place % 2}"))

    def takes_steps(self, steps: int, after_each: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            self.draw.choice(STEPS)(self)
            after_each()

    def submits(self) -> None:
        self.count += 1
        draw, name = self.draw, f"t{self.count}"
        more: dict[str, Any] = {
            "tenant": draw.choice(TENANTS),
            "online": draw.random() < 0.4,
            "priority": draw.choice((0, 50, 100)),
            "preemption": draw.choice(list(Preemption)),
            "estimate": draw.choice((None, Estimate(60.0, 30.0, 120.0))),
            "runs_for": draw.choice((None, 15.0, 80.0)),
            "unpredictable": self.unpredictable and self.count % 2 == 0,
            "retries": draw.choice((0, 2)),
            "timeout_seconds": draw.choice((None, 50.0)),
            "after_any": (draw.choice(sorted(self.story.numbers)),)
            if self.story.numbers and draw.random() < 0.2
            else (),
        }
        kinds: tuple[Callable[[], TaskBuilder], ...] = (
            lambda: task(name, gpus=draw.choice((1, 1, 2, 4, 8)), **more),
            lambda: gang(name, members=2, gpus_each=draw.choice((1, 2)), **more),
            lambda: share(name, fraction=draw.choice((0.25, 0.5)), **more),
            lambda: cpu_task(name, cpus=draw.choice((2, 8)), **more),
        )
        if draw.random() < 0.3:
            self.story.submits_many(4, self._of_a_kind(kinds[0]()))
        else:
            self.story.submits(self._of_a_kind(draw.choice(kinds)()))

    def _of_a_kind(self, built: TaskBuilder) -> TaskBuilder:
        if not self.kinds:
            return built
        name, levels = (("sweep", (2, 1)), ("trial", (0, 1, 2)))[self.count % 2]
        spec = msgspec.structs.replace(built.spec, user="ada", name=name, remaining_time_levels=levels)
        return replace(built, spec=spec)

    def asks(self) -> None:
        kinds = (command.CancelTask, command.HoldTask, command.ReleaseTask, command.SuspendTask, command.ResumeTask)
        if self.story.state.tasks:
            number = self.draw.choice(sorted(self.story.state.tasks))
            self.story.tells(self.draw.choice(kinds)(number))

    def ends(self) -> None:
        active = [one for one in self.story.state.tasks.values() if isinstance(one.phase, ACTIVE)]
        if active:
            one = self.draw.choice(active)
            self.story.tells(command.ReportEnded(one.id, one.attempts, self.draw.choice(list(Outcome)), 1))

    def changes_a_node(self) -> None:
        kinds = (
            command.LoseNode, command.ReturnNode, command.ReturnNode, command.CordonNode, command.UncordonNode,
            command.UncordonNode,
        )  # fmt: skip
        self.story._limits_lowered = True
        self.story.tells(self.draw.choice(kinds)(NodeId(f"n{self.draw.randrange(4)}")))

    def changes_a_card(self) -> None:
        self.story._limits_lowered = True
        where, gpu = NodeId(f"n{self.draw.randrange(4)}"), self.draw.randrange(4)
        self.story.tells(command.SetGpuHealth(where, gpu, self.draw.choice(list(GpuHealth))))

    def limits(self) -> None:
        self.story.has_tenant(
            self.draw.choice(TENANTS),
            max_gpus=self.draw.choice((None, 2, 6)),
            guaranteed_gpus=self.draw.choice((None, 1)),
            budget=self.draw.choice((None, Budget(0.05, 400.0))),
            weight=self.draw.choice((1.0, 3.0)),
        )

    def splits(self) -> None:
        self.story.is_split(online=self.draw.choice((0.3, 0.5)), mode=self.draw.choice(list(QuotaMode)))

    def waits(self) -> None:
        self.story.passes(self.draw.choice((1.0, 10.0, 60.0)))


STEPS: tuple[Callable[[RandomScenario], None], ...] = (
    *(RandomScenario.submits,) * 6, *(RandomScenario.waits,) * 5, *(RandomScenario.ends,) * 2, *(RandomScenario.asks,) * 2,
    RandomScenario.changes_a_node, RandomScenario.changes_a_card, RandomScenario.limits, RandomScenario.splits,
)  # fmt: skip


def fingerprint(scenario: RandomScenario) -> tuple[str, str]:
    """Of all events with their instants, and of the state at the end."""
    events = sha256()
    for at, event in scenario.story.events:
        events.update(msgspec.json.encode((at, event)))
    return events.hexdigest(), sha256(document(scenario.story.state)).hexdigest()


if __name__ == "__main__":
    lived = RandomScenario(int(sys.argv[1]))
    lived.takes_steps(int(sys.argv[2]))
    print(*fingerprint(lived))
