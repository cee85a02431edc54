"""Pictures of tasks and what they need: boxes in columns by level, the critical path in black. SVG, HTML, or PNG.

One layout for all three. Within a level, boxes stand near those they need (two sweeps of their mean). A need that others imply
is not drawn. One that passes levels gets a lane between their boxes, which all that need the same task share, so that no line runs
behind a box.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from gpuyard.learn.analysis.graph import Bound, Graph, Kind, Task

WIDE, HIGH, GAP_X, GAP_Y, EDGE, LANE = 190, 50, 70, 16, 24, 6
COLOURS: Final[Mapping[Kind, str]] = {
    "training": "#f4b183",
    "inference": "#9dc3e6",
    "data": "#c5e0b4",
    "hpc": "#d9c3e8",
    "other": "#e4e4e4",
}
BORDERS: Final[Mapping[Bound, str]] = {
    "compute": "#b03a00",
    "memory": "#1f4e9c",
    "io": "#2e7d32",
    "communication": "#7b1fa2",
    "unknown": "#888888",
}
PATH, NEED = "#111111", "#9a9a9a"


@dataclass(frozen=True)
class Box:
    """Where a task stands; x and y of its upper left corner."""

    task: Task
    x: float
    y: float
    critical: bool

    @property
    def lines(self) -> tuple[str, str]:
        """What is written in it."""
        rounds = f" ×{self.task.rounds}" if self.task.rounds else " ↻" if self.task.repeats else ""
        words = self.task.kind if self.task.bound == "unknown" else f"{self.task.kind}, {self.task.bound}"
        gpus = f", {self.task.gpus * self.task.nodes} GPU" if self.task.gpus else ""
        return _cut(f"{self.task.id}{rounds}", 26), _cut(words + gpus, 32)


@dataclass(frozen=True)
class Line:
    """A need: from one task to another, through lanes."""

    one: str
    other: str
    critical: bool
    points: tuple[tuple[float, float], ...]
    """Where it begins, where it comes into and leaves each lane, where it ends."""


@dataclass(frozen=True)
class Layout:
    """Boxes and the needs that are drawn."""

    boxes: dict[str, Box]
    needs: list[Line]
    width: float
    height: float


Item = tuple[str, int]
"""What stands in a column: a task, or the lane of what needs that task, and the column."""


def layout(graph: Graph) -> Layout:
    """Columns by level."""
    before = {task.id: [need.task for need in task.needs] for task in graph.tasks}
    level_of = {name: at for at, level in enumerate(graph.levels) for name in level}
    drawn = reduced(before, graph.levels)
    columns = _columns(graph.levels, drawn, level_of)
    highs = [sum(_high(item, level_of) + GAP_Y for item in column) - GAP_Y for column in columns]
    tallest = max(highs, default=HIGH)
    y: dict[Item, float] = {}
    for column, high in zip(columns, highs, strict=True):
        down = EDGE + (tallest - high) / 2
        for item in column:
            y[item] = down
            down += _high(item, level_of) + GAP_Y
    path, steps = set(graph.critical_path), set(zip(graph.critical_path, graph.critical_path[1:], strict=False))
    boxes = {
        task.id: Box(task, _left(level_of[task.id]), y[task.id, level_of[task.id]], task.id in path)
        for task in graph.tasks
    }
    needs = [
        Line(one, other, (one, other) in steps, _points(boxes[one], boxes[other], one, level_of, other, y))
        for one, other in drawn
    ]
    return Layout(boxes, needs, 2 * EDGE + len(columns) * (WIDE + GAP_X) - GAP_X, 2 * EDGE + tallest)


def _columns(
    levels: Sequence[Sequence[str]], drawn: Sequence[tuple[str, str]], level_of: Mapping[str, int]
) -> list[list[Item]]:
    """Tasks and lanes of each level, near those they come from."""
    columns: list[list[Item]] = [[(name, at) for name in level] for at, level in enumerate(levels)]
    sources: dict[Item, list[Item]] = {}
    for one, other in drawn:
        for at in range(level_of[one] + 1, level_of[other] + 1):
            item = (one if at < level_of[other] else other, at)
            if item not in sources and item[0] == one:
                columns[at].append(item)
            sources.setdefault(item, []).append((one, at - 1))
    place = {item: float(at) for column in columns for at, item in enumerate(column)}
    for _ in range(2):
        for column in columns[1:]:
            means = {item: _mean([place[source] for source in sources.get(item, [])], place[item]) for item in column}
            column.sort(key=lambda item, means=means: (means[item], item))  # type: ignore[misc]
            place |= {item: float(at) for at, item in enumerate(column)}
    return columns


def _high(item: Item, level_of: Mapping[str, int]) -> float:
    name, column = item
    return HIGH if level_of[name] == column else LANE


def _left(column: int) -> float:
    return EDGE + column * (WIDE + GAP_X)


def _points(
    one: Box, other: Box, name: str, level_of: Mapping[str, int], last: str, y: Mapping[Item, float]
) -> tuple[tuple[float, float], ...]:
    points = [(one.x + WIDE, one.y + HIGH / 2)]
    for column in range(level_of[name] + 1, level_of[last]):
        at = y[name, column] + LANE / 2
        points += [(_left(column), at), (_left(column) + WIDE, at)]
    return (*points, (other.x, other.y + HIGH / 2))


def reduced(before: Mapping[str, Sequence[str]], levels: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Needs that no others imply."""
    order = [name for level in levels for name in level]
    number = {name: at for at, name in enumerate(order)}
    reach: dict[str, int] = {}
    kept = []
    for name in order:
        through = 0
        for other in before[name]:
            through |= reach[other]
        kept += [(other, name) for other in dict.fromkeys(before[name]) if not through >> number[other] & 1]
        reach[name] = through
        for other in before[name]:
            reach[name] |= 1 << number[other]
    return kept


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# --- SVG and HTML -----------------------------------------------------------------------------------------------------


def svg(graph: Graph) -> str:
    """The picture as one SVG; pointing at a box tells what was seen."""
    plan = layout(graph)
    width, height = max(plan.width, 680), plan.height + 58
    size = f'width="{width:g}" height="{height:g}"'
    named = 'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif"'
    parts = [f'<svg {named} viewBox="0 0 {width:g} {height:g}" {size}>', f'<rect {size} fill="#ffffff"/>']
    for line in sorted(plan.needs, key=lambda line: line.critical):
        look = f'stroke="{PATH}" stroke-width="2.4"' if line.critical else f'stroke="{NEED}" stroke-width="1.1"'
        begin = "M{:g} {:g}".format(*line.points[0])
        curves = "".join(
            "L{:g} {:g}C{:g} {:g} {:g} {:g} {:g} {:g}".format(*(number for point in curve for number in point))
            for curve in _curves(line)
        )
        parts.append(f'<path d="{begin}{curves}" fill="none" {look}/>')
    parts += [_svg_box(box) for box in plan.boxes.values()]
    parts += _svg_legend(graph, plan.height)
    return "\n".join([*parts, "</svg>\n"])


def _curves(line: Line) -> list[tuple[tuple[float, float], ...]]:
    """From box or lane to the next: four points of a curve, which a straight line through the lane leads to."""
    made: list[tuple[tuple[float, float], ...]] = []
    for (x1, y1), (x2, y2) in zip(line.points[::2], line.points[1::2], strict=True):
        middle = (x1 + x2) / 2
        made.append(((x1, y1), (middle, y1), (middle, y2), (x2, y2)))
    return made


def _svg_box(box: Box) -> str:
    task = box.task
    name, words = map(escape, box.lines)
    told = escape(
        "\n".join(
            [
                f"{task.does}  ({task.file}:{task.line})",
                *(f"{e.file}:{e.line} {e.seen}: {e.says}" for e in task.evidence),
            ]
        )
    )
    edge = 'stroke-width="2.6"' if box.critical else 'stroke-width="1.2"'
    colour = PATH if box.critical else BORDERS[task.bound]
    return (
        f'<g><title>{told}</title><rect x="{box.x:g}" y="{box.y:g}" width="{WIDE}" height="{HIGH}" rx="6" '
        f'fill="{COLOURS[task.kind]}" stroke="{colour}" {edge}/>'
        f'<text x="{box.x + 10:g}" y="{box.y + 21:g}" font-size="13" font-weight="600">{name}</text>'
        f'<text x="{box.x + 10:g}" y="{box.y + 39:g}" font-size="11" fill="#333333">{words}</text></g>'
    )


def _svg_legend(graph: Graph, top: float) -> list[str]:
    parts, x = [], EDGE
    for kind, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{top + 4:g}" width="14" height="12" fill="{colour}" stroke="#888888"/>')
        parts.append(f'<text x="{x + 19}" y="{top + 14:g}" font-size="11">{kind}</text>')
        x += 34 + 7 * len(kind)
    parts.append(f'<path d="M{x} {top + 10:g}h24" stroke="{PATH}" stroke-width="2.4"/>')
    parts.append(f'<text x="{x + 30}" y="{top + 14:g}" font-size="11">critical path</text>')
    parts.append(f'<text x="{EDGE}" y="{top + 38:g}" font-size="12">{escape(summary(graph))}</text>')
    return parts


def summary(graph: Graph) -> str:
    """What follows from the needs, in a line."""
    unit = " s" if graph.in_seconds else ""
    levels = f"{len(graph.levels)} level" + ("" if len(graph.levels) == 1 else "s")
    tasks = f"{len(graph.tasks)} task" + ("" if len(graph.tasks) == 1 else "s")
    return (
        f"{graph.source}: {tasks} in {levels}; critical path {graph.critical_length:g}{unit} of "
        f"{graph.total_length:g}{unit}; up to {graph.width} at once; {graph.speedup:.2f} times as fast at the most"
    )


def page(graph: Graph) -> str:
    """The picture and what it rests on, as one HTML file that needs nothing else."""
    rows = "".join(_row(task) for task in graph.tasks)
    notes = "".join(f"<p>{escape(note)}</p>" for note in graph.notes)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(graph.source)}</title>
<style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 1.5em; color: #222; }}
table {{ border-collapse: collapse; }} td, th {{ text-align: left; vertical-align: top; padding: .3em .9em .3em 0; border-top: 1px solid #ddd; }}
code {{ font-size: 12px; }} small {{ color: #555; }} .picture {{ overflow-x: auto; }}
</style>
<h1>{escape(graph.source)}</h1>
<div class="picture">{svg(graph)}</div>{notes}
<table><tr><th>task</th><th>class</th><th>needs</th><th>evidence</th></tr>{rows}</table>
</html>
"""


def _row(task: Task) -> str:
    where = f"{task.file}:{task.line}"
    loop = (
        f"<br><small>{escape(task.repeats)}{' (rounds need nothing of each other)' if task.independent else ''}</small>"
        if task.repeats
        else ""
    )
    when = f"<br><small>if {escape(task.when)}</small>" if task.when else ""
    needs = "<br>".join(f"{escape(need.task)} <small>{escape(need.why)}</small>" for need in task.needs) or "–"
    seen = "<br>".join(
        f"<small>{escape(e.file)}:{e.line}</small> <code>{escape(e.seen)}</code> {escape(e.says)}"
        for e in task.evidence
    )
    return (
        f"<tr><td><b>{escape(task.id)}</b><br><small>{escape(where)}</small> <code>{escape(task.does)}</code>{loop}{when}</td>"
        f"<td>{task.kind}<br>{task.bound}</td><td>{needs}</td><td>{seen or '–'}</td></tr>\n"
    )


# --- PNG --------------------------------------------------------------------------------------------------------------

DOTS = 100
"""Units of the layout in an inch, on paper."""


def save_png(graph: Graph, path: Path) -> None:
    """The same boxes by matplotlib, which is loaded only here."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle
    from matplotlib.path import Path as Curve

    plan = layout(graph)
    width, height = max(plan.width, 680), plan.height + 58
    figure = Figure(figsize=(width / DOTS, height / DOTS), dpi=min(150, 60_000 * DOTS / max(width, height) / 1.1))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    for line in sorted(plan.needs, key=lambda line: line.critical):
        curves = _curves(line)
        codes = [Curve.LINETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4] * len(curves)
        drawn = Curve([point for curve in curves for point in curve], [Curve.MOVETO, *codes[1:]])
        colour, thick = (PATH, 1.8) if line.critical else (NEED, 0.8)
        axes.add_patch(PathPatch(drawn, fill=False, edgecolor=colour, linewidth=thick))
    for box in plan.boxes.values():
        name, words = box.lines
        axes.add_patch(
            FancyBboxPatch(
                (box.x, box.y), WIDE, HIGH, boxstyle="round,pad=0,rounding_size=6", facecolor=COLOURS[box.task.kind],
                edgecolor=PATH if box.critical else BORDERS[box.task.bound], linewidth=2.0 if box.critical else 1.0,
            )
        )  # fmt: skip
        axes.text(box.x + 10, box.y + 21, name, fontsize=8.5, fontweight="bold", parse_math=False)
        axes.text(box.x + 10, box.y + 39, words, fontsize=7.2, color="#333333", parse_math=False)
    x = float(EDGE)
    for kind, colour in COLOURS.items():
        axes.add_patch(Rectangle((x, plan.height + 4), 14, 12, facecolor=colour, edgecolor="#888888", linewidth=0.6))
        axes.text(x + 19, plan.height + 14, kind, fontsize=7.5)
        x += 34 + 7 * len(kind)
    axes.plot([x, x + 24], [plan.height + 10] * 2, color=PATH, linewidth=1.8)
    axes.text(x + 30, plan.height + 14, "critical path", fontsize=7.5)
    axes.text(EDGE, plan.height + 38, summary(graph), fontsize=8, parse_math=False)
    figure.savefig(path)
