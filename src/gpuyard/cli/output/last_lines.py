"""The last lines that a task has written, for commands that say how it ended."""

from typing import TYPE_CHECKING

from gpuyard.cli.output.printing import one_line

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, TaskRef

LINES = 10
BYTES = 8192
LONGEST = 400
"""Characters of one line that are shown."""


def last_lines(cluster: "Client", task: "TaskRef", task_id: str) -> list[str]:
    """Return the end of the output of the last attempt, below a heading; a sentence if it cannot be read."""
    from gpuyard.live.sdk import ClusterError

    try:
        end = b"".join(cluster.without_waiting().logs(task, tail=BYTES))
    except ClusterError as error:
        return [f"Its output is not available now. {error}"]
    text = end.decode(errors="replace").rstrip("\n")
    lines = [one_line(line.rstrip("\r").rpartition("\r")[2]) for line in text.split("\n")]
    if len(end) == BYTES and len(lines) > LINES:
        lines = lines[1:]  # the first one may be cut
    if not text:
        return ["It has written nothing."]
    shown = [line if len(line) <= LONGEST else line[: LONGEST - 1] + "…" for line in lines[-LINES:]]
    head = "Its output:" if len(lines) <= LINES and len(end) < BYTES else f"The last lines of its output (gpuyard logs {task_id}):"  # fmt: skip
    return [head, *(f"  {line}".rstrip() for line in shown)]
