"""Tasks that declare a model are placed where it ran last, if that place is as good as others."""

from typing import Any

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.values import Preemption
from gpuyard.core.engine import snapshot
from gpuyard.testing import ClusterStory, node, task


def new_cluster(nodes: int = 3, gpus: int = 2, **settings: Any) -> ClusterStory:
    """Nodes `a`, `b`, … for batch work."""
    cluster = ClusterStory(**settings)
    cluster.is_split(online=0.0)
    for name in "abcdef"[:nodes]:
        cluster.has_node(node(name, gpus=gpus))
    return cluster


def ran(cluster: ClusterStory, name: str, model: str, where: str) -> None:
    """A task of a model ran on a node and ended."""
    for other in "abcdef":
        if other != where and other in cluster.state.index.hosts:
            cluster.cordons(other)
    cluster.submits(task(name, model_name=model))
    assert cluster.nodes_of(name) == (where,)
    cluster.finishes(name)
    for other in cluster.state.index.hosts:
        if other != where:
            cluster.uncordons(other)


@pytest.mark.parametrize("where", ["a", "b", "c"])
def test_a_task_is_placed_where_its_model_ran_last(where: str) -> None:
    cluster = new_cluster()
    ran(cluster, "first", "llama", where)
    cluster.submits(task("next", model_name="llama"))
    assert cluster.nodes_of("next") == (where,)


def test_on_its_node_a_task_gets_the_gpus_its_model_had() -> None:
    cluster = new_cluster(nodes=1, gpus=4)
    cluster.submits(*(task(name, gpus=2, model_name=name) for name in ("llama", "whisper")))
    had = {name: cluster.gpus_of(name) for name in ("llama", "whisper")}
    cluster.submits(*(task(f"more {name}", gpus=2, model_name=name) for name in ("whisper", "llama")))
    cluster.cordons("a")
    cluster.finishes("llama", "whisper")
    cluster.uncordons("a")
    assert {name: cluster.gpus_of(f"more {name}") for name in had} == had


def test_a_task_that_waited_gets_the_gpus_its_model_had_as_soon_as_they_are_free() -> None:
    cluster = new_cluster(nodes=1, gpus=6)
    cluster.submits(task("half of it", gpus=3), task("short"), task("llama", gpus=2, model_name="llama"))
    had = cluster.gpus_of("llama")
    cluster.finishes("short")
    cluster.submits(task("more", gpus=2, model_name="llama"))
    cluster.finishes("llama")
    assert cluster.gpus_of("more") == had


def test_with_the_setting_off_past_placements_do_not_matter() -> None:
    cluster = new_cluster(model_affinity=False)
    ran(cluster, "first", "llama", "a")
    cluster.submits(task("next", model_name="llama"))
    assert cluster.nodes_of("next") == ("c",)
    cluster.finishes("next")
    cluster.decides_by(model_affinity=True)
    ran(cluster, "again", "llama", "a")
    cluster.submits(task("last", model_name="llama"))
    assert cluster.nodes_of("last") == ("a",)
    cluster.finishes("last")
    cluster.decides_by(model_affinity=False)
    assert not cluster.state.index.model_cache.by_model


def test_a_suspended_task_takes_its_model_along() -> None:
    cluster = new_cluster(nodes=1, gpus=2)
    cluster.submits(task("llama", model_name="llama", preemption=Preemption.SUSPEND))
    cluster.tells(command.SuspendTask(cluster.numbers["llama"]))
    cluster.passes(60)
    cluster.submits(task("other"))
    cluster.tells(command.ResumeTask(cluster.numbers["llama"]))
    cluster.passes(60)
    resumed_on = cluster.gpus_of("llama")
    cluster.finishes("llama", "other")
    cluster.submits(task("next", model_name="llama"))
    assert cluster.gpus_of("next") == resumed_on


def test_a_snapshot_keeps_where_models_ran() -> None:
    cluster = new_cluster()
    ran(cluster, "first", "llama", "a")
    kept = snapshot.dump(cluster.state)
    loaded = snapshot.load(kept)
    assert snapshot.dump(loaded) == kept
    assert (
        loaded.index.model_cache.device_groups("team/llama")
        == cluster.state.index.model_cache.device_groups("team/llama")
        != 0
    )


def test_explain_shows_where_the_model_ran_last() -> None:
    cluster = new_cluster(nodes=2, gpus=1)
    ran(cluster, "first", "llama", "a")
    cluster.submits(task("one", model_name="llama"), task("two"))
    cluster.submits(task("waits", model_name="llama"), task("waits, too"))
    assert cluster.explains("waits").model_ran_on == ("a",)
    assert cluster.explains("waits, too").model_ran_on == ()
