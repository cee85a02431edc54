"""Make the stills of the command line for the manual: `python -m tools.stills [--out docs/manual]`.

A made-up cluster answers, so that nothing has to run; the commands are the real ones. Each still is an SVG of lines of text,
a few kilobytes, without fonts or scripts.
"""

import argparse
import asyncio
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from gpuyard.cli.output.screen import Screen, cells
from gpuyard.live.sdk import Client, connect
from tools.manual.demo_cluster import demo_cluster

WIDTH, LINE = 8.0, 17
COLORS = {
    "black": "#1b1e24", "red": "#ff6b6b", "green": "#7bd88f", "yellow": "#e5c07b", "blue": "#7aa2f7", "magenta": "#c792ea",
    "cyan": "#56c8d8", "white": "#d6dae0", "dim": "#8b929c",
}  # fmt: skip
ANSI = {"31": "red", "32": "green", "33": "yellow", "34": "blue", "35": "magenta", "36": "cyan", "2": "dim"}
_CODE = re.compile(r"\x1b\[([0-9;]*)m")


class Run(NamedTuple):
    """Text in one style."""

    text: str
    color: str = "white"
    bold: bool = False
    reverse: bool = False


def runs_of(line: str) -> list[Run]:
    """Return the parts of a line with codes for colors."""
    found, color, bold, at = [], "white", False, 0
    for code in [*_CODE.finditer(line), None]:
        text = line[at : code.start() if code else len(line)]
        if text:
            found.append(Run(text, color, bold))
        if code is not None:
            color, bold, at = ANSI.get(code[1], "white"), code[1] == "1", code.end()
    return found


def merged(runs: Sequence[Run]) -> list[Run]:
    """Join neighbors in one style; blanks take the style of the text before them."""
    found: list[Run] = []
    for run in runs:
        before = found[-1] if found else None
        joins = before is not None and (
            run[1:] == before[1:] or not (run.text.strip() or run.reverse or before.reverse)
        )
        if before is not None and joins:
            found[-1] = before._replace(text=before.text + run.text)
        else:
            found.append(run)
    return found


def svg_of(lines: Sequence[Sequence[Run]], width: int) -> str:
    """Return lines of text as a picture: one text element for each line, stretched to its cells."""
    height = (len(lines) + 1) * LINE + 6
    styles = "".join(f".{name}{{fill:{value}}}" for name, value in COLORS.items())
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * WIDTH + 20:.0f} {height}" font-size="13" '
            "font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\">"
        ),
        f"<style>{styles}.b{{font-weight:bold}}text{{white-space:pre}}</style>",
        f'<rect width="100%" height="100%" rx="6" fill="{COLORS["black"]}"/>',
    ]
    for number, runs in enumerate(lines, 1):
        at, y, spans = 0, number * LINE + 4, []
        for run in merged(runs):
            taken, ink = cells(run.text), run.color
            if run.reverse:
                parts.append(
                    f'<rect x="{10 + at * WIDTH:.0f}" y="{y - 13}" width="{taken * WIDTH:.0f}" height="{LINE}" class="{ink}"/>'
                )
                ink = "black"
            spans.append(f'<tspan class="{ink}{" b" if run.bold else ""}">{escape(run.text)}</tspan>')
            at += taken
        if spans:
            parts.append(
                f'<text x="10" y="{y}" textLength="{at * WIDTH:.0f}" xml:space="preserve">{"".join(spans)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def prompt(words: str) -> list[Run]:
    """Return the line that was typed."""
    return [Run("$ ", "green", bold=True), Run(words, "white", bold=True)]


def still_of_ps(cluster: Client, screen: Screen) -> str:
    """`gpuyard ps`."""
    from gpuyard.cli.ps import QueueTable

    table = QueueTable(cluster, {}, None, ["pending", "running", "suspended"], None, 16, fold=True)
    lines = [prompt("gpuyard ps -n 16"), *map(runs_of, table.lines(screen, None)), [Run(table.hidden, "dim")]]
    return svg_of(lines, screen.width or 100)


def still_of_gpus(cluster: Client, screen: Screen) -> str:
    """`gpuyard gpus`."""
    from gpuyard.cli.gpus import gpu_map

    return svg_of([prompt("gpuyard gpus"), *map(runs_of, gpu_map(cluster, screen))], screen.width or 100)


async def still_of_top(cluster: Client, width: int, height: int) -> str:
    """`gpuyard top`, a few seconds after its start, with two tasks marked."""
    from gpuyard.cli.top.app import TopApp
    from gpuyard.cli.top.readers import QueueView

    app = TopApp(cluster, QueueView())
    async with app.run_test(size=(width, height)) as pilot:
        async with asyncio.timeout(60):
            while len(app.live.history) < 60 or app.tasks.current is None:
                await pilot.pause(0.05)
        await pilot.press("down", "down", "space", "space")
        await pilot.pause(0.6)
        drawn = []
        for strip in app.screen._compositor.render_strips():
            runs = []
            for text, style, _ in strip:
                name = style.color.name.removeprefix("ansi_") if style and style.color else "white"
                name = "dim" if style and style.dim else name if name in COLORS else "white"
                runs.append(Run(text, name, bool(style and style.bold), bool(style and style.reverse)))
            drawn.append(runs)
    return svg_of(drawn, width)


def main() -> None:
    """Make all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/manual"))
    asked = parser.parse_args()
    for name, picture in stills().items():
        (asked.out / name).write_text(picture, encoding="utf-8")
        print(f"{asked.out / name}: {len(picture.encode()) / 1024:.0f} KiB")


def stills() -> dict[str, str]:
    """Return all stills by the name of their file."""
    with demo_cluster(nodes=12, gpus_each=8, running=9, waiting=140) as small:
        ps = still_of_ps(connect(small.url), Screen(104, 40, colors=True, moves=False))
    with demo_cluster(nodes=200, gpus_each=8, running=1500, waiting=2400) as large:
        large.samples_per_second = 20.0
        cluster = connect(large.url)
        gpus = still_of_gpus(cluster, Screen(120, 40, colors=True, moves=False))
        top = asyncio.run(still_of_top(cluster, 120, 32))
    return {"seeing_ps.svg": ps, "seeing_gpus.svg": gpus, "seeing_top.svg": top}


if __name__ == "__main__":
    main()
