"""A provider that runs an administrator's commands: one boots a node, one releases it. No cloud is needed.

Both are shell lines in which {node} and {kind} are replaced; their output goes to a file for each node. The boot
command exits with 0 when the node is up, or on its way up; if it still runs at a release, it is ended first. The
release command exits with 0 when the node is down; until it does, it is run again. The requested nodes are kept in a
document (a file, or a row of a database), so a restarted scheduler or its successor continues where it stopped. The
result of a command that ran during the restart is unknown: a boot counts as done, and a release is run once more.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import structlog

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.pool import PoolNode, PoolNodeState
from gpuyard.core.domain.values import NodeId
from gpuyard.system.files import replace_file

log = structlog.get_logger()


class PoolDamaged(GpuyardError):
    """The file that says which nodes were asked for cannot be read. See which nodes are up, and move the file away."""


class NodeDocument(Protocol):
    """Where the requested nodes are kept."""

    def read(self) -> bytes | None:
        """Return the content; None: nothing was written yet."""
        ...

    def write(self, content: bytes) -> None:
        """Replace the content. Durable when this returns."""
        ...


class _NodeFile(NamedTuple):
    path: Path

    def read(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def write(self, content: bytes) -> None:
        replace_file(self.path, content)


class CommandProvider:
    """Implements `gpuyard.live.pool.provider.Provider`."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        boot_command: str,
        release_command: str,
        clock: Callable[[], float] = time.time,
        document: NodeDocument | None = None,
    ) -> None:
        """`folder`: for the output of the commands. `document`: None for the file nodes.json in that folder."""
        self._folder = folder
        self._document = document or _NodeFile(folder / "nodes.json")
        self._kind = kind
        self._boot_command = boot_command
        self._release_command = release_command
        self._clock = clock
        self._running: dict[NodeId, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._provisioned = {provisioned.node: provisioned for provisioned in self._read()}

    def boot(self, nodes: Sequence[NodeId]) -> None:
        """Boot nodes. The request is saved before the commands run, so that no node is up without a record."""
        new = [node for node in nodes if node not in self._provisioned]
        for node in new:
            self._provisioned[node] = PoolNode(node, PoolNodeState.BOOTING, self._clock())
        if new:
            self._write()
        for node in new:
            self._run(node, self._boot_command)

    def nodes(self) -> Sequence[PoolNode]:
        """Return all nodes, after checking the commands."""
        before = dict(self._provisioned)
        for node, provisioned in before.items():
            if provisioned.state in {PoolNodeState.BOOTING, PoolNodeState.LEAVING}:
                self._look(node, provisioned.state)
        if before != self._provisioned:
            self._write()
        return list(self._provisioned.values())

    def release(self, nodes: Sequence[NodeId]) -> None:
        """Run the release command for each node, and forget nodes that are gone."""
        for node in nodes:
            provisioned = self._provisioned.get(node)
            if provisioned is None or provisioned.state is PoolNodeState.LEAVING:
                continue
            if provisioned.state is PoolNodeState.GONE:
                del self._provisioned[node]
                continue
            self._end(node)
            self._be(node, PoolNodeState.LEAVING)
            self._run(node, self._release_command)
        self._write()

    # --- commands --------------------------------------------------------------------------------------------------------

    def _run(self, node: NodeId, command: str) -> None:
        line = command.replace("{node}", node).replace("{kind}", self._kind)
        with (self._folder / f"{node}.log").open("ab") as output:
            self._running[node] = subprocess.Popen(  # noqa: S603 - an administrator's own line
                ["/bin/sh", "-c", line],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _look(self, node: NodeId, state: PoolNodeState) -> None:
        process = self._running.get(node)
        code = process.poll() if process is not None else None
        if process is not None and code is None:
            return
        booting = state is PoolNodeState.BOOTING
        if code and process is not None:
            log.warning("pool_command_failed", node=node, boots=booting, exit_code=code, output=f"{node}.log")
        if booting:
            self._be(node, PoolNodeState.FAILED if code else PoolNodeState.READY)
        elif code == 0:
            self._be(node, PoolNodeState.GONE)
        else:
            self._run(node, self._release_command)

    def _end(self, node: NodeId) -> None:
        """End a boot command that still runs, with all its processes."""
        process = self._running.pop(node, None)
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)

    # --- memory ----------------------------------------------------------------------------------------------------------

    def _be(self, node: NodeId, state: PoolNodeState) -> None:
        self._provisioned[node] = PoolNode(node, state, self._clock())

    def _read(self) -> list[PoolNode]:
        try:
            content = self._document.read()
            return msgspec.json.decode(content, type=list[PoolNode]) if content is not None else []
        except (OSError, msgspec.MsgspecError) as error:
            where, way_out = f"The document of the pool {self._kind}", "delete the document"
            if isinstance(self._document, _NodeFile):
                where, way_out = f"{self._document.path}", "move the file away"
            raise PoolDamaged(
                f"{where} cannot be read ({error}). Check which nodes of the pool are running, and {way_out}."
            ) from None

    def _write(self) -> None:
        self._document.write(msgspec.json.encode(list(self._provisioned.values())))
