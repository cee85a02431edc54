"""The agent's connection to its scheduler, tested with a fake one."""

import asyncio
import os
import pwd
import signal
import threading
import time
from pathlib import Path

import pytest

from gpuyard.live.agent import identity, link, main
from gpuyard.live.agent.outputs import path_of
from gpuyard.live.agent.settings import AgentSettings, load_agent_settings
from gpuyard.live.agent.supervisor import paths
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor_client import SupervisorDoesNotStart
from gpuyard.live.wire import agents_pb2 as pb
from tests.unit.live.agent.fake_scheduler import (
    PATIENCE_SECONDS,
    TOKEN,
    PlayedScheduler,
    fake_scheduler,
    meanwhile,
    node,
)
from tests.unit.live.agent.fake_smi import TWO_GPUS, fake_smi
from tests.unit.live.agent.supervised import parent_of


def settings_of(work_dir: Path, address: str, **more: str) -> AgentSettings:
    env = {
        "GPUYARD_AGENT__ID": "node-1",
        "GPUYARD_AGENT__JOIN_TOKEN": TOKEN,
        "GPUYARD_AGENT__HEARTBEAT_INTERVAL": "100ms",
        "GPUYARD_SCHEDULER__MASTER_ADDRESS": address,
        "GPUYARD_GPU__HEALTH_CHECK_INTERVAL": "100ms",
        "GPUYARD_EXECUTOR__WORK_DIR": str(work_dir),
    }
    return load_agent_settings(None, env | {f"GPUYARD_{key}": value for key, value in more.items()})


def test_a_node_that_cannot_measure_itself_still_sends_heartbeats(work_dir: Path) -> None:
    times = 0

    async def fails_at_first() -> pb.Heartbeat:
        nonlocal times
        times += 1
        if times < 3:
            raise OSError("the driver is gone")
        return pb.Heartbeat(at=float(times))

    async def story() -> None:
        async with node(work_dir, fails_at_first) as (scheduler, _), asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(3):
                await scheduler.heartbeats.get()
            assert len(scheduler.registrations) == 1

    asyncio.run(story())


def test_a_hanging_driver_takes_its_gpus_away_and_not_the_node(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(work_dir, TWO_GPUS)
    monkeypatch.setenv("PATH", str(work_dir), prepend=":")
    monkeypatch.setattr(main, "HANGS_SECONDS", 1.0)

    async def story() -> None:
        async with fake_scheduler() as (scheduler, address):
            settings = settings_of(work_dir, address, GPU__DETECTION_METHOD="nvidia-smi")
            async with meanwhile(main.run(settings)), asyncio.timeout(PATIENCE_SECONDS):
                healths = {use.health for use in (await scheduler.heartbeats.get()).gpus}
                assert healths == {pb.GpuUse.OK}
                (work_dir / "nvidia-smi").write_text(f"#!/bin/sh\necho $$ > {work_dir}/hangs\nexec sleep 600\n")
                while healths != {pb.GpuUse.OFFLINE}:
                    healths = {use.health for use in (await scheduler.heartbeats.get()).gpus}
                fake_smi(work_dir, TWO_GPUS)
                os.kill(int((work_dir / "hangs").read_text()), signal.SIGKILL)
                while healths != {pb.GpuUse.OK}:
                    healths = {use.health for use in (await scheduler.heartbeats.get()).gpus}

    asyncio.run(story())


def test_a_supervisor_that_does_not_answer_is_reported_and_takes_the_gpus_away(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENT_SECONDS", 0.5)

    async def story() -> None:
        async with fake_scheduler() as (scheduler, address):
            settings = settings_of(work_dir, address, GPU__VIRTUAL="2")
            async with meanwhile(main.run(settings)), asyncio.timeout(PATIENCE_SECONDS):
                scheduler.say(pb.Command(task=1, attempt=1, launch=pb.Launch(shell="sleep 600", by_owner=True)))
                supervisor = parent_of((await scheduler.hears_of(1, "started")).started.pid)
                os.kill(supervisor, signal.SIGSTOP)
                try:
                    beat = await scheduler.heartbeats.get()
                    while not beat.supervisor_silent_seconds:
                        assert {use.health for use in beat.gpus} == {pb.GpuUse.OK}
                        beat = await scheduler.heartbeats.get()
                finally:
                    os.kill(supervisor, signal.SIGCONT)
                assert beat.supervisor_silent_seconds >= 0.5
                assert {use.health for use in beat.gpus} == {pb.GpuUse.OFFLINE}
                assert "has not answered" in beat.gpus[0].why
                while beat.supervisor_silent_seconds:
                    beat = await scheduler.heartbeats.get()
                assert {use.health for use in beat.gpus} == {pb.GpuUse.OK}

    asyncio.run(story())


def test_a_hanging_directory_service_stops_neither_heartbeats_nor_other_tenants(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    look_up = pwd.getpwnam

    def slow(name: str) -> pwd.struct_passwd:
        if name == "slow":
            answers.wait(PATIENCE_SECONDS)
        return look_up("nobody")

    monkeypatch.setattr(pwd, "getpwnam", slow)
    monkeypatch.setattr(identity, "LOOK_UP_SECONDS", 1.0)

    async def story() -> None:
        async with fake_scheduler() as (scheduler, address):
            settings = settings_of(work_dir, address, GPU__VIRTUAL="2")
            async with meanwhile(main.run(settings)), asyncio.timeout(PATIENCE_SECONDS):
                launch = pb.Launch(shell="sleep 600", tenant="physics", run_as="slow")
                scheduler.say(pb.Command(task=1, attempt=1, launch=launch))
                scheduler.say(pb.Command(task=1, attempt=1, stop=pb.Stop()))
                scheduler.say(pb.Command(task=2, attempt=1, launch=pb.Launch(shell="sleep 600", by_owner=True)))
                for _ in range(5):
                    await scheduler.heartbeats.get()
                await scheduler.hears_of(2, "started")
                end = (await scheduler.hears_of(1, "ended")).ended
                assert "on this node took longer than 1 s" in end.message

    try:
        asyncio.run(story())
    finally:
        answers.set()


def test_a_restarted_agent_keeps_the_output_of_running_attempts(work_dir: Path) -> None:
    async def story() -> None:
        async with fake_scheduler() as (scheduler, address):
            async with meanwhile(main.run(settings_of(work_dir, address, GPU__VIRTUAL="4"))):
                scheduler.say(pb.Command(task=1, attempt=1, launch=pb.Launch(shell="sleep 600", by_owner=True)))
                await scheduler.hears_of(1, "started")
            output = path_of(work_dir / "output", AttemptKey(1, 1))
            os.utime(output, (0, 0))
            async with (
                meanwhile(main.run(settings_of(work_dir, address, GPU__VIRTUAL="4"))),
                asyncio.timeout(PATIENCE_SECONDS),
            ):
                while len(scheduler.registrations) < 2:
                    await scheduler.heartbeats.get()
            assert output.exists()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("patience_seconds", "slept_seconds", "begins"), [(0.0, 13.0, False), (60.0, 13.0, True), (60.0, 30.0, True)]
)
def test_a_fenced_attempt_starts_only_within_the_lease_even_if_the_machine_slept(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, patience_seconds: float, slept_seconds: float, begins: bool
) -> None:
    clock, asleep = time.clock_gettime, [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + asleep[0])

    async def story() -> None:
        async with node(work_dir) as (scheduler, _):
            heartbeat = await scheduler.heartbeats.get()
            asleep[0] = slept_seconds
            launch = pb.Command(task=1, attempt=1, launch=pb.Launch(shell="true", by_owner=True, fence=True))
            scheduler.say(launch, heard=heartbeat.at, patience_seconds=patience_seconds)
            report = await scheduler.reports.get()
            assert report.HasField("started") == begins
            assert begins or report.ended.outcome == pb.Ended.FENCED

    asyncio.run(story())


@pytest.mark.parametrize("fence", [True, False])
@pytest.mark.parametrize("patience_seconds", [0.0, 60.0])
def test_a_launch_that_waited_while_the_agent_stood_still_is_not_carried_out_and_the_agent_registers_again(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, patience_seconds: float, fence: bool
) -> None:
    """Found by the soak test: by then another agent may have the name of the node, and the same launch."""
    clock, frozen = time.clock_gettime, [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + frozen[0])

    async def story() -> None:
        async with node(work_dir) as (scheduler, _), asyncio.timeout(PATIENCE_SECONDS):
            heartbeat = await scheduler.heartbeats.get()
            frozen[0] = 600.0
            late = pb.Launch(shell="true", by_owner=True, fence=fence)
            scheduler.say(
                pb.Command(task=1, attempt=1, launch=late), heard=heartbeat.at, patience_seconds=patience_seconds
            )
            while len(scheduler.registrations) < 2:
                await scheduler.heartbeats.get()
            assert not scheduler.registrations[1].attempts
            scheduler.say(pb.Command(task=2, attempt=1, launch=pb.Launch(shell="true", by_owner=True)))
            report = await scheduler.reports.get()
            assert report.task == 2, "the launch that had waited was carried out"

    asyncio.run(story())


def test_a_launch_whose_user_was_looked_up_while_the_agent_stood_still_is_not_carried_out(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, frozen = time.clock_gettime, [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + frozen[0])
    asked, answers = threading.Event(), threading.Event()
    look_up = pwd.getpwnam

    def slow(_: str) -> pwd.struct_passwd:
        asked.set()
        answers.wait(PATIENCE_SECONDS)
        return look_up("nobody")

    monkeypatch.setattr(pwd, "getpwnam", slow)

    async def story() -> None:
        async with fake_scheduler() as (scheduler, address):
            settings = settings_of(work_dir, address, GPU__VIRTUAL="2")
            async with meanwhile(main.run(settings)), asyncio.timeout(PATIENCE_SECONDS):
                launch = pb.Launch(shell="true", tenant="physics", run_as="slow")
                scheduler.say(pb.Command(task=1, attempt=1, launch=launch))
                await asyncio.to_thread(asked.wait, PATIENCE_SECONDS)
                frozen[0] = 600.0
                answers.set()
                assert (await scheduler.hears_of(1, "ended")).ended.outcome == pb.Ended.LOST

    try:
        asyncio.run(story())
    finally:
        answers.set()


def test_an_output_that_is_not_read_any_more_is_not_followed_any_more(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, _), asyncio.timeout(PATIENCE_SECONDS):
            scheduler.say(pb.Command(task=1, attempt=1, launch=pb.Launch(shell="sleep 600", by_owner=True)))
            await scheduler.hears_of(1, "started")
            before = len(asyncio.all_tasks())
            for request in ("first", "second"):
                scheduler.say(pb.Command(task=1, attempt=1, send_log=pb.SendLog(request=request, follow=True)))
                assert await scheduler.log_requests.get() == request
            while len(asyncio.all_tasks()) < before + 2:
                await asyncio.sleep(0.01)
            scheduler.nobody_reads.set()
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)

    asyncio.run(story())


def test_an_attempt_without_any_trace_is_lost(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, _):
            launch = pb.Launch(argv=["sleep", "600"], by_owner=True)
            scheduler.say(pb.Command(task=1, attempt=1, launch=launch))
            pid = (await scheduler.hears_of(1, "started")).started.pid
            supervisor = parent_of(pid)
            os.kill(supervisor, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            (work_dir / "supervisor" / paths.LOG).unlink()
            os.kill(supervisor, signal.SIGKILL)
            assert (await scheduler.hears_of(1, "ended")).ended.outcome == pb.Ended.LOST

    asyncio.run(story())


def test_an_agent_whose_supervisor_does_not_restart_says_why_in_one_sentence(work_dir: Path) -> None:
    async def break_the_folder(scheduler: PlayedScheduler) -> None:
        scheduler.say(pb.Command(task=1, attempt=1, launch=pb.Launch(argv=["sleep", "600"], by_owner=True)))
        pid = (await scheduler.hears_of(1, "started")).started.pid
        supervisor = parent_of(pid)
        (work_dir / "supervisor").rename(work_dir / "moved")
        (work_dir / "supervisor").touch()
        os.kill(supervisor, signal.SIGKILL)

    async def story() -> None:
        async with (
            fake_scheduler() as (scheduler, address),
            meanwhile(break_the_folder(scheduler)),
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            await main.run(settings_of(work_dir, address, GPU__VIRTUAL="4"))

    with pytest.raises(SupervisorDoesNotStart, match="supervisor cannot use the folder"):
        asyncio.run(story())
    (work_dir / "supervisor").unlink()
    (work_dir / "moved").rename(work_dir / "supervisor")


def test_an_agent_does_not_work_in_a_folder_others_can_write_to(work_dir: Path) -> None:
    (work_dir / "planted").touch()
    work_dir.chmod(0o777)  # with a link there, the outputs of tasks would be written anywhere
    with pytest.raises(main.AgentStartError, match="Other users can write to the work folder"):
        asyncio.run(
            asyncio.wait_for(main.run(settings_of(work_dir, "127.0.0.1:1", GPU__VIRTUAL="4")), PATIENCE_SECONDS)
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_an_agent_does_not_work_in_the_folder_of_another_user(work_dir: Path) -> None:
    os.chown(work_dir, 65534, -1)
    with pytest.raises(main.AgentStartError, match="belongs to another user"):
        asyncio.run(
            asyncio.wait_for(main.run(settings_of(work_dir, "127.0.0.1:1", GPU__VIRTUAL="4")), PATIENCE_SECONDS)
        )


def test_an_end_reports_what_the_driver_measured_of_the_attempt(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_smi(work_dir, TWO_GPUS)
    monkeypatch.setenv("PATH", str(work_dir), prepend=":")

    async def story() -> None:
        async with fake_scheduler() as (scheduler, address):
            settings = settings_of(work_dir, address, GPU__DETECTION_METHOD="nvidia-smi")
            async with meanwhile(main.run(settings)), asyncio.timeout(PATIENCE_SECONDS):
                await scheduler.heartbeats.get()
                launch = pb.Launch(shell="while ! [ -e over ]; do sleep 0.05; done", gpus=[0], tenant="t", by_owner=True, work_dir=str(work_dir))  # fmt: skip
                scheduler.say(pb.Command(task=7, attempt=1, launch=launch))
                pid = (await scheduler.hears_of(7, "started")).started.pid
                for mib in (100, 9000, 400):  # the reading of the first may have begun before the start
                    seen = f"gpu_uuid, pid, used_gpu_memory [MiB]\nGPU-aaaa, {pid}, {mib} MiB\n"
                    fake_smi(work_dir, TWO_GPUS | {"compute-apps": seen})
                    while not any(
                        (process.task, process.memory_mib) == (7, mib)  # it is known whose process it is
                        for use in (await scheduler.heartbeats.get()).gpus
                        for process in use.processes
                    ):
                        continue
                (work_dir / "over").touch()
                ended = (await scheduler.hears_of(7, "ended")).ended
                assert (ended.outcome, ended.gpu_memory_peak_mib) == (pb.Ended.SUCCEEDED, 9000)
                assert ended.gpu_utilization == 97.0

    asyncio.run(story())


def test_a_running_attempt_continues_whatever_the_settings_now_say_of_its_user(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent):
            await scheduler.heartbeats.get()
            launch = pb.Launch(shell="sleep 600", by_owner=True, gpus=[2])
            scheduler.say(pb.Command(task=1, attempt=1, launch=launch))
            await scheduler.hears_of(1, "started")
            agent._relay._launch_builder.forget(AttemptKey(1, 1))  # as in an agent that was started again
            scheduler.say(
                pb.Command(task=1, attempt=1, launch=pb.Launch(shell="sleep 600", run_as="no-such", gpus=[2]))
            )
            scheduler.say(pb.Command(task=2, attempt=1, launch=pb.Launch(shell="true", by_owner=True)))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (report := await scheduler.reports.get()).task != 2:
                    assert not report.HasField("ended"), report
            assert agent._relay._launch_builder.gpus_of(AttemptKey(1, 1), 0) == [2]

    asyncio.run(story())
