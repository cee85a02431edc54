"""The picture of a yard at one instant: nodes and their cards, the queue with its reasons, reservations, quotas, news.

Numbers say what colours say, so the picture can be read without them. It only looks: every figure comes from the
state, from `explain`, or from the facts.
"""

from collections.abc import Iterable
from heapq import nsmallest

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gpuyard.cli.demo.stage import Stage
from gpuyard.cli.sentences import asked, clock
from gpuyard.core.domain.values import MILLI, GpuHealth, NodeId, TaskId
from gpuyard.core.engine.explain import Explanation, explain
from gpuyard.core.engine.phases import Placed, Resuming, Stopping, Suspended, Suspending, Waiting
from gpuyard.core.engine.quota import UNLIMITED
from gpuyard.core.engine.standing import standing
from gpuyard.core.engine.state import holds_gpus
from gpuyard.core.engine.task import Task
from gpuyard.core.placement.index import Host

NODES_WIDTH = 58
HUES = ("#4878cf", "#d65f5f", "#3f9e5b", "#b47cc7", "#c4963c", "#3fa7b5", "#8c613c", "#d1679e", "#6b8e23", "#7a68d8")
"""Backgrounds of cards in use, by task number."""


class Picture:
    """Draws a stage. It remembers explanations for a few frames, because they are the dear part."""

    def __init__(self, stage: Stage, speed: float) -> None:
        self._stage = stage
        self._speed = speed
        self._said: dict[TaskId, tuple[float, Explanation]] = {}

    def draw(self, size: ConsoleDimensions) -> RenderableType:
        """The whole picture, in the room there is."""
        upper = min(max(len(self._stage.state.index.hosts) + 4, 9), size.height // 2)
        rest = size.height - upper - 1
        news = max(4, min(12, rest * 2 // 5))
        layout = Layout()
        layout.split_column(
            Layout(self._head(size.width), size=1),
            Layout(name="upper", size=upper),
            Layout(self._queue(rest - news - 3, size.width), size=rest - news),
            Layout(name="lower", size=news),
        )
        layout["upper"].split_row(
            Layout(self._nodes(), size=NODES_WIDTH), Layout(self._quotas(size.width - NODES_WIDTH))
        )
        layout["lower"].split_row(Layout(self._news(news - 2), ratio=3), Layout(self._reservations(news - 2), ratio=2))
        return layout

    # --- the head ------------------------------------------------------------------------------------------------

    def _head(self, width: int) -> Text:
        stage = self._stage
        counts = stage.tally.summary()
        waiting = sum(isinstance(task.phase, Waiting | Suspended) for task in stage.state.tasks.values())
        running = len(stage.state.tasks) - waiting
        text = Text(no_wrap=True, overflow="crop", end="")
        text.append(f" gpuyard  {clock(stage.now)} ", "bold white on #303050")
        text.append(f"  {running} running · {waiting} waiting · {counts['succeeded']:.0f} succeeded")
        text.append(
            f" · {counts['failed']:.0f} failed · {counts['cancelled']:.0f} cancelled · {counts['preempted']:.0f} preempted"
        )
        right = f"virtual, × {self._speed:g}  "
        text.append(" " * max(1, width - text.cell_len - len(right)) + right, "dim")
        return text

    # --- nodes ---------------------------------------------------------------------------------------------------

    def _nodes(self) -> Panel:
        table = Table.grid(padding=(0, 1))
        owners = self._owners()
        for host in self._stage.state.index.hosts.values():
            model = host.spec.gpus[0].model if host.spec.gpus else ""
            table.add_row(Text(host.spec.id, "bold"), Text(model, "dim"), self._cells(host, owners), _condition(host))
        legend = Text.assemble(
            _cell(" 12 ", f"white on {HUES[0]}"), " task ", _cell(" 12▌", f"white on {HUES[1]}"), " shared ",
            _cell(" ·  ", "dim"), "idle ", _cell("ext ", "black on #b0b0b0"), " external ", _cell(" ✗ ", "bold red"), "off",
        )  # fmt: skip
        return Panel(Group(table, Text(), legend), title="nodes", title_align="left", border_style="dim")

    def _owners(self) -> dict[tuple[NodeId, int], list[Task]]:
        """Who holds which card."""
        owners: dict[tuple[NodeId, int], list[Task]] = {}
        for task in self._stage.state.tasks.values():
            if holds_gpus(task.phase):
                for part in task.phase.placement.slices:  # type: ignore[attr-defined]
                    for gpu in part.gpus:
                        owners.setdefault((part.node, gpu), []).append(task)
        return owners

    def _cells(self, host: Host, owners: dict[tuple[NodeId, int], list[Task]]) -> Text:
        cells = Text()
        for gpu in range(len(host.spec.gpus)):
            cells.append_text(_card(host, gpu, owners.get((host.spec.id, gpu), [])))
        return cells

    # --- quotas --------------------------------------------------------------------------------------------------

    def _quotas(self, width: int) -> Panel:
        state = self._stage.state
        roomy = width >= 46
        bar = min(48, width - (32 if roomy else 24))
        total = state.index.gpus_up
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim", no_wrap=True)
        for book in state.classes:
            part = book.guarantee // MILLI
            over = "borrows" if roomy and book.used > book.guarantee else ""
            table.add_row(
                book.task_class, _bar(book.used / MILLI, part, total, bar), f"{book.used / MILLI:g} of {part}", over
            )
        table.add_row()
        for tenant in state.tenants.values():
            limit = None if tenant.limit == UNLIMITED else tenant.limit // MILLI
            said = f"{tenant.used / MILLI:g}" + ("" if limit is None else f" of {limit}")
            over = "full" if roomy and tenant.used >= tenant.limit else ""
            table.add_row(tenant.id, _bar(tenant.used / MILLI, limit, total, bar), said, over)
        return Panel(table, title=f"quota, in GPUs of {total}", title_align="left", border_style="dim")

    # --- the queue -----------------------------------------------------------------------------------------------

    def _queue(self, rows: int, width: int) -> Panel:
        waiting = [task for task in self._stage.state.tasks.values() if isinstance(task.phase, Waiting | Suspended)]
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim", expand=True)
        names = ("task", "tenant", "asks", "waits", "starts in", "why it waits")
        shown = [name for name in names if width >= 120 or name not in {"tenant", "waits"}]
        for name in shown:
            table.add_column(name, no_wrap=True, ratio=1 if name == names[-1] else None)
        for task in nsmallest(rows, waiting, key=self._place):
            row = dict(zip(names, self._row(task), strict=True))
            table.add_row(*(row[name] for name in shown))
        more = f", the first {rows}" if len(waiting) > rows else ""
        return Panel(table, title=f"queue: {len(waiting)} waiting{more}", title_align="left", border_style="dim")

    def _row(self, task: Task) -> tuple[Text, ...]:
        """One line of the queue."""
        said = self._explain(task.id)
        suspended = "Suspended. " if isinstance(task.phase, Suspended) else ""
        return (
            Text.assemble((f"{task.id % 1000:3d} ", f"bold {_hue(task)}"), task.spec.name),
            Text(task.spec.tenant, "dim"),
            Text(asked(task.spec.resources).removesuffix(" GPUs").removesuffix(" GPU")),
            Text(_span(self._stage.now - task.submitted_at)),
            self._start(said),
            Text(suspended + said.sentence(), overflow="ellipsis"),
        )

    def _place(self, task: Task) -> tuple[bool, tuple[int, float, float, TaskId]]:
        """The order the engine goes by; tasks that are not in line yet come last."""
        return (
            task.group is None and task.id not in self._stage.state.holds,
            standing(self._stage.state, task, self._stage.now),
        )

    def _explain(self, task: TaskId) -> Explanation:
        said = self._said.get(task)
        if said is None or self._stage.now - said[0] > self._speed / 2:
            said = self._said[task] = (self._stage.now, explain(self._stage.state, task, self._stage.now))
        return said[1]

    def _start(self, said: Explanation) -> Text:
        if said.starts_at is None:
            return Text("?", "dim")
        band = ""
        if said.starts_low is not None and said.starts_high is not None:
            band = f" {_span(said.starts_low - self._stage.now)}–{_span(said.starts_high - self._stage.now)}"
        return Text.assemble(_span(said.starts_at - self._stage.now), (band, "dim"))

    # --- below ---------------------------------------------------------------------------------------------------

    def _news(self, rows: int) -> Panel:
        lines = [
            Text.assemble((clock(at), "dim"), "  ", sentence, no_wrap=True, overflow="ellipsis")
            for at, sentence in list(self._stage.recent)[-rows:]
        ]
        return Panel(Group(*lines), title="facts", title_align="left", border_style="dim")

    def _reservations(self, rows: int) -> Panel:
        holds = list(self._stage.state.holds.values())[:rows]
        lines: Iterable[Text] = (
            Text.assemble(
                (f"{hold.task.id} {hold.task.spec.name}", f"bold {_hue(hold.task)}"),
                f"  {', '.join(hold.nodes)}  ",
                (self._promise(hold.claim, len(hold.victims), hold.starts_at), "dim"),
                no_wrap=True,
                overflow="ellipsis",
            )
            for hold in holds
        )
        return Panel(Group(*lines), title="reservations", title_align="left", border_style="dim")

    def _promise(self, claim: bool, victims: int, starts_at: float | None) -> str:
        if claim:
            return f"when {victims} stopped" if victims else "now"
        return "when free" if starts_at is None else f"from {clock(starts_at)}, in {_span(starts_at - self._stage.now)}"


# --- small things -----------------------------------------------------------------------------------------------------


def _condition(host: Host) -> Text:
    if host.lost:
        return Text("lost", "bold red")
    if host.draining:
        return Text("draining", "yellow")
    return Text("cordoned", "yellow") if host.cordoned else Text("")


def _card(host: Host, gpu: int, owners: list[Task]) -> Text:
    """One card: whose it is, or why it is nobody's."""
    health = host.health.get(gpu, GpuHealth.OK)
    if host.lost or (health is GpuHealth.OFFLINE and not owners):
        return _cell(" ✗  ", "bold red")
    if health is GpuHealth.EXTERNAL and not owners:
        return _cell("ext ", "black on #b0b0b0")
    if not owners:
        return _cell(" ·  ", "dim")
    task = owners[0]
    shared = task.spec.resources.share is not None
    style = f"white on {_hue(task)}"
    if isinstance(task.phase, Placed | Resuming | Stopping | Suspending):
        style = f"{_hue(task)} on #303030"  # between two reports of the node: given, but not in use
    return _cell(f"{task.id % 1000:3d}" + ("▌" if shared else " "), style)


def _hue(task: Task) -> str:
    return HUES[task.id % len(HUES)]


def _cell(text: str, style: str) -> Text:
    return Text(text, style)


def _bar(used: float, limit: int | None, total: int, width: int) -> Text:
    """Filled: in use. Light: still allowed. Dots: not allowed, or only borrowed."""
    scale = width / max(total, 1)
    full = min(width, round(used * scale))
    allowed = width if limit is None else min(width, round(limit * scale))
    within = min(full, allowed)
    return Text.assemble(
        ("█" * within, "#4878cf"),
        ("█" * (full - within), "#c4963c"),
        ("░" * max(0, allowed - within), "dim"),
        ("·" * (width - max(full, allowed)), "dim"),
    )


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    return (
        f"{seconds:.0f}s" if seconds < 100 else f"{seconds / 60:.0f}m" if seconds < 6000 else f"{seconds / 3600:.0f}h"
    )
