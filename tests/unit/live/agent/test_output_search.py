"""Searching outputs: every block size gives the lines that a plain split gives; hostile outputs cost bounded time."""

import os
import resource
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.live.agent import output_search
from gpuyard.live.agent.output_search import LINE_BYTES, SearchResult, search
from gpuyard.live.agent.supervisor.output import trim


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def found(output: Path, text: bytes, **more: object) -> SearchResult:
    result = search(output, text, **more)  # type: ignore[arg-type]
    assert result is not None
    return result


def plain(content: bytes, text: bytes, *, match_case: bool) -> list[tuple[int, int, bytes]]:
    """The same in the simplest way: offset, number and contents of each line with the text."""
    lines, offset, hits = content.split(b"\n"), 0, []
    for number, line in enumerate(lines, 1):
        if (text in line) if match_case else (text.lower() in line.lower()):
            hits.append((offset, number, line))
        offset += len(line) + 1
    return hits


def test_found_lines_are_bounded_in_bytes_and_the_search_continues(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_search, "MOST_FOUND_BYTES", 1000)
    output.write_bytes(b"".join(b"Error %03d %s\n" % (number, b"x" * 90) for number in range(100)))
    numbers = list[int]()
    offset: int | None = 0
    while offset is not None:
        result = found(output, b"Error", offset=offset, limit=1000, context=2)
        assert sum(match.size for match in result.matches) < 1000 + 5 * LINE_BYTES
        assert len(result.matches) < 10
        numbers += [int(match.text[6:9]) for match in result.matches]
        offset = result.next_offset
    assert numbers == list(range(100))


PIECES = st.lists(
    st.sampled_from([b"a", b"A", b"ab", b"\n", b"\n\n", b"\0", b"\xff\xfe", b"x" * 9, b"aab"]), max_size=60
)


@settings(max_examples=400, deadline=None, database=None)
@given(
    PIECES.map(b"".join),
    st.sampled_from([b"a", b"ab", b"aab", b"\xff\xfe", b"x" * 5, b"zz"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_every_block_size_finds_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, text: bytes, match_case: bool, block: int
) -> None:
    output = tmp_path_factory.getbasetemp() / "searched"
    output.write_bytes(content)
    whole, output_search.BLOCK_BYTES = output_search.BLOCK_BYTES, block
    try:
        result = found(output, text, match_case=match_case, limit=1000)
        expected = plain(content, text, match_case=match_case)
        assert [(one.offset, one.line, one.text) for one in result.matches] == expected
        assert result.next_offset is None
        pages, offset = [], 0
        while True:
            page = found(output, text, match_case=match_case, limit=1, offset=offset)
            pages += page.matches
            if page.next_offset is None:
                break
            offset = page.next_offset
        assert [(one.offset, one.line, one.text) for one in pages] == expected
    finally:
        output_search.BLOCK_BYTES = whole


def test_a_missing_output_is_none(output: Path) -> None:
    assert search(output, b"x") is None
    output.write_bytes(b"")
    assert found(output, b"x") == SearchResult([], None)


def test_lines_around_a_match_are_shown(output: Path) -> None:
    output.write_bytes(b"".join(b"line %d\n" % number for number in range(1, 21)))
    (first, *_, last) = found(output, b"line", context=2).matches
    assert (first.before, first.after) == ([], [b"line 2", b"line 3"])
    assert (last.before, last.after) == ([b"line 18", b"line 19"], [])
    (middle,) = found(output, b"line 10", context=1).matches
    assert (middle.before, middle.text, middle.after, middle.line) == ([b"line 9"], b"line 10", [b"line 11"], 10)


def test_of_a_long_line_a_part_around_the_match_is_shown(output: Path) -> None:
    size = 10 << 20
    output.write_bytes(b"begin\n" + b"x" * size + b"needle" + b"y" * size + b"needle\nend needle\n")
    first, last = found(output, b"needle", context=1).matches
    assert b"needle" in first.text
    assert len(first.text) <= LINE_BYTES
    assert first.offset <= 6 + size < first.offset + len(first.text)
    assert first.line == 2
    assert (last.text, last.line) == (b"end needle", 3)


def test_a_search_of_a_gigabyte_of_hostile_bytes_is_bounded(output: Path) -> None:
    with output.open("wb") as file:
        file.truncate(1 << 34)  # 16 GiB: a hole at the front, as after dropping the beginning
        file.seek(1 << 34)
        for _ in range(64):
            file.write(b"\x1b[31m\xff\0" + b"\0" * (1 << 20))
        file.write(b"\nneedle\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    result = found(output, b"needle", limit=10)
    assert [one.text for one in result.matches] == [b"needle"]
    assert result.matches[0].offset == output.stat().st_size - 7
    assert time.process_time() - began < 2 * output_search.MOST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a_search_that_takes_too_long_says_where_to_continue(output: Path) -> None:
    output.write_bytes(b"a needle\n" * 3 + b"x" * (3 * output_search.BLOCK_BYTES) + b"\na needle\n")
    ticks = iter([0.0, 0.0, *[100.0] * 1000])
    first = found(output, b"needle", clock=lambda: next(ticks))
    assert [one.line for one in first.matches] == [1, 2, 3]
    assert first.next_offset is not None
    rest = found(output, b"needle", offset=first.next_offset)
    assert ([one.text for one in rest.matches], rest.next_offset) == ([b"a needle"], None)
    assert rest.matches[0].line == 5


def test_a_trimmed_output_is_searched_where_it_begins(output: Path) -> None:
    output.write_bytes(b"old needle\n" * 20_000 + b"the end\n")
    trim(str(output), 64 * 1024)
    result = found(output, b"needle", limit=3)
    assert all(one.text.endswith(b"needle") for one in result.matches)
    assert result.matches[0].offset > 100_000
    (last,) = found(output, b"THE END").matches
    assert last.offset == 20_000 * 11


def test_a_link_is_not_followed(output: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"needle\n")
    output.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        search(output, b"needle")


def test_an_output_that_shrinks_meanwhile_ends_the_search(output: Path) -> None:
    output.write_bytes(b"x" * (4 * output_search.BLOCK_BYTES))
    calls = iter(range(10**6))

    def clock() -> float:
        if next(calls) == 2:
            os.truncate(output, 0)
        return 0.0

    assert found(output, b"needle", clock=clock) == SearchResult([], None)
