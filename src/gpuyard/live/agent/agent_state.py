"""Remembers the cluster and scheduler an agent belongs to, so that a wrong or outdated scheduler is detected."""

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import msgspec
import structlog

from gpuyard.system.files import replace_file

log = structlog.get_logger()


class AgentState(msgspec.Struct):
    """The state that is kept in the work folder."""

    instance: str
    """Drawn once for this folder; it tells apart two agents with the same node id."""
    cluster_id: str = msgspec.field(default="", name="yard")
    seq: int = 0
    """The highest sequence number any scheduler has sent. It shows how far the journal went."""
    hash: str = ""
    """Hash of the journal at that number."""
    epoch: int = 0
    origin: int = 0
    """Drawn by the scheduler of that epoch; a different scheduler with the same epoch is not obeyed."""
    epoch_proof: str = ""
    """That scheduler's proof of its epoch, in hexadecimal."""
    offline_after_seconds: float = 0.0
    """Seconds without a message after which that scheduler counts this node as lost."""
    scheduler_uid: int | None = None
    """The uid that owned the scheduler's socket when it was on this machine."""
    voting: tuple[str, ...] = ()
    """Where the schedulers of this cluster accept voters; empty: this node does not vote."""
    task: int = 0
    """The highest task id this agent was ever sent."""


class AgentStateFile:
    """The agent's state on disk."""

    def __init__(self, folder: Path, machine_start: str = "", writer: Executor | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / "agent.json"
        found = folder.stat()
        self.boot = sha256(f"{machine_start}/{found.st_dev}/{found.st_ino}".encode()).hexdigest()[:32]
        """Identifies the machine, its boot and the folder; a copy of the folder has a different value."""
        try:
            self.memory = msgspec.json.decode(self._path.read_bytes(), type=AgentState)
        except (OSError, msgspec.MsgspecError):  # new, or truncated by a crash: start as a new agent
            self.memory = AgentState(token_hex(16))
        self._saved = b""
        self._identity = ""
        self._writer = writer or ThreadPoolExecutor(1, "witness")
        self._writing: Future[bool] | None = None
        self.save()

    def belong_to(self, cluster_id: str) -> None:
        """Move the node to another cluster at its administrator's request.

        The state of the old cluster is discarded.
        """
        if self.memory.cluster_id != cluster_id:
            self.memory = AgentState(self.memory.instance, cluster_id)
            self.save()

    def save(self) -> None:
        """Write the state to disk, with fsync, if it has changed.

        A change of instance, cluster or epoch is on disk when this returns. The position in the journal changes with
        every heartbeat and is written by a separate thread, because the heartbeat must not wait for a slow disk. If the
        disk is full, the state stays in memory and the next `save` writes it.
        """
        content = msgspec.json.encode(self.memory)
        if content == self._saved:
            return
        memory = self.memory
        identity = f"{memory.instance} {memory.cluster_id} {memory.epoch} {memory.origin}"
        if identity != self._identity:
            if self._writing is not None:
                self._writing.result()
            if self._write(content):
                self._saved, self._identity = content, identity
        elif self._writing is None or self._writing.done():
            if self._writing is not None and not self._writing.result():
                self._identity = ""  # makes the next save synchronous, so that its result is known
            self._saved = content
            self._writing = self._writer.submit(self._write, content)

    def _write(self, content: bytes) -> bool:
        try:
            replace_file(self._path, content)
        except OSError as error:
            log.warning("state_write_failed", path=str(self._path), message=str(error))
            return False
        return True
