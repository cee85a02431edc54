"""What is left out of output that a terminal shows again."""

import pytest

from gpuyard.live.sdk.console import without_questions


@pytest.mark.parametrize(
    "question",
    [b"\x1b[6n", b"\x1b[?6n", b"\x1b[c", b"\x1b[>0c", b"\x1b[?2026$p", b"\x1b[>0q", b"\x1b[?u", b"\x1b[18t",
     b"\x1b]11;?\x07", b"\x1b]4;1;?\x1b\\", b"\x1bP+q544e\x1b\\"],
)  # fmt: skip
def test_questions_are_left_out(question: bytes) -> None:
    assert without_questions(b"before" + question + b"after") == b"beforeafter"


@pytest.mark.parametrize(
    "output",
    [b"\x1b[31mred\x1b[0m", b"\x1b[2J\x1b[1;1H", b"\x1b[?1049h", b"\x1b]0;title\x07", b"\x1b[3;5t", b"plain c n"],
)
def test_everything_else_stays(output: bytes) -> None:
    assert without_questions(output) == output
