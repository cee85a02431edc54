"""Relays between a scheduler and the supervisor: events become reports, commands become commands to the supervisor.

    supervisor ─► events ─► held attempts ─► reports ─► scheduler
    supervisor ◄─ commands ◄─ launch_builder ◄─ commands ◄─ scheduler

The supervisor is told to forget an end only after the scheduler has stored it durably.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

import grpc.aio
import structlog
from msgspec.structs import replace

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.values import NOT_THERE
from gpuyard.live.agent import failures
from gpuyard.live.agent.agent_state import AgentStateFile
from gpuyard.live.agent.channels import AgentChannels
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.scheduler_connection import SchedulerConnection
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.agent.task_files import ResultNotStored, TaskFiles
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.live.wire.rpc import LOG_REQUEST
from gpuyard.version import __version__

FORGET_SECONDS = 0.1
"""How long to collect acknowledged ends before the supervisor is told to forget them in one message."""
REMEMBERED = 10_000
_STATES = {
    messages.ProcessPhase.WAITING: pb.Attempt.PREPARED,
    messages.ProcessPhase.RUNNING: pb.Attempt.RUNNING,
    messages.ProcessPhase.SUSPENDED: pb.Attempt.SUSPENDED,
    messages.ProcessPhase.ENDED: pb.Attempt.ENDED,
}
_OUTCOMES = {
    messages.AttemptEnding.SUCCEEDED: pb.Ended.SUCCEEDED,
    messages.AttemptEnding.FAILED: pb.Ended.FAILED,
    messages.AttemptEnding.STOPPED: pb.Ended.STOPPED,
    messages.AttemptEnding.TIMED_OUT: pb.Ended.TIMED_OUT,
    messages.AttemptEnding.FENCED: pb.Ended.FENCED,
    messages.AttemptEnding.LOST: pb.Ended.LOST,
    messages.AttemptEnding.NOT_LAUNCHED: pb.Ended.NOT_LAUNCHED,
}
TOO_LATE = "The attempt was not started: the launch arrived after the lease of the node had expired."
OUTDATED = "The scheduler may have given up the node before the launch was carried out, so it was not started."

log = structlog.get_logger()


class AttemptRelay:
    """The attempts of a node, as the supervisor reports them and the scheduler wants them."""

    def __init__(
        self,
        processes: SupervisorClient,
        launch_builder: LaunchBuilder,
        state_file: AgentStateFile,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.held: dict[messages.AttemptKey, messages.HeldAttempt] = {}
        """The attempts the supervisor holds, as last reported by it."""
        self.listed = asyncio.Event()
        """Set when the supervisor has listed its attempts."""
        self.connection: SchedulerConnection | None = None
        """The current connection to the scheduler."""
        self.channels: AgentChannels | None = None
        """Terminals, shells and ports of attempts."""
        self._processes = processes
        self._launch_builder = launch_builder
        self._state_file = state_file
        self._clock = clock
        self._rounds: dict[messages.AttemptKey, int] = {}
        self._unknown: dict[messages.AttemptKey, None] = {}
        self._refused: dict[messages.AttemptKey, str] = {}
        """Attempts this node refused to start, until the scheduler acknowledges it."""
        self._done: dict[messages.AttemptKey, None] = {}
        """Attempts that have ended and whose end the scheduler has acknowledged."""
        self._forgotten: list[messages.AttemptKey] = []
        """Acknowledged ends that the supervisor has not been told to forget yet."""
        self._streams: set[asyncio.Task[None]] = set()
        self._later: dict[messages.AttemptKey, list[pb.Command]] = {}
        """Launches whose user is being looked up, each followed by later commands for the same attempt."""
        self._lease_until = 0.0
        self._replaced = False

    # --- events of the supervisor ------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Take over events of the supervisor until cancelled."""
        async for events in self._processes.events():
            for event in events:
                self.hear(event)

    def hear(self, event: messages.SupervisorEvent) -> None:
        """Take over an event of the supervisor, and report it."""
        connection = self.connection
        match event:
            case messages.AttemptList():
                self._list(event)
            case messages.Launched(key, pid, at):
                before = self.held.get(key)
                lease, port = (before.lease, before.port) if before is not None else (False, 0)
                self.held[key] = messages.HeldAttempt(
                    key, messages.ProcessPhase.RUNNING, at, pid, lease=lease, port=port
                )
                if connection:
                    connection.report(key, self._boot_of(at), started=pb.Started(at=at, pid=pid))
            case messages.Prepared(key, port):
                self.held[key] = messages.HeldAttempt(key, messages.ProcessPhase.WAITING, self._clock.wall(), port=port)
                if connection:
                    connection.report(key, self._clock.boot(), prepared=pb.Prepared(port=port))
            case messages.ProcessEnded(key) | messages.NotLaunched(key):
                self.held[key] = messages.HeldAttempt(key, messages.ProcessPhase.ENDED, event.at, end=event)
                if connection:
                    self._report_end(connection, key, event)
            case messages.SuspendedNow(key):
                self._set_phase(key, messages.ProcessPhase.SUSPENDED)
                if connection:
                    connection.report(key, self._clock.boot(), suspended=pb.Suspended(round=self._rounds.get(key, 0)))
            case messages.ResumedNow(key):
                self._set_phase(key, messages.ProcessPhase.RUNNING)
                if connection:
                    connection.report(key, self._clock.boot(), resumed=pb.Resumed(round=self._rounds.get(key, 0)))
            case messages.NotHeld(key):
                if connection:
                    lost = pb.Ended(outcome=pb.Ended.LOST, at=self._clock.wall(), message=NOT_THERE)
                    connection.report(key, self._clock.boot(), ended=lost)
            case messages.ShellOpened():
                if self.channels is not None:
                    self.channels.shell_opened(event)
            case messages.NotReplaced(message):
                log.warning("supervisor_replacement_failed", message=message)

    def _list(self, event: messages.AttemptList) -> None:
        """Take over the supervisor's list of attempts.

        It comes at the start and after each reconnection to the supervisor.
        """
        if event.version != __version__ and not self._replaced:
            self._replaced = True  # once: if the new one does not start, the old one continues to work
            log.info("supervisor_replaced", old=event.version, new=__version__)
            self._processes.send(messages.Replace())
        # A reported end stays valid until the scheduler has it, even if the supervisor no longer knows the attempt.
        ends = {key: held for key, held in self.held.items() if held.end is not None}
        before, self.held = self.held, {held.key: held for held in event.attempts} | ends
        self.listed.set()
        connection = self.connection
        if connection is None:
            return
        for key, held in self.held.items():
            known = before.get(key)
            if held.end is not None and (known is None or known.end is None):
                self._report_end(connection, key, held.end)
            elif held.phase is messages.ProcessPhase.RUNNING and known is None:
                connection.report(key, self._boot_of(held.at), started=pb.Started(at=held.at, pid=held.pid))
        for key in before.keys() - self.held.keys():
            # A launch that is not confirmed yet may be missing in the list without being lost.
            if not self._processes.awaits(key):
                lost = pb.Ended(outcome=pb.Ended.LOST, at=self._clock.wall(), message=NOT_THERE)
                connection.report(key, self._clock.boot(), ended=lost)

    def _boot_of(self, at: float) -> float:
        """Convert a wall-clock time to the boot clock. Correct only if the wall clock has not jumped since."""
        return self._clock.boot() - max(0.0, self._clock.wall() - at)

    def _report_end(
        self,
        connection: SchedulerConnection,
        key: messages.AttemptKey,
        event: messages.ProcessEnded | messages.NotLaunched,
    ) -> None:
        """Report an end; if the attempt has left a result, after the scheduler has stored that."""
        files = self._launch_builder.files
        if files is None or not files.has_result(key):
            connection.report(key, self._boot_of(event.at), ended=self._ended(event))
        else:
            self._keep(asyncio.create_task(self._report_with_result(connection, files, key, event)))

    async def _report_with_result(
        self,
        connection: SchedulerConnection,
        files: TaskFiles,
        key: messages.AttemptKey,
        event: messages.ProcessEnded | messages.NotLaunched,
    ) -> None:
        ended = self._ended(event)
        try:
            ended.result = await files.store_result(key, connection)
        except ResultNotStored as error:
            log.warning("result_not_stored", task_id=f"task-{key.task}", message=str(error))
            ended.message = f"{ended.message} {error}".strip()
            if ended.outcome == pb.Ended.SUCCEEDED:
                ended.outcome = pb.Ended.FAILED
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            if self.connection is not connection:
                return  # the end is reported again, with its result, on the next connection
            log.warning("result_not_stored", task_id=f"task-{key.task}", message=failures.raw(error))
            ended.message = f"{ended.message} The scheduler did not take the result of the task.".strip()
            if ended.outcome == pb.Ended.SUCCEEDED:
                ended.outcome = pb.Ended.FAILED
        connection.report(key, self._boot_of(event.at), ended=ended)

    def _ended(self, event: messages.ProcessEnded | messages.NotLaunched) -> pb.Ended:
        """Describe how an attempt ended, including its measured GPU use."""
        if isinstance(event, messages.NotLaunched):
            return pb.Ended(outcome=pb.Ended.NOT_LAUNCHED, at=event.at, message=event.message)
        failed = event.ending is messages.AttemptEnding.FAILED
        setup = self._launch_builder.failed_setup(event.key, event.exit_code) if failed else ""
        full = failed and not setup and self._launch_builder.ran_out_of_memory(event.key)
        actual = self._launch_builder.actuals.of(event.key) or Actual()
        return pb.Ended(
            outcome=pb.Ended.OUT_OF_MEMORY if full else _OUTCOMES[event.ending],
            exit_code=event.exit_code,
            signal=event.signal,
            at=event.at,
            message=event.message or setup,
            gpu_memory_peak_mib=actual.gpu_memory_peak_mib,
            gpu_utilization=actual.gpu_utilization,
            gpu_idle_fraction=actual.gpu_idle_fraction,
            gpu_power_watts=actual.gpu_power_watts,
        )

    def _set_phase(self, key: messages.AttemptKey, phase: messages.ProcessPhase) -> None:
        held = self.held.get(key)
        if held is not None:
            self.held[key] = replace(held, phase=phase)

    # --- commands of the scheduler -----------------------------------------------------------------------------------

    def begin(self, connection: SchedulerConnection) -> None:
        """Report the ends that the scheduler may not know, on a new connection."""
        self.connection = connection
        self._done.clear()  # commands of earlier sessions can no longer arrive
        for key, held in self.held.items():
            if held.end is not None:
                self._report_end(connection, key, held.end)
        for key, sentence in self._refused.items():
            connection.report(key, self._clock.boot(), ended=self._refusal(sentence))

    def received(self, connection: SchedulerConnection, number: int) -> None:
        """Forget attempts whose ends the scheduler has stored durably."""
        keys = [connection.ends.pop(known) for known in list(connection.ends) if known <= number]
        for key in keys:
            self._done[key] = None
            self.held.pop(key, None)
            self._refused.pop(key, None)
            self._rounds.pop(key, None)
            self._unknown.pop(key, None)
            self._launch_builder.forget(key)
            if self._launch_builder.files is not None:
                self._keep(asyncio.create_task(self._launch_builder.files.forget(key)))
        if keys and not self._forgotten:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget)
        self._forgotten += keys
        while len(self._done) > REMEMBERED:
            del self._done[next(iter(self._done))]

    def _forget(self) -> None:
        keys, self._forgotten = self._forgotten, []
        self._processes.send(messages.ForgetAttempts(tuple(keys)))

    def do(self, connection: SchedulerConnection, asked: pb.Command) -> None:
        """Carry out a command of the scheduler. Commands for one attempt keep their order."""
        key = messages.AttemptKey(asked.task, asked.attempt, asked.origin)
        if key in self._later:
            self._later[key].append(asked)
            return
        # A lookup of the user may take seconds. Later commands for the same attempt wait for it, to keep their order.
        begins = asked.WhichOneof("what") == "launch" and key not in self.held and not self._processes.awaits(key)
        looking = self._launch_builder.prepare(key, asked.launch, connection) if begins else None
        if looking is None:
            self._carry_out(connection, key, asked)
            return
        self._later[key] = [asked]
        self._keep(asyncio.create_task(self._carry_out_later(connection, key, looking)))

    async def _carry_out_later(
        self, connection: SchedulerConnection, key: messages.AttemptKey, looking: Awaitable[None]
    ) -> None:
        try:
            await looking
        finally:
            commands = self._later.pop(key)
            if self.connection is connection:  # otherwise the scheduler repeats the commands
                for asked in commands:
                    self._carry_out(connection, key, asked)

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    def _carry_out(self, connection: SchedulerConnection, key: messages.AttemptKey, asked: pb.Command) -> None:
        match asked.WhichOneof("what"):
            case "launch":
                self._launch(connection, key, asked.launch)
            case "start":
                self._processes.send(self._launch_builder.start(key, asked.start))
            case "stop":
                self._processes.send(messages.StopAttempt(key, _grace_of(asked.stop.grace_seconds)))
            case "suspend":
                self._suspend(connection, key, asked.suspend.round)
            case "resume":
                self._rounds[key] = asked.resume.round
                self._processes.send(messages.Resume(key))
            case "send_log":
                self._keep(asyncio.create_task(self._send_log(connection, key, asked.send_log)))
            case "run_command":
                self._keep(asyncio.create_task(self._run_command(connection, key, asked.run_command)))
            case "open_channel":
                if self.channels is not None:
                    self._keep(asyncio.create_task(self.channels.open(connection, key, asked.open_channel)))
            case "extend":
                self._processes.send(messages.Extend(key, asked.extend.seconds_left))
            case "stray":
                self._unknown[key] = None
            case "remove_checkpoint":
                self._keep(asyncio.create_task(self._remove_checkpoint(key.task, asked.remove_checkpoint.submitted_us)))

    def running_tasks(self) -> set[int]:
        """Return the tasks with an attempt on this node that has not ended."""
        running = {key.task for key, held in self.held.items() if held.phase is not messages.ProcessPhase.ENDED}
        return running | {key.task for key in self._processes.launching()}

    async def _remove_checkpoint(self, task: int, submitted_us: int) -> None:
        checkpoints = self._launch_builder.checkpoints
        if checkpoints is None or task in self.running_tasks():
            return
        if why := await asyncio.to_thread(checkpoints.remove, task, submitted_us):
            log.warning("checkpoint_not_removed", task_id=f"task-{task}", message=why)
        else:
            log.info("checkpoint_removed", task_id=f"task-{task}")

    def _launch(self, connection: SchedulerConnection, key: messages.AttemptKey, asked: pb.Launch) -> None:
        if key in self._done:
            return  # the scheduler has its end: this launch was sent before that
        self._state_file.memory.task = max(self._state_file.memory.task, key.task)
        held = self.held.get(key)
        if held is not None and held.phase in {messages.ProcessPhase.RUNNING, messages.ProcessPhase.SUSPENDED}:
            # The scheduler repeats a launch because the agent may be new; the attempt itself just continues.
            self._launch_builder.remember(key, asked)
            return
        made = self._launch_builder.launch(key, asked)
        if isinstance(made, str):
            self._refused[key] = made
            connection.report(key, self._clock.boot(), ended=self._refusal(made))
            return
        if key not in self.held and self._clock.boot() > connection.awaited_until:
            outdated = pb.Ended(outcome=pb.Ended.LOST, at=self._clock.wall(), message=OUTDATED)
            connection.report(key, self._clock.boot(), ended=outdated)
            return
        # Without a lease the scheduler may already have started a fenced attempt on another node.
        if made.fence and key not in self.held and self._clock.boot() >= self._lease_until:
            late = pb.Ended(outcome=pb.Ended.FENCED, at=self._clock.wall(), message=TOO_LATE)
            connection.report(key, self._clock.boot(), ended=late)
            return
        if made.lease and key not in self.held:
            self.held[key] = messages.HeldAttempt(key, messages.ProcessPhase.RUNNING, self._clock.wall(), lease=True)
        self._processes.send(made)
        log.info("attempt_launched", task_id=f"task-{key.task}", attempt=key.attempt, request_id=asked.request_id)

    def _suspend(self, connection: SchedulerConnection, key: messages.AttemptKey, round_: int) -> None:
        if sentence := self._launch_builder.why_not_suspend(key):
            connection.report(key, self._clock.boot(), not_suspended=pb.Suspended(round=round_, message=sentence))
            return
        self._rounds[key] = round_
        self._processes.send(messages.Suspend(key))

    async def _send_log(self, connection: SchedulerConnection, key: messages.AttemptKey, asked: pb.SendLog) -> None:
        call = connection.stub.send_log(metadata=(*connection.metadata, (LOG_REQUEST, asked.request)))
        writing = asyncio.create_task(self._write_log(call, key, asked))
        call.add_done_callback(lambda _: writing.cancel())  # stop following a task without output if it has no reader
        try:
            await writing
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as end:
            log.debug("log_stream_ended", task=key.task, why=failures.raw(end))
        finally:
            writing.cancel()
            call.cancel()

    async def _write_log(self, call: Any, key: messages.AttemptKey, asked: pb.SendLog) -> None:
        async with aclosing(self._launch_builder.output(key, asked)) as chunks:
            async for chunk in chunks:
                await call.write(chunk)
        await call.done_writing()
        await call

    async def _run_command(
        self, connection: SchedulerConnection, key: messages.AttemptKey, asked: pb.RunCommand
    ) -> None:
        failed = await self._launch_builder.run_command(key, asked)
        log.info("notice_command_ended", task_id=f"task-{key.task}", message=failed)
        call = connection.stub.send_log(metadata=(*connection.metadata, (LOG_REQUEST, asked.request)))
        try:
            await call.write(pb.LogChunk(request=asked.request, ran=pb.CommandResult(failed=failed)))
            await call.done_writing()
            await call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as end:
            log.debug("log_stream_ended", task=key.task, why=failures.raw(end))
        finally:
            call.cancel()

    def _refusal(self, sentence: str) -> pb.Ended:
        return pb.Ended(outcome=pb.Ended.NOT_LAUNCHED, at=self._clock.wall(), message=sentence)

    # --- reports to the scheduler about all attempts ------------------------------------------------------------------

    def attempts(self) -> list[pb.Attempt]:
        """Describe all attempts of this node, for a registration."""
        return [
            *(self._attempt(key, held) for key, held in self.held.items()),
            *(self._launching(key) for key in self._processes.launching() if key not in self.held),
        ]

    def report_unknown_attempts(self, beat: pb.Heartbeat) -> None:
        """Add the attempts that the scheduler does not know to a heartbeat."""
        unknown = [key for key in self._unknown if key in self.held]
        beat.strays.extend(pb.Stray(task=key.task, attempt=key.attempt, origin=key.origin) for key in unknown)
        for key in unknown:
            self._keep_away(beat, key)

    def _attempt(self, key: messages.AttemptKey, held: messages.HeldAttempt) -> pb.Attempt:
        over = held.phase is messages.ProcessPhase.ENDED
        return pb.Attempt(
            task=key.task,
            attempt=key.attempt,
            origin=key.origin,
            state=_STATES[held.phase],
            port=held.port,
            gpus=[] if over else self._launch_builder.gpus_of(key, held.pid),
            share=not over and self._launch_builder.has_share(key),
        )

    def _launching(self, key: messages.AttemptKey) -> pb.Attempt:
        """Describe an attempt that was sent to the supervisor and is not confirmed yet."""
        return pb.Attempt(
            task=key.task,
            attempt=key.attempt,
            origin=key.origin,
            state=pb.Attempt.PREPARED,
            gpus=self._launch_builder.gpus_of(key, 0),
            share=self._launch_builder.has_share(key),
        )

    def _keep_away(self, beat: pb.Heartbeat, key: messages.AttemptKey) -> None:
        """Mark the GPUs of an attempt that the scheduler does not know as in use, so that they are not assigned."""
        for index in self._launch_builder.gpus_of(key, self.held[key].pid):
            for use in beat.gpus:
                if use.index == index:
                    use.health = pb.GpuUse.EXTERNAL
                    use.why = (
                        f"Attempt {key.attempt} of task {key.task}, which this scheduler does not know, runs on it."
                    )

    # --- the lease of fenced attempts --------------------------------------------------------------------------------

    def extend_lease(self, until: float) -> None:
        """Let fenced attempts run until this time on the boot clock."""
        self._lease_until = max(self._lease_until, until)
        self._processes.send(messages.Renew(max(0.0, until - self._clock.boot())))

    async def shorten_lease(self, lease_seconds: float, within_seconds: float) -> None:
        """Shorten the lease; return when the supervisor has confirmed it."""
        self.listed.clear()
        self._processes.send(messages.Shorten(lease_seconds), messages.ListAttempts())
        async with asyncio.timeout(within_seconds):
            await self.listed.wait()


def _grace_of(seconds: float) -> float | None:
    """Return the grace of a stop; None if it gives none, and that of the launch applies."""
    return seconds if seconds > 0 else None
