"""When output was written: noted once a second, found again for any offset and any time."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuyard.live.agent import output_times
from gpuyard.live.agent.identity import Identities
from gpuyard.live.agent.launch_builder import LaunchBuilder
from gpuyard.live.agent.output_times import MARK, LineTimes, OutputTimesReader, begin_to_note, starts_in_line
from gpuyard.live.agent.outputs import path_of, prune
from gpuyard.live.agent.supervisor import output_times as noting
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor.output import trim
from gpuyard.live.agent.supervisor.output_times import OutputTimes, read_pairs, times_path
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import AT_THE_END

KEY = AttemptKey(7, 1)
BEGAN = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    begin_to_note(tmp_path)
    os.utime(tmp_path / MARK, (BEGAN - 100, BEGAN - 100))
    return tmp_path


@pytest.fixture
def output(folder: Path) -> Path:
    path = path_of(folder, KEY)
    path.parent.mkdir(parents=True)
    return path


class Writer:
    """Writes an output as a task does, and notes its times as the supervisor does."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._times = OutputTimes()

    def writes(self, text: str, seconds: float, *, noted: bool = True) -> None:
        with self._output.open("ab") as file:
            file.write(text.encode())
        os.utime(self._output, (BEGAN + seconds, BEGAN + seconds))
        if noted:
            self._times.note(str(self._output), self._output.stat().st_size, BEGAN + seconds)

    def is_replaced(self) -> None:
        self._times = OutputTimes()


@pytest.fixture
def writer(output: Path) -> Writer:
    made = Writer(output)
    made.writes("one\n", 0)
    made.writes("two\nthree\n", 10)
    made.writes("four\n", 20)
    return made


def reader(output: Path) -> OutputTimesReader:
    return OutputTimesReader(output, output.parents[1] / MARK)


def stamped(seconds: float, line: str) -> str:
    return f"{datetime.fromtimestamp(BEGAN + seconds, UTC):%Y-%m-%dT%H:%M:%SZ} {line}\n"


def ended(folder: Path) -> LaunchBuilder:
    """Return the builder of an agent that holds no attempt any more."""
    builder = LaunchBuilder("n", (), Identities({}, True), folder, output_limit_bytes=1 << 20, grace_seconds=1.0)
    builder.is_over = lambda _: True
    return builder


def sent(folder: Path, **asked: object) -> str:
    """Return what the agent sends of the output of the ended attempt."""
    request = pb.SendLog(request="r", **asked)  # type: ignore[arg-type]

    async def story() -> str:
        builder = ended(folder)
        text = b""
        async with asyncio.timeout(30):
            async for chunk in builder.output(KEY, request):
                assert chunk.timed or chunk.error
                text += chunk.error.encode() or chunk.data
        return text.decode()

    return asyncio.run(story())


@pytest.mark.usefixtures("writer")
def test_the_lines_since_a_time_are_found(output: Path) -> None:
    times = reader(output)
    assert [times.offset_since(BEGAN + after) for after in (-5, 0, 1, 10, 11, 20, 21)] == [0, 0, 4, 4, 14, 14, 19]
    assert [times.offset_until(BEGAN + after) for after in (-5, 0, 9, 10, 11, 20, 21)] == [0, 4, 4, 14, 14, 19, 19]


def test_a_line_that_was_begun_before_is_whole(output: Path) -> None:
    writer = Writer(output)
    writer.writes("first\nloss", 0)
    writer.writes(" 0.5\n", 10)
    assert reader(output).offset_since(BEGAN + 5) == len("first\n")


def test_every_byte_has_a_time(output: Path, writer: Writer) -> None:
    writer.writes("five\n", 25, noted=False)
    times = reader(output)
    assert [times.written_at(offset) - BEGAN for offset in (0, 3, 4, 13, 14, 18, 19, 23)] == [
        0,
        0,
        10,
        10,
        20,
        20,
        25,
        25,
    ]
    assert times.offset_since(BEGAN + 22) == 19
    assert times.offset_since(BEGAN + 26) == 24


def test_times_that_are_noted_while_they_are_read_are_seen(output: Path, writer: Writer) -> None:
    times = reader(output)
    writer.writes("five\n", 30)
    writer.writes("six\n", 40)
    assert times.written_at(19) == BEGAN + 30


def test_a_new_supervisor_continues_and_a_clock_that_is_set_back_moves_nothing(output: Path, writer: Writer) -> None:
    writer.is_replaced()
    writer.writes("five\n", 5)
    assert [(at - BEGAN, length) for at, length in read_pairs(times_path(str(output)))] == [
        (0, 4), (10, 14), (20, 19), (20, 24),
    ]  # fmt: skip


def test_nothing_is_written_for_an_output_that_does_not_grow(output: Path, writer: Writer) -> None:
    before = Path(times_path(str(output))).stat().st_mtime_ns
    writer.writes("", 30)
    assert Path(times_path(str(output))).stat().st_mtime_ns == before


def test_a_cut_pair_of_a_full_disk_is_written_over(output: Path, writer: Writer) -> None:
    path = Path(times_path(str(output)))
    path.write_bytes(path.read_bytes() + b"half")
    writer.is_replaced()
    writer.writes("five\n", 30)
    assert list(read_pairs(str(path)))[-1] == (BEGAN + 30, 24)


def test_an_output_that_was_truncated_begins_again(output: Path, writer: Writer) -> None:
    output.write_bytes(b"")
    writer.writes("new\n", 30)
    assert list(read_pairs(times_path(str(output)))) == [(BEGAN + 30, 4)]


def test_the_times_of_long_tasks_are_bounded_and_the_newest_stay_exact(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noting, "MOST_PAIRS", 16)
    writer = Writer(output)
    for second in range(1000):
        writer.writes("0123456789\n", second)
    pairs = list(read_pairs(times_path(str(output))))
    assert len(pairs) < 16
    assert pairs[-4:] == [(BEGAN + second, 11 * (second + 1)) for second in range(996, 1000)]
    assert pairs == sorted(pairs)
    times = reader(output)
    assert times.offset_since(BEGAN) == 0
    assert all(times.written_at(11 * second) >= BEGAN + second for second in range(1000))


def test_offsets_stay_right_if_the_front_was_dropped(folder: Path, output: Path) -> None:
    writer = Writer(output)
    for second in range(40):
        writer.writes("x" * 4095 + "\n", second)
    trim(str(output), 64 * 1024)
    times = reader(output)
    assert times.offset_since(BEGAN + 30) == 30 * 4096
    shown = sent(folder, timestamps=True)
    assert shown.startswith(stamped(39 - shown.count("\n") + 1, "x" * 4095))


@pytest.mark.usefixtures("writer")
def test_lines_get_their_times_however_the_pieces_are_cut(output: Path) -> None:
    whole = output.read_bytes()
    expected = stamped(0, "one") + stamped(10, "two") + stamped(10, "three") + stamped(20, "four")
    for size in range(1, len(whole) + 1):
        lines = LineTimes(reader(output), in_line=False)
        parts = [lines.put_before(whole[at : at + size], at, 0) for at in range(0, len(whole), size)]
        assert b"".join(parts).decode() == expected


@pytest.mark.parametrize("noted", [True, False])
def test_a_piece_of_empty_lines_costs_one_look_for_each_time(
    output: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    before = output.stat().st_size
    writer.writes("\n" * 60_000, 30, noted=noted)
    writer.writes("\n" * 5_536, 31, noted=noted)
    times, looks = reader(output), list[Path]()
    changed_at = output_times._changed_at

    def look(path: Path) -> float | None:
        looks.append(path)
        return changed_at(path)

    monkeypatch.setattr(output_times, "_changed_at", look)
    shown = LineTimes(times, in_line=False).put_before(b"\n" * 65_536, before, 0).decode()
    first = 60_000 if noted else 0
    assert shown == stamped(30, "") * first + stamped(31, "") * (65_536 - first)
    assert len(looks) <= 1


def test_a_carriage_return_begins_no_line(output: Path) -> None:
    Writer(output).writes("10%\r20%\r\nend\n", 3)
    lines = LineTimes(reader(output), in_line=False)
    assert lines.put_before(output.read_bytes(), 0, 0).decode() == stamped(3, "10%\r20%\r") + stamped(3, "end")


@pytest.mark.usefixtures("writer")
def test_the_agent_sends_a_period_with_times(folder: Path) -> None:
    assert sent(folder, since=BEGAN + 5) == "two\nthree\nfour\n"
    assert sent(folder, until=BEGAN + 10) == "one\ntwo\nthree\n"
    assert sent(folder, since=BEGAN + 5, until=BEGAN + 10, timestamps=True) == stamped(10, "two") + stamped(10, "three")
    assert sent(folder, since=BEGAN + 30) == ""
    assert sent(folder, since=BEGAN, offset=-5) == "four\n"
    assert sent(folder, offset=4, timestamps=True).startswith(stamped(10, "two"))
    assert sent(folder, offset=5, timestamps=True).startswith("wo\n" + stamped(10, "three"))
    assert sent(folder, offset=AT_THE_END, timestamps=True) == ""


@pytest.mark.usefixtures("writer")
def test_a_search_begins_at_a_time(folder: Path) -> None:
    async def story() -> list[bytes]:
        builder = ended(folder)
        asked = pb.SendLog(request="r", since=BEGAN + 15, search=pb.LogSearch(text="o", most=10))
        [chunk] = [chunk async for chunk in builder.output(KEY, asked)]
        assert chunk.timed
        return [match.text for match in chunk.found.matches]

    assert asyncio.run(story()) == [b"four"]


def test_an_output_from_before_has_no_times_and_says_so(folder: Path, output: Path) -> None:
    output.write_bytes(b"old\n")
    os.utime(output, (BEGAN - 200, BEGAN - 200))
    assert not reader(output).known
    assert "is not known" in sent(folder, timestamps=True)
    os.utime(output, (BEGAN, BEGAN))  # a task that ended within a second has no times of its own
    assert sent(folder, timestamps=True) == stamped(0, "old")


@pytest.mark.usefixtures("writer")
def test_the_times_go_with_their_output(folder: Path) -> None:
    Path(f"{times_path(str(path_of(folder, KEY)))}.new").touch()  # a supervisor was killed while it thinned them out
    assert prune(folder, 0, 0, 0, ()) > 0
    assert [path.name for path in folder.rglob("*")] == [MARK]


def test_the_beginning_of_a_line_is_known(output: Path) -> None:
    output.write_bytes(b"ab\ncd")
    assert [starts_in_line(output, offset) for offset in range(5)] == [False, True, True, False, True]
