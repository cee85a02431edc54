"""Converting a launch of the scheduler to one of this node."""

import os
from pathlib import Path

import pytest

from gpuyard.live.agent.identity import Identities
from gpuyard.live.agent.inventory import GpuDevice
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.wire import agents_pb2 as pb

CARDS = (GpuDevice(0, "GPU-a", "H200", 141_000), GpuDevice(1, "", "H200", 141_000, virtual=True))


@pytest.mark.parametrize(
    ("control_groups", "gpus", "held_in_a_group"),
    [
        ("auto", [0], True),
        ("auto", [1], False),
        ("auto", [], False),
        ("always", [1], True),
        ("always", [], True),
        ("never", [0], False),
    ],
)
def test_tasks_on_real_gpus_are_held_in_a_control_group(
    tmp_path: Path, control_groups: str, gpus: list[int], held_in_a_group: bool
) -> None:
    launch_builder = LaunchBuilder(
        "node-1", CARDS, Identities({}, True), tmp_path / "output",
        output_limit_bytes=1, grace_seconds=1.0, control_groups=control_groups,
    )  # fmt: skip
    launch = launch_builder.launch(messages.AttemptKey(1, 1), pb.Launch(argv=["true"], gpus=gpus, tenant="team"))
    assert isinstance(launch, messages.Launch)
    assert launch.cgroup is held_in_a_group


def test_a_lease_needs_no_system_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    launch_builder = LaunchBuilder(
        "node-1", CARDS, Identities({}, False, tmp_path / "tenant"), tmp_path / "output",
        output_limit_bytes=1, grace_seconds=1.0,
    )  # fmt: skip
    assert isinstance(
        launch_builder.launch(messages.AttemptKey(1, 1), pb.Launch(argv=["true"], gpus=[1], tenant="team")), str
    )
    lease = launch_builder.launch(messages.AttemptKey(2, 1), pb.Launch(lease=True, gpus=[1], tenant="team"))
    assert isinstance(lease, messages.Launch)
    assert lease.uid is None
