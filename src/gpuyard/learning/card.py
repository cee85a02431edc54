"""What is told of a trained model: its card, and how it learnt."""

from collections.abc import Sequence
from math import exp, log
from pathlib import Path

import numpy as np

from gpuyard.learning.dqn import HORIZON, LOOKAHEAD, Lesson
from gpuyard.learning.training import NEVER
from gpuyard.predictor.advantage import Model

LIMITS = (
    "**What it can not do.** It knows tasks that nobody may stop, on whole GPUs; others are placed as by `srtf`. It was trained with "
    "`backfill` greedy: while nodes are promised to anybody it is not asked. It goes by predictions, and is as wrong as they are. "
    "Like `srtf` it can let a long task wait for ever while short ones keep coming."
)
SMOOTHED = 20
"""Episodes that a point of a curve is the mean of."""


def draw_curves(lessons: Sequence[Sequence[Lesson]], path: Path) -> None:
    """Two pictures, a line for each net: the loss, and how long tasks took beside the same workload without advice."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for number, each in enumerate(lessons, start=1):
        learnt = [lesson for lesson in each if lesson.loss]
        left.plot([it.episode for it in learnt], _smooth([it.loss for it in learnt]), label=f"net {number}")
        own = [lesson for lesson in each if not lesson.by_rule]
        right.plot([it.episode for it in own], [exp(it) for it in _smooth([log(it.ratio) for it in own])])
    left.set(xlabel="episode", ylabel="loss")
    right.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    right.set(xlabel="episode", ylabel="average completion time\nover that without advice")
    if len(lessons) > 1:
        left.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _smooth(values: Sequence[float]) -> list[float]:
    return [float(np.mean(values[max(0, place - SMOOTHED + 1) : place + 1])) for place in range(len(values))]


def written(model: Model, command: str) -> str:
    """The card, in Markdown."""
    about = model.about
    guard = (
        "The heuristic decides everything: no margin was harmless on all kinds of workloads."
        if model.margin >= NEVER
        else f"A candidate is taken only if its advantage, less {model.doubt:g} times the nets' spread, is above {model.margin:g} of the "
        "first task's run, and all figures are in the range below."
    )
    made = (
        f"Made with `{command}`. On the same machine with the same versions of torch and numpy, the same command gives the same bytes"
        f"{', if the time it was given is enough for all episodes' if about['minutes'] is not None else ''}."
    )
    what = (
        f"**What it is.** {about['members']} nets, each of three layers, that say by how much a candidate (a task and where it would be "
        "placed, or to wait) is better than what `srtf` would do. Double dueling DQN with masked candidates, returns over "
        f"{LOOKAHEAD / 3600:g} h, a horizon of {HORIZON / 3600:g} h, rewards shaped by what the same workload owes without advice."
    )
    learnt_from = (
        f"**What it was trained on.** {about['episodes']:,} simulated workloads for each net, {about['questions']:,} questions in all, "
        f"with predicted run times: {'; '.join(about['regimes'])}."
    )
    how_well = (
        f"**How well it does** on {about['choosing']} workloads of each kind that no net has seen, and the guard was chosen on: average "
        "completion time over that of the same policy without advice."
    )
    parts = [
        "# Card of a policy model",
        made,
        what,
        learnt_from,
        f"**Guard.** {guard}",
        how_well,
        _table(
            ("workloads", "ratio", "±"),
            [(name, f"{ratio:.3f}", f"{half:.3f}") for name, (ratio, half) in about["validation"].items()],
        ),
        LIMITS,
        "**What it goes by**, and the range it was trained in:",
        _table(
            ("figure", "from", "to"),
            [
                (f"`{name}`", f"{low:.3g}", f"{high:.3g}")
                for name, low, high in zip(model.features, model.low, model.high, strict=True)
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
