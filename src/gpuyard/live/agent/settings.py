"""The settings of an agent, read from its file. configs/agent.yaml shows every key.

Some keys come from an earlier design and keep their names. A key whose feature does not exist yet is refused if its value
would have an effect.
"""

import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from gpuyard.core.domain.node import RESERVED_PREFIX
from gpuyard.live.wire.certificates import wrong_authority, wrong_pair
from gpuyard.live.wire.config import Complaint, Duration, DurationOrNone, PeerAddress, load, too_short
from gpuyard.live.wire.limits import (
    MOST_GPUS_IN_A_NODE,
    GpuPercent,
    GpuSelectors,
    Labels,
    NodeNameOrNone,
    TenantName,
)
from gpuyard.live.wire.loopback_peer import is_loopback_address
from gpuyard.live.wire.sections import FilePath, FolderPath, Section

LONGEST_ABSENCE_SECONDS = 86_400.0
LEAST_SECONDS = {
    "agent.heartbeat_interval": 0.1,
    "scheduler.connection_timeout": 0.1,
    "scheduler.retry_interval": 0.1,
    "scheduler.max_retry_interval": 0.1,
    "gpu.health_check_interval": 0.1,
    "executor.grace": 0.1,
    "executor.launch_timeout": 1.0,
}
"""Least values. Shorter ones would keep the agent busy with nothing else, or let nothing start."""
DEFAULT_SCHEDULER = PeerAddress("127.0.0.1:9090")

VirtualGpus: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,4}(:[A-Za-z0-9 ._-]{1,64}(:[0-9]{1,5})?)?)?$(?!\n)",
        description="COUNT, COUNT:MODEL or COUNT:MODEL:GIGABYTES, such as 4:RTX4090:24, or empty for none",
    ),
]


class AgentSection(Section, frozen=True):
    """The identity of this node."""

    id: NodeNameOrNone = ""
    """Empty: the host's name."""
    heartbeat_interval: Duration = Duration(5)
    join_token: str = ""
    """The scheduler's join token."""
    address: Annotated[str, Meta(max_length=253)] = ""
    """The address at which other nodes reach this one, for gangs; empty: detected."""
    labels: Labels = {}
    """Tasks can request nodes with these labels."""
    away_timeout: DurationOrNone = DurationOrNone(300)
    """How long the scheduler waits for an agent that was stopped on purpose, before its tasks start elsewhere."""


class SchedulerAddressSection(Section, frozen=True):
    """The addresses of the scheduler, and the time limits for connecting."""

    master_address: PeerAddress = DEFAULT_SCHEDULER
    standby_address: PeerAddress = PeerAddress("")
    addresses: list[PeerAddress] = []
    """Further addresses, tried in turn."""
    connection_timeout: Duration = Duration(10)
    retry_interval: Duration = Duration(2)
    max_retry_interval: Duration = Duration(30)
    """The wait between attempts doubles up to this."""
    plain: bool = False
    """Explicitly allow a connection without TLS to an address beyond loopback."""


class GpuSection(Section, frozen=True):
    """How GPUs are found."""

    detection_method: Literal["auto", "nvml", "nvidia-smi", "virtual"] = "auto"
    health_check_interval: Duration = Duration(5)
    """How often the GPUs are read; at most once per heartbeat."""
    virtual: VirtualGpus = ""
    """Simulated GPUs: tasks run as on real ones, and find their numbers in CUDA_VISIBLE_DEVICES."""
    devices: GpuSelectors = []
    """The GPUs to use, by number or UUID; empty: all that are found."""
    max_memory_percent: GpuPercent = 100
    """The part of each GPU's memory that tasks can use."""
    max_compute_percent: GpuPercent = 100
    """The part of each GPU's compute that a process may use; needs CUDA's MPS."""


class DockerSection(Section, frozen=True):
    """Keys for running tasks in containers."""

    socket: FilePath = "/var/run/docker.sock"
    default_image: Annotated[str, Meta(max_length=256)] = ""


class ExecutorSection(Section, frozen=True):
    """How tasks run on this node."""

    execution_method: Literal["process", "docker"] = "process"
    work_dir: FolderPath = "/var/lib/gpuyard-agent"
    """Folder for output, exit codes and the supervisor's state.

    Not in the scheduler's data folder, which may have another owner.
    """
    shared_user: bool = False
    """Let tasks of users that log in run as the agent's own user.

    They can then read the join token and reach each other.
    """
    users: dict[TenantName, Annotated[str, Meta(min_length=1, max_length=64)]] = {}
    """System users by tenant; needs root."""
    system_users: dict[TenantName, Annotated[str, Meta(min_length=1, max_length=64)]] = {}
    """System users by the name of the submitting user; takes precedence over `users`."""
    checkpoint_dir: FilePath = ""
    """Folder for the checkpoints of tasks; the same folder of a shared file system on all nodes lets a task continue
    anywhere. Empty: beside the work folder, or in it if the agent is not root.
    """
    blob_cache_mb: Annotated[int, Meta(ge=1, le=100_000_000)] = 4096
    """Limit on the code, functions and arguments of tasks that this node keeps to use them again."""
    output_limit_mb: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    """Limit on the output of one attempt on disk; the oldest part is dropped first."""
    grace: Duration = Duration(10)
    """Time between SIGTERM and SIGKILL."""
    launch_timeout: Duration = Duration(30)
    """How long work dir, output and command of a task may take to open; after that it is not launched."""
    max_shells_per_task: Annotated[int, Meta(ge=1, le=1000)] = 16
    """Shells that may be open beside one task."""
    max_shells: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Shells that may be open on the node; a task without one gets its first nevertheless."""
    control_groups: Literal["auto", "always", "never"] = "auto"
    """Run tasks in their own control groups, which no process can leave; auto: only tasks on real GPUs."""
    docker: DockerSection = DockerSection()


class AgentLoggingSection(Section, frozen=True):
    """What is logged, in which format and where."""

    level: Literal["debug", "info", "warn", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"
    output: FilePath = "stdout"
    """stdout, stderr or a path."""


class AgentTlsSection(Section, frozen=True):
    """PEM files: the authority to trust, and this agent's certificate for a scheduler that asks for one."""

    ca: FilePath = ""
    cert: FilePath = ""
    key: FilePath = ""


class AgentSettings(Section, frozen=True):
    """All settings of an agent. The fields are the sections of the file; the properties are derived values."""

    agent: AgentSection = AgentSection()
    scheduler: SchedulerAddressSection = SchedulerAddressSection()
    gpu: GpuSection = GpuSection()
    executor: ExecutorSection = ExecutorSection()
    logging: AgentLoggingSection = AgentLoggingSection()
    tls: AgentTlsSection = AgentTlsSection()

    @property
    def node_id(self) -> str:
        """The name of this node: as configured, or the host name with invalid characters replaced."""
        return self.agent.id or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:128] or "node"

    @property
    def addresses(self) -> tuple[PeerAddress, ...]:
        """All addresses of schedulers, in the order in which they are tried."""
        scheduler = self.scheduler
        every = (scheduler.master_address, scheduler.standby_address, *scheduler.addresses)
        return tuple(dict.fromkeys(address for address in every if address))

    @property
    def work_dir(self) -> Path:
        """The work folder as an absolute path, because the supervisor has another current folder."""
        return Path(self.executor.work_dir).absolute()

    @property
    def checkpoint_dir(self) -> Path:
        """The folder for checkpoints. The work folder of root is closed to the users that its tasks run as."""
        if self.executor.checkpoint_dir:
            return Path(self.executor.checkpoint_dir).absolute()
        folder = self.work_dir
        return folder.with_name(f"{folder.name}-checkpoints") if os.geteuid() == 0 else folder / "checkpoints"

    @property
    def files_dir(self) -> Path:
        """The folder for code snapshots and other files of tasks, which the users that tasks run as must reach."""
        folder = self.work_dir
        return folder.with_name(f"{folder.name}-files") if os.geteuid() == 0 else folder / "files"

    @property
    def log_level(self) -> str:
        """debug, info, warning or error."""
        return "warning" if self.logging.level == "warn" else self.logging.level


def load_agent_settings(path: Path | None, env: Mapping[str, str], *, not_ours: Collection[str] = ()) -> AgentSettings:
    """Read and check the settings. Raise `WrongSettings` with one sentence if they are wrong."""
    return load(AgentSettings, path, env, check=_wrong_with, not_ours=not_ours)


def _wrong_users(executor: ExecutorSection) -> Iterator[Complaint]:
    for key, mapping in (("executor.users", executor.users), ("executor.system_users", executor.system_users)):
        for name, user in mapping.items():
            if user == "root" and not executor.shared_user:
                sentence = (
                    f"{key} maps {name} to root, so these tasks could read and change everything on this node. Map it to "
                    "another system user, or set executor.shared_user: true to allow it."
                )
                yield key, sentence


def _wrong_tls(tls: AgentTlsSection) -> Iterator[Complaint]:
    """Check keys that need each other, and files that no connection can be made with."""
    if bool(tls.cert) != bool(tls.key):
        yield "tls", "tls needs both cert and key; set the missing one."
    elif tls.cert and not tls.ca:
        yield "tls", "tls.cert also needs tls.ca, the authority to trust."
    else:
        yield from wrong_authority("tls.ca", tls.ca)
        yield from wrong_pair("tls.cert", tls.cert, "tls.key", tls.key)


def _wrong_with(settings: AgentSettings) -> Iterator[Complaint]:
    yield from too_short(settings, LEAST_SECONDS)
    yield from _wrong_users(settings.executor)
    for label in settings.agent.labels:
        if label.startswith(RESERVED_PREFIX):
            sentence = (
                f'agent.labels contains "{label}"; labels that begin with {RESERVED_PREFIX} are reserved for agents.'
            )
            yield "agent.labels", sentence
    if not settings.addresses:
        yield "scheduler.master_address", "scheduler.master_address is empty; set it to the HOST:PORT of the scheduler."
    if settings.executor.execution_method == "docker":
        sentence = "executor.execution_method docker is not supported yet; use process."
        yield "executor.execution_method", sentence
    if settings.gpu.detection_method == "virtual" and not settings.gpu.virtual:
        sentence = "gpu.detection_method is virtual; set gpu.virtual to the virtual GPUs, such as 4:RTX4090:24."
        yield "gpu.detection_method", sentence
    if settings.gpu.virtual and settings.gpu.detection_method not in {"auto", "virtual"}:
        sentence = (
            f"gpu.virtual is set, but gpu.detection_method is {settings.gpu.detection_method}; remove one of them."
        )
        yield "gpu.virtual", sentence
    count = settings.gpu.virtual.partition(":")[0]
    if count and int(count) > MOST_GPUS_IN_A_NODE:
        sentence = (
            f"gpu.virtual has {int(count)} GPUs; a node has at most {MOST_GPUS_IN_A_NODE}. "
            "Use fewer, and start further agents for the others."
        )
        yield "gpu.virtual", sentence
    if settings.agent.away_timeout > LONGEST_ABSENCE_SECONDS:
        yield (
            "agent.away_timeout",
            "agent.away_timeout is longer than a day, the maximum; make it shorter.",
        )
    if settings.scheduler.retry_interval > settings.scheduler.max_retry_interval:
        sentence = "scheduler.retry_interval is longer than scheduler.max_retry_interval; make it shorter."
        yield "scheduler.retry_interval", sentence
    yield from _wrong_tls(settings.tls)
    beyond = [str(address) for address in settings.addresses if not is_loopback_address(str(address))]
    if beyond and not settings.tls.ca and not settings.scheduler.plain:
        sentence = (
            f"The connection to {beyond[0]} would not be encrypted: commands and secrets would cross the network in "
            "plain text. Set tls.ca to the authority of the scheduler's certificate, or set scheduler.plain: true to "
            "allow it."
        )
        yield "scheduler.master_address", sentence
