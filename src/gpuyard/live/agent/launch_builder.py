"""Turns a launch from the scheduler into one for the supervisor: system user, environment, output file."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import MILLI
from gpuyard.live.agent import output_search, outputs
from gpuyard.live.agent.actuals import Actuals, ran_out_of_memory
from gpuyard.live.agent.checkpoints import CheckpointFolders
from gpuyard.live.agent.identity import (
    Account,
    Identities,
    Rendezvous,
    environment,
    own_account,
    path_elsewhere,
    rendezvous,
)
from gpuyard.live.agent.inventory import GpuDevice
from gpuyard.live.agent.notice_commands import NoticeCommand, NoticeCommands
from gpuyard.live.agent.output_times import MARK, LineTimes, OutputTimesReader, starts_in_line
from gpuyard.live.agent.scheduler_addresses import reachable_for_clients
from gpuyard.live.agent.scheduler_connection import SchedulerConnection
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.task_files import TaskFiles
from gpuyard.live.agent.telemetry import Occupant
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AT_THE_END
from gpuyard.live.wire.setup_command import LAST_BYTES, failed_setup, has_setup
from gpuyard.system.machine import machine

CAN_NOT_SUSPEND = "This node cannot yet move a process out of the memory of a real GPU, so the task continues to run."
SEARCHES_AT_ONCE = 2
"""Searches of outputs that run at the same time; others wait."""
LEASE_STAYS = "A lease has no process that gpuyard could suspend."


def console_of(asked: pb.Console, path: Path, record: str = "") -> messages.LaunchConsole:
    """Return a console in the form that the supervisor takes."""
    linger_seconds = asked.linger_seconds if asked.HasField("linger_seconds") else None
    return messages.LaunchConsole(
        str(path), asked.terminal, columns=asked.columns or 80, rows=asked.rows or 24, linger_seconds=linger_seconds,
        record=record,
    )  # fmt: skip


class LaunchBuilder:
    """Builds the launches of one node, in the form that the supervisor takes."""

    def __init__(
        self,
        node: str,
        devices: tuple[GpuDevice, ...],
        identities: Identities,
        output_folder: Path,
        *,
        output_limit_bytes: int,
        grace_seconds: float,
        console_folder: Path | None = None,
        checkpoints: CheckpointFolders | None = None,
        files: TaskFiles | None = None,
        control_groups: str = "auto",
        compute_percent: float = 100.0,
        launch_seconds: float = messages.DEFAULT_LAUNCH_SECONDS,
    ) -> None:
        self._searching = asyncio.Semaphore(SEARCHES_AT_ONCE)
        self._commands = NoticeCommands()
        self.occupants: dict[messages.AttemptKey, Occupant] = {}
        """Which attempt holds which GPUs. Process ids are left out; the supervisor knows them."""
        self.actuals = Actuals()
        self.checkpoints = checkpoints
        self.files = files
        self._not_ready: dict[messages.AttemptKey, str] = {}
        """Attempts whose files could not be made, with the reason."""
        self._with_setup: set[messages.AttemptKey] = set()
        self.is_over: Callable[[messages.AttemptKey], bool] = lambda _: True
        self._scheduler = ""
        """The address at which this node has reached the scheduler; empty: it has not."""
        self._node = node
        self._devices = devices
        self._identities = identities
        self._output_folder = output_folder
        self._console_folder = console_folder or output_folder
        self._output_limit_bytes = output_limit_bytes
        self._control_groups = control_groups
        self._compute = {} if compute_percent >= 100 else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{compute_percent:g}"}
        """Read by MPS; no effect without the MPS daemon."""
        self._launch_seconds = launch_seconds
        self._grace_seconds = grace_seconds
        """Seconds between SIGTERM and SIGKILL of an attempt whose task has no grace of its own."""

    def reached_at(self, scheduler: str) -> None:
        """Note the address at which this node has reached the scheduler."""
        self._scheduler = scheduler

    def look_up(self, asked: pb.Launch) -> Awaitable[None] | None:
        """Return an awaitable to await before `launch`, which would block otherwise; None if it would not."""
        if asked.lease:
            return None  # it does not run as any user
        return self._identities.look_up(asked.tenant, asked.by_owner, asked.run_as, asked.user)

    def prepare(
        self, key: messages.AttemptKey, asked: pb.Launch, connection: SchedulerConnection
    ) -> Awaitable[None] | None:
        """Return an awaitable to await before `launch`: the user is looked up, files are fetched. None: nothing to do."""
        looking = self.look_up(asked)
        if self.files is None or not self.files.needed(asked):
            return looking
        return self._make_files(self.files, key, asked, looking, connection)

    async def _make_files(
        self,
        files: TaskFiles,
        key: messages.AttemptKey,
        asked: pb.Launch,
        looking: Awaitable[None] | None,
        connection: SchedulerConnection,
    ) -> None:
        if looking is not None:
            await looking
        account = self._identities.account(asked.tenant, asked.by_owner, asked.run_as, asked.user)
        if isinstance(account, str):
            return  # `launch` returns the reason
        try:
            await files.make(key, asked, account, connection)
        except GpuyardError as error:
            self._not_ready[key] = str(error)
        else:
            self._not_ready.pop(key, None)

    def remember(self, key: messages.AttemptKey, asked: pb.Launch) -> None:
        """Record the GPUs of an attempt that already runs. It continues even if the settings have changed since."""
        gpus = tuple(gpu for gpu in asked.gpus if gpu < len(self._devices))
        self.occupants[key] = Occupant(key, 0, gpus, asked.lease, asked.milli in {0, MILLI})
        if has_setup(asked.argv):
            self._with_setup.add(key)
        if gpus and all(self._devices[gpu].virtual for gpu in gpus):
            self.actuals.said(key, asked.env)

    def launch(self, key: messages.AttemptKey, asked: pb.Launch) -> messages.Launch | str:
        """Build the launch, or return a sentence that says why it is refused."""
        gpus = tuple(asked.gpus)
        if any(index >= len(self._devices) for index in gpus):
            return f"The launch uses GPU {max(gpus)}, but this node has {len(self._devices)} GPUs."
        account: Account | str
        if asked.lease:
            account = own_account()  # it starts no process, so the user does not matter
        else:
            account = self._identities.account(asked.tenant, asked.by_owner, asked.run_as, asked.user)
        if isinstance(account, str):
            return account
        if key in self._not_ready:
            return self._not_ready[key]
        self.remember(key, asked)
        index = asked.array_index if asked.array_index >= 0 else None
        devices = [self._devices[gpu] for gpu in gpus]
        folder = self._checkpoint_dir(key, asked)
        return messages.Launch(
            key,
            argv=tuple(asked.argv),
            shell=asked.shell,
            env=environment(
                account,
                key,
                self._node,
                devices,
                self._env(account, asked),
                asked.secrets,
                index,
                self._about_attempt(key, asked, folder),
            )
            | (self._compute if devices else {}),
            cwd=(self.files.work_dir(key, asked) if self.files else "") or asked.work_dir or account.home,
            uid=account.uid,
            gid=account.gid,
            groups=account.groups,
            output="" if asked.lease else str(outputs.path_of(self._output_folder, key)),
            output_limit_bytes=self._output_limit_bytes,
            timeout_seconds=asked.timeout_seconds,
            grace_seconds=self._grace(asked),
            fence=asked.fence,
            wait=asked.wait and not asked.lease,
            lease=asked.lease,
            cgroup=self._wants_control_group(devices),
            launch_seconds=self._launch_seconds,
            checkpoint_dir=folder,
            python=asked.environment_python,
            umask=asked.umask if asked.HasField("umask") else None,
            limits=dict(asked.limits),
            console=self._console(key, asked),
        )

    @staticmethod
    def _env(account: Account, asked: pb.Launch) -> dict[str, str]:
        """Return the task's own variables. A PATH from another machine is limited to what can be the same here."""
        env = dict(asked.env)
        if asked.submit_host and asked.submit_host != machine() and "PATH" in env:
            env["PATH"] = path_elsewhere(env, account)
        return env

    def _console(self, key: messages.AttemptKey, asked: pb.Launch) -> messages.LaunchConsole | None:
        if not asked.HasField("console") or asked.lease:
            return None
        return console_of(asked.console, self.console_socket(key))

    def console_socket(self, key: messages.AttemptKey) -> Path:
        """Return where the holder of an attempt's console listens."""
        return self._console_folder / f"{key.task}.{key.attempt}.{key.origin:x}.sock"

    def shells_folder(self, key: messages.AttemptKey) -> Path:
        """Return the folder of the sockets and records of the shells beside an attempt."""
        return self._console_folder / f"{key.task}.{key.attempt}.{key.origin:x}.shells"

    def _checkpoint_dir(self, key: messages.AttemptKey, asked: pb.Launch) -> str:
        """Return the checkpoint folder of the task; empty if it has none."""
        if self.checkpoints is None or not asked.submitted_us or asked.lease:
            return ""
        return str(self.checkpoints.path_of(key.task, asked.submitted_us))

    def _about_attempt(self, key: messages.AttemptKey, asked: pb.Launch, folder: str) -> dict[str, str]:
        """Return the variables by which a task knows whether it is restarted, and where and how long it can save."""
        schedulers = ",".join(reachable_for_clients(asked.clients, self._scheduler))
        return (
            {"GPUYARD_RESTART_COUNT": str(key.attempt - 1), "GPUYARD_GRACE_SECONDS": f"{self._grace(asked):g}"}
            | ({"GPUYARD_RESTART_REASON": asked.restart_reason} if asked.restart_reason else {})
            | ({"GPUYARD_CHECKPOINT_DIR": folder} if folder else {})
            | ({"GPUYARD_SERVER": schedulers} if schedulers else {})
            | (self.files.environment(key, asked) if self.files else {})
        )

    def _grace(self, asked: pb.Launch) -> float:
        """Return the seconds between SIGTERM and SIGKILL of this attempt."""
        return asked.grace_seconds if asked.grace_seconds > 0 else self._grace_seconds

    def _wants_control_group(self, devices: list[GpuDevice]) -> bool:
        """Decide on a control group.

        It costs about as much time as starting a process, so "auto" uses it for real GPUs only, where a leftover
        process would occupy the GPU.
        """
        if self._control_groups == "auto":
            return any(not device.virtual for device in devices)
        return self._control_groups == "always"

    async def run_command(self, key: messages.AttemptKey, asked: pb.RunCommand) -> str:
        """Run a command as the user of an attempt; return why it failed, or nothing."""
        launch = asked.launch
        if (looking := self.look_up(launch)) is not None:
            await looking
        account = self._identities.account(launch.tenant, launch.by_owner, launch.run_as, launch.user)
        if isinstance(account, str):
            return account
        index = launch.array_index if launch.array_index >= 0 else None
        env = environment(account, key, self._node, (), self._env(account, launch), {}, index, asked.env)
        folder = launch.work_dir or account.home
        command = NoticeCommand(
            launch.shell, env, folder, asked.timeout_seconds, account.uid, account.gid, account.groups
        )
        return await self._commands.run(command)

    def start(self, key: messages.AttemptKey, asked: pb.Start) -> messages.Start:
        """Build the start of one member of a gang."""
        where = Rendezvous(asked.master_addr, asked.master_port, asked.node_rank, asked.rank, asked.world_size)
        return messages.Start(key, rendezvous(where))

    def why_not_suspend(self, key: messages.AttemptKey) -> str:
        """Return why an attempt cannot be suspended here; empty if it can."""
        occupant = self.occupants.get(key)
        if occupant is None:
            return ""
        if occupant.lease:
            return LEASE_STAYS
        return "" if all(self._devices[gpu].virtual for gpu in occupant.gpus) else CAN_NOT_SUSPEND

    def has_share(self, key: messages.AttemptKey) -> bool:
        """Return whether an attempt was given only a part of its GPU."""
        occupant = self.occupants.get(key)
        return occupant is not None and not occupant.whole

    def gpus_of(self, key: messages.AttemptKey, pid: int) -> list[int]:
        """Return the GPU indices of an attempt.

        For one launched by an earlier agent they are read from its environment.
        """
        occupant = self.occupants.get(key)
        if occupant is not None:
            return list(occupant.gpus)
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return []
        names = next((it.partition(b"=")[2] for it in variables if it.startswith(b"CUDA_VISIBLE_DEVICES=")), b"")
        given = set(names.decode(errors="replace").split(","))
        return [
            device.index for device in self._devices if (str(device.index) if device.virtual else device.uuid) in given
        ]

    def forget(self, key: messages.AttemptKey) -> None:
        """Forget an attempt that has ended."""
        self.occupants.pop(key, None)
        self._not_ready.pop(key, None)
        self._with_setup.discard(key)
        self.actuals.forget(key)
        self.console_socket(key).unlink(missing_ok=True)  # its holder has done so, unless it was killed
        if (folder := self.shells_folder(key)).exists():
            shutil.rmtree(folder, ignore_errors=True)

    def ran_out_of_memory(self, key: messages.AttemptKey) -> bool:
        """Return whether the output of a failed attempt ends with an out-of-memory error of a GPU.

        False if it had no GPUs.
        """
        occupant = self.occupants.get(key)
        if occupant is not None and not occupant.gpus:
            return False
        return ran_out_of_memory(outputs.path_of(self._output_folder, key))

    def failed_setup(self, key: messages.AttemptKey, exit_code: int | None) -> str:
        """Return why an attempt failed if its setup command did; empty if its command did."""
        if key not in self._with_setup:
            return ""
        piece = outputs.read(outputs.path_of(self._output_folder, key), -LAST_BYTES, LAST_BYTES)
        return "" if piece is None else failed_setup(piece.data, exit_code)

    async def output(self, key: messages.AttemptKey, asked: pb.SendLog) -> AsyncGenerator[pb.LogChunk, None]:
        """Stream an attempt's output from an offset to a limit, to its current end, or until the attempt ends."""
        path = outputs.path_of(self._output_folder, key)
        first = outputs.read(path, asked.offset, 0)
        if first is None and self.is_over(key):
            sentence = (
                f"Node {self._node} has no output of task-{key.task}, attempt {key.attempt}: the task "
                "wrote none, or the output was removed."
            )
            yield pb.LogChunk(request=asked.request, error=sentence)
            return
        if asked.offset == AT_THE_END:
            offset = outputs.size_of(path)
        else:
            offset = first.offset if first is not None else max(0, asked.offset)
        end = 1 << 62 if asked.follow else outputs.size_of(path)  # it may grow faster than it is read
        timed = asked.HasField("since") or asked.HasField("until") or asked.timestamps
        lines: LineTimes | None = None
        if timed:
            times = await asyncio.to_thread(OutputTimesReader, path, self._output_folder / MARK)
            if not times.known:
                sentence = (
                    f"When the output of task-{key.task}, attempt {key.attempt} was written is not known: it is older than "
                    f"the version of the agent of node {self._node} that notes it. Read it without since, until and timestamps."
                )
                yield pb.LogChunk(request=asked.request, error=sentence)
                return
            if asked.HasField("since"):
                offset = max(offset, times.offset_since(asked.since))
            if asked.HasField("until"):
                end = min(end, times.offset_until(asked.until))
            if asked.timestamps:
                lines = LineTimes(times, in_line=asked.offset == offset and starts_in_line(path, offset))
        if asked.HasField("search"):
            yield pb.LogChunk(request=asked.request, found=await self._found(path, asked, offset), timed=timed)
            return
        left = asked.limit or 1 << 62
        following = outputs.follow(path, offset, lambda: not asked.follow or self.is_over(key))
        async with aclosing(following) as pieces:
            async for piece in pieces:
                data = piece.data[: max(0, min(left, end - piece.offset))]
                left -= len(data)
                shown = data if lines is None else lines.put_before(data, piece.offset, piece.dropped)
                for begin in range(0, len(shown), outputs.PIECE_BYTES):
                    part = shown[begin : begin + outputs.PIECE_BYTES]
                    yield pb.LogChunk(request=asked.request, data=part, offset=piece.offset, timed=timed)
                if not left or piece.offset + len(data) >= end:
                    return
        yield pb.LogChunk(request=asked.request, timed=timed)

    async def _found(self, path: Path, asked: pb.SendLog, offset: int) -> pb.LogMatches:
        """Search an output in a thread; a few at a time, so that searches leave the node to its tasks."""
        wanted = asked.search
        async with self._searching:
            found = await asyncio.to_thread(
                output_search.search,
                path,
                wanted.text.encode("utf-8", "surrogateescape"),
                offset=offset,
                limit=wanted.most or 1,
                match_case=wanted.match_case,
                context=wanted.context,
            )
        if found is None:
            return pb.LogMatches()
        matches = [
            pb.LogMatch(offset=one.offset, line=one.line, text=one.text, before=one.before, after=one.after)
            for one in found.matches
        ]
        return pb.LogMatches(matches=matches, next_offset=found.next_offset)
