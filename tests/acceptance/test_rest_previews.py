"""`dry_run`: what a submission would do, without an effect on engine, journal, secrets or idempotency keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.core.domain.commands import SetSplit, SetTenant
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import TenantId
from gpuyard.core.engine import snapshot
from gpuyard.live.control_plane.access.principal import Role
from tests.acceptance.rest_cluster import Reply, RestCluster

TASKS, DRY = "/api/v1/tasks", "/api/v1/tasks?dry_run=true"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as cluster:
        cluster.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
        yield cluster


async def _fingerprint(cluster: RestCluster) -> tuple[bytes, Any]:
    dump = await cluster.scheduler.queries.look(lambda state, _: snapshot.dump(state))
    return msgspec.json.encode({**dump, "now": 0}), cluster.scheduler.stores.journal.head


def preview(cluster: RestCluster, token: str | None = None, **task: Any) -> Reply:
    """Preview a task, and check that engine and journal are the same before and after."""
    before = cluster.inside(lambda: _fingerprint(cluster))
    reply = cluster.ask("POST", DRY, {"gpu_count": 1, "command": "true", **task}, token=token, Idempotency_Key="k")
    assert cluster.inside(lambda: _fingerprint(cluster)) == before
    return reply


def test_a_task_that_fits_would_start_now(cluster: RestCluster) -> None:
    cluster.submit()
    reply = preview(cluster, gpu_count=2, secrets={"HF": "x"}, estimated_seconds=60)
    assert reply.status == 200
    told = reply.json
    assert (told["would_start"], told["node_id"], told["reason"]) == ("now", "n1", None)
    assert told["gpus"] == ["n1/1", "n1/2"]
    assert told["predicted"]["seconds"] == {"low": 60.0, "likely": 60.0, "high": 60.0}
    assert told["quota"]["before"]["class_used"] == 1.0
    assert told["quota"]["after"]["class_used"] == 3.0
    assert told["expected_start"]["likely"] is not None
    assert cluster.submit(gpu_count=2)["allocated_gpus"] in ([], told["gpus"])
    assert cluster.get(f"{TASKS}/2")["allocated_gpus"] == told["gpus"]
    first = cluster.ask("POST", TASKS, {"gpu_count": 1, "command": "false"}, Idempotency_Key="k")
    assert first.status == 201  # the key of the dry run was not used


def test_a_task_would_wait_behind_others(cluster: RestCluster) -> None:
    cluster.submit(gpu_count=4, estimated_seconds=3600)
    told = preview(cluster).json
    assert (told["would_start"], told["node_id"], told["gpus"]) == ("later", None, [])
    assert told["reason"].endswith(".")
    assert told["expected_start"]["likely"] is not None
    cluster.submit(gpu_count=4)
    unknown = preview(cluster, gpu_count=4).json
    assert unknown["ahead"] == 1
    assert unknown["expected_start"] == {"earliest": None, "likely": None, "latest": None}


def test_a_task_that_no_node_can_hold_would_never_start(cluster: RestCluster) -> None:
    told = preview(cluster, gpu_count=5).json
    assert (told["would_start"], told["reason_code"]) == ("never", "NodeTooSmall")
    assert told["expected_start"]["likely"] is None


def test_a_task_that_would_be_refused_is_refused(cluster: RestCluster) -> None:
    cluster.tell(SetTenant(Tenant(TenantId("lab"), max_gpus=1)))
    assert preview(cluster, gpu_count=2, tenant_id="lab").error["code"] == "QuotaForbids"
    wrong = preview(cluster, gpu_count=-1)
    assert (wrong.status, wrong.error["field"]) == (400, "gpu_count")
    assert preview(cluster, depends_on=["task-99"]).error["code"] == "UnknownDependency"
    assert preview(cluster, gpu_cuont=1).error["field"] == "gpu_cuont"
    assert cluster.ask("POST", f"{TASKS}?dry_run=maybe", {}).error["field"] == "dry_run"


def test_a_task_would_wait_for_its_dependencies(cluster: RestCluster) -> None:
    cluster.submit()
    told = preview(cluster, depends_on=["task-1"]).json
    assert (told["would_start"], told["reason"]) == ("later", "It would wait for 1 task that has to end first.")


def test_the_first_task_of_an_array_is_previewed(cluster: RestCluster) -> None:
    assert preview(cluster, array={"count": 3}).json["would_start"] == "now"
    assert cluster.get(TASKS)["total"] == 0


def test_a_member_previews_only_for_its_own_tenant(tmp_path: Path) -> None:
    with RestCluster(tmp_path, local=False) as cluster:
        mia, vera = cluster.token_of("mia", Role.MEMBER, "lab"), cluster.token_of("vera", Role.VIEWER, "lab")
        assert preview(cluster, mia).json["would_start"] == "now"
        assert preview(cluster, mia, tenant_id="shop").status == 403
        assert preview(cluster, vera).status == 403
        assert cluster.ask("POST", DRY, {}).status == 401
