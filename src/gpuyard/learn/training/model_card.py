"""The model card of a trained policy, and its learning curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuyard.learn.policy_network import PolicyModel
from gpuyard.learn.training.dqn import HORIZON, LOOKAHEAD
from gpuyard.learn.training.train import NEVER, Trained

NO_GUARD = "No guard qualified: the rule decides everything."
LIMITS = (
    "**Limits.** The model handles tasks that may not be preempted, on whole GPUs; it is not used "
    "for others. It was trained with `backfill` greedy and is not used while nodes are reserved. It "
    "depends on the predictions and their errors. As with `srtf`, a long task can wait indefinitely "
    "while short ones keep arriving."
)
AXES = {
    "dqn": ("training step", "loss"),
    "evolution": ("generation", "population: mean log ratio\nof completion times to the rule"),
    "regression": ("workloads", "mean error of the fit,\nin units of the noise"),
}
"""For each method, what is counted and what is minimized."""


def draw_curves(trained: Trained, path: Path) -> None:
    """Draw two charts with a line for each network: what training minimizes, and completion times on other workloads."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    steps, minimized = AXES[trained.model.about["method"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for number, member in enumerate(trained.members, start=1):
        left.plot([lesson for lesson, _ in member.losses], [loss for _, loss in member.losses], label=f"net {number}")
        right.plot([lesson for lesson, _ in member.checks], [ratio for _, ratio in member.checks], marker=".")
    right.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    left.set(xlabel=steps, ylabel=minimized)
    right.set(xlabel=steps, ylabel="other workloads: average completion\ntime over that of the rule")
    if len(trained.members) > 1:
        left.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def card_text(model: PolicyModel, command: str) -> str:
    """Return the model card in Markdown."""
    about = model.about
    guard = (
        f"{NO_GUARD} None was surely faster over all workloads and harmless on every kind of them."
        if is_rule_alone(model)
        else (
            f"The rule's choice is replaced only by a candidate whose advantage, minus {model.doubt:g} times the spread "
            f"of the networks, is above {model.margin:g} of the run time of the first task; the networks count by "
            f"{about['trust']:g}. If a feature is outside its range below, the rule decides."
        )
    )
    made = (
        f"Created with `{command}`. On the same machine with the same versions of torch, numpy and cma, "
        "the same command gives the same bytes."
    )
    parts = [
        "# Card of a policy model",
        made,
        (
            f"**What it is.** {about['members']} networks that correct the rule (wait for faster GPUs if that saves three "
            f"tenths of the run). {_method(about)}"
        ),
        f"**What it was trained on**, with predicted run times: {'; '.join(about['regimes'])}.",
        f"**Guard.** {guard}",
        *_accuracy(model),
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


def is_rule_alone(model: PolicyModel) -> bool:
    """Return whether the model changes nothing, because no guard qualified."""
    return model.margin >= NEVER


def _accuracy(model: PolicyModel) -> list[str]:
    about = model.about
    if is_rule_alone(model):
        return [f"**Accuracy.** {NO_GUARD}"]
    return [
        (
            f"**Accuracy** on {about['validation_workloads']} held-out workloads of each kind, on which the guard was "
            "chosen: average completion time relative to the rule alone."
        ),
        _table(
            ("workloads", "ratio", "±"),
            [(name, f"{ratio:.3f}", f"{half:.3f}") for name, (ratio, half) in about["validation"].items()],
        ),
    ]


def _method(about: Mapping[str, Any]) -> str:
    if about["method"] == "dqn":
        return (
            f"Double dueling DQN with masked candidates, returns over {LOOKAHEAD:g} times the run time of the task, a "
            f"horizon of {HORIZON / 3600:g} h, rewards shaped by the same workload under the rule; {about['episodes']:,} "
            f"simulated workloads with {about['questions']:,} questions, of which {about['remembered']:,} were "
            f"remembered, {about['training_steps']:,} training steps for each network."
        )
    if about["method"] == "regression":
        return (
            f"Robust least squares over the weights of one sum for waiting: {about['changed']:,} of {about['questions']:,} "
            f"answers of the rule in {about['episodes']:,} simulated workloads were turned round, and what each was worth was "
            f"measured by the same workload under the rule, within {LOOKAHEAD:g} times the run time of the task. Each network "
            "is fitted to another resample of the workloads."
        )
    return (
        f"CMA-ES over the weights of one sum for waiting: {about['generations']:,} generations of "
        f"{about['population']:,} policies, each compared on {about['generation_workloads']:,} new workloads of each kind."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
