"""A node that knows the join token may report anything: the engine's books still add up, and the events give the same state."""

import random
from collections.abc import Iterator

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.refusals import AttemptElsewhere, AttemptNeverPlaced, Refusal
from gpuyard.core.domain.task import NewTask
from gpuyard.core.domain.values import AttemptRef, NodeId, OnLost, Outcome, Preemption, TaskId
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.phases import ACTIVE, Placed
from gpuyard.core.engine.state import State
from gpuyard.testing import ClusterStory, gang, node, share, task

NODES = ("a", "b", "c")
ORIGIN = 77
STEPS = 120
SEEDS = 60
KINDS = (
    task("one"),
    task("two", gpus=2, cpus=2, memory_mib=10, preemption=Preemption.SUSPEND),
    task("stays", on_lost=OnLost.WAIT),
    share("part", fraction=0.5),
    gang("both", members=2, gpus_each=1),
)


@pytest.fixture
def cluster() -> ClusterStory:
    return ClusterStory()


def held(name: str, ref: AttemptRef, *gpus: int) -> command.JoinNode:
    """A node registers and reports that this attempt runs on these GPUs."""
    parts = ((ref, Slice(NodeId(name), gpus)),)
    return command.JoinNode(node(name, gpus=2), (ref,), (ref,), parts, complete=True)


def test_a_node_that_reports_an_attempt_of_another_node_is_refused_until_that_one_is_lost(
    cluster: ClusterStory,
) -> None:
    cluster.has_node(node("a", gpus=2))
    cluster.submits(task("runs", gpus=2))
    ref = AttemptRef(cluster.numbers["runs"], 1)
    assert cluster.tells(held("b", ref, 0, 1)) == AttemptElsewhere(NodeId("b"), *ref[:2], (NodeId("a"),))
    cluster.loses("a")
    assert not isinstance(cluster.tells(held("b", ref, 0, 1)), Refusal)
    assert cluster.state.orphaned_attempts.keys() == {"a", "b"}
    assert not cluster.is_running("runs")  # both GPUs of the only node that is left are in use


def test_an_attempt_that_two_nodes_report_is_taken_back_from_neither(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=2))
    cluster.submits(task("runs", gpus=2))
    ref = AttemptRef(cluster.numbers["runs"], 1)
    cluster.loses("a")
    cluster.tells(held("b", ref, 0, 1))
    cluster.tells(held("a", ref, 0, 1))
    assert not cluster.is_running("runs")
    assert cluster.state.tasks[ref.task].attempts == 1


def test_an_attempt_that_was_never_placed_does_not_admit_a_node(cluster: ClusterStory) -> None:
    cluster.submits(task("waits", gpus=2))
    for ref in (AttemptRef(cluster.numbers["waits"], 1), AttemptRef(TaskId(99), 1)):
        assert cluster.tells(held("a", ref, 0)) == AttemptNeverPlaced(NodeId("a"), *ref[:2])


class Life:
    """Random commands from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = Engine()
        self.twin = State()
        self.at = 1.0
        self.tell(command.CreateCluster("yard"))
        self.tell(command.BeginEpoch("1", 0, ORIGIN))
        for name in NODES:
            self.tell(command.JoinNode(node(name, gpus=4, cpus=8, memory_mib=100)))

    def tell(self, asked: command.Command) -> None:
        self.at += 1.0
        answer = self.engine.handle(asked, self.at)
        if isinstance(asked, command.JoinNode) and asked.complete and not isinstance(answer, Refusal):
            self.has_given_up_what_is_missing(asked)
        for event in () if isinstance(answer, Refusal) else answer:
            apply_recorded(self.twin, event, self.at)
        for event in self.engine.decide(self.at):
            apply_recorded(self.twin, event, self.at)
        invariants.check(self.engine.state)
        self.twin.now = self.engine.state.now
        assert snapshot.dump(self.twin) == snapshot.dump(self.engine.state)

    def has_given_up_what_is_missing(self, asked: command.JoinNode) -> None:
        """What a node should have and does not report is only what is yet to be launched: nothing else is asked for."""
        for held in self.engine.state.on_node[asked.node.id].values():
            ref = AttemptRef(held.id, held.attempts, held.origin)
            part_is_over = asked.node.id in (held.members or {})
            assert part_is_over or isinstance(held.phase, Placed) or ref in (*asked.attempts, *asked.ended)

    def commands(self) -> Iterator[command.Command]:
        draw = self.random
        for _ in range(STEPS):
            name, ref = NodeId(draw.choice(NODES)), self.ref()
            kind = draw.random()
            if kind < 0.2:
                number = TaskId(self.engine.state.last_task + 1)
                yield command.SubmitTasks((NewTask(number, draw.choice(KINDS).spec),))
            elif kind < 0.55:
                yield self.joining(name)
            elif kind < 0.65:
                yield command.LoseNode(name)
            elif kind < 0.7:
                yield command.ReturnNode(name, tuple(self.refs()), tuple(self.refs()))
            elif kind < 0.73:
                yield command.RemoveNode(name)
            elif kind < 0.85:
                yield command.ReportStarted(*ref[:2], draw.choice([None, name]), ref.origin)
            elif kind < 0.93:
                yield command.ReportEnded(*ref[:2], draw.choice(list(Outcome)), node=name, origin=ref.origin)
            elif kind < 0.96:
                yield command.SuspendTask(ref.task)
            else:
                yield command.ReportSuspended(*ref[:2], draw.choice([1, 1, 2]), draw.choice([None, name]), ref.origin)

    def joining(self, name: NodeId) -> command.JoinNode:
        draw = self.random
        refs = (*self.there(name), *(self.refs() if draw.random() < 0.5 else ()))
        parts = tuple((ref, self.part(name)) for ref in (*refs, *self.refs()))
        running = tuple(ref for ref in refs if draw.random() < 0.6)
        cpus, memory = draw.choice([(8, 100)] * 5 + [(16, 200), (4, 50)])
        return command.JoinNode(
            node(name, gpus=draw.choice([4, 4, 4, 4, 4, 2]), cpus=cpus, memory_mib=memory),
            refs,
            running,
            parts if draw.random() < 0.2 else tuple((ref, self.part(name)) for ref in refs),
            complete=draw.random() < 0.8,
            instance=draw.choice(["", "x", "y"]),
            ended=self.refs(),
        )

    def there(self, name: NodeId) -> tuple[AttemptRef, ...]:
        """Most of what an honest node would report."""
        state = self.engine.state
        if name not in state.index.hosts:
            return ()
        ours = [AttemptRef(task.id, task.attempts, task.origin) for task in state.on_node[name].values()]
        return tuple(ref for ref in (*ours, *state.presumed_on(name)) if self.random.random() < 0.8)

    def refs(self) -> tuple[AttemptRef, ...]:
        return tuple(self.ref() for _ in range(self.random.randrange(4)))

    def ref(self) -> AttemptRef:
        """Mostly an attempt that is, was or might be; sometimes an impossible one."""
        draw, state = self.random, self.engine.state
        tasks = list(state.tasks.values())
        if tasks and draw.random() < 0.8:
            active = [task for task in tasks if isinstance(task.phase, ACTIVE)]
            known = draw.choice(active if active and draw.random() < 0.7 else tasks)
            attempt = known.attempts + draw.choice([0] * 12 + [1, -1, 2])
            return AttemptRef(known.id, attempt, draw.choice([known.origin] * 6 + [ORIGIN, 0]))
        number = draw.choice([0, 1, state.last_task + 1, state.last_task + 2, 2**63])
        return AttemptRef(TaskId(number), draw.choice([0, 1, 1, 2, 2**32 - 1]), draw.choice([ORIGIN, ORIGIN, 5]))

    def part(self, name: NodeId) -> Slice:
        draw = self.random
        gpus = tuple(draw.choice([0, 0, 1, 1, 2, 9]) for _ in range(draw.randrange(3)))
        milli = draw.choice([1000, 1000, 999, 400, 0])
        return Slice(name, gpus, milli, draw.choice([0, 100]), draw.choice([0, 0, 4]), draw.choice([0, 0, 60]))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_any_registration_the_books_balance(seed: int) -> None:
    life = Life(seed)
    for asked in life.commands():
        life.tell(asked)
