"""Job steps on several nodes: `srun` in a job script starts ranks on the nodes of its gang.

    srun ── unix socket ──► hub (first node) ◄── TLS ── member (each node) ── ranks

The text of this file travels with the job and runs on its nodes, with any Python from 3.8 on and without gpuyard. The hub
is a child of the wrapper (`job.sh`) on the first node; on the other nodes the member is the command of the task. A member
keeps one connection on which it is asked to open others: one for each step, so that a slow step delays only itself. When a
connection of a step ends, its ranks are ended.

Connections are encrypted by TLS with keys of the moment and without certificates. Both sides then prove that they know the
secret of the job, over a value that identifies the TLS connection (`tls-unique`, RFC 5929), so that nothing between them
can read or change what is sent. Nothing is carried out before that. Decision record 0083 has the reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import resource
import secrets
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:  # this file runs without gpuyard and with old versions of Python
    from typing import IO, Any, NoReturn

JSON, DATA = 0, 1
"""Kinds of frames: a JSON object; or output and input of a rank (its number and 0, 1 or 2 precede the bytes)."""
_HEAD, _OF_RANK = struct.Struct(">BI"), struct.Struct(">IB")
MOST_FRAME_BYTES = 8 << 20
PIECE_BYTES = 32 * 1024
MOST_UNREAD_INPUT = 256 * 1024
"""Input that `srun` has read and rank 0 has not."""
SOCKET = "steps.sock"
JOIN_SECONDS = 120.0
"""How long nodes may take to find each other."""
LOST_SECONDS = 60.0
"""How long a node tries to reach the first one again."""
PROOF_SECONDS = 10.0
"""How long a connection may take to prove that it belongs to the job."""
MOST_STRANGERS = 64
"""Connections that have not proved anything yet, with those that have not begun TLS. A new one ends the oldest one."""
MOST_WAITING = 1024
"""Connections that the kernel keeps until they are accepted."""
OPEN_SECONDS = 30.0
RESOLVE_SECONDS = 5.0
LAST_OUTPUT_SECONDS = 1.0
"""How long output is read after the end of a rank, while something that it left behind holds the pipe."""
SUPERVISED_SECONDS = 0.3
"""A SIGTERM for the whole job reaches hub, srun and ranks at about the same time."""
LIMITS = ("NOFILE", "STACK", "MEMLOCK", "CORE", "AS", "NPROC")


class StepRefused(Exception):
    """Why a step is not started: a sentence."""


# --- frames -----------------------------------------------------------------------------------------------------------


def frame(kind: int, content: bytes) -> bytes:
    """Return a frame."""
    return _HEAD.pack(kind, len(content)) + content


def told(**words: Any) -> bytes:
    """Return a frame with a JSON object."""
    return frame(JSON, json.dumps(words).encode())


def piece(rank: int, stream: int, data: bytes) -> bytes:
    """Return a frame with output or input of a rank."""
    return frame(DATA, _OF_RANK.pack(rank, stream) + data)


class StepConnection:
    """One connection, of frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next frame; None: the other side has left."""
        try:
            kind, length = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if length > MOST_FRAME_BYTES:
                return None
            return kind, await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):  # errors of TLS are OSErrors
            return None

    async def words(self) -> dict[str, Any] | None:
        """Return the next frame, which is a JSON object; None: there is none."""
        found = await self.read()
        return json.loads(found[1]) if found is not None and found[0] == JSON else None

    async def send(self, content: bytes) -> bool:
        """Send a frame, and wait while the other side does not read; False: it has left."""
        try:
            async with self._sending:
                if self._writer.transport.is_closing():
                    return False
                self._writer.write(content)
                await self._writer.drain()
        except (OSError, RuntimeError):
            return False
        return True

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()


# --- the connection between nodes -------------------------------------------------------------------------------------


def key_of(secret: str, task: str, attempt: str) -> bytes:
    """Return the key of one attempt: all attempts and all elements of an array have the same secret."""
    return hmac.new(secret.encode(), f"gpuyard steps {task} {attempt}".encode(), hashlib.sha256).digest()


def tls(server: bool) -> ssl.SSLContext:
    """Return the settings of TLS: fresh keys and no certificates. Who the other side is, `proved` finds out."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2  # the last one with `tls-unique`
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | getattr(ssl, "OP_NO_RENEGOTIATION", 0)
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


async def proved(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, server: bool) -> bool:
    """Exchange proofs of the key over this TLS connection; return whether that of the other side is right."""
    binding = writer.get_extra_info("ssl_object").get_channel_binding("tls-unique")
    if not binding:
        return False
    own, other = (
        hmac.new(key, side + binding, hashlib.sha256).digest()
        for side in ((b"hub", b"member") if server else (b"member", b"hub"))
    )
    writer.write(own)
    try:
        await writer.drain()
        return hmac.compare_digest(await asyncio.wait_for(reader.readexactly(len(other)), PROOF_SECONDS), other)
    except (asyncio.IncompleteReadError, asyncio.TimeoutError, OSError):
        return False


def listening_at(port: int) -> list[socket.socket]:
    """Return sockets that listen on a port of all addresses of this machine."""
    found: list[socket.socket] = []
    for family, kind, _, _, address in socket.getaddrinfo(None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        try:
            channel = socket.socket(family, kind)
        except OSError:  # a kernel without IPv6
            continue
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            channel.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            channel.bind(address)
        except OSError as error:
            channel.close()
            if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6:  # it is disabled
                continue
            raise
        channel.listen(MOST_WAITING)
        channel.setblocking(False)
        found.append(channel)
    return found


def _hang_up(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    channel = writer.get_extra_info("socket")
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1), (socket.IPPROTO_TCP, "TCP_NODELAY", 1), (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 30),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10), (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    ):  # fmt: skip
        with contextlib.suppress(OSError):
            channel.setsockopt(level, getattr(socket, name), value)


# --- ranks on one node ------------------------------------------------------------------------------------------------


class Rank:
    """One process of a step.

    It is not reaped before `clear`, even if it has ended long ago: until then its number, which is that of its process
    group, is given to no other process, so that signals reach only what the rank has started.
    """

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its exit code; or, negative, the signal that ended it."""
        self.reading: list[asyncio.Task[None]] = []
        self.pipes: list[asyncio.ReadTransport] = []
        self._is_over = False

    def look(self) -> None:
        """Find out whether the rank has ended, without reaping it."""
        if self._is_over or self.ended.done():
            return
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            self.ended.set_result(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def signal(self, number: int) -> None:
        """Send a signal to the rank and what it has started."""
        if not self._is_over:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)

    def clear(self) -> None:
        """End what the rank has left behind, and reap it. From then on its number may be that of other processes."""
        self.signal(signal.SIGKILL)
        self._is_over = True
        self.process.poll()

    def close(self) -> None:
        """Leave the rank with all that belongs to it."""
        self.clear()
        for pipe in self.pipes:
            pipe.close()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class StepMember:
    """One node of the job: it starts ranks when the hub asks for them."""

    def __init__(self, host: str, port: int, key: bytes, rank: int) -> None:
        self._host, self._port, self._key, self._rank = host, port, key, rank
        self._steps: set[asyncio.Task[None]] = set()
        self._ranks: set[Rank] = set()
        self.stopping = False
        """The job is being ended."""

    async def serve(self) -> int:
        """Serve until the job ends; return the exit code of this part of it."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._look)
        give_up_at, why = time.monotonic() + JOIN_SECONDS, ""
        while True:
            line, why = await self._connected()
            if line is not None:
                if await self._obey(line):
                    return await self._left(0)
                line.close()
                give_up_at, why = time.monotonic() + LOST_SECONDS, "the connection was lost"
            if self.stopping:
                return await self._left(128 + signal.SIGTERM)
            if time.monotonic() > give_up_at:
                print(f"gpuyard: the first node of the job cannot be reached at {self._host}:{self._port}: {why}. "
                      "The nodes of a job must reach each other by TCP.", file=sys.stderr, flush=True)  # fmt: skip
                return await self._left(1)
            await asyncio.sleep(0.2)

    def _look(self) -> None:
        for rank in self._ranks:
            rank.look()

    async def _left(self, code: int) -> int:
        """Let the ranks of the last steps end."""
        await asyncio.gather(*self._steps, return_exceptions=True)
        return code

    async def _connected(self, **hello: str) -> tuple[StepConnection | None, str]:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(self._host, self._port, ssl=tls(False)), PROOF_SECONDS
            )
        except (OSError, asyncio.TimeoutError) as error:
            return None, str(error) or "it does not answer"
        line = StepConnection(reader, writer)
        if not await proved(reader, writer, self._key, False):
            line.close()
            return None, "another program listens there"
        _keep_alive(writer)
        own = {"rank": self._rank, "host": os.uname().nodename, "node": os.environ.get("GPUYARD_NODE_ID", ""),
               "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}  # fmt: skip
        await line.send(told(**own, **hello))
        if hello:
            return line, ""
        first = await line.words()
        if first is None:
            line.close()
            return None, "it has closed the connection"
        here, there = writer.get_extra_info("sockname")[0], writer.get_extra_info("peername")[0]
        await line.send(told(resolves=await resolves(str(first["host"]), here == there)))
        return line, ""

    async def _obey(self, line: StepConnection) -> bool:
        """Start what is asked for; return whether the job has ended in order."""
        while (words := await line.words()) is not None:
            if "bye" in words:
                return True
            task = asyncio.ensure_future(self._step(str(words["open"])))
            self._steps.add(task)
            task.add_done_callback(self._steps.discard)
        return False

    async def _step(self, token: str) -> None:
        give_up_at = time.monotonic() + OPEN_SECONDS
        while (line := (await self._connected(step=token))[0]) is None:  # it may be lost among those of strangers
            if self.stopping or time.monotonic() > give_up_at:
                return
            await asyncio.sleep(0.1)
        ranks: list[Rank] = []
        try:
            words = await line.words()
            if words is not None:
                ranks += await started(line, words)
                self._ranks.update(ranks)
                self._look()
                waiting = asyncio.ensure_future(self._until_ended(line, ranks))
                hearing = asyncio.ensure_future(_hear(line, ranks))
                await asyncio.wait({waiting, hearing}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():  # srun has ended
                    await _end(ranks)
                hearing.cancel()
                await waiting
        finally:
            for rank in ranks:
                rank.close()
            self._ranks.difference_update(ranks)
            line.close()

    @staticmethod
    async def _until_ended(line: StepConnection, ranks: list[Rank]) -> None:
        async def one(rank: Rank) -> None:
            code = await rank.ended
            if rank.reading:
                await asyncio.wait(rank.reading, timeout=0.1)
            await line.send(told(rank=rank.number, code=code))

        await asyncio.gather(*(one(rank) for rank in ranks))
        for rank in ranks:
            rank.clear()
        reading = [task for rank in ranks for task in rank.reading if not task.done()]
        if reading:
            await asyncio.wait(reading, timeout=LAST_OUTPUT_SECONDS)
            for task in reading:
                task.cancel()
        await line.send(told(done=True))


async def resolves(name: str, same_machine: bool) -> bool:
    """Return whether a host name leads to its machine from here: on another one it must not lead to loopback."""
    try:
        found = await asyncio.wait_for(
            asyncio.get_running_loop().getaddrinfo(name, 1, type=socket.SOCK_STREAM), RESOLVE_SECONDS
        )
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return False
    addresses = [str(each[4][0]) for each in found]
    return same_machine or not any(address.startswith("127.") or address == "::1" for address in addresses)


async def started(line: StepConnection, words: dict[str, Any]) -> list[Rank]:
    """Start the ranks of a step on this node. One that cannot be started ends with the number of the error."""
    asked = words["env"]
    env = {name: value for name, value in asked.items() if not name.startswith("GPUYARD_")}
    env.update((name, value) for name, value in os.environ.items() if name.startswith("GPUYARD_"))
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        if name in os.environ:
            env[name] = os.environ[name]
    folder = words["cwd"]
    code, own_code = asked.get("GPUYARD_SNAPSHOT_DIR"), os.environ.get("GPUYARD_SNAPSHOT_DIR")
    if code and own_code and (folder == code or folder.startswith(code + "/")):
        folder = own_code + folder[len(code) :]  # each node has its own copy of the code

    def prepare() -> None:
        os.setpgid(0, 0)
        os.umask(words["umask"])
        for name, soft in words["limits"].items():
            hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
            wanted = hard if soft == -1 or (hard != -1 and soft > hard) else soft
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (wanted, hard))

    ranks = []
    for each in words["ranks"]:
        number = each["rank"]
        files: list[int] = []
        try:
            if not Path(folder).is_dir():
                raise StepRefused(f"the folder {folder} does not exist on this node")
            out, err = subprocess.PIPE, subprocess.STDOUT if each["out"] else subprocess.PIPE
            if each["out"]:
                files.append(out := _opened(each["out"], folder))
            if each["err"]:
                files.append(err := _opened(each["err"], folder))
            process = subprocess.Popen(  # noqa: S603 - what the user asks for
                words["argv"], stdin=subprocess.PIPE if each["input"] else subprocess.DEVNULL, stdout=out, stderr=err,
                env={**env, **each["env"]}, cwd=folder, preexec_fn=prepare, bufsize=0,  # noqa: PLW1509 - it takes no locks
            )  # fmt: skip
        except (OSError, StepRefused, ValueError, subprocess.SubprocessError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            await line.send(piece(number, 2, f"slurmstepd: error: {words['argv'][0]}: {why}\n".encode()))
            await line.send(told(rank=number, code=getattr(error, "errno", None) or 1))
            if each["input"]:
                await line.send(told(took=-1))
            continue
        finally:
            for descriptor in files:
                os.close(descriptor)
        rank = Rank(number, process)
        for stream, pipe in ((1, process.stdout), (2, process.stderr)):
            if pipe is not None:
                rank.reading.append(asyncio.ensure_future(_pass_on(line, rank, stream, pipe)))
        ranks.append(rank)
    return ranks


def _opened(path: str, folder: str) -> int:
    path = str(Path(folder, path))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


async def _pass_on(line: StepConnection, rank: Rank, stream: int, pipe: IO[bytes]) -> None:
    reader = asyncio.StreamReader(limit=2 * PIECE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    rank.pipes.append(transport)
    while True:
        data = await reader.read(PIECE_BYTES)
        if not data or not await line.send(piece(rank.number, stream, data)):
            return


async def _hear(line: StepConnection, ranks: list[Rank]) -> None:
    """Take input, signals and the order to end, until srun leaves."""
    first = next((rank for rank in ranks if rank.process.stdin is not None), None)
    given: asyncio.Queue[bytes] = asyncio.Queue()
    typing = asyncio.ensure_future(_type(line, first, given)) if first else None
    ending: list[asyncio.Future[None]] = []
    try:
        while (found := await line.read()) is not None:
            kind, content = found
            if kind == DATA:
                given.put_nowait(content[_OF_RANK.size :])
                continue
            words = json.loads(content)
            if "eof" in words:
                given.put_nowait(b"")
            elif "signal" in words:
                for rank in ranks:
                    rank.signal(int(words["signal"]))
            elif "abort" in words:
                ending.append(asyncio.ensure_future(_end(ranks)))
    finally:
        if typing is not None:
            typing.cancel()


async def _type(line: StepConnection, rank: Rank, given: asyncio.Queue[bytes]) -> None:
    pipe = rank.process.stdin
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    while data := await given.get():
        rest = memoryview(data)
        with contextlib.suppress(OSError):  # it does not read any more
            while rest:
                try:
                    rest = rest[os.write(pipe.fileno(), rest) :]
                except BlockingIOError:
                    await _writable(pipe.fileno())
        await line.send(told(took=len(data)))
    pipe.close()


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


async def _end(ranks: list[Rank]) -> None:
    """End ranks: SIGTERM, and after the grace of the task SIGKILL."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
        rank.signal(signal.SIGCONT)
    if ranks:
        await asyncio.wait([rank.ended for rank in ranks], timeout=_grace())
    for rank in ranks:
        rank.signal(signal.SIGKILL)


def _grace() -> float:
    """Return the seconds between SIGTERM and SIGKILL."""
    try:
        return float(os.environ.get("GPUYARD_GRACE_SECONDS", "10"))
    except ValueError:
        return 10.0


# --- layout of a step -------------------------------------------------------------------------------------------------


def _number(text: str, what: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 100_000:
        raise StepRefused(f"{text} is not a number of {what}")
    return int(text)


def layout(options: dict[str, str], env: dict[str, str], names: list[str]) -> list[tuple[int, list[int]]]:
    """Return the nodes of a step, each with its ranks. Consecutive ranks share a node, unless `-m cyclic`."""
    wanted = [name for name in options.get("nodelist", "").split(",") if name]
    at_least = []
    for name in wanted:
        found = next((place for place, one in enumerate(names) if name in {one, one.split(".")[0]}), None)
        if found is None and name == "localhost":
            found = 0
        if found is None:
            raise StepRefused(f"{name} is no node of the job; its nodes are {','.join(names)}")
        if found not in at_least:
            at_least.append(found)
    left_out = {name for name in options.get("exclude", "").split(",") if name}
    others = [
        place for place, name in enumerate(names) if place not in at_least and not {name, name.split(".")[0]} & left_out
    ]
    if not at_least and not others:
        raise StepRefused("the step excludes all nodes of the job")
    tasks = _number(options.get("tasks", ""), "tasks")
    each = _number(options.get("per_node", ""), "tasks on each node")
    usual = _number(env.get("SLURM_NTASKS_PER_NODE", ""), "tasks on each node")
    of_job = _number(env.get("SLURM_NTASKS", ""), "tasks")
    count = _number(options.get("nodes", "").split("-")[0], "nodes")
    if count is None:
        count = len(at_least) or len(at_least) + len(others)
    count = max(count, len(at_least))
    if count > len(at_least) + len(others):
        there = len(at_least) + len(others)
        without = "" if there == len(names) else " without those that it excludes"
        raise StepRefused(f"the step requests {count} nodes, and the job has {there}{without}")
    if tasks is None:
        if each is None and usual is None and of_job and count == len(names):
            tasks = of_job
        else:
            tasks = count * (each or usual or (-(-of_job // len(names)) if of_job else 1))
    elif each and tasks > each * count:
        raise StepRefused(f"{tasks} tasks do not fit on {count} nodes with {each} each")
    used = sorted((at_least + others)[: min(count, tasks)])
    if options.get("distribution", "").startswith("cyclic"):
        return [(node, list(range(place, tasks, len(used)))) for place, node in enumerate(used)]
    share, more = divmod(tasks, len(used))
    found_ranks, rank = [], 0
    for place, node in enumerate(used):
        many = share + (place < more)
        found_ranks.append((node, list(range(rank, rank + many))))
        rank += many
    return found_ranks


def tasks_per_node(counts: list[int]) -> str:
    """Return tasks on each node as Slurm writes it: `2(x3),1`."""
    parts: list[list[int]] = []
    for count in counts:
        if parts and parts[-1][0] == count:
            parts[-1][1] += 1
        else:
            parts.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)


def filled(pattern: str, values: dict[str, str]) -> str:
    """Return a file name with its patterns replaced."""
    path, rest = "", pattern
    while rest:
        before, percent, rest = rest.partition("%")
        path += before
        if not percent:
            break
        digits = len(rest) - len(rest.lstrip("0123456789"))
        width, letter = rest[:digits], rest[digits : digits + 1]
        rest = rest[digits + 1 :]
        if letter == "%":
            path += "%"
        elif letter in values and letter:
            path += values[letter].rjust(min(int(width or 0), 10), "0")
        else:
            path += f"%{width}{letter}"
    return path


def gpus_on_node(options: dict[str, str], tasks: int, nodes: int) -> int | None:
    """Return the GPUs that a step requests on a node; None: all of them, with others."""
    for name, parts in (("gpus_each", 1), ("gpus_node", 1), ("gpus_total", nodes)):
        if text := options.get(name):
            count = 0 if text.strip("0") == "" else _number(text, "GPUs") or 0
            if count % parts:
                raise StepRefused(f"{count} GPUs cannot be divided by {nodes} nodes")
            return count * tasks if name == "gpus_each" else count // parts
    return None


# --- the hub ----------------------------------------------------------------------------------------------------------


class Node:
    """A node as the hub knows it."""

    def __init__(self, line: StepConnection, hello: dict[str, Any], address: str, host_works: bool) -> None:
        self.line = line
        self.host, self.node = str(hello["host"]), str(hello["node"])
        self.gpus = [gpu for gpu in str(hello["gpus"]).split(",") if gpu]
        self.address = address
        self.host_works = host_works


class Hub:
    """The first node: it passes on what srun and the members say."""

    def __init__(self, count: int, key: bytes, address: str) -> None:
        self._key, self._address = key, address
        self._count = count
        self._nodes: dict[int, Node] = {}
        self._changed = asyncio.Condition()
        """Nodes have joined, or GPUs are free again."""
        self._first_works = True
        self.names: list[str] = []
        self._tokens: dict[str, asyncio.Future[StepConnection]] = {}
        self._held: dict[int, set[str]] = {node: set() for node in range(count)}
        """GPUs of steps that have their own ones."""
        self._number = 0
        self._strangers: dict[asyncio.Task[None], socket.socket] = {}
        """The oldest one is the first one."""
        self._greeting: set[asyncio.Task[None]] = set()
        """Connections of nodes that are being introduced. The loop itself keeps no task alive."""
        self._sruns: dict[RunningStep, asyncio.Task[Any]] = {}
        self.stopped_at = -1.0
        """When the whole job was told to end."""

    # --- nodes ---

    async def joined(self) -> list[str]:
        """Wait until all nodes are there; return their names."""

        async def all_there() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: len(self._nodes) == self._count)

        try:
            await asyncio.wait_for(all_there(), JOIN_SECONDS)
        except asyncio.TimeoutError:
            missing = [str(rank) for rank in range(self._count) if rank not in self._nodes]
            raise StepRefused(
                f"node {' and '.join(missing)} of the job has not connected to {self._address} within {JOIN_SECONDS:g} s. "
                "The nodes of a job must reach each other by TCP"
            ) from None
        self._nodes[0].host_works = self._first_works
        self._nodes[0].address = self._address
        for rank in range(self._count):
            one = self._nodes[rank]
            choices = ((one.host if one.host_works else ""), one.address, one.node, f"node-{rank}")
            self.names.append(next(name for name in choices if name and name not in self.names))
        return self.names

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections. Anyone can open some, so few are kept that have proved nothing, each for a short time."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                channel, _ = await loop.sock_accept(listening)
            except OSError:  # it has gone, or there are no descriptors left
                await asyncio.sleep(0.1)
                continue
            if len(self._strangers) >= MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                _hang_up(self._strangers.pop(oldest))
                oldest.cancel()
            serving = asyncio.ensure_future(self._serve(channel))
            self._strangers[serving] = channel
            await asyncio.sleep(0)  # those that are there come first

    async def _serve(self, channel: socket.socket) -> None:
        """Serve a connection if it proves that it belongs to the job."""
        serving = asyncio.current_task()
        assert serving is not None
        try:
            found = await asyncio.wait_for(self._let_in(channel), PROOF_SECONDS)
        except (OSError, asyncio.TimeoutError):
            found = None
        finally:
            self._strangers.pop(serving, None)
        if found is None:
            _hang_up(channel)
            return
        self._greeting.add(serving)
        serving.add_done_callback(self._greeting.discard)
        await self._hear_member(*found)

    async def _let_in(self, channel: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2 * PIECE_BYTES)
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader), channel, ssl=tls(True), ssl_handshake_timeout=PROOF_SECONDS
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return (reader, writer) if await proved(reader, writer, self._key, True) else None

    async def _hear_member(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection of a node."""
        line = StepConnection(reader, writer)
        hello = await line.words()
        if hello is None:
            line.close()
            return
        _keep_alive(writer)
        if "step" in hello:
            waiting = self._tokens.pop(str(hello["step"]), None)
            if waiting is None or waiting.done():
                line.close()
            else:
                waiting.set_result(line)
            return
        await line.send(told(host=os.uname().nodename))
        answer = await line.words()
        rank = int(hello["rank"])
        if answer is None or not 0 <= rank < self._count:
            line.close()
            return
        self._first_works = self._first_works and bool(answer["resolves"])
        here, there = writer.get_extra_info("sockname")[0], writer.get_extra_info("peername")[0]
        works = await resolves(str(hello["host"]), here == there)
        if rank in self._nodes:
            self._nodes[rank].line.close()
            self._nodes[rank].line = line
        else:
            self._nodes[rank] = Node(line, hello, there, works)
        async with self._changed:
            self._changed.notify_all()

    async def goodbye(self) -> None:
        """End all steps and tell the nodes that the job has ended."""
        for step in self._sruns:
            step.left.set()
        await asyncio.gather(*self._sruns.values(), return_exceptions=True)
        for node in self._nodes.values():
            await node.line.send(told(bye=True))
            node.line.close()

    # --- steps ---

    async def hear_srun(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve an srun until it or its step ends."""
        line = StepConnection(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        step = RunningStep(self, line)
        self._sruns[step] = task
        try:
            asked = await line.words()
            if asked is not None:
                await step.run(asked)
        except StepRefused as refusal:
            await line.send(told(error=str(refusal)))
        finally:
            del self._sruns[step]
            line.close()

    def next_number(self) -> int:
        """Return the number of a new step."""
        self._number += 1
        return self._number - 1

    async def open(self, node: int) -> StepConnection:
        """Return a new connection to a node."""
        token = secrets.token_hex(8)
        waiting = self._tokens[token] = asyncio.get_running_loop().create_future()
        try:
            give_up_at = time.monotonic() + OPEN_SECONDS
            while not await self._nodes[node].line.send(told(open=token)):
                if time.monotonic() > give_up_at:
                    raise StepRefused(f"node {self.names[node]} is not connected")
                await asyncio.sleep(0.2)
            return await asyncio.wait_for(waiting, OPEN_SECONDS)
        except asyncio.TimeoutError:
            raise StepRefused(f"node {self.names[node]} does not answer") from None
        finally:
            self._tokens.pop(token, None)

    def gpus_of(self, node: int) -> list[str]:
        """Return the GPUs of the job on a node."""
        return self._nodes[node].gpus

    async def gpus(
        self, wanted: dict[int, int | None], overlap: bool, srun: StepConnection
    ) -> tuple[dict[int, list[str]], dict[int, set[str]]]:
        """Return the GPUs of a step on each node, and those that it holds for itself: it waits until they are free."""
        shared, own = {}, {}
        for node, count in wanted.items():
            there = self._nodes[node].gpus
            if count is not None and count > len(there):
                raise StepRefused(
                    f"the step requests {count} GPUs on {self.names[node]}, and the job has {len(there)} there"
                )
            if count is None or overlap or count == 0:
                shared[node] = there if count is None else there[:count]
            else:
                own[node] = count

        def free(node: int) -> list[str]:
            return [gpu for gpu in self._nodes[node].gpus if gpu not in self._held[node]]

        def are_free() -> bool:
            return all(len(free(node)) >= count for node, count in own.items())

        if not are_free():
            await srun.send(told(waits="the step waits for GPUs of other steps; with --overlap it would share them"))
        async with self._changed:
            await self._changed.wait_for(are_free)
            held = {node: set(free(node)[:count]) for node, count in own.items()}
            for node, taken in held.items():
                self._held[node] |= taken
        found = {node: [gpu for gpu in self._nodes[node].gpus if gpu in taken] for node, taken in held.items()}
        return {**shared, **found}, held

    async def release(self, held: dict[int, set[str]]) -> None:
        """Take back GPUs of a step."""
        async with self._changed:
            for node, taken in held.items():
                self._held[node] -= taken
            self._changed.notify_all()

    @property
    def address(self) -> str:
        """The address at which the nodes reach this one."""
        return self._address


class RunningStep:
    """One srun."""

    def __init__(self, hub: Hub, line: StepConnection) -> None:
        self._hub = hub
        self._srun = line
        self._lines: dict[int, StepConnection] = {}
        self._aborted = False
        self._with_input: StepConnection | None = None
        self.left = asyncio.Event()
        """Set when srun has left, or the job ends."""

    async def run(self, asked: dict[str, Any]) -> None:
        """Start the ranks and pass on what they and srun say, until one side has ended."""
        options, env = asked["options"], asked["env"]
        places = layout(options, env, self._hub.names)
        wanted = {node: gpus_on_node(options, len(ranks), len(places)) for node, ranks in places}
        starting = asyncio.ensure_future(self._start(asked, places, wanted))
        leaving = asyncio.ensure_future(self.left.wait())
        hearing = asyncio.ensure_future(self._hear())
        try:
            await asyncio.wait({starting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and self._with_input is not None:
                await self._abort()
                await asyncio.wait({starting}, timeout=_grace() + LAST_OUTPUT_SECONDS + PROOF_SECONDS)
            if starting.done():
                starting.result()
        finally:
            for task in (starting, leaving, hearing):
                task.cancel()
            await asyncio.gather(starting, leaving, hearing, return_exceptions=True)

    async def _start(
        self, asked: dict[str, Any], places: list[tuple[int, list[int]]], wanted: dict[int, int | None]
    ) -> None:
        gpus, held = await self._hub.gpus(wanted, bool(asked["options"].get("overlap")), self._srun)
        try:
            number = self._hub.next_number()
            orders = self.orders(asked, places, gpus, number)
            for node, order in orders.items():
                self._lines[node] = await self._hub.open(node)
                await self._lines[node].send(told(**order))
            self._with_input = self._lines[next(node for node, ranks in places if 0 in ranks)]
            await self._srun.send(told(step=number, tasks=sum(len(ranks) for _, ranks in places)))
            await asyncio.gather(*(self._carry(node, asked["options"]) for node, _ in places))
            await self._srun.send(told(done=True))
        finally:
            for line in self._lines.values():
                line.close()
            await self._hub.release(held)

    def orders(
        self, asked: dict[str, Any], places: list[tuple[int, list[int]]], gpus: dict[int, list[str]], number: int
    ) -> dict[int, dict[str, Any]]:
        """Return what each node is to start."""
        options, names = asked["options"], self._hub.names
        tasks = str(sum(len(ranks) for _, ranks in places))
        per_node = tasks_per_node([len(ranks) for _, ranks in places])
        of_step = {
            "SLURM_STEP_ID": str(number), "SLURM_STEPID": str(number), "SLURM_STEP_NUM_NODES": str(len(places)),
            "SLURM_STEP_NODELIST": ",".join(names[node] for node, _ in places), "SLURM_STEP_NUM_TASKS": tasks,
            "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_LAUNCH_NODE_IPADDR": self._hub.address,
            "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks, "SLURM_NNODES": str(len(places)), "SLURM_TASKS_PER_NODE": per_node,
        }  # fmt: skip
        each = int(options.get("gpus_each") or 0)
        found = {}
        for place, (node, ranks) in enumerate(places):
            of_node = {
                "SLURMD_NODENAME": names[node],
                "SLURM_NODEID": str(place),
                "SLURM_GTIDS": ",".join(map(str, ranks)),
            }
            if self._hub.gpus_of(node):
                listed = ",".join(gpus[node])
                of_node.update({"SLURM_JOB_GPUS": ",".join(self._hub.gpus_of(node)), "SLURM_STEP_GPUS": listed})
                of_node.update({"SLURM_GPUS_ON_NODE": str(len(gpus[node])), "CUDA_VISIBLE_DEVICES": listed})
            starts = []
            for local, rank in enumerate(ranks):
                of_rank = {**of_step, **of_node, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}
                if each and gpus[node]:
                    of_rank["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[node][local * each : (local + 1) * each])
                letters = {
                    **asked["letters"],
                    "t": str(rank),
                    "n": str(place),
                    "N": names[node].split(".")[0],
                    "s": str(number),
                }
                starts.append({
                    "rank": rank, "env": of_rank, "input": rank == 0,
                    "out": filled(asked["out"], letters), "err": filled(asked["err"], letters),
                })  # fmt: skip
            found[node] = {**{name: asked[name] for name in ("argv", "env", "cwd", "umask", "limits")}, "ranks": starts}
        return found

    async def _carry(self, node: int, options: dict[str, str]) -> None:
        """Pass on what a node says, until its ranks have ended."""
        line = self._lines[node]
        while (found := await line.read()) is not None:
            kind, content = found
            words = json.loads(content) if kind == JSON else {}
            if "done" in words:
                return
            if "code" in words:
                words["node"] = self._hub.names[node]
                content = json.dumps(words).encode()
                if options.get("kill") and words["code"]:
                    await self._abort()
                elif options.get("wait"):
                    asyncio.get_running_loop().call_later(
                        float(options["wait"]), lambda: asyncio.ensure_future(self._abort())
                    )
            await self._srun.send(frame(kind, content))
        await self._srun.send(told(lost=self._hub.names[node]))
        await self._abort()

    async def _abort(self) -> None:
        if not self._aborted:
            self._aborted = True
            await asyncio.gather(*(line.send(told(abort=True)) for line in self._lines.values()))

    async def _hear(self) -> None:
        """Pass on input and signals, until srun leaves."""
        while (found := await self._srun.read()) is not None:
            kind, content = found
            words = json.loads(content) if kind == JSON else {}
            if "signal" in words:
                if words["signal"] == signal.SIGTERM:
                    # A SIGTERM for the whole job has reached the ranks already; twice would make some of them give up.
                    await asyncio.sleep(SUPERVISED_SECONDS)
                    if 0 <= time.monotonic() - self._hub.stopped_at < 10 * SUPERVISED_SECONDS:
                        continue
                for line in self._lines.values():
                    await line.send(frame(kind, content))
            elif self._with_input is not None:
                await self._with_input.send(frame(kind, content))
        self.left.set()


# --- srun -------------------------------------------------------------------------------------------------------------


class Srun:
    """The process in the script that stands for a step."""

    FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, folder: str, options: dict[str, str], argv: list[str]) -> None:
        self._options = options
        self._channel = socket.socket(socket.AF_UNIX)
        self._pending: dict[tuple[int, int], bytes] = {}
        """The beginning of a line of a rank."""
        self._width = 0
        self._highest = 0
        self._outstanding = 0
        self._reads_input = True
        self._started = False
        self._targets = {1: 1, 2: 2}
        try:
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            try:
                self._channel.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
            finally:
                os.close(descriptor)
        except OSError:
            _fail("srun", "the job has ended")
        try:
            folder_here = str(Path.cwd())
        except OSError as error:
            _fail("srun", f"the current folder cannot be used: {error.strerror}")
        env = dict(os.environ)
        letters = {
            "j": env.get("SLURM_JOB_ID", ""), "J": env.get("SLURM_JOB_ID", ""), "x": env.get("SLURM_JOB_NAME", ""),
            "u": env.get("SLURM_JOB_USER", ""), "A": env.get("SLURM_ARRAY_JOB_ID", env.get("SLURM_JOB_ID", "")),
            "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        }  # fmt: skip
        on_nodes = {"out": "", "err": ""}
        for name, stream in (("out", 1), ("err", 2)):
            pattern = "/dev/null" if options.get(name) == "none" else options.get(name, "")
            if re.search(r"%[0-9]*[tnNs]", pattern.replace("%%", "")):
                on_nodes[name] = pattern  # a file of each rank or node
            elif pattern and pattern != "all":
                self._targets[stream] = _opened(filled(pattern, letters), folder_here)
        if self._targets[1] != 1 and self._targets[2] == 2 and not on_nodes["err"]:
            self._targets[2] = self._targets[1]
        mask = os.umask(0o077)
        os.umask(mask)
        limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in LIMITS}
        asked = {"options": options, "env": env, "argv": argv, "cwd": folder_here, "umask": mask, "limits": limits,
                 "letters": letters, **on_nodes}  # fmt: skip
        self._unsent = bytearray(told(**asked))

    def run(self) -> int:
        """Carry input and output until the step has ended; return the exit code."""
        bell, ring = socket.socketpair()
        bell.setblocking(False)
        ring.setblocking(False)
        signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        for number in self.FORWARDED:
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        self._channel.setblocking(False)
        taken = bytearray()
        while True:
            poll = select.poll()
            poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.register(bell, select.POLLIN)
            if self._started and self._reads_input and not self._unsent and self._outstanding < MOST_UNREAD_INPUT:
                poll.register(0, select.POLLIN)
            for descriptor, mask in poll.poll():
                if descriptor == bell.fileno():
                    for received in bell.recv(64):
                        if not self._started:
                            return 128 + received
                        self._unsent += told(signal=received)
                elif descriptor == 0:
                    self._read_input()
                else:
                    if mask & select.POLLOUT:
                        with contextlib.suppress(BlockingIOError):
                            del self._unsent[: self._channel.send(self._unsent[:65536])]
                    if mask & ~select.POLLOUT:
                        try:
                            data = self._channel.recv(1 << 18)
                        except BlockingIOError:
                            continue
                        if not data:
                            _fail("srun", "the job has ended")
                        taken += data
                        if (code := self._take(taken)) is not None:
                            return code

    def _read_input(self) -> None:
        try:
            data = os.read(0, PIECE_BYTES)
        except OSError:
            data = b""
        self._outstanding += len(data)
        self._reads_input = bool(data)
        self._unsent += piece(0, 0, data) if data else told(eof=True)

    def _take(self, taken: bytearray) -> int | None:
        """Carry out the frames that have arrived; return the exit code when the step has ended."""
        while len(taken) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(taken)
            end = _HEAD.size + length
            if len(taken) < end:
                return None
            content = bytes(taken[_HEAD.size : end])
            del taken[:end]
            if kind == DATA:
                rank, stream = _OF_RANK.unpack_from(content)
                self._print(rank, stream, content[_OF_RANK.size :])
                continue
            words = json.loads(content)
            if "step" in words:
                self._started, self._width = True, len(str(words["tasks"] - 1))
            elif "took" in words:
                self._outstanding -= int(words["took"])
                self._reads_input = self._reads_input and words["took"] >= 0
            elif "code" in words:
                self._ended(words)
            elif "waits" in words:
                self._say(f"srun: {words['waits']}")
            elif "lost" in words:
                self._say(f"srun: error: Node failure on {words['lost']}")
                self._highest = max(self._highest, 1)
            elif "error" in words:
                self._say(f"srun: {words['error']}")
                return max(self._highest, 1)
            elif "done" in words:
                for rank, stream in list(self._pending):
                    self._write(
                        rank, stream, self._pending.pop((rank, stream)) + b"\n" * bool(self._options.get("label"))
                    )
                return self._highest
        return None

    def _ended(self, words: dict[str, Any]) -> None:
        code = int(words["code"])
        if code == 0:
            return
        how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code) or f"signal {-code}"
        self._highest = max(self._highest, code if code > 0 else 128 - code)
        self._say(f"srun: error: {words['node']}: task {words['rank']}: {how}")

    @staticmethod
    def _say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    def _print(self, rank: int, stream: int, data: bytes) -> None:
        """Print output by whole lines, so that those of different ranks are not mixed."""
        if self._options.get("unbuffered") and not self._options.get("label"):
            self._write(rank, stream, data)
            return
        data = self._pending.pop((rank, stream), b"") + data
        lines, newline, rest = data.rpartition(b"\n")
        if len(rest) > MOST_UNREAD_INPUT:
            lines, newline, rest = data, b"", b""
        if rest:
            self._pending[rank, stream] = rest
        if lines or newline:
            self._write(rank, stream, lines + newline)

    def _write(self, rank: int, stream: int, data: bytes) -> None:
        if self._options.get("label"):
            mark = f"{rank:>{self._width}}: ".encode()
            data = b"".join(mark + line for line in data.splitlines(keepends=True))
        while data:
            data = data[os.write(self._targets[stream], data) :]


# --- programs ---------------------------------------------------------------------------------------------------------


def _fail(program: str, sentence: str) -> NoReturn:
    print(f"{program}: {sentence}.", file=sys.stderr, flush=True)
    raise SystemExit(1)


async def serve_hub(folder: str, key: bytes) -> int:
    """Serve as the first node, until SIGUSR1 or the end of the wrapper. Prints the names of the nodes when all are there."""
    count, port = int(os.environ["WORLD_SIZE"]), int(os.environ["MASTER_PORT"])
    hub = Hub(count, key, os.environ["MASTER_ADDR"])
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    own = StepMember("127.0.0.1", port, key, 0)

    def stopping() -> None:
        hub.stopped_at = time.monotonic()
        own.stopping = True

    loop.add_signal_handler(signal.SIGTERM, stopping)
    loop.add_signal_handler(signal.SIGUSR1, over.set)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2):
        loop.add_signal_handler(number, lambda: None)
    parent = os.getppid()
    try:
        accepting = [asyncio.ensure_future(hub.accept(listening)) for listening in listening_at(port)]
    except OSError as error:
        _fail("gpuyard", f"port {port}, which was free for the nodes of this job, cannot be used: {error.strerror}")
    serving = asyncio.ensure_future(own.serve())
    try:
        names = await hub.joined()
    except StepRefused as refusal:
        _fail("gpuyard", str(refusal))
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    await asyncio.start_unix_server(hub.hear_srun, f"/proc/self/fd/{descriptor}/{SOCKET}", limit=1 << 18)
    os.write(1, (",".join(names) + "\n").encode())
    os.close(1)
    while not over.is_set() and os.getppid() == parent:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), 1.0)
    await hub.goodbye()
    await serving
    for task in accepting:
        task.cancel()
    return 0


async def serve_member(key: bytes) -> int:
    """Serve as another node."""
    member = StepMember(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), key, int(os.environ["NODE_RANK"]))
    loop = asyncio.get_running_loop()

    def stopping() -> None:
        member.stopping = True

    loop.add_signal_handler(signal.SIGTERM, stopping)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, lambda: None)
    return await member.serve()


def main(words: list[str]) -> int:
    """`hub FOLDER`, `member FOLDER` or `srun FOLDER NAME=VALUE… -- COMMAND…`."""
    program, folder, *rest = words
    if program == "srun":
        end = rest.index("--")
        options = dict(word.split("=", 1) for word in rest[:end])
        for descriptor in range(3):  # one that is closed would become the socket
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
        return Srun(folder, options, rest[end + 1 :]).run()
    secret = os.environ.pop("SBATCH_STEPS_SECRET", "")
    if not secret:
        _fail("gpuyard", "the secret of the job is missing, so that its nodes cannot trust each other")
    key = key_of(secret, os.environ["GPUYARD_TASK_ID"], os.environ.get("GPUYARD_ATTEMPT", "1"))
    if program == "member":
        shutil.rmtree(folder, ignore_errors=True)  # it has been read
        return asyncio.run(serve_member(key))
    return asyncio.run(serve_hub(folder, key))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
