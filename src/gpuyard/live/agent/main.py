"""Assembles and runs an agent: the node's GPUs, the supervisor of its tasks, the connection to the scheduler."""

import asyncio
import gc
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import psutil
import structlog

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import GpuHealth
from gpuyard.core.journal.folders import FolderNotSafe, closed_folder
from gpuyard.live.agent import outputs, peer, telemetry, tls
from gpuyard.live.agent.agent_state import AgentStateFile
from gpuyard.live.agent.agent_voter import AgentVoter
from gpuyard.live.agent.attempt_relay import AttemptRelay
from gpuyard.live.agent.blob_cache import BlobCache
from gpuyard.live.agent.channels import AgentChannels
from gpuyard.live.agent.checkpoints import CheckpointFolders, open_checkpoint_folder
from gpuyard.live.agent.identity import Identities, own_account
from gpuyard.live.agent.inventory import GpuDevice, SelectedGpus, detect
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.link import AgentLink, LinkOptions, channel_to
from gpuyard.live.agent.output_times import begin_to_note
from gpuyard.live.agent.settings import AgentSettings
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor.paths import mark_of
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.agent.task_files import TaskFiles, open_files_folder
from gpuyard.live.agent.telemetry import Occupant
from gpuyard.live.voting.voter_file import VOTER_FILE
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.clock import SYSTEM_CLOCK
from gpuyard.system.locks import take_lock
from gpuyard.version import __version__

MIB = 1024 * 1024
MEASURE_SECONDS = 1.0
"""How long a heartbeat waits for the driver."""
HANGS_SECONDS = 20.0
"""If the driver does not answer for this long, its GPUs are reported as offline."""
PRUNE_SECONDS = 600.0
KEEP_OUTPUT_BYTES = 20 * 1024 * MIB
KEEP_OUTPUT_FILES = 200_000
KEEP_OUTPUT_SECONDS = 30 * 86_400.0
_HEALTHS = {GpuHealth.OK: pb.GpuUse.OK, GpuHealth.EXTERNAL: pb.GpuUse.EXTERNAL, GpuHealth.OFFLINE: pb.GpuUse.OFFLINE}

log = structlog.get_logger()


class AgentStartError(GpuyardError):
    """The agent cannot start. Correct what the sentence names and start it again."""


async def run(settings: AgentSettings, *, accept_cluster: str = "") -> None:
    """Run an agent until it is told to stop; its tasks continue under the supervisor.

    `accept_cluster` moves it to that cluster.
    """
    folder = settings.work_dir
    try:
        if note := closed_folder(folder, "work folder", "executor.work_dir"):
            log.warning("folder_permissions_corrected", message=note)
    except OSError as error:
        message = f"Cannot create the work folder {folder}: {error.strerror}. Set executor.work_dir to another one."
        raise AgentStartError(message) from error
    except FolderNotSafe as error:
        raise AgentStartError(str(error)) from error
    _open_checkpoints(settings.checkpoint_dir)
    _open_files(settings.files_dir)
    _note_settings(settings)
    with _only_one(folder):
        await _run(settings, folder, accept_cluster)
    log.info("agent_stopped")


def _open_checkpoints(folder: Path) -> None:
    try:
        open_checkpoint_folder(folder)
    except OSError as error:
        message = f"Cannot create the checkpoint folder {folder}: {error.strerror}. Set executor.checkpoint_dir to another one."
        raise AgentStartError(message) from error
    except FolderNotSafe as error:
        raise AgentStartError(str(error)) from error


def _open_files(folder: Path) -> None:
    try:
        open_files_folder(folder)
    except OSError as error:
        message = (
            f"Cannot create the folder of task files {folder}: {error.strerror}. Set executor.work_dir to another one."
        )
        raise AgentStartError(message) from error
    except FolderNotSafe as error:
        raise AgentStartError(str(error)) from error


def _note_settings(settings: AgentSettings) -> None:
    """Log settings that have no effect, or a different effect than probably intended."""
    given, executor = Path(settings.executor.work_dir), settings.executor
    if not given.is_absolute():
        message = (
            "executor.work_dir is relative to the current folder of the agent; it is now "
            f"{settings.work_dir}. An agent that is started in another folder does not find its "
            "tasks. Use an absolute path."
        )
        log.warning("relative_work_dir_used", message=message)
    mapped = {*executor.users.values(), *executor.system_users.values()}
    if os.geteuid() != 0 and (others := sorted(mapped - {own_account().user})):
        message = (
            "executor.users and executor.system_users map tasks to other system users, but this "
            "agent is not root, so these tasks cannot run here. Run the agent as root or remove the "
            "mapping."
        )
        log.warning("system_users_ignored", users=others, message=message)


async def _run(settings: AgentSettings, folder: Path, accept_cluster: str) -> None:
    node = AgentNode(settings, folder, accept_cluster)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # a launch makes hundreds of objects and leaves no cycles behind
    async with SupervisorClient(folder / "supervisor") as processes:
        link, relay = node.connect(processes)
        running = asyncio.create_task(link.run())
        voting = asyncio.create_task(node.voter.run())
        pruning = asyncio.create_task(node.keep_tidy(relay))
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ignored)
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({running, voting, pruning, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (running, voting, pruning):
                if task.done():
                    task.result()
            await link.say_goodbye()
        finally:
            running.cancel()
            voting.cancel()
            pruning.cancel()
            stopping.cancel()
            await asyncio.gather(running, voting, pruning, stopping, return_exceptions=True)


def _ignored() -> None:
    """Log that SIGHUP is ignored. By default it would end the agent."""
    message = "Settings are only read at start. Restart the agent to read them again; tasks continue."
    log.info("signal_ignored", signal="SIGHUP", message=message)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the lock that allows one agent per work folder."""
    try:
        lock = take_lock(folder / "agent.lock")
    except BlockingIOError:
        raise AgentStartError(f"Another agent uses {folder}. Give each agent its own executor.work_dir.") from None
    try:
        yield
    finally:
        os.close(lock)


class AgentNode:
    """The resources of this node and their measurements."""

    def __init__(self, settings: AgentSettings, folder: Path, accept_cluster: str = "") -> None:
        self._settings = settings
        self._accept_cluster = accept_cluster
        self._folder = folder
        self._outputs = folder / "output"
        begin_to_note(self._outputs)
        self._inventory = _inventory(settings, self._busy)
        self._devices: tuple[GpuDevice, ...] = self._inventory.devices()
        executor = settings.executor
        self._identities = Identities(
            executor.users, executor.shared_user, *_scheduler_data(folder), system_users=executor.system_users
        )
        self._checkpoints = CheckpointFolders(settings.checkpoint_dir)
        self._files = TaskFiles(settings.files_dir, BlobCache(folder / "blobs", executor.blob_cache_mb * MIB))
        self._found_checkpoints: list[pb.Checkpoint] = []
        """Checkpoint folders to report with the next heartbeat."""
        self.launch_builder = LaunchBuilder(
            settings.node_id,
            self._devices,
            self._identities,
            self._outputs,
            output_limit_bytes=executor.output_limit_mb * MIB,
            grace_seconds=float(executor.grace),
            console_folder=folder / "consoles",
            checkpoints=self._checkpoints,
            files=self._files,
            control_groups=executor.control_groups,
            compute_percent=settings.gpu.max_compute_percent,
            launch_seconds=float(executor.launch_timeout),
        )
        self.voter = _voter(settings, folder)
        self._mark = ""
        self._measured_at = float("-inf")
        self._gpus: list[pb.GpuUse] = []
        self._looked: tuple[list[telemetry.GpuReading], list[Occupant]] | None = None
        """The result of the last measurement of the GPUs, until it is recorded."""
        self._measuring: asyncio.Task[pb.Heartbeat] | None = None
        self._asked_at = 0.0

    def _busy(self) -> dict[int, int]:
        """Return the numbers, among all detected GPUs, of those in use, and the memory declared for each in MiB."""
        numbers, busy = self._inventory.numbers, dict[int, int]()
        for key, occupant in self.launch_builder.occupants.items():
            declared = self.launch_builder.actuals.declared_mib(key)
            for gpu in occupant.gpus:
                busy[numbers[gpu]] = busy.get(numbers[gpu], 0) + declared
        return busy

    def connect(self, processes: SupervisorClient) -> tuple[AgentLink, AttemptRelay]:
        """Build the connection to the scheduler for this node."""
        settings = self._settings
        self._mark = mark_of(processes.folder)
        memory = psutil.virtual_memory()
        node = pb.Node(
            id=settings.node_id,
            gpus=[_gpu_message(device) for device in self._devices],
            cpus=len(os.sched_getaffinity(0)),
            memory_mib=memory.total // MIB,
            labels=settings.agent.labels | self._identities.labels(),
        )
        log.info(
            "agent_started",
            node=node.id,
            version=__version__,
            gpus=[device.model for device in self._devices],
            virtual=any(device.virtual for device in self._devices),
        )
        state_file = self._state_file()
        relay = AttemptRelay(processes, self.launch_builder, state_file)
        relay.channels = AgentChannels(
            processes,
            self.launch_builder,
            lambda: relay.held,
            self._mark,
            shells=(settings.executor.max_shells_per_task, settings.executor.max_shells),
        )
        self.launch_builder.is_over = lambda key: _is_over(relay, key)
        self.voter.vote_at(state_file.memory.cluster_id, state_file.memory.voting)
        link = AgentLink(
            node,
            self._link_options(),
            state_file,
            processes,
            relay,
            lambda: self._heartbeat(relay),
            promised=self.voter.promised_in,
            vote_at=self.voter.vote_at,
            reached_at=self.launch_builder.reached_at,
            uid_of_listener=peer.uid_of_listener,
            what_is_wrong=partial(tls.what_is_wrong, settings.tls),
            open_channel=partial(channel_to, credentials=_credentials(settings)),
        )
        return link, relay

    def _link_options(self) -> LinkOptions:
        settings, scheduler = self._settings, self._settings.scheduler
        return LinkOptions(
            address=settings.agent.address or _own_address(str(settings.addresses[0])),
            addresses=tuple(str(address) for address in settings.addresses),
            join_token=join_token_of(settings, self._folder),
            accept_cluster=self._accept_cluster,
            heartbeat_seconds=float(settings.agent.heartbeat_interval),
            connection_seconds=float(scheduler.connection_timeout),
            retry_seconds=float(scheduler.retry_interval),
            max_retry_seconds=float(scheduler.max_retry_interval),
            away_seconds=float(settings.agent.away_timeout),
        )

    def _state_file(self) -> AgentStateFile:
        state_file = AgentStateFile(self._folder, SYSTEM_CLOCK.machine_start())
        self._identities.scheduler_uid = lambda: state_file.memory.scheduler_uid
        self._checkpoints.cluster_id = lambda: state_file.memory.cluster_id
        return state_file

    async def _heartbeat(self, relay: AttemptRelay) -> pb.Heartbeat:
        beat = await self._measured(relay)
        found, self._found_checkpoints = self._found_checkpoints, []
        beat.checkpoints.extend(found)
        return beat

    async def _measured(self, relay: AttemptRelay) -> pb.Heartbeat:
        occupants = [
            Occupant(key, held.pid, occupant.gpus, occupant.lease, occupant.whole)
            for key, held in relay.held.items()
            if (occupant := self.launch_builder.occupants.get(key)) is not None
            and held.phase is not messages.ProcessPhase.ENDED
        ]
        # A driver can hang, so real GPUs are read in a thread, and the heartbeat does not wait for long.
        if all(device.virtual for device in self._devices):
            return self._noted(self._measure(occupants))
        if self._measuring is None:
            self._measuring = asyncio.create_task(asyncio.to_thread(self._measure, occupants))
            self._asked_at = time.monotonic()
        await asyncio.wait({self._measuring}, timeout=MEASURE_SECONDS)
        if not self._measuring.done():
            return self._not_measured_yet()
        measured, self._measuring = self._measuring, None
        return self._noted(measured.result())

    def _noted(self, beat: pb.Heartbeat) -> pb.Heartbeat:
        """Record the measured GPU use of attempts, which is reported with their ends."""
        if self._looked is not None:
            self.launch_builder.actuals.look(*self._looked)
            self._looked = None
        return beat

    def _not_measured_yet(self) -> pb.Heartbeat:
        """Build a heartbeat without an answer of the driver: the last reading; offline after `HANGS_SECONDS`."""
        silent_seconds = time.monotonic() - self._asked_at
        if silent_seconds < HANGS_SECONDS:
            return pb.Heartbeat(at=time.time(), gpus=self._gpus)
        why = f"The driver has not answered for {silent_seconds:.0f} s."
        gpus = [pb.GpuUse(index=device.index, health=pb.GpuUse.OFFLINE, why=why) for device in self._devices]
        return pb.Heartbeat(at=time.time(), gpus=gpus)

    def _measure(self, occupants: list[Occupant]) -> pb.Heartbeat:
        host = telemetry.host(self._folder)
        now = time.monotonic()
        if now - self._measured_at >= self._settings.gpu.health_check_interval - 0.1:
            self._measured_at = now
            found = telemetry.gpus(self._devices, self._inventory.use(), occupants, self._mark)
            self._gpus = [_use(gpu) for gpu in found]
            self._looked = (found, occupants)
        return pb.Heartbeat(
            at=time.time(),
            host=pb.Host(
                cpu_percent=host.cpu_percent,
                memory_used_mib=host.memory_used_mib,
                memory_mib=host.memory_mib,
                load=host.load,
                disk_free_mib=host.disk_free_mib,
            ),
            gpus=self._gpus,
        )

    async def keep_tidy(self, relay: AttemptRelay) -> None:
        """Delete old output and look for old checkpoints periodically.

        It waits for the list of attempts first, so that output of running ones is kept.
        """
        await relay.listed.wait()
        while True:
            held = [outputs.path_of(self._outputs, key) for key in relay.held]
            await asyncio.to_thread(
                outputs.prune, self._outputs, KEEP_OUTPUT_BYTES, KEEP_OUTPUT_FILES, KEEP_OUTPUT_SECONDS, held
            )
            await asyncio.to_thread(self._files.prune, list(relay.held))
            self._found_checkpoints = await asyncio.to_thread(self._checkpoints.report, relay.running_tasks())
            await asyncio.sleep(PRUNE_SECONDS)


def _inventory(settings: AgentSettings, busy: Callable[[], dict[int, int]]) -> SelectedGpus:
    """Detect the GPUs that this node may use."""
    gpu = settings.gpu
    every = detect(gpu.detection_method, node=settings.node_id, virtual=gpu.virtual, busy=busy)
    chosen = SelectedGpus(every, gpu.devices, gpu.max_memory_percent)
    if chosen.missing:
        log.warning(
            "gpus_missing", devices=chosen.missing, message="gpu.devices lists GPUs that this machine does not have."
        )
    if gpu.max_compute_percent < 100:
        message = "max_compute_percent takes effect only if the CUDA MPS control daemon runs."
        log.info("compute_limited", percent=gpu.max_compute_percent, message=message)
    return chosen


def join_token_of(settings: AgentSettings, folder: Path) -> str:
    """Return the join token from the settings, else the one that a scheduler on this machine keeps in its data folder.

    Empty if there is none.
    """
    if settings.agent.join_token:
        return settings.agent.join_token
    here = all(address.is_loopback for address in settings.addresses)
    places: list[Path] = [folder.parent, *(data_folders() if here else [])]
    for place in places:
        with suppress(OSError, UnicodeDecodeError):
            drawn = (place / "join_token").read_text(encoding="utf-8").strip()
            if drawn:
                return drawn
    return ""


def data_folders() -> list[Path]:
    """Return the default data folders of a scheduler on this machine: `gpuyard server`, then `gpuyard up`."""
    shared = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return [Path("/var/lib/gpuyard"), Path(shared) / "gpuyard"]


def _scheduler_data(folder: Path) -> tuple[Path, ...]:
    """Return where a scheduler on this machine may keep its data: next to the work folder, or by default."""
    return (folder.parent / "join_token", folder.parent / "journal", *data_folders())


def _is_over(relay: AttemptRelay, key: messages.AttemptKey) -> bool:
    held = relay.held.get(key)
    return held is None or held.phase is messages.ProcessPhase.ENDED


def _gpu_message(device: GpuDevice) -> pb.Gpu:
    return pb.Gpu(
        model=device.model,
        memory_mib=device.memory_mib,
        uuid=device.uuid,
        numa=device.numa,
        nvlink=device.nvlink,
        virtual=device.virtual,
        pci=device.pci,
        driver=device.driver,
    )


def _use(gpu: telemetry.GpuReading) -> pb.GpuUse:
    use = gpu.use
    return pb.GpuUse(
        index=use.index,
        health=_HEALTHS[gpu.health],
        why=gpu.why,
        utilization_percent=use.utilization_percent,
        memory_used_mib=use.memory_used_mib,
        temperature_c=use.temperature_c,
        power_watts=use.power_watts,
        power_limit_watts=use.power_limit_watts,
        fan_percent=use.fan_percent,
        processes=[
            pb.GpuProcess(
                pid=user.pid,
                memory_mib=user.memory_mib,
                user=user.user,
                display=user.display,
                task=user.key.task if user.key else 0,
            )
            for user in gpu.users
        ],
    )


def _own_address(scheduler: str) -> str:
    """Return this machine's address on the route to the scheduler; other nodes reach it there, too."""
    host, _, port = scheduler.rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host.strip("[]") else socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((host.strip("[]"), int(port)))  # sends nothing; it only selects the route
            return str(way.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _voter(settings: AgentSettings, folder: Path) -> AgentVoter:
    tls = _tls_context(settings)
    try:
        return AgentVoter(folder, settings.node_id, join_token_of(settings, folder), tls)
    except OSError as error:
        message = f"Cannot read or write {folder / VOTER_FILE}: {error.strerror}. Make it accessible for the agent."
        raise AgentStartError(message) from error


def _tls_context(settings: AgentSettings) -> ssl.SSLContext | None:
    files = settings.tls
    if not files.ca:
        return None
    try:
        context = ssl.create_default_context(cafile=files.ca)
        if files.cert:
            context.load_cert_chain(files.cert, files.key)
    except OSError as error:
        raise AgentStartError(f"tls: the certificates cannot be used: {error.strerror or error}.") from error
    return context


def _credentials(settings: AgentSettings) -> "grpc.ChannelCredentials | None":
    files = settings.tls
    if not files.ca:
        return None
    try:
        ca = Path(files.ca).read_bytes()
        key = Path(files.key).read_bytes() if files.key else None
        cert = Path(files.cert).read_bytes() if files.cert else None
    except OSError as error:
        raise AgentStartError(f"tls: cannot read {error.filename}: {error.strerror}.") from error
    return grpc.ssl_channel_credentials(ca, key, cert)
