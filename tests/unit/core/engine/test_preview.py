"""A preview says what a submission would do, and changes nothing."""

import random

import msgspec
import pytest

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.events import AttemptStopping, AttemptSuspending, Event, TaskPlaced
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.engine.preview import Preview, preview
from gpuyard.testing import ClusterStory, task
from gpuyard.testing.builders import TaskBuilder


def fingerprint(cluster: ClusterStory) -> bytes:
    return msgspec.json.encode(snapshot.dump(cluster.state))


def previews(cluster: ClusterStory, builder: TaskBuilder) -> Preview | Refusal:
    """Preview a task, and check that nothing has changed."""
    before, events = fingerprint(cluster), len(cluster.events)
    found = preview(cluster.state, builder.spec, cluster.now)
    assert fingerprint(cluster) == before
    assert len(cluster.events) == events
    return found


def foreseen(cluster: ClusterStory, builder: TaskBuilder) -> Preview:
    found = previews(cluster, builder)
    assert isinstance(found, Preview), found
    return found


@pytest.fixture
def cluster() -> ClusterStory:
    cluster = ClusterStory()
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    return cluster


def test_a_task_that_fits_would_start_now_on_these_gpus(cluster: ClusterStory) -> None:
    found = foreseen(cluster, task("a", gpus=2))
    assert found.placement is not None
    assert found.charge_milli == 2000
    cluster.submits(task("a", gpus=2))
    assert cluster.gpus_of("a") == [(part.node, part.gpus) for part in found.placement.slices]


def test_a_task_that_does_not_fit_would_start_when_others_end(cluster: ClusterStory) -> None:
    cluster.submits(task("a", gpus=4, estimate=Estimate(100.0, 100.0, 100.0)))
    cluster.submits(task("b", gpus=4, estimate=Estimate(50.0, 50.0, 50.0)))
    found = foreseen(cluster, task("c"))
    assert (found.placement, found.ahead, found.starts_at) == (None, 1, 150.0)
    assert isinstance(found.reason, no.NoRoom | no.ReservedFor)
    cluster.submits(task("c"))
    assert cluster.explains("c").starts_at == 150.0


def test_a_task_that_no_node_can_hold_would_never_start(cluster: ClusterStory) -> None:
    assert foreseen(cluster, task("a", gpus=5)).never == no.NodeTooSmall(5, 4)


def test_a_task_above_its_limits_would_be_refused(cluster: ClusterStory) -> None:
    cluster.has_tenant("lab", max_gpus=1)
    assert isinstance(previews(cluster, task("a", gpus=2, tenant="lab")), no.QuotaForbids)


def test_a_task_would_wait_for_its_prerequisites_or_fail_with_them(cluster: ClusterStory) -> None:
    cluster.submits(task("a"), task("b"))
    after = TaskBuilder("c", msgspec.structs.replace(task("c").spec, after_success=(TaskId(1), TaskId(2))))
    assert foreseen(cluster, after).waits_for == 2
    cluster.finishes("b")
    assert foreseen(cluster, after).waits_for == 1
    cluster.fails("a")
    assert foreseen(cluster, after).fails_with == 1


def test_a_new_tenant_is_not_recorded(cluster: ClusterStory) -> None:
    assert foreseen(cluster, task("a", tenant="nobody")).placement is not None
    assert "nobody" not in cluster.state.tenants


@pytest.mark.parametrize("policy", sorted(name for name, policy in POLICIES.items() if not policy.advised))
@pytest.mark.parametrize("seed", range(6))
def test_what_was_foreseen_happens(policy: str, seed: int) -> None:
    chance = random.Random(f"{policy} {seed}")
    cluster = ClusterStory(policy=policy, preemption_min_run_seconds=0.0)
    cluster.is_split(online=chance.choice((0.0, 0.5)), mode=chance.choice((QuotaMode.STRICT, QuotaMode.BORROW)))
    cluster.has_nodes(2, gpus_each=4)
    cluster.has_tenant("red", max_gpus=5)
    for number in range(30):
        builder = _random_task(chance, f"t{number}")
        found = previews(cluster, builder)
        before = len(cluster.events)
        answer = cluster.submits(builder)
        if isinstance(found, Refusal):
            assert answer == found
        elif found.placement is not None:
            placed = {event.task: event.placement for event in _new(cluster, before) if isinstance(event, TaskPlaced)}
            if cluster.state.last_task in placed:
                assert placed[cluster.state.last_task] == found.placement
            else:  # a task that waited has got these GPUs in the same decision
                assert any(_overlap(found.placement, other) for other in placed.values())
        elif found.preempts:
            stopped = {
                event.task for event in _new(cluster, before) if isinstance(event, AttemptStopping | AttemptSuspending)
            }
            assert stopped >= set(found.preempts) or found.ahead  # only the first task of its kind is tried
        else:
            assert not any(
                isinstance(event, TaskPlaced) and event.task == cluster.state.last_task
                for event in _new(cluster, before)
            )
        cluster.passes(chance.choice((0.0, 1.0, 30.0)))


def _overlap(one: Placement, other: Placement) -> bool:
    return any(a.node == b.node and set(a.gpus) & set(b.gpus) for a in one.slices for b in other.slices)


def _new(cluster: ClusterStory, before: int) -> list[Event]:
    return [event for _, event in cluster.events[before:]]


def _random_task(chance: random.Random, name: str) -> TaskBuilder:
    seconds = chance.choice((None, 10.0, 100.0))
    return task(
        name,
        gpus=chance.choice((1, 1, 2, 4, 5)),
        tenant=chance.choice(("red", "green")),
        runs_for=chance.choice((5.0, 60.0)),
        online=chance.random() < 0.5,
        priority=chance.choice((10, 50, 90)),
        estimate=None if seconds is None else Estimate(seconds, seconds, seconds),
        preemption=chance.choice((Preemption.NEVER, Preemption.REQUEUE)),
    )
