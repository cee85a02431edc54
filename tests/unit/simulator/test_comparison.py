"""The simulator from Python, as a notebook uses it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuyard
from gpuyard.cli import main
from gpuyard.core.domain.errors import WrongInput
from gpuyard.simulator import generated_jobs, journal_jobs, trace_jobs
from gpuyard.simulator.scenarios import Scenario


def test_python_and_the_command_line_give_the_same_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = generated_jobs(60, cluster="2x4", seed=3, load=0.8)
    found = {run.name: run.figures for run in gpuyard.simulate(jobs, policies=("fifo", "srtf+backfill"))}
    words = ["gpuyard", "simulate", "--generate", "60:0.8", "--cluster", "2x4", "--seed", "3"]
    monkeypatch.setattr("sys.argv", [*words, "--policy", "fifo,srtf+backfill", "--json"])
    assert main() == 0
    printed = json.loads(capsys.readouterr().out)["policies"]
    for figures in (*found.values(), *printed.values()):
        figures.pop("wall_s")
        figures.pop("prediction", None)
    assert found == printed


def test_a_trace_is_simulated_with_notes_on_what_was_left_out(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_s,duration_s,gpu_num\n0,60,1\n5,60,16\n9,30,0\n")
    jobs = trace_jobs(trace, "1x8")
    assert jobs.notes == (
        "1 job without GPUs was omitted.",
        "1 job that cannot run on this cluster was omitted.",
    )
    (run,) = gpuyard.simulate(jobs)
    assert (run.name, run.measures.jobs, run.unfinished) == ("default", 1, 0)
    assert jobs.description.startswith("1 job of ")
    assert " on 1 node with " in jobs.description


def test_wrong_arguments_are_reported_before_anything_is_simulated(tmp_path: Path) -> None:
    jobs = generated_jobs(5, cluster="1x2")
    with pytest.raises(WrongInput, match="Unknown policy 'lifo'"):
        gpuyard.simulate(jobs, "lifo")
    with pytest.raises(WrongInput, match="dqn is not among the policies"):
        gpuyard.simulate(jobs, "fifo", policy_model=tmp_path / "model.npz")
    with pytest.raises(WrongInput):
        journal_jobs(tmp_path)


def test_progress_is_reported_for_every_policy() -> None:
    begun: list[tuple[str, int]] = []

    @contextmanager
    def shows(name: str, tasks: int) -> Iterator[Callable[[int], None]]:
        begun.append((name, tasks))
        yield lambda _: None

    list(gpuyard.simulate(generated_jobs(20, cluster="1x4"), "fifo,levels", progress=shows))
    assert begun == [("fifo", 20), ("levels", 20)]


def test_jobs_that_are_not_preemptible_are_not_preempted() -> None:
    drawn = {
        preemptible: next(gpuyard.simulate(generated_jobs(80, "1x4", seed=1, preemptible=preemptible), "srtf"))
        for preemptible in (1.0, 0.0)
    }
    assert drawn[1.0].measures.preemptions > 0 == drawn[0.0].measures.preemptions


def jobs_of(count: Any = 5, cluster: Any = "1x4", **more: Any) -> Any:
    return generated_jobs(count, cluster, **more)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        *((lambda count=count: jobs_of(count), "count is ") for count in (0, -1, 1.5, "5", None, nan, True, 10**12)),
        *((lambda load=load: jobs_of(load=load), "load is ") for load in (-1, 0, inf, nan, "1", None, 1e300)),
        *((lambda part=part: jobs_of(fractional=part), "fractional is ") for part in (-1, 7, nan, "x")),
        *((lambda seed=seed: jobs_of(seed=seed), "seed is ") for seed in (-1, 1.5, "x", None, [1])),
        *((lambda cluster=cluster: jobs_of(cluster=cluster), "cluster is ") for cluster in (None, 5)),
        *((lambda some=some: gpuyard.simulate(jobs_of(), some), "policies") for some in (None, 5, [None], b"fifo")),
        *((lambda some=some: gpuyard.simulate(jobs_of(), some), "Name the policies") for some in ("", (), ",")),
        (lambda: gpuyard.simulate(jobs_of(), estimator="nonsense"), "estimator is "),  # type: ignore[arg-type]
        (lambda: gpuyard.simulate("fifo"), "jobs are those that "),  # type: ignore[arg-type]
        (lambda: gpuyard.simulate(jobs_of(), scenario={"x": 5}), "scenario must be "),  # type: ignore[dict-item]
        (lambda: gpuyard.simulate(jobs_of(), "dqn", policy_model=5), "policy_model is 5; "),  # type: ignore[arg-type]
        *((lambda it=it: gpuyard.simulate(jobs_of(), oracle=it), "oracle is ") for it in ("no", nan, object(), 1)),
        *((lambda it=it: jobs_of(preemptible=it), "preemptible is ") for it in ("false", nan, True, 2)),
        *((lambda it=it: jobs_of(checkpoints=it), "checkpoints is ") for it in (None, 5)),
        *((lambda it=it: jobs_of(interference=it), "interference is ") for it in (3, None, "x")),
        (lambda: gpuyard.simulate(jobs_of(), progress=3), "progress is 3; it must be a function."),  # type: ignore[arg-type]
        (lambda: gpuyard.simulate(jobs_of(), scenario={1: Scenario()}), "scenario must be "),  # type: ignore[dict-item]
        (lambda: gpuyard.simulate(jobs_of(), scenario=np.array([1, 2])), "scenario must be "),  # type: ignore[arg-type]
        (lambda: journal_jobs("x" * 300), f"{'x' * 200}…: File name too long."),
        (lambda: journal_jobs("a\nb"), r"There is no journal in a\nb."),
        (lambda: trace_jobs("a\nb", "1x4"), r"File a\nb does not exist."),
        (lambda: trace_jobs("x" * 3000, "1x4"), f"{'x' * 200}… cannot be read: File name too long."),
        (lambda: jobs_of(cluster="x" * 3000), f"cluster is '{'x' * 60}…'; it must be "),
        (lambda: gpuyard.simulate(jobs_of(), "x" * 3000), f"Unknown policy '{'x' * 60}…'; "),
        (lambda: trace_jobs(None, "1x4"), "trace is null; it must be the path of a file."),  # type: ignore[arg-type]
        (lambda: journal_jobs(None), "folder is null; it must be the path of a file."),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_can_not_be_meant_are_refused_in_one_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        call()
    assert str(error.value).startswith(sentence)


def test_a_wrong_cluster_is_named_as_the_argument_not_as_an_option() -> None:
    with pytest.raises(WrongInput, match=r"^cluster is '4y8'; it must be NODESxGPUS"):
        generated_jobs(10, cluster="4y8")
