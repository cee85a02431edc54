"""The holder of a console: a process that owns the terminal, or the standard input, of one command.

    client ─ … ─ agent ── unix socket ──► holder ── terminal, or a pipe ──► command
                                            └─────► log: the output, which every client gets from there

It is the process that the supervisor knows as the command, and it ends as its command ends: with the same exit code or
by the same signal. So the terminal outlives agent and supervisor. It keeps the rights of the supervisor; only the
command gets those of the user of the task.

All output goes to the log first. An attached client is sent the log from the offset that it names, so what is new and
what it has missed come the same way. While a client types, at most `WINDOW_BYTES` are ahead of what it has
acknowledged; then the terminal is not read, and the command waits. Without a client everything is read.

Without a client for `linger` seconds the command gets SIGHUP, as if its terminal was closed, and later SIGKILL. A
command with only a standard input gets the end of that input instead.

A shell beside a task has no log file: its output is kept in memory (`KEPT_BYTES`), and when it has ended its holder
stays until its client has all of it, `STAY_SECONDS` at most. Its `record` is made before the command begins and has its
end as soon as there is one. So a client that comes late, or again, does not make it run twice, and learns how it ended.

Like the launcher it is run from this file by its path (`python -I -S`) and imports only the standard library. The order
comes in a file descriptor, as `marshal` has written it. The frames are those of wire/channel_frames.py.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import marshal
import os
import select
import signal
import socket
import struct
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "gpuyard-console"
INPUT, OUTPUT, CONTROL, ACK, END = 0, 1, 3, 4, 255
HEAD = struct.Struct(">BQ")
LENGTH = struct.Struct(">I")
MOST_FRAME_BYTES = 64 * 1024 + HEAD.size
PIECE_BYTES = 32 * 1024
WINDOW_BYTES, LOW_BYTES = 256 * 1024, 64 * 1024
"""The terminal is not read while a client that types is this far behind, until it is not further than the second."""
BACKLOG_BYTES = 1 << 20
"""A client that returns gets at most this much of what it has missed; before it a `gap` is reported."""
TYPED_BYTES = 64 * 1024
"""Input that the command has not read yet, at most."""
SENT_BYTES = 128 * 1024
"""Output that waits in the socket to the agent, at most."""
KEPT_BYTES = 4 << 20
"""Of the output of a shell, which has no log file."""
READ_BYTES = 64 * 1024
READS = 16
"""Reads of the terminal before clients are looked at: it gives 4 KiB at a time."""
FIRST_SECONDS = 30.0
"""How long the first client may take at least, whatever the linger."""
HANGUP_SECONDS = 5.0
"""Between SIGHUP and SIGKILL."""
FLUSH_SECONDS = 3.0
"""How long the end waits for clients that have not received everything, which is in the log as well."""
STAY_SECONDS = 60.0
"""How long the holder of a shell, whose output is only here, waits for its client after the end."""
LEAVE_SECONDS = 1.0
"""How long the end waits for clients that have been sent everything to leave: what they confirm meanwhile must not meet a
closed socket, or the agent would drop what it has not passed on."""
DRAIN_BYTES = 1 << 20
MOST_PEERS = 32
MOST_TOKENS = 64
_PR_SET_NAME, _PR_SET_PDEATHSIG = 15, 1
_PUNCH = 0x01 | 0x02
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


Order = dict[str, "Any"]
"""What to hold, as `shells.py` and the launcher build it."""


class Peer:
    """One attached client."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.received = b""
        self.unsent = bytearray()
        self.may_write: bool | None = None
        """As the agent says in its first frame; None: it has said nothing yet."""
        self.attached = False
        self.writes = False
        self.token = ""
        self.sent = 0
        self.acked = 0
        self.told_exit = False


class Holder:
    """The console and its clients."""

    def __init__(self, order: Order, log: int, read_log: int, master: int, child: int) -> None:
        self.order = order
        self.log = log
        self.read_log = read_log
        """The same output, at a position of its own."""
        self.own_log = not order["log"]
        self.master = master
        """The terminal, or the writing end of the pipe; -1: closed."""
        self.child = child
        self.child_handle = os.pidfd_open(child)
        self.end = os.fstat(log).st_size
        self.begin = 0
        self.peers: dict[int, Peer] = {}
        """By descriptor."""
        self.taken: dict[str, int] = {}
        """How much input of each client, by token, was taken."""
        self.typed = bytearray()
        self.input_ended = False
        self.paused = False
        self.kill_at: float | None = None
        self.alone_since: float | None = time.monotonic()
        self.first_until = time.monotonic() + FIRST_SECONDS
        """Until when the first client is waited for."""
        self.status: int | None = None
        self.told_to_end = False
        """The attempt ends, or no client has come for too long."""
        self.was_received = False
        """The client that types has been sent everything, with the end."""
        self.listener = listen(order["socket"])
        self.wakeup, bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)

    # --- the loop

    def run(self) -> int:
        """Serve until the command is over; return its status as `waitpid` has it."""
        while self.status is None:
            self._turn()
        self._note_end()
        ended_at, all_have_it_at = time.monotonic(), None
        while True:
            now = time.monotonic()
            if not all(self._has_all(peer) for peer in self.peers.values()):
                all_have_it_at = None
            elif all_have_it_at is None:
                all_have_it_at = now
            if not self._must_stay(now - ended_at, 0.0 if all_have_it_at is None else now - all_have_it_at):
                return self.status
            self._turn()

    def _must_stay(self, over_seconds: float, idle_seconds: float) -> bool:
        """Return whether clients are to be waited for: they have not received everything, not left, or not come yet."""
        stays = self.own_log and not self.told_to_end
        if any(peer.attached for peer in self.peers.values()):
            return idle_seconds < LEAVE_SECONDS and over_seconds < (STAY_SECONDS if stays else FLUSH_SECONDS)
        if not stays or self.was_received:
            return False
        linger: float | None = self.order["linger"]
        return over_seconds < (STAY_SECONDS if linger is None or not self.taken else min(linger, STAY_SECONDS))

    def _note_end(self) -> None:
        """Write the end of a shell to its record."""
        if record := self.order.get("record"):
            with contextlib.suppress(OSError), open(record, "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(json.dumps(self._end_of_command()))

    def _end_of_command(self) -> dict[str, int | None]:
        assert self.status is not None
        exited = os.WIFEXITED(self.status)
        code = os.WEXITSTATUS(self.status) if exited else None
        return {"code": code, "signal": None if exited else os.WTERMSIG(self.status), "end": self.end}

    def _turn(self) -> None:
        """Wait for something and do it."""
        poll = select.poll()
        poll.register(self.wakeup, select.POLLIN)
        if self.status is None:
            poll.register(self.child_handle, select.POLLIN)
        poll.register(self.listener, select.POLLIN)
        if self.master >= 0:
            mask = select.POLLOUT if self.typed else 0
            if self.order["terminal"] and self._may_read():
                mask |= select.POLLIN
            if mask:
                poll.register(self.master, mask)
        for number, peer in self.peers.items():
            mask = select.POLLOUT if peer.unsent or self._may_send(peer) else 0
            if not peer.writes or len(self.typed) < TYPED_BYTES:
                mask |= select.POLLIN
            poll.register(number, mask)
        for number, what in poll.poll(self._wait_ms()):
            if number == self.wakeup:
                if signal.SIGTERM in os.read(self.wakeup, 4096):
                    self.told_to_end = True
                    self._hang_up()
            elif number == self.child_handle:
                self._look_at_child()
            elif number == self.listener.fileno():
                self._accept()
            elif number == self.master:
                self._serve_master(what)
            elif number in self.peers:
                self._serve_peer(self.peers[number], what)
        self._look_at_time()
        self._pump()

    def _wait_ms(self) -> float | None:
        """Return how long to wait at most; None: for ever."""
        instants = [it for it in (self.kill_at, self._hangup_at()) if it is not None]
        if not self.taken and time.monotonic() < self.first_until:
            instants.append(self.first_until)
        if self.status is not None:
            instants.append(time.monotonic() + 0.2)
        return max(0, min(instants) - time.monotonic()) * 1000 + 1 if instants else None

    def _hangup_at(self) -> float | None:
        linger: float | None = self.order["linger"]
        if self.alone_since is None or linger is None or self.status is not None or self.kill_at is not None:
            return None
        if not self.order["terminal"] and self.input_ended:
            return None
        return self.alone_since + (linger if self.taken else max(linger, FIRST_SECONDS))

    def _look_at_time(self) -> None:
        """Hang up after the time without a client; kill what does not end after that."""
        now = time.monotonic()
        due = self._hangup_at()
        if due is not None and now >= due:
            self._note(f"gpuyard: no client was attached for {self.order['linger']:g} s, so the terminal was closed")
            self.told_to_end = True
            if self.order["terminal"]:
                self._hang_up()
            else:
                self.input_ended = True
        if self.kill_at is not None and now >= self.kill_at and self.status is None:
            self.kill_at = now + HANGUP_SECONDS
            self._signal_session(signal.SIGKILL)

    def _look_at_child(self) -> None:
        found, status = os.waitpid(self.child, os.WNOHANG)
        if found:
            self._drain()  # before clients are told the end, which is the last they read
            self.status = status

    def _hang_up(self) -> None:
        """End the command as a closed terminal does."""
        if self.status is None and self.kill_at is None:
            self.kill_at = time.monotonic() + HANGUP_SECONDS
            self._signal_session(signal.SIGHUP if self.order["terminal"] else signal.SIGTERM)
            self._signal_session(signal.SIGCONT)

    def _signal_session(self, number: int) -> None:
        """Signal the command and the foreground job of its terminal."""
        groups = {self.child}
        if self.order["terminal"]:
            with contextlib.suppress(OSError):
                groups.add(struct.unpack("i", fcntl.ioctl(self.master, termios.TIOCGPGRP, bytes(4)))[0])
        for group in groups:
            if group > 1:
                try:
                    os.killpg(group, number)
                except OSError:
                    continue

    # --- the terminal

    def _may_read(self) -> bool:
        """Return whether clients keep up with the output."""
        if not self.taken and time.monotonic() < self.first_until:
            return self.end <= WINDOW_BYTES  # the first client gets all output
        behind = [self.end - peer.acked for peer in self.peers.values() if peer.writes]
        most = max(behind, default=0)
        if self.paused:
            self.paused = most > LOW_BYTES
        else:
            self.paused = most > WINDOW_BYTES
        return not self.paused

    def _serve_master(self, what: int) -> None:
        if self.typed and what & (select.POLLOUT | select.POLLHUP | select.POLLERR):
            self._write_input()
        if self.master >= 0 and self.order["terminal"] and what & (select.POLLIN | select.POLLHUP):
            self._read_output(READS)

    def _read_output(self, reads: int) -> int:
        """Read what the terminal has, and append it to the log. Return the number of bytes."""
        parts: list[bytes] = []
        for _ in range(reads):
            try:
                part = os.read(self.master, READ_BYTES)
            except BlockingIOError:
                break
            except OSError:  # every process has closed the terminal
                if not parts:
                    time.sleep(0.01)
                break
            if not part:
                break
            parts.append(part)
        data = b"".join(parts)
        if data:
            self._append(data)
        return len(data)

    def _append(self, data: bytes) -> None:
        try:
            done = 0
            while done < len(data):
                done += os.write(self.log, data[done:])
            self.end = os.lseek(self.log, 0, os.SEEK_CUR)
        except OSError:  # no space: the terminal goes on, and the log has a hole
            for peer in self.peers.values():
                if peer.attached:
                    self._send(peer, OUTPUT, self.end, data)
            return
        if self.own_log and self.end - self.begin > 2 * KEPT_BYTES:
            keep = (self.end - KEPT_BYTES) // 4096 * 4096
            if _LIBC.fallocate(self.log, _PUNCH, 0, keep) == 0:
                self.begin = keep

    def _note(self, sentence: str) -> None:
        self._append(("\r\n[" + sentence + "]\r\n").encode())

    def _drain(self) -> None:
        """Take what the terminal still has after the end of the command."""
        taken = 0
        while self.order["terminal"] and taken < DRAIN_BYTES:
            more = self._read_output(1)
            if not more:
                break
            taken += more

    def _write_input(self) -> None:
        try:
            done = os.write(self.master, self.typed)
            del self.typed[:done]
        except BlockingIOError:
            return
        except OSError:  # the command has closed its input
            self.typed.clear()
            if not self.order["terminal"]:
                os.close(self.master)
                self.master = -1
        self._close_input()

    def _close_input(self) -> None:
        """Close the pipe when all input was written and there will be no more."""
        if self.input_ended and not self.typed and self.master >= 0 and not self.order["terminal"]:
            os.close(self.master)
            self.master = -1

    def _resize(self, columns: int, rows: int) -> None:
        if self.order["terminal"] and 0 < columns < 10000 and 0 < rows < 10000:
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _redraw(self) -> None:
        """Let a full-screen program draw again."""
        try:
            group = struct.unpack("i", fcntl.ioctl(self.master, termios.TIOCGPGRP, bytes(4)))[0]
            if group > 1:
                os.killpg(group, signal.SIGWINCH)
        except OSError:
            return

    # --- clients

    def _accept(self) -> None:
        try:
            channel, _ = self.listener.accept()
        except OSError:
            return
        channel.setblocking(False)
        self.peers[channel.fileno()] = Peer(channel)
        if len(self.peers) > MOST_PEERS:  # whoever watches must not keep the owner out
            self._drop(next(peer for peer in self.peers.values() if not peer.writes))

    def _drop(self, peer: Peer) -> None:
        if self.peers.pop(peer.channel.fileno(), None) is not None:
            peer.channel.close()
        if self.alone_since is None and not any(it.writes for it in self.peers.values()):
            self.alone_since = time.monotonic()

    def _serve_peer(self, peer: Peer, what: int) -> None:
        if what & select.POLLOUT:
            self._flush(peer)
        if not what & (select.POLLIN | select.POLLHUP | select.POLLERR) or peer.channel.fileno() not in self.peers:
            return
        try:
            data = peer.channel.recv(1 << 17)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        peer.received += data
        while len(peer.received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(peer.received)
            if not HEAD.size <= length <= MOST_FRAME_BYTES:
                self._drop(peer)
                return
            if len(peer.received) < LENGTH.size + length:
                return
            frame = peer.received[LENGTH.size : LENGTH.size + length]
            peer.received = peer.received[LENGTH.size + length :]
            try:
                kind, offset = HEAD.unpack_from(frame)
                self._take(peer, kind, offset, frame[HEAD.size :])
            except Exception:  # whatever a client sends, the command goes on
                self._drop(peer)
            if peer.channel.fileno() < 0:
                return

    def _take(self, peer: Peer, kind: int, offset: int, content: bytes) -> None:
        """Carry out a frame."""
        if kind == CONTROL:
            words = json.loads(content)
            if "rights" in words:
                if peer.may_write is None:  # what follows comes from the client, which must not give itself rights
                    peer.may_write = bool(words["rights"]["write"])
            elif "attach" in words:
                self._attach(peer, words["attach"])
            elif "resize" in words and peer.writes:
                self._resize(*map(int, words["resize"]))
        elif kind == ACK:
            peer.acked = max(peer.acked, min(offset, peer.sent))
        elif kind == INPUT and peer.writes:
            taken = self.taken[peer.token]
            if offset > taken:
                raise ValueError("input is missing")
            new = content[taken - offset :]
            if self.master >= 0 and not self.input_ended:
                self.typed += new
                self._write_input()
            self.taken[peer.token] = taken + len(new)
            self._send(peer, ACK, taken + len(new), b"")
            self._close_input()
        elif kind == END and peer.writes:
            self.input_ended = True
            self._close_input()

    def _attach(self, peer: Peer, words: Order) -> None:
        if peer.attached or peer.may_write is None:
            return
        token = str(words.get("token", ""))[:64]
        if peer.may_write:
            for other in [it for it in self.peers.values() if it.writes]:
                if other.token != token and not words.get("steal"):
                    sentence = (
                        "Another client is attached and types. Take over with --steal, or watch with --read-only."
                    )
                    self._say(peer, error={"code": "Attached", "message": sentence})
                    self._flush(peer)
                    self._drop(peer)
                    return
                self._say(other, error={"code": "TakenOver", "message": "Another client has taken over this console."})
                self._flush(other)
                self._drop(other)
            peer.writes = True
            self.alone_since = None
            self.taken.setdefault(token, 0)
            while len(self.taken) > MOST_TOKENS:
                del self.taken[next(iter(self.taken))]
        peer.token = token
        peer.attached = True
        received = int(words.get("received", -1))
        is_first = received < 0
        start = max(0, self.end - PIECE_BYTES // 2) if is_first else min(received, self.end)
        begin = max(start, self.end - BACKLOG_BYTES)
        peer.sent = peer.acked = begin
        answer = {
            "offset": begin, "end": self.end, "input": self.taken.get(token, 0), "write": peer.writes,
            "terminal": self.order["terminal"],
        }  # fmt: skip
        self._say(peer, attached=answer)
        if begin > start and not is_first:
            self._say(peer, gap=[start, begin])
        if peer.writes and "columns" in words:
            self._resize(int(words["columns"]), int(words["rows"]))
            if received != self.end:
                self._redraw()

    def _pump(self) -> None:
        """Send clients the part of the log that they do not have."""
        for peer in list(self.peers.values()):
            if not peer.attached:
                continue
            while self._may_send(peer) and len(peer.unsent) < SENT_BYTES:
                try:
                    begin = os.lseek(self.read_log, peer.sent, os.SEEK_DATA)
                except OSError:
                    begin = self.end
                if begin > peer.sent:
                    self._say(peer, gap=[peer.sent, begin])
                    peer.sent = begin
                    peer.acked = max(peer.acked, begin)
                data = os.pread(self.read_log, min(PIECE_BYTES, self.end - peer.sent), peer.sent)
                if not data:
                    peer.sent = self.end
                    break
                self._send(peer, OUTPUT, peer.sent, data)
                peer.sent += len(data)
            if self.status is not None and not peer.told_exit and (
                peer.sent >= self.end or not self.order["terminal"]
            ):  # fmt: skip
                peer.told_exit = True
                self._say(peer, exit=self._end_of_command())
            self._flush(peer)
            if peer.writes and peer.told_exit and not peer.unsent:
                self.was_received = True

    def _may_send(self, peer: Peer) -> bool:
        """Whether there is output that this client may be sent: it is not too far ahead of what it has confirmed."""
        has_more = peer.attached and self.order["terminal"] and peer.sent < self.end
        return has_more and peer.sent - peer.acked <= WINDOW_BYTES

    def _has_all(self, peer: Peer) -> bool:
        return not peer.attached or (peer.told_exit and not peer.unsent)

    def _say(self, peer: Peer, **words: object) -> None:
        self._send(peer, CONTROL, 0, json.dumps(words).encode())

    def _send(self, peer: Peer, kind: int, offset: int, content: bytes) -> None:
        peer.unsent += LENGTH.pack(HEAD.size + len(content)) + HEAD.pack(kind, offset) + content

    def _flush(self, peer: Peer) -> None:
        while peer.unsent:
            try:
                done = peer.channel.send(peer.unsent[:SENT_BYTES])
            except BlockingIOError:
                return
            except OSError:
                self._drop(peer)
                return
            del peer.unsent[:done]


# --- beginning --------------------------------------------------------------------------------------------------------


def listen(path: str) -> socket.socket:
    """Listen on a unix socket that only the owner of this process may use. The path may be of any length."""
    folder, name = os.path.split(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib would double our memory
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        before = os.umask(0o177)
        listener.bind(f"/proc/self/fd/{descriptor}/{name}")
        os.umask(before)
    finally:
        os.close(descriptor)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def open_console(order: Order) -> tuple[int, int]:
    """Return both ends: a terminal of the right size, or a pipe."""
    if not order["terminal"]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        return writing, reading
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", order["rows"], order["columns"], 0, 0))
    flags = termios.tcgetattr(slave)
    flags[0] |= getattr(termios, "IUTF8", 0o40000)
    termios.tcsetattr(slave, termios.TCSANOW, flags)
    return master, slave


def become_command(order: Order, end: int, holder: int, channel: int) -> None:
    """Become the command, in the child. Does not return."""
    step = "work dir"
    try:
        os.setsid()
        die_with(holder)
        uid, gid = order["uid"], order["gid"]
        drops = uid is not None and os.geteuid() == 0
        if order["terminal"]:
            fcntl.ioctl(end, termios.TIOCSCTTY, 0)
            if drops:
                os.fchown(end, uid, -1)
            for standard in (0, 1, 2):
                os.dup2(end, standard)
        else:
            os.dup2(end, 0)
        if drops:
            os.setgroups(order["groups"])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            die_with(holder)  # a change of the user has cancelled it
        os.chdir(order["cwd"])
        step = "command"
        path = find(order["argv"][0], order["env"])
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if channel >= 0:
            os.write(channel, b"g")
        os.execve(path, order["argv"], order["env"])  # noqa: S606 - running what users submit is what this is for
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None) or 0
        text = (getattr(error, "strerror", None) or str(error))[:1000]
        if channel >= 0:
            os.write(channel, marshal.dumps((step if isinstance(error, OSError) else "text", code, text)))
        else:
            os.write(
                2, f"gpuyard: {step} {order['argv'][0] if step == 'command' else order['cwd']}: {text}\r\n".encode()
            )
    finally:
        os._exit(127)


def die_with(holder: int) -> None:
    """Have the kernel end this process when the holder is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != holder:
        os._exit(127)


def find(command: str, env: dict[str, str]) -> str:
    """Return the file of a command, searched on the task's own PATH."""
    if "/" in command:
        return command
    found_any = False
    for folder in env.get("PATH", os.defpath).split(":"):
        path = f"{folder or '.'}/{command}"
        if os.path.isfile(path):  # noqa: PTH113
            if os.access(path, os.X_OK):
                return path
            found_any = True
    number = errno.EACCES if found_any else errno.ENOENT
    raise OSError(number, os.strerror(number), command)


def join(group: str) -> None:
    """Join the control group of the task."""
    try:
        with open(group, "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("0")
    except OSError:
        return


def end_like(status: int) -> None:
    """End as the command has ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its core, if any, is that of the command
        signal.signal(number, signal.SIG_DFL) if number not in {signal.SIGKILL, signal.SIGSTOP} else None
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def main(order_at: int, channel: int) -> None:
    """Hold the console of the command in this order. `channel`: where a launch is reported; -1: nowhere."""
    with os.fdopen(order_at, "rb") as file:
        file.seek(0)
        order = marshal.load(file)  # noqa: S302 - from our own launcher or supervisor
    _LIBC.prctl(_PR_SET_NAME, NAME.encode()[:15], 0, 0, 0)
    if channel >= 0:
        os.set_inheritable(channel, False)
    if order["group"]:
        join(order["group"])
    if (record := order.get("record")) and not claim(record):  # an older supervisor sends none
        return
    master, end = open_console(order)
    os.set_inheritable(end, False)
    log, read_log = open_log(order)
    me = os.getpid()
    child = os.fork()
    if child == 0:
        become_command(order, end, me, channel)
    os.close(end)
    if channel >= 0:
        os.close(channel)
    os.set_blocking(master, False)
    holder = Holder(order, log, read_log, master, child)
    status = holder.run()
    with contextlib.suppress(OSError):
        os.unlink(order["socket"])  # noqa: PTH108
    end_like(status)


def claim(record: str) -> bool:
    """Make the record of a shell. False: there is one, so its command has begun before."""
    os.makedirs(os.path.dirname(record), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
    try:
        os.close(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def open_log(order: Order) -> tuple[int, int]:
    """Return where output is written and read: the standard output of this process, or memory."""
    if not order["log"]:
        memory = os.memfd_create("console", os.MFD_CLOEXEC)
        return memory, os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)  # with a position of its own
    return 1, os.open(order["log"], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
