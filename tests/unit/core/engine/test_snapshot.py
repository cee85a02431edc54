"""The state as a document: round trip, and one sentence when it is damaged."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.tenant import Budget, QuotaMode
from gpuyard.core.domain.values import GpuHealth, Preemption
from gpuyard.core.engine import snapshot
from gpuyard.testing import ClusterStory, cpu_task, gang, node, share, task


@cache
def document() -> bytes:
    """Of a cluster with something of everything."""
    cluster = ClusterStory(backfill="conservative", preemption_min_run_seconds=0.0)
    cluster.is_split(online=0.0, mode=QuotaMode.BORROW)
    cluster.has_tenant("lab", max_gpus=6, max_gpus_by_model=(("T4", 1),), budget=Budget(5.0, 1e5), weight=2.0)
    cluster.has_nodes(2, gpus_each=4)
    cluster.has_node(node("desk", gpus=2, model="T4", rack="r"))
    cluster.submits(task("nap", gpus=2, preemption=Preemption.SUSPEND, memory_mib=100, priority=0))
    cluster.tells(command.SuspendTask(cluster.numbers["nap"]))
    cluster.submits(gang("pair", members=2, gpus_each=2, estimate=100), share("part", fraction=0.3, tenant="lab"))
    cluster.submits(task("done"), task("broken", retries=1), cpu_task("host", cpus=4))
    cluster.passes(5)
    cluster.finishes("done")
    cluster.fails("broken")
    cluster.submits(task("large", gpus=4, estimate=50), task("after", after=("large",)), task("held", gpus=4))
    cluster.holds("held")
    cluster.gpu_becomes("node-1", 3, GpuHealth.EXTERNAL)
    cluster.cordons("desk")
    cluster.submits(task("promised", gpus=3, estimate=50))
    assert cluster.state.reservations
    return msgspec.json.encode(snapshot.dump(cluster.state))


def test_a_round_trip_is_identical_byte_for_byte() -> None:
    state = snapshot.load(msgspec.json.decode(document()))
    assert msgspec.json.encode(snapshot.dump(state)) == document()
    again = snapshot.load(snapshot.dump(state))
    assert msgspec.json.encode(snapshot.dump(again)) == document()


def test_the_demand_of_open_tasks_is_restored() -> None:
    state = snapshot.load(msgspec.json.decode(document()))
    asked = dict(state.demand.asks())
    assert sum(asked.values()) == sum(task.spec.resources.nodes for task in state.tasks.values()) > 0


def test_a_document_is_not_changed_by_loading_it() -> None:
    plain = msgspec.json.decode(document())
    snapshot.load(plain)
    assert msgspec.json.encode(plain) == document()


def _without(field: str) -> Callable[[dict[str, Any]], None]:
    return lambda plain: plain.pop(field)


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Put the last item where the others lead."""

    def change(plain: dict[str, Any]) -> None:
        *way, name, value = path
        inner: Any = plain
        for step in way:
            inner = inner[step]
        inner[name] = value

    return change


DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    **{
        f"no {field.encode_name}": _without(field.encode_name)
        for field in msgspec.structs.fields(snapshot.SnapshotDocument)
        if field.required
    },
    "another format": _set("format", 2),
    "a word for a number": _set("now", "noon"),
    "an unknown phase": _set("tasks", 0, "phase", "phase", "Dreaming"),
    "an unknown status": _set("ended", [[1, "lucky"]]),
    "a negative number of GPUs": _set("nodes", 0, "spec", "gpus", -1),
    "an unknown health": _set("nodes", 0, "health", {"0": "tired"}),
    "a task without its description": _set("tasks", 0, "spec", None),
    "a reservation for a task that is not there": _set("holds", 0, "made", "task", 999),
}
DEEP_DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    "an unknown policy": _set("settings", "policy", "astrology"),
    "a task on a node that is not there": _set("nodes", []),
    "the health of an unknown GPU": _set("nodes", 0, "health", {"99": "offline"}),
    "a GPU allocated twice": _set("tasks", 1, "phase", "placement", "slices", 1, "node", "node-1"),
}


def test_a_snapshot_of_a_version_without_bookings_is_read() -> None:
    plain = msgspec.json.decode(document())
    before = dict(plain)
    del plain["bookings"], plain["last_booking"]
    assert snapshot.dump(snapshot.load(plain)) == snapshot.dump(snapshot.load(before))


@pytest.mark.parametrize(
    "damage",
    [
        *DAMAGE.values(),
        *DEEP_DAMAGE.values(),
    ],
    ids=[*DAMAGE, *DEEP_DAMAGE],
)
def test_a_damaged_document_is_reported_in_one_sentence(damage: Callable[[dict[str, Any]], None]) -> None:
    plain = msgspec.json.decode(document())
    damage(plain)
    with pytest.raises(GpuyardError) as caught:
        snapshot.load(plain)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
