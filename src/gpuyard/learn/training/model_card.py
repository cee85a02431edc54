"""The model card of a trained policy, and its learning curves."""

from collections.abc import Sequence
from pathlib import Path

from gpuyard.learn.policy_network import PolicyModel
from gpuyard.learn.training.dqn import HORIZON, LOOKAHEAD
from gpuyard.learn.training.train import NEVER, Trained

LIMITS = (
    "**What it can not do.** It knows tasks that nobody may stop, on whole GPUs; nobody is asked about others. It was trained with "
    "`backfill` greedy: while nodes are promised to anybody it is not asked. It goes by predictions, and is as wrong as they are. "
    "Like `srtf` it can let a long task wait for ever while short ones keep coming."
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
        else f"A candidate is taken only if its advantage, less {model.doubt:g} times the nets' spread, is above {model.margin:g} of the "
        "first task's run. Where a figure is beyond the range below, the rule of thumb is asked instead of the nets."
    )
    made = (
        f"Made with `{command}`. On the same machine with the same versions of torch and numpy, the same command gives the same bytes, "
        "unless it was told to stop after some minutes."
    )
    what = (
        f"**What it is.** {about['members']} nets, each of three layers, that say by how much a candidate (a task and where it would be "
        "placed, or to wait) is better than what `srtf` would do. Double dueling DQN with masked candidates, returns over "
        f"{LOOKAHEAD:g} times the run of the task, a horizon of {HORIZON / 3600:g} h, rewards shaped by the same workload played by the rule of thumb."
    )
    learnt_from = (
        f"**What it was trained on.** {about['episodes']:,} simulated workloads with {about['questions']:,} questions, of which "
        f"{about['remembered']:,} were remembered, {about['training_steps']:,} training steps for each net, with predicted run times: {'; '.join(about['regimes'])}."
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
