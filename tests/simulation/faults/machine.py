"""A node in memory: its clocks, its GPUs, virtual processes, the supervisor that holds them, and the real agent.

The processes belong to the machine and continue whatever else is killed; they write the ledger themselves. The supervisor
is an in-memory version of `gpuyard.live.agent.supervisor`: it uses the same messages and frames, records its attempts on the
machine's disk, refuses a second launch of a key, fences, adopts what runs when it is started again. The agent's side of
the connection is the real one (`gpuyard.live.agent.supervisor_client`), with an in-memory pipe in place of the socket.
"""

import asyncio
import random
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuyard import __version__
from gpuyard.live.agent.agent_state import AgentStateFile
from gpuyard.live.agent.attempt_relay import AttemptRelay
from gpuyard.live.agent.identity import Account
from gpuyard.live.agent.inventory import GpuDevice
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.link import AgentLink, LinkOptions
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.wire import agents_pb2 as pb
from tests.simulation.faults.event_loop import OUTSIDE, Process, VirtualLoop
from tests.simulation.faults.ledger import Ledger, Run
from tests.simulation.faults.network import Link, MemoryChannel

T = TypeVar("T")
JOIN_TOKEN = "join"
TOKEN = "FAULTS_TOKEN"
"""The variable by which a process knows which submission it belongs to."""
EPOCH = 1_700_000_000.0
START_SECONDS = 0.05
NO_PID = 0


class MachineClock:
    """The clocks of one machine, and of one process on it that may be in the middle of a call that takes time."""

    def __init__(self, loop: VirtualLoop, machine: str) -> None:
        self._loop = loop
        self._machine = machine
        self.ahead = 0.0
        """Of the true time; what a fault changes."""
        self.booted_at = loop.time() - 500.0
        self.process: Process | None = None

    def wall(self) -> float:
        return EPOCH + self._loop.time() + self.ahead

    def monotonic(self) -> float:
        return self._loop.time() + (self.process.lead if self.process is not None else 0.0)

    def boot(self) -> float:
        return self._loop.time() - self.booted_at

    def machine_start(self) -> str:
        return f"{self._machine} at {self.booted_at}"


class AtOnce(Executor):
    """In place of a thread: what is submitted is done."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@dataclass
class Work:
    """What the process of a submission does, whenever it is started."""

    seconds: float
    exit_code: int
    stop_seconds: float
    """How long it takes to end when it is asked to."""


class Running:
    """A virtual process."""

    def __init__(self, machine: "Machine", pid: int, launch: messages.Launch, run: Run, work: Work) -> None:
        self.machine, self.pid, self.key, self.run, self.work = machine, pid, launch.key, run, work
        self.gpus = run.gpus
        self.fence = launch.fence
        self.exit_code: int | None = None
        self.signal: int | None = None
        self._left = work.seconds
        self._began = machine.loop.time()
        self._timer: asyncio.TimerHandle | None = machine.later(self._left, self._exit)

    def _exit(self) -> None:
        self._over("exit", exit_code=self.work.exit_code)

    def ask_to_end(self, why: str) -> None:
        """SIGTERM."""
        self.machine.later(self.work.stop_seconds, lambda: self.kill(why, signal=15))

    def kill(self, why: str, signal: int = 9) -> None:
        """It is over at once."""
        self._over(why, signal=signal)

    def suspend(self) -> None:
        """SIGSTOP."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left -= self.machine.loop.time() - self._began
            self.machine.ledger.suspended(self.run)

    def resume(self) -> None:
        """SIGCONT."""
        if self._timer is None and self.machine.running.get(self.pid) is self:
            self._began = self.machine.loop.time()
            self._timer = self.machine.later(max(0.0, self._left), self._exit)
            self.machine.ledger.resumed(self.run)

    def _over(self, how: str, exit_code: int | None = None, signal: int | None = None) -> None:
        machine = self.machine
        if machine.running.pop(self.pid, None) is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.exit_code, self.signal = exit_code, signal
        machine.ledger.ended(self.run, how, exit_code)
        if machine.supervisor is not None:
            machine.supervisor.process.soon(machine.supervisor.reap, self)
        machine.kept[self.pid] = self


class Note(msgspec.Struct):
    """What a supervisor has written down about an attempt."""

    launch: messages.Launch
    boot: int
    at: float
    phase: messages.ProcessPhase
    ours: bool = True
    pid: int = NO_PID
    port: int = 0
    stopping: messages.AttemptEnding | None = None
    seconds_left: float | None = None
    times_out_at: float | None = None
    end: messages.ProcessEnded | messages.NotLaunched | None = None

    def held(self) -> messages.HeldAttempt:
        launch = self.launch
        return messages.HeldAttempt(
            launch.key, self.phase, self.at, self.pid, launch.lease, launch.fence, self.port, "", self.end
        )  # fmt: skip


class Machine:
    """A node."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        gpus: int,
        link: Link,
        addresses: tuple[str, ...],
        folder: Path,
        ledger: Ledger,
        works: Callable[[str], Work],
        chance: random.Random,
        *,
        hardware: str = "",
        keeps_exit_codes: bool = True,
    ) -> None:
        self.loop, self.name, self.link, self.addresses, self.folder = loop, name, link, addresses, folder
        self.hardware = hardware or name
        """Which machine it really is: a duplicate has the same name and is another machine."""
        self.ledger, self.works, self.chance = ledger, works, chance
        self.keeps_exit_codes = keeps_exit_codes
        self.cards = tuple(
            GpuDevice(index, f"GPU-{name}-{index}", "RTX4090", 24_576, virtual=True) for index in range(gpus)
        )
        self.clock = MachineClock(loop, self.hardware)
        self.boot = 1
        self.notes: dict[messages.AttemptKey, Note] = {}
        self.lease_end = self.shortened_at = 0.0
        self.running: dict[int, Running] = {}
        self.kept: dict[int, Running] = {}
        """Processes that are over, until a supervisor has noted how: what outlives it keeps their exit codes."""
        self.outputs: dict[str, str] = {}
        """Which submission wrote into a file, the first one of all."""
        self.supervisor: Supervisor | None = None
        self.agent: AgentLink | None = None
        self.process: Process | None = None
        """The agent's."""
        self._agent_task: asyncio.Task[None] | None = None
        self._pids = count(100)
        self._agents = count(1)

    def later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """What the kernel does by itself."""
        return self.loop.call_later(seconds, callback, context=OUTSIDE)

    # --- processes --------------------------------------------------------------------------------------------------

    def spawn(self, launch: messages.Launch) -> Running:
        """Start a process of a launch."""
        token, pid = launch.env[TOKEN], next(self._pids)
        devices = launch.env["CUDA_VISIBLE_DEVICES"]
        gpus = tuple(int(it) for it in devices.split(",")) if devices else ()
        run = self.ledger.started(token, launch.key, self.hardware, self.name, gpus)
        run.output_of = self.outputs.setdefault(launch.output, token)  # what is there stays: files are appended to
        running = self.running[pid] = Running(self, pid, launch, run, self.works(token))
        return running

    def renew(self, made_at: float, seconds: float) -> None:
        """Fenced processes may live for so long, on the boot clock. A watcher sees to it, supervisor or not."""
        if made_at >= self.shortened_at and made_at + seconds > self.lease_end:
            self._set_lease(made_at + seconds)

    def shorten(self, made_at: float, seconds: float) -> None:
        """They may live for no longer than this."""
        self.shortened_at = made_at
        if made_at + seconds < self.lease_end:
            self._set_lease(made_at + seconds)

    def _set_lease(self, until: float) -> None:
        self.lease_end = until
        self.later(max(0.0, until - self.clock.boot()), self._strike)

    @property
    def lease_is_over(self) -> bool:
        return self.lease_end <= self.clock.boot() + 1e-6

    def _strike(self) -> None:
        if not self.lease_is_over:
            return
        for running in [it for it in self.running.values() if it.fence]:
            note = self.notes.get(running.key)
            if note is not None and note.stopping is None:
                note.stopping = messages.AttemptEnding.FENCED
            running.kill("fenced")
        if self.supervisor is not None:
            self.supervisor.process.soon(self.supervisor.lease_over)

    def find_supervisor(self) -> "Supervisor":
        """The one there is, or a new one."""
        if self.supervisor is None:
            self.supervisor = Supervisor(self)
        return self.supervisor

    def kill_supervisor(self) -> None:
        """SIGKILL. What it held goes on."""
        if self.supervisor is not None:
            supervisor, self.supervisor = self.supervisor, None
            supervisor.process.kill()

    # --- the agent --------------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start one, unless one runs."""
        if self.process is not None and self.process.alive:
            return
        process = self.process = Process(self.loop, f"{self.hardware}/agent-{next(self._agents)}")
        self.agent = None
        self._agent_task = process.start(self._run_agent(process))

    async def _run_agent(self, process: Process) -> None:
        processes = MemoryProcesses(self, process)
        async with processes:
            launch_builder = MachineKitchen(self)
            node = pb.Node(
                id=self.name,
                gpus=[
                    pb.Gpu(model=card.model, memory_mib=card.memory_mib, uuid=card.uuid, virtual=True)
                    for card in self.cards
                ],
                cpus=64,
                memory_mib=262_144,
            )

            async def heartbeat() -> pb.Heartbeat:
                return pb.Heartbeat(at=self.clock.wall(), gpus=[pb.GpuUse(index=card.index) for card in self.cards])

            state_file = AgentStateFile(self.folder, self.clock.machine_start(), AtOnce())
            self.agent = agent = AgentLink(
                node,
                LinkOptions(address="127.0.0.1", addresses=self.addresses, join_token=JOIN_TOKEN),
                state_file,
                processes,
                AttemptRelay(processes, launch_builder, state_file, self.clock),
                heartbeat,
                clock=self.clock,
                uniform=self.chance.uniform,
                open_channel=lambda address: MemoryChannel(self.link, process, address),  # type: ignore[arg-type, return-value]
                accepts=self.link.accepts,
            )
            await agent.run()

    def kill_agent(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()

    async def stop_agent(self) -> None:
        """SIGTERM, as `agent.main` handles it: the agent announces its absence, is cancelled and closes its connections."""
        task, process, agent = self._agent_task, self.process, self.agent
        if task is None or process is None or not process.alive:
            return

        async def leave() -> None:
            if agent is not None:
                await agent.say_goodbye()
            task.cancel()

        process.start(leave())
        for _ in range(1_000):
            if task.done() or not process.alive:
                break
            await asyncio.sleep(0.01)
        process.kill()

    @property
    def agent_failed(self) -> BaseException | None:
        """Why the agent ended by itself."""
        task = self._agent_task
        if self.process is None or not self.process.alive or task is None or not task.done() or task.cancelled():
            return None
        return task.exception()

    # --- the machine ------------------------------------------------------------------------------------------------

    def power_off(self) -> None:
        """Everything on it is gone at once, without any message."""
        self.link.cut()
        self.kill_agent()
        self.kill_supervisor()
        for running in list(self.running.values()):
            running.kill("power")

    def power_on(self) -> None:
        """It boots."""
        self.boot += 1
        self.clock.booted_at = self.loop.time()
        self.lease_end = self.shortened_at = 0.0
        self.kept.clear()
        self.link.mend()
        self.start_agent()

    def clone_folder(self, folder: Path) -> None:
        """Copy what the agent has on disk."""
        shutil.copytree(self.folder, folder)


class Supervisor:
    """Holds the attempts of one machine, until it is killed."""

    def __init__(self, machine: Machine) -> None:
        self.process = Process(machine.loop, f"{machine.hardware}/supervisor")
        self.clients: list[Client] = []
        self._machine = machine
        self._notes = machine.notes
        self._events: list[messages.SupervisorEvent] = []
        for note in list(self._notes.values()):
            self._take_over(note)
        self._events = []

    def _take_over(self, note: Note) -> None:
        if note.end is not None:
            return
        alive = note.pid in self._machine.running
        note.ours = note.ours and self._machine.keeps_exit_codes
        kept = self._machine.kept.get(note.pid) if note.ours else None
        if note.boot != self._machine.boot:
            self._finish(note, messages.AttemptEnding.LOST, message="Its machine was restarted.")
        elif note.launch.lease:
            self._set_timer(note)
        elif note.phase is messages.ProcessPhase.WAITING:
            self._finish(
                note, messages.AttemptEnding.LOST, message="Its supervisor was killed while it waited for its gang."
            )
        elif kept is not None:
            self.reap(kept)
        elif not alive:
            self._finish(note, note.stopping or messages.AttemptEnding.LOST, message="Its supervisor was killed.")
        else:
            self._set_timer(note)

    # --- clients ----------------------------------------------------------------------------------------------------

    def receive(self, client: "Client", data: bytes) -> None:
        """A client wrote something."""
        for body in client.frames.feed(data):
            for command in messages.decode_commands(body):
                if isinstance(command, messages.Subscribe | messages.ListAttempts):
                    self._tell()
                    client.is_subscribed |= isinstance(command, messages.Subscribe)
                    attempts = tuple(note.held() for note in self._notes.values())
                    client.say([messages.AttemptList(attempts, 1, __version__)])
                elif isinstance(command, messages.Ping):
                    client.say([messages.Pong()])
                else:
                    self._handle(command)
        self._tell()

    def _tell(self) -> None:
        events, self._events = self._events, []
        if events:
            for client in self.clients:
                if client.is_subscribed:
                    client.say(events)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _handle(self, command: messages.SupervisorCommand) -> None:
        match command:
            case messages.Launch():
                self._launch(command)
            case messages.Renew():
                boot = self._machine.clock.boot()
                self._machine.renew(min(command.made_at, boot), command.seconds)
            case messages.Shorten():
                boot = self._machine.clock.boot()
                self._machine.shorten(min(command.made_at, boot), command.seconds)
            case messages.ForgetAttempts(keys):
                for key in keys:
                    if (note := self._notes.get(key)) is not None and note.end is not None:
                        del self._notes[key]
            case messages.Extend(key, seconds_left, made_at):
                self._events.append(messages.Extended(key))
                note = self._notes.get(key)
                if note is not None and note.end is None and note.stopping is None:
                    note.times_out_at = note.seconds_left = None
                    if seconds_left:
                        note.seconds_left = max(0.0, made_at + seconds_left - self._machine.clock.boot())
                    if note.phase is messages.ProcessPhase.RUNNING:
                        self._start_clock(note)
            case messages.Start() | messages.StopAttempt() | messages.Suspend() | messages.Resume():
                note = self._notes.get(command.key)
                if note is None:
                    self._events.append(messages.NotHeld(command.key))
                elif note.end is not None:
                    self._events.append(note.end)
                else:
                    self._do(note, command)

    def _launch(self, launch: messages.Launch) -> None:
        machine = self._machine
        note = self._notes.get(launch.key)
        if note is not None:
            self._say_again(note)
            return
        phase = messages.ProcessPhase.WAITING if launch.wait else messages.ProcessPhase.RUNNING
        note = self._notes[launch.key] = Note(launch, machine.boot, machine.clock.wall(), phase)
        note.seconds_left = launch.timeout_seconds or None
        if launch.fence and machine.lease_is_over:
            self._finish(note, messages.AttemptEnding.FENCED, message="The lease of its node has expired.")
        elif launch.wait:
            note.port = 20_000 + len(self._notes)
            self._events.append(messages.Prepared(launch.key, note.port))
        else:
            self._run(note)

    def _run(self, note: Note) -> None:
        note.phase = messages.ProcessPhase.RUNNING
        if not note.launch.lease:
            note.pid = self._machine.spawn(note.launch).pid
        self._start_clock(note)
        self._events.append(messages.Launched(note.launch.key, note.pid, note.at))

    def _say_again(self, note: Note) -> None:
        if note.end is not None:
            self._events.append(note.end)
        elif note.phase is messages.ProcessPhase.WAITING:
            self._events.append(messages.Prepared(note.launch.key, note.port))
        else:
            self._events.append(messages.Launched(note.launch.key, note.pid, note.at))

    def _do(
        self, note: Note, command: "messages.Start | messages.StopAttempt | messages.Suspend | messages.Resume"
    ) -> None:
        key, running = note.launch.key, self._machine.running.get(note.pid)
        match command:
            case messages.Start(_, env):
                if note.phase is not messages.ProcessPhase.WAITING:
                    self._say_again(note)
                elif note.launch.fence and self._machine.lease_is_over:
                    self._finish(note, messages.AttemptEnding.FENCED, message="The lease of its node has expired.")
                else:
                    note.launch = msgspec.structs.replace(note.launch, env=note.launch.env | env)
                    self._run(note)
            case messages.StopAttempt(_, grace_seconds):
                grace = note.launch.grace_seconds if grace_seconds is None else grace_seconds
                self._end(note, messages.AttemptEnding.STOPPED, grace)
            case messages.Suspend():
                if note.phase is messages.ProcessPhase.SUSPENDED:
                    self._events.append(messages.SuspendedNow(key))
                elif note.phase is messages.ProcessPhase.RUNNING and note.stopping is None and running is not None:
                    running.suspend()
                    note.phase = messages.ProcessPhase.SUSPENDED
                    if note.times_out_at is not None:
                        note.seconds_left = max(0.0, note.times_out_at - self._machine.clock.boot())
                        note.times_out_at = None
                    self._events.append(messages.SuspendedNow(key))
            case messages.Resume():
                if note.phase is not messages.ProcessPhase.WAITING:
                    if note.phase is messages.ProcessPhase.SUSPENDED and running is not None:
                        note.phase = messages.ProcessPhase.RUNNING
                        self._start_clock(note)
                        running.resume()
                    self._events.append(messages.ResumedNow(key))

    # --- ends -------------------------------------------------------------------------------------------------------

    def _end(self, note: Note, why: messages.AttemptEnding, grace_seconds: float) -> None:
        running = self._machine.running.get(note.pid)
        if running is None:
            self._finish(note, why)
            return
        if note.stopping is None:
            note.stopping = why
            note.times_out_at = None
            running.ask_to_end(why.value)
        self._machine.later(max(0.0, grace_seconds), lambda: running.kill(why.value))

    def reap(self, running: Running) -> None:
        """A process is over."""
        self._machine.kept.pop(running.pid, None)
        note = self._notes.get(running.key)
        if note is None or note.end is not None or note.pid != running.pid:
            return
        if note.stopping is not None and running.exit_code != 0:
            ending = note.stopping
        elif not note.ours:
            ending = messages.AttemptEnding.LOST
        else:
            ending = messages.AttemptEnding.SUCCEEDED if running.exit_code == 0 else messages.AttemptEnding.FAILED
        if ending is messages.AttemptEnding.LOST:
            self._finish(note, ending, message="Its supervisor was killed while it ran.")
        else:
            self._finish(note, ending, running.exit_code, running.signal, f"token {running.run.token}")
        self._tell()

    def lease_over(self) -> None:
        """Fenced attempts without a process end, too."""
        for note in list(self._notes.values()):
            if note.launch.fence and note.end is None and note.pid not in self._machine.running:
                self._finish(note, messages.AttemptEnding.FENCED)
        self._tell()

    def _finish(
        self,
        note: Note,
        ending: messages.AttemptEnding,
        exit_code: int | None = None,
        signal: int | None = None,
        message: str = "",
    ) -> None:
        at = self._machine.clock.wall()
        note.end = messages.ProcessEnded(note.launch.key, ending, exit_code, signal, at, message)
        note.phase = messages.ProcessPhase.ENDED
        self._events.append(note.end)

    # --- time-outs --------------------------------------------------------------------------------------------------

    def _start_clock(self, note: Note) -> None:
        if note.seconds_left is not None:
            note.times_out_at = self._machine.clock.boot() + note.seconds_left
            note.seconds_left = None
            self._set_timer(note)

    def _set_timer(self, note: Note) -> None:
        if note.times_out_at is not None:
            seconds = max(0.0, note.times_out_at - self._machine.clock.boot())
            self._machine.loop.call_later(seconds, self._time_out, note, context=self.process.context)

    def _time_out(self, note: Note) -> None:
        due = note.times_out_at
        if note.end is None and due is not None and due <= self._machine.clock.boot() + 1e-6:
            note.times_out_at = None
            self._end(note, messages.AttemptEnding.TIMED_OUT, note.launch.grace_seconds)
            self._tell()


class Client:
    """An agent's connection to a supervisor, with the methods of a `StreamWriter` that `SupervisorClient` uses."""

    def __init__(self, supervisor: Supervisor, agent: Process | None, reader: asyncio.StreamReader) -> None:
        self.frames = messages.Frames()
        self.is_subscribed = False
        self._supervisor, self._reader = supervisor, reader
        supervisor.clients.append(self)
        supervisor.process.on_kill.append(self._end)
        if agent is not None:
            agent.on_kill.append(self.close)

    def write(self, data: bytes) -> None:
        if self in self._supervisor.clients:
            self._supervisor.process.soon(self._supervisor.receive, self, data)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        if self in self._supervisor.clients:
            self._supervisor.clients.remove(self)

    def say(self, events: list[Any]) -> None:
        """The supervisor tells something."""
        self._reader.feed_data(messages.frame(events))

    def _end(self) -> None:
        self.close()
        self._reader.feed_eof()


class MemoryProcesses(SupervisorClient):
    """The agent's connection to the supervisor of an in-memory machine."""

    def __init__(self, machine: Machine, agent: Process | None = None) -> None:
        super().__init__(Path("supervisor"), machine.clock.boot)
        self._machine, self._agent = machine, agent

    async def _connect(self) -> None:
        if self._machine.supervisor is None:
            await asyncio.sleep(START_SECONDS)
        reader = asyncio.StreamReader(loop=asyncio.get_running_loop())
        client = Client(self._machine.find_supervisor(), self._agent, reader)
        self._reader, self._writer = reader, client  # type: ignore[assignment]
        client.write(messages.frame([messages.Subscribe()]))
        self._flush()

    def send(self, *commands: messages.SupervisorCommand) -> None:
        """As the real one; the instants on them are of the machine's own clock, unless they are of its start."""
        boot, timed = self._machine.clock.boot(), messages.Renew | messages.Shorten | messages.Extend
        stamped = [
            msgspec.structs.replace(it, made_at=boot) if isinstance(it, timed) and it.made_at else it for it in commands
        ]
        super().send(*stamped)


class AnyTenant:
    """Tasks of all tenants run as one user here."""

    def look_up(self, *_: Any) -> None:
        """Nothing has to be awaited."""

    def account(self, *_: Any) -> Account:
        return Account("task", "/", "/bin/sh")


class MachineKitchen(LaunchBuilder):
    """The real one, for a machine that has no files."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(
            machine.name,
            machine.cards,
            AnyTenant(),  # type: ignore[arg-type]
            Path("output"),
            output_limit_bytes=0,
            grace_seconds=10.0,
        )
        self._machine = machine

    def gpus_of(self, key: messages.AttemptKey, pid: int) -> list[int]:
        """The GPUs an attempt was given; of one that an earlier agent launched, its process tells."""
        if (occupant := self.occupants.get(key)) is not None:
            return list(occupant.gpus)
        running = self._machine.running.get(pid)
        return list(running.gpus) if running is not None else []

    def ran_out_of_memory(self, key: messages.AttemptKey) -> bool:  # noqa: ARG002
        return False
