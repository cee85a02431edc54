"""Finds in the log of the agent of `gpuyard up` why the scheduler does not let it in.

The agent is a process of its own that keeps running and trying, so its log is the only place with the reason.
"""

import ast
import re
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 256 * 1024
_REFUSED = re.compile(r"^\S+ \[error +\] registration_refused .*?message=(.+)$", re.MULTILINE)


def refusal_since(log: Path, offset: int) -> str:
    """Return the message of the last refusal that the log has after this offset; empty if it has none."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            text = file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    found = _REFUSED.findall(text)
    if not found:
        return ""
    with suppress(ValueError, SyntaxError):  # a message without spaces is not quoted
        return str(ast.literal_eval(found[-1]))
    return str(found[-1])


def size_of(log: Path) -> int:
    """Return the size of a log; 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
