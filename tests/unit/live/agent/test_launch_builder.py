"""Converting a launch of the scheduler to one of this node."""

import os
from pathlib import Path

import pytest

from gpuyard.live.agent.checkpoints import CheckpointFolders
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


def builder(tmp_path: Path, **more: object) -> LaunchBuilder:
    return LaunchBuilder(
        "node-1", CARDS, Identities({}, True), tmp_path / "output",
        output_limit_bytes=1, grace_seconds=10.0, checkpoints=CheckpointFolders(tmp_path / "checkpoints"), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def launched(launch_builder: LaunchBuilder, attempt: int, **fields: object) -> messages.Launch:
    asked = pb.Launch(argv=["true"], tenant="team", **fields)  # type: ignore[arg-type]
    launch = launch_builder.launch(messages.AttemptKey(7, attempt), asked)
    assert isinstance(launch, messages.Launch)
    return launch


@pytest.mark.parametrize(("own", "seconds"), [(0.0, 10.0), (90.5, 90.5), (0.25, 0.25)])
def test_an_attempt_has_the_grace_of_its_task_or_of_the_node(tmp_path: Path, own: float, seconds: float) -> None:
    launch = launched(builder(tmp_path), 1, grace_seconds=own)
    assert launch.grace_seconds == seconds
    assert launch.env["GPUYARD_GRACE_SECONDS"] == f"{seconds:g}"


def test_an_attempt_knows_how_often_and_why_its_task_was_restarted(tmp_path: Path) -> None:
    first, third = launched(builder(tmp_path), 1), launched(builder(tmp_path), 3, restart_reason="preempted")
    assert first.env["GPUYARD_RESTART_COUNT"] == "0"
    assert "GPUYARD_RESTART_REASON" not in first.env
    assert (third.env["GPUYARD_RESTART_COUNT"], third.env["GPUYARD_RESTART_REASON"]) == ("2", "preempted")


def test_all_attempts_of_a_task_have_the_same_checkpoint_folder(tmp_path: Path) -> None:
    here, there = builder(tmp_path), builder(tmp_path)
    folders = {launched(node, attempt, submitted_us=5).checkpoint_dir for node in (here, there) for attempt in (1, 2)}
    (folder,) = folders
    assert folder.startswith(str(tmp_path / "checkpoints"))
    assert launched(here, 1, submitted_us=5).env["GPUYARD_CHECKPOINT_DIR"] == folder
    assert launched(here, 1, submitted_us=6).checkpoint_dir != folder, "another task with the same number"


def test_a_lease_and_a_launch_of_an_older_scheduler_have_no_checkpoint_folder(tmp_path: Path) -> None:
    lease = builder(tmp_path).launch(messages.AttemptKey(7, 1), pb.Launch(lease=True, tenant="team", submitted_us=5))
    assert isinstance(lease, messages.Launch)
    for launch in (lease, launched(builder(tmp_path), 1)):
        assert launch.checkpoint_dir == ""
        assert "GPUYARD_CHECKPOINT_DIR" not in launch.env
