"""002's clients work as they are; leases are tasks."""

import msgspec
import pytest

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import NodeId, TaskId, TaskStatus, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.wire.answers import read_lease, read_quota, read_user, task_of_lease
from gpuyard.live.wire.dialect import device_numbers, dialect_answer_of, dialect_spec_of, read_dialect_task
from gpuyard.live.wire.tasks import specs_of

CURL_OF_002 = b'{"tenant_id":"tenant-1","name":"test-task","gpu_request":1,"memory_mb":4096,"priority":50}'


def test_the_request_of_002_is_a_lease_with_gpu_memory() -> None:
    task = dialect_spec_of(read_dialect_task(CURL_OF_002), default_tenant="default")
    assert task == TaskSpec(TenantId("tenant-1"), Resources(gpus=1, gpu_memory_mib=4096), name="test-task", priority=50)
    assert task.command is None


def test_what_a_go_client_sends_for_fields_nobody_set_means_nothing_was_asked() -> None:
    body = b'{"tenant_id":"","name":"","description":"","gpu_request":2,"memory_mb":0,"priority":1,"timeout":0}'
    task = dialect_spec_of(read_dialect_task(body), default_tenant="own", default_timeout=60)
    assert task == TaskSpec(TenantId("own"), Resources(gpus=2), priority=1, timeout_seconds=60)


def test_a_limit_speaks_of_the_field_as_the_dialect_calls_it() -> None:
    with pytest.raises(WrongRequest, match="memory_mb is 4096") as wrong:
        dialect_spec_of(read_dialect_task(CURL_OF_002), default_tenant="a", max_gpu_memory_mib=1000)
    assert wrong.value.field == "memory_mb"
    assert "gpu_memory_mb" not in str(wrong.value)


@pytest.mark.parametrize("body", [b'{"priority": 0}', b'{"priority": 101}', b'{"gpu_request": 0}', b'{"gpu_count": 1}'])
def test_what_is_wrong_gets_a_sentence(body: bytes) -> None:
    with pytest.raises(WrongRequest):
        read_dialect_task(body)


def test_devices_are_numbered_through_and_on_one_machine_as_it_numbers_them() -> None:
    card = Gpu("T4", 16_384)
    numbers = device_numbers([NodeSpec(NodeId("b"), (card,) * 4), NodeSpec(NodeId("a"), (card,) * 2)])
    assert numbers == {"a": 0, "b": 2}
    placement = Placement((Slice(NodeId("a"), (1,)), Slice(NodeId("b"), (0, 3)), Slice(NodeId("gone"), (0,))))
    told = dialect_answer_of(
        TaskId(3), TaskSpec(TenantId("t"), Resources(gpus=1, gpu_memory_mib=5)), status=TaskStatus.RUNNING, priority=9,
        submitted_at=0, started_at=1, finished_at=None, placement=placement, numbers=numbers, created_by="alice",
    )  # fmt: skip
    assert msgspec.to_builtins(told) == {
        "id": "task-3", "tenant_id": "t", "name": "", "description": "", "gpu_request": 1, "memory_mb": 5,
        "priority": 9, "status": "running", "created_at": "1970-01-01T00:00:00.000000Z",
        "started_at": "1970-01-01T00:00:01.000000Z", "finished_at": None, "device_ids": [1, 2, 5], "timeout": 0,
        "created_by": "alice",
    }  # fmt: skip


def test_a_lease_is_a_task_with_no_command() -> None:
    lease = read_lease(b'{"gpu_count": 2, "timeout": 60, "class": "online"}')
    [task] = specs_of(task_of_lease(lease), default_tenant="a")
    assert (task.resources.gpus, task.timeout_seconds, task.command, task.task_class) == (2, 60, None, "online")


def test_a_quota_and_a_password_have_bounds() -> None:
    with pytest.raises(WrongRequest, match="a part from 0 to 1"):
        read_quota(b'{"online_percent": 70}')
    with pytest.raises(WrongRequest) as wrong:
        read_user(b'{"username": "a", "password": "short"}')
    assert "short" not in str(wrong.value)
