"""`gpuyard train policy`: train the advisor of the policy `dqn` in the simulator, and write the model."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.learn.training.train import Trained
    from gpuyard.simulator.workloads.job import Job

NEEDS = ("numpy", "torch", "gymnasium", "cma")
MOST_EPISODES, MOST_MEMBERS = 1_000_000, 16
METHODS = {
    "dqn": ("episodes", "training_steps"),
    "evolution": ("generations", "population", "generation_workloads"),
    "regression": ("episodes",),
}
"""The methods, and the options that not all of them have; a test compares them with gpuyard.learn.training."""


def policy(
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Output file of the model.")],
    trace: Annotated[list[Path] | None, typer.Option("--trace", metavar="FILE", help="Recorded jobs to train on in addition to generated ones, in the formats of gpuyard simulate; "
                                                                                     "repeat for several. Only the first half of their time is used.")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, max=1_000, help="Seed of all random numbers: the same seed gives the same model.")] = 0,
    method: Annotated[str, typer.Option("--method", metavar="METHOD", help="dqn (deep Q-learning), evolution (direct search with CMA-ES) or regression (least squares on paired runs).")] = "dqn",
    members: Annotated[int | None, typer.Option("--members", metavar="N", min=1, max=MOST_MEMBERS, help="Number of networks that are trained separately and averaged (3).")] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", metavar="N", min=4, max=MOST_EPISODES, help="dqn and regression: number of simulated workloads to train on (1200).")] = None,
    training_steps: Annotated[int | None, typer.Option("--training-steps", metavar="N", min=10, max=10_000_000, help="dqn: number of training steps of each network (6000).")] = None,
    generations: Annotated[int | None, typer.Option("--generations", metavar="N", min=1, max=100_000, help="evolution: number of generations of each search (20).")] = None,
    population: Annotated[int | None, typer.Option("--population", metavar="N", min=4, max=1_000, help="evolution: number of policies in a generation (12).")] = None,
    generation_workloads: Annotated[int | None, typer.Option("--generation-workloads", metavar="N", min=1, max=1_000, help="evolution: number of workloads of each kind on which a generation is compared (2).")] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, max=64, help="CPU cores to use; the model is the same.")] = 1,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", min=10, max=1_000_000, help="Number of jobs in each workload (600).")] = None,
    validation_workloads: Annotated[int | None, typer.Option("--validation-workloads", metavar="N", min=2, max=1_000, help="Number of held-out workloads of each kind on which the guard is chosen (8).")] = None,
    curves: Annotated[Path | None, typer.Option("--curves", metavar="FILE.png", help="Draw the learning curves.")] = None,
    card: Annotated[Path | None, typer.Option("--card", metavar="FILE.md", help="Write a report: training data, features, accuracy and limits of the model.")] = None,
    as_json: Annotated[bool, json_option("Print the result as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Train the advisor of the policy dqn on simulated clusters, with the engine of the live scheduler."""
    from gpuyard.cli.output.printing import print_json, print_pairs

    for path in filter(None, (out, curves, card)):
        if not path.parent.is_dir():
            raise WrongInput(f"Folder {path.parent} does not exist.")
    needs = [*NEEDS, *(["matplotlib"] if curves is not None else [])]
    if missing := [name for name in needs if find_spec(name) is None]:
        raise WrongInput(f"Training needs {' and '.join(missing)}: pip install 'gpuyard[learn,profile,simulate]'.")
    given = {
        "members": members, "episodes": episodes, "training_steps": training_steps, "generations": generations,
        "population": population, "generation_workloads": generation_workloads, "jobs": jobs, "validation_workloads": validation_workloads,
    }  # fmt: skip
    chosen = {name: value for name, value in given.items() if value is not None}
    _check_method(method, chosen)
    traces = _traces(trace or [])
    from gpuyard.learn.policy_network import save
    from gpuyard.learn.training.train import TrainingOptions, train

    order = TrainingOptions(seed=seed, method=method, workers=workers, **chosen)  # type: ignore[arg-type] # both are checked above
    trained = train(order, traces, _tell)
    save(out, trained.model)
    _write(trained, curves, card, out)
    said = {
        "model": str(out),
        "bytes": out.stat().st_size,
        "margin": trained.model.margin,
        "doubt": trained.model.doubt,
        **{name: trained.model.about[name] for name in ("questions", "won", "validation")},
    }
    if as_json:
        print_json(said)
        return
    print_pairs(said.items())
    from gpuyard.learn.training.model_card import NO_GUARD, is_rule_alone

    if is_rule_alone(trained.model):
        typer.echo(NO_GUARD)


def _check_method(method: str, chosen: dict[str, int]) -> None:
    if method not in METHODS:
        raise WrongInput(f"--method: {method} is not known; choose dqn, evolution or regression.")
    for name in chosen:
        owners = [other for other, names in METHODS.items() if name in names]
        if owners and method not in owners:
            raise WrongInput(f"--{name.replace('_', '-')} is an option of --method {' and '.join(owners)}.")


def _traces(files: list[Path]) -> "dict[str, list[Job]]":
    """Return the first half of each trace, by file name."""
    from gpuyard.simulator.workloads.trace import read_trace

    found = {}
    for file in files:
        jobs = read_trace(file).jobs
        until = (jobs[0].submit + jobs[-1].submit) / 2
        found[file.name.split(".")[0]] = [job for job in jobs if job.submit <= until]
    return found


def _write(trained: "Trained", curves: Path | None, card: Path | None, out: Path) -> None:
    from gpuyard.learn.training.model_card import card_text, draw_curves

    if curves is not None:
        draw_curves(trained, curves)
    if card is not None:
        card.write_text(card_text(trained.model, f"gpuyard train policy {_repeated(out)}"), encoding="utf-8")


def _repeated(out: Path) -> str:
    """Return the options of this call as text, without those for output files."""
    words, skipped, left = [f"--out {out.name}"], {"--out", "--curves", "--card"}, iter(sys.argv[3:])
    for word in left:
        if word in skipped:
            next(left, None)
        elif word != "--json" and word.split("=")[0] not in skipped:
            words.append(Path(word).name if "/" in word else word)
    return " ".join(words)


def _tell(sentence: str) -> None:
    """Print a message to standard error; on a terminal it replaces the previous one."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{sentence}", end="", file=sys.stderr, flush=True)
    else:
        print(sentence, file=sys.stderr, flush=True)
