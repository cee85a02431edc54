"""Draw the picture of the README, in English and Chinese: python tools/overview_picture.py"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 960, 372
STYLE = """
text { font: 13px system-ui, "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "Microsoft YaHei", sans-serif; fill: #1f2933 }
.title { font-weight: 600; font-size: 14px }
.small { font-size: 12px; fill: #52606d }
.mono { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }
.group { fill: #f5f7fa; stroke: #9aa5b1 }
.box { fill: #ffffff; stroke: #616e7c }
.engine { fill: #e6f0fa; stroke: #2b6cb0; stroke-width: 1.5 }
.busy { fill: #2f855a; stroke: #22543d }
.idle { fill: #ffffff; stroke: #616e7c }
.other { fill: #cbd2d9; stroke: #616e7c }
.arrow { fill: none; stroke: #3e4c59; stroke-width: 1.4; marker-end: url(#head) }
"""


@dataclass(frozen=True)
class Words:
    """The labels of the picture in one language."""

    title: str
    users: str
    scheduler: str
    access: tuple[str, str]
    engine: tuple[str, str, str]
    journal: tuple[str, str]
    nodes: str
    agent: str
    supervisor: str
    legend: tuple[str, str, str]
    simulator: tuple[str, str]
    learned: tuple[str, str]


ENGLISH = Words(
    title="Clients submit tasks to the scheduler, which starts them on the GPUs of the nodes.",
    users="Users and programs",
    scheduler="Scheduler",
    access=("REST API", "users, tenants, quotas"),
    engine=("Engine", "queue policy, placement, backfill,", "preemption, explain"),
    journal=("Journal (SQLite)", "on disk before any reply"),
    nodes="Nodes",
    agent="agent",
    supervisor="supervisor",
    legend=("busy", "idle", "used outside gpuyard"),
    simulator=("simulate", "the same engine, virtual clock"),
    learned=("predict", "run time and memory, from ended tasks"),
)
CHINESE = Words(
    title="客户端把任务提交给调度器，调度器在各节点的 GPU 上启动任务。",
    users="用户与程序",
    scheduler="调度器",
    access=("REST API", "用户、租户、配额"),
    engine=("调度引擎", "排队策略、放置、回填、", "抢占、等待原因"),
    journal=("日志 (SQLite)", "先落盘，再应答"),
    nodes="节点",
    agent="agent",
    supervisor="supervisor",
    legend=("占用", "空闲", "被外部进程占用"),
    simulator=("simulate", "同一引擎，虚拟时钟"),
    learned=("predict", "由已结束的任务预测时间与显存"),
)
CLIENTS = ("gpuyard run / submit", "gpuyard lease", "curl /api/v1/tasks", "import gpuyard", "gpuyard plan submit")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return one line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>'


def arrow(*points: tuple[float, float]) -> str:
    """Return a line through these points with a head at its end."""
    path = " L ".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M {path}" class="arrow"/>'


def clients(words: Words) -> list[str]:
    """Return the ways into the scheduler."""
    drawn = [box(16, 16, 200, 236, "group"), text(32, 40, words.users, "title")]
    for place, line in enumerate(CLIENTS):
        drawn += [box(32, 54 + 38 * place, 168, 30), text(42, 73 + 38 * place, line, "mono")]
    return drawn


def scheduler(words: Words) -> list[str]:
    """Return the scheduler with its three parts."""
    drawn = [box(276, 16, 312, 236, "group"), text(292, 40, words.scheduler, "title")]
    drawn += [box(292, 52, 280, 46), text(304, 71, words.access[0], "title"), text(304, 89, words.access[1], "small")]
    drawn += [box(292, 114, 280, 64, "engine"), text(304, 133, words.engine[0], "title")]
    drawn += [text(304, 151, words.engine[1], "small"), text(304, 168, words.engine[2], "small")]
    drawn += [box(292, 194, 280, 46), text(304, 213, words.journal[0], "title")]
    drawn += [text(304, 231, words.journal[1], "small")]
    return [*drawn, arrow((432, 98), (432, 112)), arrow((432, 178), (432, 192))]


def nodes(words: Words) -> list[str]:
    """Return three nodes with their GPUs."""
    drawn = [box(648, 16, 296, 236, "group"), text(664, 40, words.nodes, "title")]
    kinds = ("busy busy idle idle", "busy busy busy other", "busy idle idle idle")
    for place, row in enumerate(kinds):
        top = 52 + 58 * place
        drawn += [box(664, top, 264, 48), text(676, top + 29, words.agent, "mono")]
        drawn += [text(722, top + 29, words.supervisor, "mono")]
        drawn += [box(808 + 29 * at, top + 14, 22, 20, kind) for at, kind in enumerate(row.split())]
    for x, kind, label in zip((664, 728, 792), ("busy", "idle", "other"), words.legend, strict=True):
        drawn += [box(x, 230, 12, 12, kind), text(x + 18, 241, label, "small")]
    return drawn


def beside(words: Words) -> list[str]:
    """Return what reads the journal."""
    drawn = []
    for x, width, (name, line) in ((276, 240, words.simulator), (532, 300, words.learned)):
        drawn += [box(x, 298, width, 56, "group"), text(x + 14, 321, name, "mono"), text(x + 14, 342, line, "small")]
    return drawn


def picture(words: Words) -> str:
    """Return the whole picture as SVG."""
    arrows = [
        arrow((216, 134), (246, 134), (246, 75), (290, 75)),
        arrow((588, 134), (646, 134)),
        arrow((392, 252), (392, 296)),
        arrow((552, 252), (552, 296)),
        text(617, 126, "gRPC", "small", "middle"),
    ]
    parts = [*clients(words), *scheduler(words), *nodes(words), *beside(words), *arrows]
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M 0 0 L 8 4 L 0 8 z" fill="#3e4c59"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
            f"<title>{escape(words.title)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{head}</defs>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


PICTURES = {"overview.svg": ENGLISH, "overview.zh-CN.svg": CHINESE}

if __name__ == "__main__":
    for name, words in PICTURES.items():
        (FOLDER / name).write_text(picture(words), encoding="utf-8")
