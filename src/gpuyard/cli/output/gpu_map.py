"""All GPUs of a cluster at a glance: one line a node, one cell a GPU.

A busy GPU is a bar as high as its utilization, so that one that is held and not used is seen; █ if it is not measured.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gpuyard.cli.output.printing import one_line
from gpuyard.cli.output.screen import Screen, cells, cut, padded

if TYPE_CHECKING:
    from gpuyard.live.wire.answers import GpuAnswer, NodeAnswer

BARS = "▁▂▃▄▅▆▇█"
MARKS = {"idle": "·", "external": "x", "offline": "!"}
CELL_COLORS = {"idle": "green", "busy": "cyan", "external": "yellow", "offline": "red"}
LEGEND = "▁…█ busy, by utilization   · idle   x used by others   ! offline"
SHOWN_USERS = 12
SEVERAL_COLUMNS = 40
"""With more nodes than this, several are on one line, and people are listed below."""


def mark_of(status: str, utilization: float | None) -> str:
    """Return the letter for a GPU."""
    if status != "busy":
        return MARKS.get(status, "?")
    if utilization is None:
        return BARS[-1]
    return BARS[min(len(BARS) - 1, max(0, round(utilization / 100 * (len(BARS) - 1))))]


def total_lines(gpus: "Sequence[GpuAnswer]", screen: Screen) -> list[str]:
    """Return the totals by model."""
    from gpuyard.cli.output.fitted_table import TableColumn, table_lines

    models: dict[str, Counter[str]] = {}
    used: dict[str, list[float]] = {}
    for gpu in gpus:
        models.setdefault(gpu.model, Counter())[gpu.status] += 1
        if gpu.utilization is not None and gpu.status == "busy":
            used.setdefault(gpu.model, []).append(gpu.utilization)
    names = ("MODEL", "TOTAL", "BUSY", "IDLE", "EXTERNAL", "OFFLINE", "USED")
    columns = [TableColumn(name, right=name != "MODEL", least=8 if name == "MODEL" else None) for name in names]
    rows = []
    for model in sorted(models, key=lambda name: (-models[name].total(), name)):
        count = models[model]
        values = used.get(model)
        share = f"{sum(values) / len(values):.0f}%" if values else "–"
        figures = [f"{count.total():,}", *(f"{count[status]:,}" for status in ("busy", "idle", "external", "offline"))]
        rows.append([one_line(model), *figures, share])
    if len(rows) > 1:
        whole = sum(models.values(), Counter[str]())
        figures = [f"{whole.total():,}", *(f"{whole[status]:,}" for status in ("busy", "idle", "external", "offline"))]
        every = [value for values in used.values() for value in values]
        rows.append(["all", *figures, f"{sum(every) / len(every):.0f}%" if every else "–"])
    return table_lines(columns, rows, screen)


def user_lines(gpus: "Sequence[GpuAnswer]", screen: Screen) -> list[str]:
    """Return who holds how many GPUs, as a line that is cut to the terminal."""
    held = Counter(gpu.user or "others" for gpu in gpus if gpu.status == "busy")
    if not held:
        return []
    first = held.most_common(SHOWN_USERS)
    words = ", ".join(f"{one_line(user)} {count:,}" for user, count in first)
    more = f", {len(held) - SHOWN_USERS} more" if len(held) > SHOWN_USERS else ""
    line = f"held by: {words}{more}"
    return [cut(line, screen.width) if screen.width else line]


def map_lines(gpus: "Sequence[GpuAnswer]", nodes: "Sequence[NodeAnswer]", screen: Screen) -> list[str]:
    """Return the nodes, each with a cell for each of its GPUs; nodes that are not online say so."""
    by_node: dict[str, list[GpuAnswer]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node_id, []).append(gpu)
    states = {node.id: node for node in nodes if node.status != "online"}
    name_width = min(max(map(cells, by_node), default=0), 20)
    most = max(map(len, by_node.values()), default=0)
    entries = []
    for node, own in by_node.items():
        state = states.get(node)
        label = padded(cut(one_line(node), name_width), name_width)
        label = screen.paint(label, "yellow" if state and state.status != "offline" else "red" if state else None)
        drawn = "".join(
            screen.paint("".join(mark_of(gpu.status, gpu.utilization) for gpu in same), CELL_COLORS.get(status))
            for status, same in groupby(own, key=lambda gpu: gpu.status)
        )
        entries.append((f"{label} {drawn}{' ' * (most - len(own))}", _held(own), state))
    if len(entries) > SEVERAL_COLUMNS and screen.width:
        across = max(1, (screen.width + 2) // (name_width + 1 + most + 2))
        down = -(-len(entries) // across)
        lines = ["  ".join(entry[0] for entry in entries[row::down]).rstrip() for row in range(down)]
        return [*lines, *(_state_line(state, screen) for state in states.values())]
    room = (screen.width or 10_000) - name_width - 1 - most - 2
    return [
        f"{drawn}  {cut(f'{_state(state)}  {held}'.strip() if state else held, max(0, room))}".rstrip()
        for drawn, held, state in entries
    ]


def _held(gpus: "Sequence[GpuAnswer]") -> str:
    """Return who holds GPUs of a node, and the tasks."""
    by_task: dict[tuple[str, str], int] = {}
    for gpu in gpus:
        if gpu.current_task:
            key = (gpu.user or "", gpu.current_task)
            by_task[key] = by_task.get(key, 0) + 1
    return ", ".join(
        f"{f'{one_line(user)} ' if user else ''}{task}{f' ×{count}' if count > 1 else ''}"
        for (user, task), count in by_task.items()
    )


def _state(node: "NodeAnswer") -> str:
    return f"{node.status} ({one_line(node.reason)})" if node.reason else str(node.status)


def _state_line(node: "NodeAnswer", screen: Screen) -> str:
    line = f"{node.id}: {_state(node)}"
    return cut(line, screen.width) if screen.width else line
