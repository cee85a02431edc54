"""Convert the engine's decisions to commands for nodes."""

from typing import Any

from gpuyard.core.domain.placement import Slice
from gpuyard.core.domain.task import Console, TaskSpec
from gpuyard.core.domain.values import MILLI, AttemptRef, NodeId, OnLost
from gpuyard.core.engine.phases import ACTIVE, Placed, Resuming, Running, Stopping, Suspending
from gpuyard.core.engine.task import OpenTask
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.setup_command import with_setup


def attempt_command(ref: AttemptRef, **what: Any) -> pb.Command:
    """Return a command about an attempt."""
    return pb.Command(task=ref.task, attempt=ref.attempt, origin=ref.origin, **what)


def ref_of(task: OpenTask) -> AttemptRef:
    """Return the current attempt of a task."""
    return AttemptRef(task.id, task.attempts, task.origin)


def launch(ref: AttemptRef, spec: TaskSpec, part: Slice, *, gang: bool) -> pb.Command:
    """Launch an attempt, or its part on one node. The submitter, secrets and system user are added later."""
    command = spec.command
    if spec.setup and command is not None:
        command = with_setup(spec.setup, command)
    submitter = spec.submit_process
    return attempt_command(
        ref,
        launch=pb.Launch(
            lease=command is None,
            argv=command if isinstance(command, tuple) else (),
            shell=command if isinstance(command, str) else "",
            env=dict(spec.env),
            work_dir=spec.work_dir,
            gpus=part.gpus,
            tenant=spec.tenant,
            user=spec.user,
            timeout_seconds=spec.timeout_seconds or 0.0,
            fence=spec.on_lost is OnLost.FENCE,
            wait=gang,
            milli=part.milli if part.milli != MILLI else 0,
            gpu_memory_mib=part.gpu_memory_mib,
            array_index=-1 if spec.array_index is None else spec.array_index,
            cpus=part.cpus,
            memory_mib=part.memory_mib,
            name=spec.name,
            grace_seconds=spec.grace_seconds or 0.0,
            snapshot=spec.snapshot.manifest if spec.snapshot is not None else "",
            files=dict(spec.files),
            store_result=spec.store_result,
            submit_host="" if submitter is None else submitter.host,
            environment_python="" if submitter is None else submitter.python,
            umask=None if submitter is None else submitter.umask,
            limits={} if submitter is None else dict(submitter.limits),
            console=_console(spec.console),
        ),
    )


def _console(console: Console | None) -> pb.Console | None:
    if console is None:
        return None
    return pb.Console(
        terminal=console.terminal,
        columns=console.columns,
        rows=console.rows,
        linger_seconds=console.linger_seconds,
    )


def relaunch(task: OpenTask, node: NodeId) -> pb.Command:
    """Repeat the launch of a running attempt for an agent that may be new; the attempt is not started twice."""
    phase = task.phase
    assert isinstance(phase, ACTIVE)
    part = next(part for part in phase.placement.slices if part.node == node)
    gang = len(phase.placement.slices) > 1
    return launch(ref_of(task), task.spec, part, gang=gang)


def extend(task: OpenTask | None, now: float) -> pb.Command | None:
    """Return the remaining run time of an attempt, which its node enforces; None if it has no timeout."""
    if task is None or not isinstance(task.phase, ACTIVE) or isinstance(task.phase, Stopping):
        return None
    if task.spec.timeout_seconds is None:
        return None
    left = max(1.0, task.spec.timeout_seconds - task.ran_at(now))
    return attempt_command(ref_of(task), extend=pb.Extend(seconds_left=left))


def stop(ref: AttemptRef, why: str, grace_seconds: float | None = None) -> pb.Command:
    """Stop an attempt gracefully: ask first, then kill. Without a grace, that of its launch applies."""
    return attempt_command(ref, stop=pb.Stop(why=why, grace_seconds=grace_seconds or 0.0))


def suspend(ref: AttemptRef, round_: int) -> pb.Command:
    """Move an attempt to host memory."""
    return attempt_command(ref, suspend=pb.Suspend(round=round_))


def resume(ref: AttemptRef, gpus: tuple[int, ...], round_: int) -> pb.Command:
    """Resume an attempt on these GPUs."""
    return attempt_command(ref, resume=pb.Resume(gpus=gpus, round=round_))


def command_for_phase(task: OpenTask, node: NodeId) -> pb.Command | None:
    """Return the command for an attempt in its current phase; None if it only has to continue."""
    phase = task.phase
    if not isinstance(phase, ACTIVE):
        return None
    part = next((part for part in phase.placement.slices if part.node == node), None)
    if part is None:
        return None
    if isinstance(phase, Placed):
        gang = len(phase.placement.slices) > 1
        return launch(ref_of(task), task.spec, part, gang=gang)
    if isinstance(phase, Stopping):
        return stop(ref_of(task), phase.cause.sentence(), task.spec.grace_seconds)
    if isinstance(phase, Suspending):
        return suspend(ref_of(task), task.round)
    if isinstance(phase, Resuming | Running):
        return resume(ref_of(task), part.gpus, task.round)
    return None
