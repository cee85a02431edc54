"""The state diagram of a task, generated from the table that the engine uses (gpuyard.core.engine.phases).

Places are chosen by hand, because no program lays out nine boxes as well as a person; which arrows there are and what
they are called comes from the table alone. Where all phases inside the frame answer an event in the same way, one arrow
leaves the frame instead of one from each of them. An arrow without a hand-made path is a straight line: a change of
the table is drawn correctly at once, and can be laid out by hand later.
"""

from dataclasses import dataclass
from html import escape

from gpuyard.core.engine.phases import (
    HOLDING,
    STATUS,
    TRANSITIONS,
    Ended,
    Phase,
    Placed,
    Resuming,
    Running,
    Settling,
    Stopping,
    Suspended,
    Suspending,
    Waiting,
)

WIDTH, HEIGHT = 1310, 640
BOX_WIDTH, BOX_HEIGHT = 120, 56

FRAMED: tuple[type[Phase], ...] = (Placed, Running, Suspending, Suspended, Resuming)
FRAME = (370, 96, 720, 300)
"""Left, top, width and height of the frame around them."""

PLACES: dict[type[Phase], tuple[int, int]] = {
    Waiting: (190, 172),
    Placed: (470, 172),
    Running: (730, 172),
    Resuming: (470, 328),
    Suspended: (730, 328),
    Suspending: (990, 328),
    Stopping: (540, 492),
    Settling: (880, 492),
    Ended: (1210, 492),
}
"""Middle of each box."""


@dataclass(frozen=True)
class Arrow:
    """One event that leads from these phases to that one."""

    sources: tuple[type[Phase], ...]
    event: str
    target: type[Phase]


@dataclass(frozen=True)
class Way:
    """How an arrow runs, and where its name stands."""

    path: str
    label: tuple[float, float]
    anchor: str = "middle"


WAYS: dict[tuple[str, str], Way] = {
    ("Waiting", "Ended"): Way("M190,144 V66 Q190,50 206,50 H1194 Q1210,50 1210,66 V460", (700, 42)),
    ("Running", "Suspending"): Way("M790,172 H970 Q990,172 990,192 V296", (884, 164)),
    ("Resuming", "Running"): Way("M470,300 V270 Q470,250 490,250 H710 Q730,250 730,230 V204", (600, 242)),
    ("Stopping", "Stopping"): Way("M522,520 C506,566 574,566 560,524", (540, 572)),
    ("Settling", "Waiting"): Way("M880,520 V586 Q880,602 864,602 H206 Q190,602 190,586 V204", (300, 594)),
    ("frame", "Stopping"): Way("M540,396 V460", (548, 432), "start"),
    ("frame", "Settling"): Way("M880,396 V460", (888, 432), "start"),
}


def arrows() -> list[Arrow]:
    """Every transition of the table, those of the frame united where they agree."""
    drawn: dict[tuple[bool, str, type[Phase]], list[type[Phase]]] = {}
    for (source, event), target in TRANSITIONS.items():
        agreed = all(TRANSITIONS.get((phase, event)) is target for phase in FRAMED)
        united = source in FRAMED and agreed
        if united:
            drawn.setdefault((True, event.__name__, target), []).append(source)
        else:
            drawn[False, f"{event.__name__} {source.__name__}", target] = [source]
    return [Arrow(tuple(sources), name.split()[0], target) for (_, name, target), sources in drawn.items()]


def drawing() -> str:
    """The whole picture, as SVG."""
    left, top, width, height = FRAME
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        "<title>The life of a task</title>",
        _STYLE,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<rect class="frame" x="{left}" y="{top}" width="{width}" height="{height}" rx="18"/>',
        f'<text class="note" x="{left + 20}" y="{top + 24}">an attempt that is not being ended</text>',
        *(_arrow(arrow) for arrow in arrows()),
        '<circle cx="24" cy="172" r="7" fill="#333333"/>',
        '<path class="line" d="M31,172 H126"/>',
        '<text class="event" x="20" y="156" text-anchor="start">TaskSubmitted</text>',
        *(_box(phase, middle) for phase, middle in PLACES.items()),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(phase: type[Phase], middle: tuple[int, int]) -> str:
    x, y = middle
    kind = "holds" if phase in HOLDING else "over" if phase is Ended else "free"
    dashed = " inner" if phase is Settling else ""
    told = STATUS[phase].value if phase in STATUS else "success, failed, …"
    return (
        f'<g class="phase" data-phase="{phase.__name__}">'
        f'<rect class="{kind}{dashed}" x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}"'
        f' width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="10"/>'
        f'<text class="name" x="{x}" y="{y - 2}">{phase.__name__}</text>'
        f'<text class="told" x="{x}" y="{y + 16}">{escape(told)}</text></g>'
    )


def _arrow(arrow: Arrow) -> str:
    framed = len(arrow.sources) > 1
    start = "frame" if framed else arrow.sources[0].__name__
    way = WAYS.get((start, arrow.target.__name__)) or _straight(arrow.sources[0], arrow.target)
    sources = " ".join(source.__name__ for source in arrow.sources)
    x, y = way.label
    return (
        f'<g class="transition" data-from="{sources}" data-event="{arrow.event}" data-to="{arrow.target.__name__}">'
        f'<path class="line" d="{way.path}"/>'
        f'<text class="event" x="{x:g}" y="{y:g}" text-anchor="{way.anchor}">{arrow.event}</text></g>'
    )


def _straight(source: type[Phase], target: type[Phase]) -> Way:
    """From the border of one box to the border of the other."""
    (x1, y1), (x2, y2) = PLACES[source], PLACES[target]
    from_x, from_y = _border(x1, y1, x2, y2, gap=0)
    to_x, to_y = _border(x2, y2, x1, y1, gap=4)
    return Way(f"M{from_x:g},{from_y:g} L{to_x:g},{to_y:g}", ((from_x + to_x) / 2, (from_y + to_y) / 2 - 8))


def _border(x: float, y: float, to_x: float, to_y: float, gap: float) -> tuple[float, float]:
    """Where the line from the middle of a box to a point leaves it."""
    across, down = to_x - x, to_y - y
    reach = min(
        (BOX_WIDTH / 2 + gap) / abs(across) if across else float("inf"),
        (BOX_HEIGHT / 2 + gap) / abs(down) if down else float("inf"),
    )
    return round(x + across * reach, 1), round(y + down * reach, 1)


def _legend() -> list[str]:
    entries = (("holds", "holds GPUs"), ("free", "holds none"), ("free inner", "never seen from outside"))
    parts = []
    for place, (kind, words) in enumerate(entries):
        y = 556 + place * 24
        parts.append(f'<rect class="{kind}" x="1100" y="{y}" width="26" height="16" rx="4"/>')
        parts.append(f'<text class="note" x="1136" y="{y + 13}">{words}</text>')
    return parts


_STYLE = """<defs>
<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
<path d="M0,0.8 L10,5 L0,9.2 z" fill="#555555"/></marker>
</defs>
<style>
text { font-family: Helvetica, Arial, "DejaVu Sans", sans-serif; }
.name { font-size: 16px; font-weight: bold; fill: #1c1c1c; text-anchor: middle; }
.told { font-size: 12px; fill: #555555; text-anchor: middle; }
.event { font-size: 13px; fill: #20406a; }
.note { font-size: 13px; fill: #666666; }
.line { fill: none; stroke: #555555; stroke-width: 1.6; marker-end: url(#head); }
.frame { fill: #fafaf5; stroke: #b8b8a8; stroke-width: 1.4; stroke-dasharray: 2 4; }
.holds { fill: #d9efdc; stroke: #3f8a50; stroke-width: 1.6; }
.free { fill: #e6edf7; stroke: #5a7fb0; stroke-width: 1.6; }
.over { fill: #ececec; stroke: #555555; stroke-width: 2.4; }
.inner { stroke-dasharray: 5 4; }
</style>"""
