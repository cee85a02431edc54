"""The widgets of `top`. They draw lines from plain lists: a table widget takes 87 seconds to fill with 100,000 rows."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpuyard.cli.output.fitted_table import TableColumn
from gpuyard.cli.output.gpu_map import BARS, LEGEND, mark_of
from gpuyard.cli.output.printing import one_line
from gpuyard.cli.output.screen import cells, cut, padded
from gpuyard.cli.output.task_rows import COLUMNS, STATUS_COLORS
from gpuyard.cli.top.readers import ClusterLook, HistoryPoint, QueuePage, QueueView
from gpuyard.live.wire.queue_answers import QueueRow

STATE_STYLES = {"idle": "green", "busy": "cyan", "external": "yellow", "offline": "red"}
WIDTHS = {
    "id": 15, "user": 9, "status": 12, "priority": 4, "gpus": 5, "place": 7, "start": 9, "age": 6, "ran": 7, "tries": 3,
    "where": 24,
}  # fmt: skip
"""Cells of the columns that have a fixed width; the name takes the rest."""
LEAST_NAME = 12
GAP = 1


class Painted(Widget):
    """A widget that is a list of lines."""

    def __init__(self, **more: str) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.strips: list[Strip] = []

    def paint(self, strips: list[Strip]) -> None:
        """Show these lines."""
        if strips != self.strips:
            self.strips = strips
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line, as Textual asks for it."""
        strip = self.strips[y] if y < len(self.strips) else Strip.blank(self.size.width)
        return strip.adjust_cell_length(self.size.width)


def strip_of(*parts: tuple[str, str]) -> Strip:
    """Return a line of texts, each with a style."""
    return Strip([Segment(text, Style.parse(style) if style else Style()) for text, style in parts if text])


def spark(values: Sequence[float], width: int) -> str:
    """Return the last values, between 0 and 1, as bars."""
    last = values[-width:]
    return "".join(BARS[min(7, max(0, round(value * 7)))] for value in last).rjust(width)


def summary_strips(look: ClusterLook | None, history: Sequence[HistoryPoint], width: int, stamp: str) -> list[Strip]:
    """Return the head: totals, and the last minutes as bars."""
    if look is None:
        return [strip_of(("gpuyard", "bold"), (f"  {stamp}", ""), ("  Waiting for the scheduler …", "yellow"))]
    gpus, tasks, nodes, alerts = look.message.gpus, look.message.tasks, look.message.nodes, look.message.alerts
    parts = [
        ("gpuyard", "bold"),
        (f"  {stamp}", "dim"),
        (f"  {gpus.busy:,} of {gpus.total:,} GPUs busy", "bold cyan"),
        (f", {gpus.idle:,} idle", "green" if gpus.idle else ""),
        (f", {gpus.external:,} external" if gpus.external else "", "yellow"),
        (f", {gpus.offline:,} offline" if gpus.offline else "", "red"),
        (f"   {tasks.running:,} running", "green"),
        (f", {tasks.pending:,} waiting", "yellow" if tasks.pending else ""),
        (f", {tasks.suspended:,} suspended" if tasks.suspended else "", "yellow"),
        (f"   {nodes.online:,} of {nodes.total:,} nodes", "" if nodes.online == nodes.total else "red"),
        (f"   {alerts.firing} alerts" if alerts.firing else "", "bold red"),
    ]
    bars = max(8, (width - 40) // 3)
    most = max((point.waiting for point in history), default=0)
    now = history[-1] if history else HistoryPoint(0.0, 0.0, 0)
    graphs = [
        ("busy ", "dim"), (spark([point.busy for point in history], bars), "cyan"), (f" {now.busy:4.0%}  ", ""),
        ("used ", "dim"), (spark([point.used for point in history], bars), "green"), (f" {now.used:4.0%}  ", ""),
        ("queue ", "dim"), (spark([point.waiting / most if most else 0.0 for point in history], bars), "yellow"),
        (f" {now.waiting:,}", ""),
    ]  # fmt: skip
    return [strip_of(*parts), strip_of(*graphs)]


def gpu_strips(look: ClusterLook, width: int, height: int) -> list[Strip]:
    """Return the map of all GPUs in at most so many lines: a cell for each GPU, or if that is too much, for each node."""
    nodes: dict[str, list[int]] = {}
    for place, card in enumerate(look.cards):
        nodes.setdefault(card.node_id, []).append(place)
    if not nodes or height < 2:
        return []
    name_width = min(max(map(cells, nodes)), 16)
    most = max(map(len, nodes.values()))
    across = max(1, (width + 2) // (name_width + most + 3))
    down = -(-len(nodes) // across)
    if down > height - 1:
        return _node_strips(look, nodes, width, height)
    names = list(nodes)
    strips = []
    for row in range(down):
        parts: list[tuple[str, str]] = []
        for name in names[row::down]:
            parts.append((f"{padded(cut(one_line(name), name_width), name_width)} ", "dim"))
            parts += _cells(look, nodes[name])
            parts.append((" " * (most - len(nodes[name]) + 2), ""))
        strips.append(strip_of(*parts))
    return [*strips, strip_of((cut(LEGEND, width), "dim"))]


def _cells(look: ClusterLook, places: Sequence[int]) -> list[tuple[str, str]]:
    """Return the cells of GPUs; neighbors in one state share a segment."""
    parts: list[tuple[str, str]] = []
    for place in places:
        state = look.state(place)
        mark, style = mark_of(state, look.utilization(place)), STATE_STYLES[state]
        if parts and parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + mark, style)
        else:
            parts.append((mark, style))
    return parts


def _node_strips(look: ClusterLook, nodes: dict[str, list[int]], width: int, height: int) -> list[Strip]:
    """Return one cell for each node: a bar as high as its share of busy GPUs, red if one is offline."""
    marks: list[tuple[str, str]] = []
    for places in nodes.values():
        states = [look.state(place) for place in places]
        busy = states.count("busy") / len(states)
        style = "red" if "offline" in states else "cyan" if busy == 1 else "green"
        marks.append((BARS[round(busy * 7)] if busy else "·", style))
    lines = [marks[first : first + width] for first in range(0, len(marks), width)][: height - 1]
    shown = sum(map(len, lines))
    words = f"one bar a node: its share of busy GPUs{f'; {len(marks) - shown:,} nodes are not shown' if shown < len(marks) else ''}; g shows GPUs"
    return [*(strip_of(*line) for line in lines), strip_of((cut(words, width), "dim"))]


class QueueList(ScrollView, can_focus=True):
    """The queue. Only the rows around the window are known; the others are asked for when they come into view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "jump(False)", show=False),
        Binding("end,G", "jump(True)", show=False),
        Binding("space", "mark", show=False),
    ]

    class WindowMoved(Message):
        """Other rows are on the screen now."""

    def __init__(self, view: QueueView, **more: str) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.view = view
        self.rows: dict[int, QueueRow] = {}
        self.total = 0
        self.cursor = 0
        self.marks: dict[str, QueueRow] = {}
        self.loaded = False

    # --- rows ---------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> QueueRow | None:
        """The row under the cursor."""
        return self.rows.get(self.cursor)

    def chosen(self) -> list[QueueRow]:
        """Return the marked rows; without any, the one under the cursor."""
        return list(self.marks.values()) or ([self.current] if self.current is not None else [])

    def window(self) -> tuple[int, int]:
        """Return which rows to read: those on the screen, and a screen before and after."""
        height = max(self.size.height, 1)
        first = max(0, self.scroll_offset.y - height)
        return first, min(3 * height, 1000)

    def show_page(self, page: QueuePage) -> None:
        """Take the rows of a page; one of another view is too late."""
        if page.view != self.view:
            return
        self.loaded = True
        self.rows = {page.first + place: row for place, row in enumerate(page.answer.rows)}
        if page.answer.total != self.total:
            self.total = page.answer.total
            self.virtual_size = Size(self.size.width, self.total)
            if self.cursor >= self.total:
                self.move_to(self.total - 1)
        self.refresh()

    def show_view(self, view: QueueView) -> None:
        """Show another part or order of the queue, from its beginning."""
        self.view, self.rows, self.marks, self.loaded, self.cursor = view, {}, {}, False, 0
        self.scroll_to(0, 0, animate=False)
        self.refresh()
        self.post_message(self.WindowMoved())

    # --- moving -------------------------------------------------------------------------------------------------------

    def move_to(self, place: int) -> None:
        """Move the cursor, and the window if it leaves it."""
        before, self.cursor = self.cursor, max(0, min(place, self.total - 1))
        height, top = max(self.size.height, 1), self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)
        for line in {before, self.cursor}:
            self.refresh_line(line)
        self.post_message(self.WindowMoved())

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(1, self.size.height - 1))

    def action_jump(self, to_end: bool) -> None:
        self.move_to(self.total - 1 if to_end else 0)

    def action_mark(self) -> None:
        row = self.current
        if row is not None and self.marks.pop(row.id, None) is None:
            self.marks[row.id] = row
        self.move_to(self.cursor + 1)

    def on_click(self, event: events.Click) -> None:
        self.move_to(self.scroll_offset.y + event.y)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.WindowMoved())

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, self.total)
        self.call_after_refresh(self._keep_in_sight)

    def _keep_in_sight(self) -> None:
        """Move the window to the cursor, which may be outside of a smaller one."""
        self.move_to(self.cursor)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def columns(self) -> list[tuple[str, int]]:
        """Return the columns that fit, with their widths."""
        width = self.size.width - 2
        names = [name for name in ("id", "name", *list(WIDTHS)[1:]) if name != "tries" or self._several_tries()]
        while True:
            fixed = sum(WIDTHS.get(name, 0) + GAP for name in names)
            if width - fixed >= LEAST_NAME or len(names) <= 3:
                return [(name, WIDTHS.get(name) or max(LEAST_NAME, width - fixed)) for name in names]
            names.remove(max((name for name in names if COLUMNS[name][0].rank), key=lambda name: COLUMNS[name][0].rank))

    def _several_tries(self) -> bool:
        return any(row.attempts > 1 for row in self.rows.values())

    def head(self) -> Strip:
        """Return the line above the list."""
        by, down = self.view.sort, self.view.descending
        sorted_by = {"created_at": "age", "started_at": "ran", "attempts": "tries", "queue": "place"}.get(by, by)
        parts = [("  ", "")]
        for name, width in self.columns():
            column: TableColumn = COLUMNS[name][0]
            arrow = ("▼" if down else "▲") if name == sorted_by else ""
            parts.append((padded(cut(column.name + arrow, width), width, right=column.right) + " " * GAP, "bold reverse" if arrow else "bold"))  # fmt: skip
        return strip_of(*parts)

    def render_line(self, y: int) -> Strip:
        """Return a line of the window."""
        width, place = self.size.width, self.scroll_offset.y + y
        if place >= self.total:
            empty = "  No task is waiting or running." if self.loaded and not self.total and not y else ""
            return strip_of((empty, "dim")).adjust_cell_length(width)
        row = self.rows.get(place)
        if row is None:
            return strip_of(("  …", "dim")).adjust_cell_length(width)
        marked, under = row.id in self.marks, place == self.cursor
        base = "reverse" if under else ""
        parts = [("* " if marked else "  ", base or "bold yellow")]
        for name, cell_width in self.columns():
            column, text_of = COLUMNS[name]
            text = one_line(text_of(row)) or "–"
            color = STATUS_COLORS.get(str(row.status), "") if name == "status" and not under else ""
            parts.append((padded(cut(text, cell_width), cell_width, right=column.right) + " " * GAP, f"{color} {base}".strip()))  # fmt: skip
        style = Style.parse(base) if base else Style()
        return strip_of(*parts).adjust_cell_length(width, style)


class LineList(ScrollView, can_focus=True):
    """Lines of text to scroll in."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", show=False),
        Binding("j", "scroll_down", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    def __init__(self, **more: str) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.lines: list[str] = []

    def show_lines(self, lines: list[str], *, to_end: bool = False) -> None:
        """Show these lines; with `to_end`, stay at the end if that is where the window is."""
        at_end = self.scroll_offset.y >= self.max_scroll_y
        self.lines = lines
        self.virtual_size = Size(max(map(cells, lines), default=0), len(lines))
        if to_end and at_end:
            self.scroll_end(animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the window."""
        left, place = self.scroll_offset.x, self.scroll_offset.y + y
        if place >= len(self.lines):
            return Strip.blank(self.size.width)
        line = self.lines[place]
        return strip_of((line, "")).crop(left, left + self.size.width).adjust_cell_length(self.size.width)  # fmt: skip
