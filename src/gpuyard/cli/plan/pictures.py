"""Write plans as pictures: a zoomable page (.html) or a figure (.png, .svg)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.plan.files import WrongFile, write

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem

DOTS_PER_INCH = 100

Gantt = Annotated[
    Path | None, typer.Option("--gantt", metavar="FILE", help="Draw the plan as a timeline: .html, .png or .svg.")
]


def check_gantt_format(path: Path) -> None:
    """Refuse a file name without a known picture suffix, before anything is planned."""
    if path.suffix.lower() not in {".html", ".png", ".svg"}:
        raise WrongFile(f"{path}: the name of the picture must end in .html, .png or .svg.")


def draw_gantt(
    path: Path, problem: "Problem", plans: Sequence[tuple[str, "Plan"]], lower_bound_s: float | None = None
) -> None:
    """Draw plans of one problem below each other, each with its name, on a common time axis."""
    from gpuyard.plan.planner.gantt.bars import chart
    from gpuyard.plan.planner.gantt.figure import figure
    from gpuyard.plan.planner.gantt.page import page

    check_gantt_format(path)
    seen = chart(problem, plans, lower_bound_s)
    write(path, page(seen).encode() if path.suffix.lower() == ".html" else saved(figure(seen), path))


def saved(figure: Any, path: Path) -> bytes:
    """Return a figure in the file format of this name; the same figure gives the same bytes."""
    from io import BytesIO

    from matplotlib import rc_context

    content, kind = BytesIO(), path.suffix.lower().removeprefix(".")
    with rc_context({"svg.hashsalt": "gpuyard"}):
        more: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"pil_kwargs": {"optimize": True}}
        figure.savefig(content, format=kind, dpi=DOTS_PER_INCH, **more)
    return content.getvalue()
