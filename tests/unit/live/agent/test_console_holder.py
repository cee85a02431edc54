"""The holder of a console, as a process of its own, over its socket."""

import json
import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpuyard.live.agent.supervisor import console_holder, launcher
from gpuyard.live.wire import channel_frames as frames
from tests.acceptance.waiting import until

pytestmark = pytest.mark.slow


def test_the_holder_and_the_wire_agree_on_the_frames() -> None:
    names = ("INPUT", "OUTPUT", "CONTROL", "ACK", "END", "MOST_FRAME_BYTES", "PIECE_BYTES")
    assert [getattr(console_holder, name) for name in names] == [getattr(frames, name) for name in names]
    assert console_holder.HEAD.size == frames.HEAD_BYTES
    assert frames.unpack(frames.pack(frames.INPUT, 7, b"keys")) == (frames.INPUT, 7, b"keys")
    with pytest.raises(frames.MalformedFrame):
        frames.unpack(b"short")
    with pytest.raises(frames.MalformedFrame):
        _ = frames.unpack(frames.pack(frames.CONTROL, 0, b"[1]")).words


class Attached:
    """One client of a holder."""

    all: ClassVar[list["Attached"]] = []

    def __init__(self, path: Path, *, write: bool = True, **words: Any) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self.all.append(self)
        until(lambda: self._socket.connect_ex(str(path)) == 0, what="the holder listens")
        self.send(frames.control(rights={"write": write}))
        self.send(frames.control(attach={"token": "me", "received": 0, **words}))

    def send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(frame)) + frame)

    def types(self, data: bytes, offset: int = 0) -> None:
        self.send(frames.pack(frames.INPUT, offset, data))

    def next(self) -> frames.ChannelPiece:
        (length,) = struct.unpack(">I", self._exactly(4))
        return frames.unpack(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self._socket.recv(count - len(found))
            if not part:
                raise EOFError
            found += part
        return found

    def until_control(self, name: str) -> Any:
        while True:
            piece = self.next()
            if piece.kind == frames.CONTROL and name in piece.words:
                return piece.words[name]

    def output(self, wanted: bytes) -> bytes:
        shown = b""
        while wanted not in shown:
            piece = self.next()
            if piece.kind == frames.OUTPUT:
                shown += piece.content
                with suppress(BrokenPipeError):  # on a busy machine the holder has ended and left by now
                    self.send(frames.pack(frames.ACK, piece.offset + len(piece.content)))
        return shown

    def close(self) -> None:
        self._socket.close()


@contextmanager
def holder(folder: Path, *argv: str, **more: Any) -> Iterator[tuple["subprocess.Popen[bytes]", Path, Path]]:
    """A holder of this command; its process, its socket and its log."""
    path, log = folder / "console.sock", folder / "log"
    order = {
        "argv": argv, "env": dict(os.environ), "cwd": str(folder), "uid": None, "gid": -1, "groups": (), "group": "",
        "socket": str(path), "log": str(log), "terminal": True, "columns": 91, "rows": 31, "linger": None, **more,
    }  # fmt: skip
    with (folder / "order").open("w+b") as file, log.open("ab") as out:
        marshal.dump(order, file)
        file.flush()
        words = [sys.executable, "-I", "-S", launcher.HOLDER, str(file.fileno()), "-1"]
        process = subprocess.Popen(words, stdout=out, stderr=out, pass_fds=[file.fileno()], start_new_session=True)
    try:
        yield process, path, log
    finally:
        process.kill()
        process.wait()
        while Attached.all:
            Attached.all.pop().close()


def test_output_begins_at_the_offset_and_equals_the_log(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "stty size; read a; echo got=$a; exit 3") as (process, path, log):
        first = Attached(path)
        assert first.until_control("attached")["offset"] == 0
        shown = first.output(b"31 91\r\n")
        first.close()
        again = Attached(path, received=len(shown))
        assert again.until_control("attached") == {
            "offset": len(shown), "end": len(shown), "input": 0, "write": True, "terminal": True,
        }  # fmt: skip
        again.types(b"word\r")
        shown += again.output(b"got=word\r\n")
        assert again.until_control("exit") == {"code": 3, "signal": None, "end": len(shown)}
        assert process.wait(20) == 3
        assert log.read_bytes() == shown
    assert not path.exists()


def test_input_that_comes_again_is_taken_once(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "stty -echo; echo ready; read a; echo got=$a=") as (_, path, _log):
        first = Attached(path)
        first.output(b"ready")
        first.types(b"abc", 0)
        piece = first.next()
        while piece.kind != frames.ACK:
            piece = first.next()
        assert piece.offset == 3
        first.close()
        again = Attached(path)
        assert again.until_control("attached")["input"] == 3
        again.types(b"abcdef\r", 0)  # the first half has arrived before
        assert b"got=abcdef=" in again.output(b"=\r\n")


def test_a_viewer_types_nothing_and_slows_nothing(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "stty -echo; read a; echo got=$a; head -c 2000000 /dev/zero") as (
        process,
        path,
        log,
    ):
        viewer = Attached(path, write=False)
        assert viewer.until_control("attached")["write"] is False
        viewer.types(b"viewer\r")
        viewer.send(frames.control(resize=[5, 5]))
        writer = Attached(path, token="other")
        writer.types(b"writer\r")
        writer.output(b"got=writer\r\n")
        writer.close()
        assert process.wait(30) == 0  # although the viewer has read nothing
        assert log.stat().st_size > 2_000_000


def test_a_command_waits_while_the_client_that_types_does_not_read(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "read a; echo begun; head -c 5000000 /dev/zero; echo done") as (_, path, log):
        writer = Attached(path)
        writer.types(b"\r")
        until(lambda: log.stat().st_size > console_holder.WINDOW_BYTES, what="it writes")
        assert log.stat().st_size < 2 * console_holder.WINDOW_BYTES + 200_000
        writer.output(b"done\r\n")


def test_the_second_client_is_refused_unless_it_steals(tmp_path: Path) -> None:
    with holder(tmp_path, "cat") as (_, path, _log):
        first = Attached(path)
        first.until_control("attached")
        assert Attached(path, token="two").until_control("error")["code"] == "Attached"
        thief = Attached(path, token="two", steal=True)
        assert thief.until_control("attached")["write"]
        assert first.until_control("error")["code"] == "TakenOver"


def test_a_holder_ends_by_the_signal_of_its_command_and_takes_it_along(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "kill -USR2 $$") as (process, _, _log):
        assert process.wait(20) == -signal.SIGUSR2
    with holder(tmp_path, "sh", "-c", "echo $$; exec sleep 500") as (process, path, _log):
        pid = int(Attached(path).output(b"\n").split()[0])
        process.kill()
        until(lambda: not Path(f"/proc/{pid}/cwd").exists(), what="the command ends with its holder")


def test_a_malformed_frame_costs_only_its_connection(tmp_path: Path) -> None:
    with holder(tmp_path, "cat") as (process, path, _log):
        for wrong in (frames.pack(frames.CONTROL, 0, b"{"), frames.pack(frames.INPUT, 10**9, b"x"), b"z"):
            client = Attached(path)
            client.until_control("attached")
            client.send(wrong)
            with pytest.raises(EOFError):
                client.until_control("nothing more")
        assert process.poll() is None
        last = Attached(path)
        last.until_control("attached")


def test_standard_input_is_passed_with_its_end(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "wc -c", terminal=False) as (process, path, log):
        client = Attached(path)
        assert client.until_control("attached")["terminal"] is False
        client.types(b"x" * 30_000)
        client.types(b"y" * 30_000, 30_000)
        client.send(frames.pack(frames.END, 60_000))
        assert client.until_control("exit")["code"] == 0
        assert process.wait(20) == 0
        assert json.loads(log.read_text()) == 60_000


@pytest.mark.parametrize(
    "content",
    [
        b'{"attach": []}',
        b'{"attach": {"received": Infinity}}',
        b'{"attach": {"received": 1e400}}',
        b'{"attach": {"columns": Infinity, "rows": 1}}',
        b'{"attach": {"columns": 80}}',
        b'{"resize": 5}',
        b"[" * 60_000,
        b'"attach"',
        b"\xff",
    ],
)
def test_no_control_frame_ends_the_command(tmp_path: Path, content: bytes) -> None:
    with holder(tmp_path, "sh", "-c", "echo ready; read a; echo got=$a=") as (process, path, _log):
        hostile = Attached(path, write=False)
        hostile.until_control("attached")
        for write in (False, True):
            other = Attached.__new__(Attached)
            other._socket = socket.socket(socket.AF_UNIX)
            other._socket.settimeout(20)
            Attached.all.append(other)
            other._socket.connect(str(path))
            other.send(frames.control(rights={"write": write}))
            other.send(frames.pack(frames.CONTROL, 0, content))
            other.close()
        owner = Attached(path, steal=True)
        owner.output(b"ready")
        owner.types(b"word\r")
        assert b"got=word=" in owner.output(b"=\r\n")
        assert process.wait(20) == 0


def test_a_reader_cannot_give_itself_the_right_to_type(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "echo ready; read a; echo got=$a=") as (_, path, _log):
        reader = Attached.__new__(Attached)
        reader._socket = socket.socket(socket.AF_UNIX)
        reader._socket.settimeout(20)
        Attached.all.append(reader)
        until(lambda: reader._socket.connect_ex(str(path)) == 0, what="the holder listens")
        for write in (False, True):  # the first comes from the agent, the second from the client
            reader.send(frames.control(rights={"write": write}))
        reader.send(frames.control(attach={"token": "me", "received": 0}))
        assert reader.until_control("attached")["write"] is False


def test_many_who_watch_do_not_keep_the_owner_out(tmp_path: Path) -> None:
    with holder(tmp_path, "sh", "-c", "echo ready; read a; echo got=$a=; read b") as (_, path, _log):
        owner = Attached(path)
        owner.output(b"ready")
        for _ in range(2 * console_holder.MOST_PEERS):
            Attached(path, write=False, token="watcher")
        owner.types(b"word\r")
        assert b"got=word=" in owner.output(b"=\r\n")
        owner.close()
        again = Attached(path, received=-1)
        assert again.until_control("attached")["write"]


def test_a_client_gets_what_was_shown_before_although_nothing_else_happens(tmp_path: Path) -> None:
    much = console_holder.WINDOW_BYTES - 1000
    with holder(tmp_path, "sh", "-c", f"stty -opost -echo; head -c {much} /dev/zero; exec sleep 600") as (_, path, log):
        until(lambda: log.stat().st_size == much, what="all is shown")
        client = Attached(path)
        client.until_control("attached")
        got = 0
        while got < much:
            piece = client.next()
            got = piece.offset + len(piece.content)


def test_the_end_comes_after_the_output_that_a_paused_terminal_still_has(tmp_path: Path) -> None:
    much = console_holder.WINDOW_BYTES + 900
    line = f"stty -opost -echo; head -c {much} /dev/zero; while [ ! -e go ]; do sleep 0.02; done; echo tail; exit 3"
    with holder(tmp_path, "sh", "-c", line) as (process, path, _log):
        client = Attached(path)
        client.until_control("attached")
        got = 0
        while got < console_holder.WINDOW_BYTES:  # nothing is confirmed, so the terminal is not read any more
            piece = client.next()
            got = piece.offset + len(piece.content)
        (tmp_path / "go").touch()
        until(lambda: not _children_of(process.pid), what="the command has ended")
        client.send(frames.pack(frames.ACK, got))
        rest = b""
        while got + len(rest) < much + 5:
            last = client.next()
            assert last.kind == frames.OUTPUT, last
            rest += last.content
        assert rest == bytes(much - got) + b"tail\n"
        assert client.until_control("exit") == {"code": 3, "signal": None, "end": much + 5}


def _children_of(holder_pid: int) -> list[str]:
    return Path(f"/proc/{holder_pid}/task/{holder_pid}/children").read_text().split()


# --- shells beside a task: their output is only here ---------------------------------------------------------------------


def shell_of(
    folder: Path, *argv: str, **more: Any
) -> "AbstractContextManager[tuple[subprocess.Popen[bytes], Path, Path]]":
    return holder(folder, *argv, log="", record=str(folder / "record"), **more)


def end_in(folder: Path) -> Any:
    """The end in the record of a shell; None: it has none yet."""
    content = (folder / "record").read_bytes() if (folder / "record").exists() else b""
    return json.loads(content) if content else None


def test_a_shell_that_has_ended_waits_for_a_client_that_is_late(tmp_path: Path) -> None:
    with shell_of(tmp_path, "sh", "-c", "echo short; exit 4") as (process, path, _):
        until(lambda: end_in(tmp_path), what="its end is in the record")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(console_holder.FLUSH_SECONDS + 0.5)  # a busy machine may need longer than that
        client = Attached(path)
        assert b"short" in client.output(b"short")
        assert client.until_control("exit") == end_in(tmp_path) == {"code": 4, "signal": None, "end": 7}
        client.close()
        began = time.monotonic()
        assert process.wait(20) == 4
        assert time.monotonic() - began < console_holder.LEAVE_SECONDS


def test_a_shell_whose_client_was_lost_before_its_end_shows_it_the_rest(tmp_path: Path) -> None:
    line = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo rest; exit 5"
    with shell_of(tmp_path, "sh", "-c", line, linger=30.0) as (process, path, _):
        client = Attached(path)
        seen = len(client.output(b"begun\r\n"))
        client.close()
        (tmp_path / "go").touch()
        until(lambda: end_in(tmp_path), what="its end is in the record")
        again = Attached(path, received=seen)
        assert again.output(b"rest\r\n") == b"rest\r\n"
        assert again.until_control("exit")["code"] == 5
        assert process.wait(20) == 5


@pytest.mark.parametrize("how", ["told to end", "no linger"])
def test_a_shell_waits_for_nobody_if_its_task_ends_or_it_was_not_to_linger(tmp_path: Path, how: str) -> None:
    line = "echo begun; while [ ! -e go ]; do sleep 0.05; done"
    with shell_of(tmp_path, "sh", "-c", line, linger=600.0 if how == "told to end" else 0.0) as (process, path, _):
        client = Attached(path)
        client.output(b"begun")
        if how == "told to end":
            client.close()
            (tmp_path / "go").touch()
            until(lambda: end_in(tmp_path), what="its end is in the record")
            process.terminate()
        else:
            (tmp_path / "go").touch()
            client.until_control("exit")
            client.close()
        assert process.wait(console_holder.FLUSH_SECONDS) == 0


def test_a_shell_whose_record_exists_is_not_begun_again(tmp_path: Path) -> None:
    for expected in (["ran"], ["ran"]):
        with shell_of(tmp_path, "sh", "-c", f"echo ran >> {tmp_path}/runs", linger=0.0) as (process, path, _):
            if not (tmp_path / "runs").exists():
                client = Attached(path)
                client.until_control("exit")
                client.close()
            assert process.wait(20) == 0
        assert (tmp_path / "runs").read_text().split() == expected


def test_memory_for_the_output_of_a_shell_is_bounded(tmp_path: Path) -> None:
    line = "stty -opost; head -c 40000000 /dev/zero; echo done; read word"
    with shell_of(tmp_path, "sh", "-c", line) as (process, path, _):
        viewer = Attached(path)
        viewer.close()  # from now on nobody reads
        memory = Path(f"/proc/{process.pid}/fd/{_memory_of(process.pid)}")
        until(lambda: memory.stat().st_size > 40_000_000, 60, "everything was written")
        assert memory.stat().st_blocks * 512 <= 2 * console_holder.KEPT_BYTES + (1 << 20)
        late = Attached(path, token="late", received=0)
        gap = late.until_control("gap")
        assert gap[0] == 0
        assert gap[1] >= 40_000_000 - console_holder.BACKLOG_BYTES
        assert len(late.output(b"done\n")) <= console_holder.BACKLOG_BYTES + 10


def _memory_of(pid: int) -> str:
    """The descriptor in which a holder keeps output."""
    folder = Path(f"/proc/{pid}/fd")
    return next(entry.name for entry in folder.iterdir() if "memfd:console" in str(entry.readlink()))
