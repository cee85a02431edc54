"""Clients of the legacy API work unchanged; leases are tasks."""

import pytest

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import NodeId, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.rest.legacy.messages import (
    device_numbers,
    in_legacy_words,
    read_legacy_task,
    task_request_of,
)
from gpuyard.live.wire.answers import read_lease, read_quota, read_user, task_of_lease
from gpuyard.live.wire.tasks import specs_of

LEGACY_REQUEST = b'{"tenant_id":"tenant-1","name":"test-task","gpu_request":1,"memory_mb":4096,"priority":50}'


def test_a_legacy_request_is_a_lease_with_gpu_memory() -> None:
    [task] = specs_of(task_request_of(read_legacy_task(LEGACY_REQUEST)), default_tenant="default")
    assert task == TaskSpec(TenantId("tenant-1"), Resources(gpus=1, gpu_memory_mib=4096), name="test-task", priority=50)
    assert task.command is None


def test_empty_fields_of_a_go_client_mean_nothing_was_requested() -> None:
    body = b'{"tenant_id":"","name":"","description":"","gpu_request":2,"memory_mb":0,"priority":1,"timeout":0}'
    [task] = specs_of(task_request_of(read_legacy_task(body)), default_tenant="own", default_timeout=60)
    assert task == TaskSpec(TenantId("own"), Resources(gpus=2), priority=1, timeout_seconds=60)


def test_a_limit_names_the_field_as_the_legacy_api_does() -> None:
    with pytest.raises(WrongRequest) as raised:
        specs_of(task_request_of(read_legacy_task(LEGACY_REQUEST)), default_tenant="a", max_gpu_memory_mib=1000)
    wrong = in_legacy_words(raised.value)
    assert wrong.field == "memory_mb"
    assert "memory_mb is 4096" in str(wrong)
    assert "gpu_memory_mb" not in str(wrong)


@pytest.mark.parametrize("body", [b'{"priority": 0}', b'{"priority": 101}', b'{"gpu_request": 0}', b'{"gpu_count": 1}'])
def test_invalid_requests_are_reported_in_one_sentence(body: bytes) -> None:
    with pytest.raises(WrongRequest):
        read_legacy_task(body)


def test_devices_are_numbered_across_nodes_and_on_one_machine_by_its_own_numbers() -> None:
    card = Gpu("T4", 16_384)
    numbers = device_numbers([NodeSpec(NodeId("b"), (card,) * 4), NodeSpec(NodeId("a"), (card,) * 2)])
    assert numbers == {"a": 0, "b": 2}


def test_a_lease_is_a_task_with_no_command() -> None:
    lease = read_lease(b'{"gpu_count": 2, "timeout": 60, "class": "online"}')
    [task] = specs_of(task_of_lease(lease), default_tenant="a")
    assert (task.resources.gpus, task.timeout_seconds, task.command, task.task_class) == (2, 60, None, "online")


def test_a_quota_and_a_password_have_bounds() -> None:
    with pytest.raises(WrongRequest, match="a fraction from 0 to 1"):
        read_quota(b'{"online_percent": 70}')
    with pytest.raises(WrongRequest) as wrong:
        read_user(b'{"username": "a", "password": "short"}')
    assert "short" not in str(wrong.value)
