"""What an agent remembers about its yard, so that a wrong or an old scheduler is noticed."""

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import msgspec
import structlog

from gpuyard.system.files import replace_file

log = structlog.get_logger()


class AgentState(msgspec.Struct):
    """Kept in the work folder."""

    instance: str
    """Drawn once for this folder: two agents with one id differ in it."""
    yard: str = ""
    seq: int = 0
    """The highest sequence number any scheduler has told: a witness of how far the journal went."""
    hash: str = ""
    """Of the journal at that number."""
    epoch: int = 0
    origin: int = 0
    """Drawn by the scheduler of that epoch: another one with the same epoch is not obeyed."""
    epoch_proof: str = ""
    """What that scheduler gave us to show for its epoch, in hexadecimal."""
    offline_after_seconds: float = 0.0
    """After how long without a word that scheduler counts this node as lost."""
    scheduler_uid: int | None = None
    """Who owned the scheduler's socket when it was on this machine."""
    task: int = 0
    """The highest task it was ever told of."""


class AgentStateFile:
    """The memory, on disk."""

    def __init__(self, folder: Path, machine_start: str = "", writer: Executor | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / "agent.json"
        found = folder.stat()
        self.boot = sha256(f"{machine_start}/{found.st_dev}/{found.st_ino}".encode()).hexdigest()[:32]
        """Which start of which machine, and which folder there: a copy of the folder has another one."""
        try:
            self.memory = msgspec.json.decode(self._path.read_bytes(), type=AgentState)
        except (OSError, msgspec.MsgspecError):  # new, or cut in half by a crash: then it is a new agent
            self.memory = AgentState(token_hex(16))
        self._saved = b""
        self._identity = ""
        self._writer = writer or ThreadPoolExecutor(1, "witness")
        self._writing: Future[bool] | None = None
        self.save()

    def belong_to(self, yard: str) -> None:
        """The node moves to another yard, because its administrator says so. What it remembers of the old one is void."""
        if self.memory.yard != yard:
            self.memory = AgentState(self.memory.instance, yard)
            self.save()

    def save(self) -> None:
        """Write it if something changed, so that it survives a power loss.

        Another identity, yard or epoch is on the disk when this returns. How far the journal went changes with every
        heartbeat and is written beside the loop: the heartbeat must not wait for a slow disk. On a full disk it is only
        remembered, and written when it is saved again.
        """
        content = msgspec.json.encode(self.memory)
        if content == self._saved:
            return
        memory = self.memory
        identity = f"{memory.instance} {memory.yard} {memory.epoch} {memory.origin}"
        if identity != self._identity:
            if self._writing is not None:
                self._writing.result()
            if self._write(content):
                self._saved, self._identity = content, identity
        elif self._writing is None or self._writing.done():
            if self._writing is not None and not self._writing.result():
                self._identity = ""  # the next one says again whether it worked
            self._saved = content
            self._writing = self._writer.submit(self._write, content)

    def _write(self, content: bytes) -> bool:
        try:
            replace_file(self._path, content)
        except OSError as error:
            log.warning("not_written_down", path=str(self._path), message=str(error))
            return False
        return True
