"""The model card of a trained policy, and its learning curves."""

from collections.abc import Sequence
from pathlib import Path

from gpuyard.learn.policy_network import PolicyModel
from gpuyard.learn.training.dqn import HORIZON, LOOKAHEAD
from gpuyard.learn.training.train import NEVER, Trained

LIMITS = (
    "**Limits.** The model handles tasks that may not be preempted, on whole GPUs; it is not used "
    "for others. It was trained with `backfill` greedy and is not used while nodes are reserved. It "
    "depends on the predictions and their errors. As with `srtf`, a long task can wait indefinitely "
    "while short ones keep arriving."
)


def draw_curves(trained: Trained, path: Path) -> None:
    """Draw two charts with a line for each network: the loss, and completion times on held-out workloads."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for number, member in enumerate(trained.members, start=1):
        left.plot([lesson for lesson, _ in member.losses], [loss for _, loss in member.losses], label=f"net {number}")
        right.plot([lesson for lesson, _ in member.checks], [ratio for _, ratio in member.checks], marker=".")
    left.set(xlabel="lesson", ylabel="loss")
    right.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    right.set(xlabel="lesson", ylabel="average completion time\nover that without advice")
    if len(trained.members) > 1:
        left.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def card_text(model: PolicyModel, command: str) -> str:
    """Return the model card in Markdown."""
    about = model.about
    guard = (
        "The heuristic decides everything: no margin was harmless on all kinds of workloads."
        if model.margin >= NEVER
        else (
            f"A candidate is chosen only if its advantage, minus {model.doubt:g} times the spread of the "
            f"networks, is above {model.margin:g} of the run time of the first task. If a feature is "
            "outside its range below, the heuristic decides instead of the networks."
        )
    )
    made = (
        f"Created with `{command}`. On the same machine with the same versions of torch and numpy, "
        "the same command gives the same bytes, unless a time limit was set."
    )
    what = (
        f"**What it is.** {about['members']} networks of three layers that estimate the advantage of "
        "a candidate (a task and its placement, or waiting) over the choice of `srtf`. Double "
        f"dueling DQN with masked candidates, returns over {LOOKAHEAD:g} times the run time of the "
        f"task, a horizon of {HORIZON / 3600:g} h, rewards shaped by the same workload under the "
        "heuristic."
    )
    trained_on = (
        f"**What it was trained on.** {about['episodes']:,} simulated workloads with {about['questions']:,} questions, of which "
        f"{about['remembered']:,} were remembered, {about['training_steps']:,} training steps for each net, with predicted run times: {'; '.join(about['regimes'])}."
    )
    how_well = (
        f"**Accuracy** on {about['choosing']} held-out workloads of each kind, on which the guard was "
        "chosen: average completion time relative to the same policy without advice."
    )
    parts = [
        "# Card of a policy model",
        made,
        what,
        trained_on,
        f"**Guard.** {guard}",
        how_well,
        _table(
            ("workloads", "ratio", "±"),
            [(name, f"{ratio:.3f}", f"{half:.3f}") for name, (ratio, half) in about["validation"].items()],
        ),
        LIMITS,
        "**Features**, and the range in which the model was trained:",
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
