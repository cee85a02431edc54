"""Reading outputs while they grow and after they were trimmed, and removing old ones."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from gpuyard.live.agent.identity import Identities
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.outputs import OutputPiece, follow, path_of, prune, read
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor.output import trim
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AT_THE_END

LIMIT = 64 * 1024


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def test_an_output_is_read_from_any_offset(output: Path) -> None:
    output.write_bytes(b"0123456789")
    assert read(output, 0) == OutputPiece(0, b"0123456789")
    assert read(output, 4, limit=3) == OutputPiece(4, b"456")
    assert read(output, -3) == OutputPiece(7, b"789")
    assert read(output, -99) == OutputPiece(0, b"0123456789")
    assert read(output, 10) == OutputPiece(10, b"")
    assert read(output, 11) == OutputPiece(11, b"")
    assert read(output, 10**12) == OutputPiece(10**12, b"")


def test_a_missing_output_is_none(output: Path) -> None:
    assert read(output, 0) is None


def test_dropped_bytes_are_counted_and_later_ones_keep_their_offset(output: Path) -> None:
    content = os.urandom(4 * LIMIT)
    output.write_bytes(content)
    trim(str(output), LIMIT)
    piece = read(output, 100, limit=10**9)
    assert piece is not None
    assert piece.dropped == piece.offset - 100 > 0
    assert piece.data == content[piece.offset :]
    assert LIMIT <= len(piece.data) <= LIMIT + 4096


def test_a_small_output_is_not_trimmed(output: Path) -> None:
    output.write_bytes(b"x" * LIMIT)
    trim(str(output), LIMIT)
    assert read(output, 0, limit=10**9) == OutputPiece(0, b"x" * LIMIT)


def test_an_output_is_followed_until_the_attempt_ends(output: Path) -> None:
    over = threading.Event()

    async def story() -> bytes:
        pieces = b""
        written = 0
        async with asyncio.timeout(30):
            async for piece in follow(output, 0, over.is_set):
                pieces += piece.data
                if written < 3:
                    written += 1
                    with output.open("ab") as file:
                        file.write(f"line {written}\n".encode())
                else:
                    with output.open("ab") as file:
                        file.write(b"" if over.is_set() else b"last\n")
                    over.set()
        return pieces

    output.write_bytes(b"first\n")
    assert asyncio.run(story()) == b"first\nline 1\nline 2\nline 3\nlast\n"


def test_following_may_begin_before_the_attempt_does(output: Path) -> None:
    over = threading.Event()

    async def story() -> list[OutputPiece]:
        async def write() -> None:
            output.write_bytes(b"hello\n")
            over.set()

        asyncio.get_running_loop().call_later(0.2, lambda: asyncio.ensure_future(write()))
        async with asyncio.timeout(30):
            return [piece async for piece in follow(output, 0, over.is_set)]

    assert asyncio.run(story()) == [OutputPiece(0, b"hello\n")]


def test_following_from_behind_the_end_waits_until_the_output_is_that_long(output: Path) -> None:
    output.write_bytes(b"0123")
    lengths = iter([b"45", b"67", b"89"])
    over = threading.Event()

    def grow() -> bool:
        if (more := next(lengths, None)) is None:
            over.set()
        else:
            with output.open("ab") as file:
                file.write(more)
        return over.is_set()

    async def story() -> list[OutputPiece]:
        async with asyncio.timeout(30):
            return [piece async for piece in follow(output, 7, grow)]

    assert b"".join(piece.data for piece in asyncio.run(story())) == b"789"


def test_an_output_that_is_truncated_while_it_is_followed_is_read_from_its_new_beginning(output: Path) -> None:
    """As `trim` does it on a file system without holes."""
    output.write_bytes(b"before it was truncated")
    over = threading.Event()

    async def story() -> list[bytes]:
        read = []
        async with asyncio.timeout(30):
            async for piece in follow(output, 5, over.is_set):
                read.append(piece.data)
                if len(read) == 1:
                    output.write_bytes(b"after")
                else:
                    over.set()
        return read

    assert asyncio.run(story()) == [b"e it was truncated", b"after"]


@pytest.mark.parametrize(("offset", "limit"), [(11, 0), (1000, 0), (1000, 5), (10**12, 0), (AT_THE_END, 0)])
def test_an_output_that_is_asked_for_from_behind_its_end_is_empty(tmp_path: Path, offset: int, limit: int) -> None:
    key = AttemptKey(1, 1)
    path_of(tmp_path, key).parent.mkdir()
    path_of(tmp_path, key).write_bytes(b"0123456789")
    launch_builder = LaunchBuilder(
        "node-1", (), Identities({}, True), tmp_path, output_limit_bytes=1 << 20, grace_seconds=1.0
    )
    launch_builder.is_over = lambda _: True

    async def story() -> bytes:
        asked = pb.SendLog(request="r", offset=offset, limit=limit)
        return b"".join([chunk.data async for chunk in launch_builder.output(key, asked)])

    assert asyncio.run(story()) == b""


@pytest.mark.parametrize("before", [b"OLD\n", b"", None])
def test_following_from_the_end_gives_only_what_is_written_from_then_on(tmp_path: Path, before: bytes | None) -> None:
    key, looks = AttemptKey(1, 1), [0]
    path_of(tmp_path, key).parent.mkdir()
    if before is not None:
        path_of(tmp_path, key).write_bytes(before)
    launch_builder = LaunchBuilder(
        "node-1", (), Identities({}, True), tmp_path, output_limit_bytes=1 << 20, grace_seconds=1.0
    )

    def is_over(_: AttemptKey) -> bool:
        looks[0] += 1
        if looks[0] == 3:
            with path_of(tmp_path, key).open("ab") as file:
                file.write(b"NEW\n")
        return looks[0] > 3

    launch_builder.is_over = is_over

    async def story() -> bytes:
        asked = pb.SendLog(request="r", offset=AT_THE_END, follow=True)
        async with asyncio.timeout(30):
            return b"".join([chunk.data async for chunk in launch_builder.output(key, asked)])

    assert asyncio.run(story()) == b"NEW\n"


def test_following_an_attempt_without_output_ends_with_it(output: Path) -> None:
    async def story() -> list[OutputPiece]:
        return [piece async for piece in follow(output, 0, lambda: True)]

    assert asyncio.run(story()) == []


def test_reading_without_following_ends_at_the_size_at_the_time_of_the_request(tmp_path: Path) -> None:
    key = AttemptKey(1, 1)
    output = path_of(tmp_path, key)
    output.parent.mkdir()
    output.write_bytes(b"x" * 1000)
    launch_builder = LaunchBuilder(
        "node-1", (), Identities({}, True), tmp_path, output_limit_bytes=1 << 20, grace_seconds=1.0
    )
    launch_builder.is_over = lambda _: False

    async def story() -> int:
        read = 0
        async for chunk in launch_builder.output(key, pb.SendLog(request="r", offset=100)):
            read += len(chunk.data)
            with output.open("ab") as file:  # a task that writes faster than it is read
                file.write(b"y" * 1000)
            assert read <= 900
        return read

    assert asyncio.run(story()) == 900


# --- old ones


def put(folder: Path, task: int, size: int, age_seconds: float) -> Path:
    path = path_of(folder, AttemptKey(task, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    then = time.time() - age_seconds
    os.utime(path, (then, then))
    return path


def test_old_outputs_are_removed(tmp_path: Path) -> None:
    old, new = put(tmp_path, 1, 10_000, 1000), put(tmp_path, 2000, 10_000, 10)
    assert prune(tmp_path, keep_bytes=10**9, keep_files=10, keep_seconds=100, keep=()) >= 10_000
    assert (old.exists(), old.parent.exists(), new.exists()) == (False, False, True)


def test_the_oldest_are_removed_first_if_there_are_too_many(tmp_path: Path) -> None:
    paths = [put(tmp_path, task, 40_960, 100 - task) for task in range(10)]
    prune(tmp_path, keep_bytes=4 * 40_960, keep_files=10, keep_seconds=10**6, keep=())
    assert [path.exists() for path in paths] == [False] * 6 + [True] * 4


def test_outputs_of_held_attempts_stay(tmp_path: Path) -> None:
    old = put(tmp_path, 1, 10_000, 1000)
    prune(tmp_path, keep_bytes=0, keep_files=0, keep_seconds=0, keep={old})
    assert old.exists()


def test_the_number_of_empty_outputs_is_limited(tmp_path: Path) -> None:
    paths = [put(tmp_path, task, 0, 100 - task) for task in range(10)]
    prune(tmp_path, keep_bytes=10**9, keep_files=3, keep_seconds=10**6, keep=())
    assert [path.exists() for path in paths] == [False] * 7 + [True] * 3


def test_outputs_that_cannot_be_removed_stay_and_the_others_go(tmp_path: Path) -> None:
    (tmp_path / "0" / "1.1.log").mkdir(parents=True)
    old = put(tmp_path, 2, 10_000, 1000)
    prune(tmp_path, keep_bytes=0, keep_files=0, keep_seconds=0, keep=())
    assert not old.exists()
