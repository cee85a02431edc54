"""`gpuyard plan`, from its options to its files."""

import json
import os
import re
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.cli.plan.planning import stoppable
from tests.unit.plan.planner.small_problems import plan as a_plan
from tests.unit.plan.planner.test_problem_file import USERS

Said = pytest.CaptureFixture[str]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> "Plan":
    return Plan(monkeypatch)


class Plan:
    """The command, called with arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        self._monkeypatch.setattr("sys.argv", ["gpuyard", "plan", *map(str, words)])
        return cli.main()


@pytest.fixture
def chain(plan: Plan, tmp_path: Path) -> Path:
    file = tmp_path / "chain.json.gz"
    assert plan("generate", "chain", 40, 2, "--seed", 3, "--out", file) == 0
    return file


def test_a_problem_is_generated_planned_and_its_plan_checked(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out = tmp_path / "plan.json"
    assert plan("solve", chain, "--strategy", "batch", "--out", out, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["valid"] is True
    assert figures["strategy"] == "batch"
    assert figures["makespan_s"] / figures["lower_bound_s"] == pytest.approx(1 + figures["gap"])
    assert {"makespan_s", "compiling_s", "switches", "switch_time_s", "utilization_mean", "utilization_spread", "planning_s"} <= figures.keys()  # fmt: skip
    assert plan("check", chain, out, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "faults": [], "makespan_s": figures["makespan_s"]}


def test_a_plan_that_breaks_a_rule_is_reported_and_the_exit_code_is_1(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    out = tmp_path / "plan.json"
    plan("solve", chain, "--strategy", "batch", "--out", out)
    said = json.loads(out.read_text())
    said["tasks"][0]["end"] += 1
    out.write_text(json.dumps(said))
    capsys.readouterr()
    assert plan("check", chain, out) == 1
    assert "r0/n0 takes" in capsys.readouterr().out
    said["tasks"] = said["tasks"][:5]
    out.write_text(json.dumps(said))
    assert plan("check", chain, out) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "And 25 more."


@pytest.mark.slow
def test_strategies_are_compared_and_unsuitable_ones_left_out(plan: Plan, tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "many.json"
    plan("generate", "chain", 100, 2, "--out", file)
    assert plan("compare", file, "--seconds", 0.1, "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["instance"], found["nodes"], found["gpus"]) == ("chain-n100-g2-s0", 100, 2)
    assert {"batch", "dynamic"} <= found["strategies"].keys()
    assert all(it["valid"] and it["lower_bound_s"] == found["lower_bound_s"] for it in found["strategies"].values())
    assert "exact is omitted: exact plans at most" in said.err


def test_the_default_output_is_a_table(plan: Plan, chain: Path, capsys: Said) -> None:
    assert plan("compare", chain, "--strategies", "dynamic, batch", "--gpus", 4) == 0
    head, first, second, *rest = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["STRATEGY", "MAKESPAN", "GAP"]
    assert [first.split()[0], second.split()[0]] == ["dynamic", "batch"]
    assert rest[0].startswith("40 calls on 4 GPUs; lower bound of the makespan: ")


def test_solving_prints_a_summary(plan: Plan, chain: Path, capsys: Said) -> None:
    assert plan("solve", chain, "--strategy", "batch") == 0
    said = capsys.readouterr().out
    assert "40 calls on 2 GPUs" in said
    assert re.search(r"lower bound +[\d.,]+ s; the makespan is at most [\d.]+% above the optimum", said)


def test_a_problem_without_a_name_is_called_by_its_file(plan: Plan, tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text(USERS)
    assert plan("solve", file, "--strategy", "batch", "--gpus", 2) == 0
    assert "lab: 6 calls on 2 GPUs" in capsys.readouterr().out


def test_requests_that_end_after_their_deadline_are_counted(plan: Plan, tmp_path: Path, capsys: Said) -> None:
    """The first ends after 3 + 4 + 4.56 … s at the soonest; the second has time enough."""
    file = tmp_path / "lab.yaml"
    file.write_text(
        USERS.replace("r0, workflow_id: answer", "r0, workflow_id: answer, deadline: 5").replace(
            "arrival_time: 30", "deadline: 500"
        )
    )
    assert plan("solve", file, "--strategy", "batch", "--json") == 0
    assert json.loads(capsys.readouterr().out)["late_requests"] == 1
    assert plan("solve", file, "--strategy", "batch") == 0
    assert "1 requests end after their deadline" in capsys.readouterr().out


def test_without_the_extra_planning_names_what_to_install(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setattr("gpuyard.cli.plan.find_spec", lambda _: None)
    assert plan("generate", "chain", 10, 2) == 2
    assert "pip install 'gpuyard[plan]'" in capsys.readouterr().err


@pytest.fixture
def _as_python_begins() -> Iterator[None]:
    """Other tests may have left another answer to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_as_python_begins")
def test_ctrl_c_ends_a_search_and_a_second_one_the_program() -> None:
    with stoppable() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_search_reports_its_progress(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuyard.cli.plan import planning

    clock = iter([0.0, 0.5, 2.0, 2.5])
    monkeypatch.setattr(planning, "perf_counter", lambda: next(clock))
    with planning._Told("search", 10.0) as watched:
        for end in (15.0, 12.0, 11.0):
            watched.better(a_plan((0, 0, end)))
    assert capsys.readouterr().err == "search: 12.00 s, gap 20.00% after 2.0 s\n"


def test_a_problem_can_be_generated_to_standard_output(plan: Plan, capsys: Said) -> None:
    assert plan("generate", "diamond", 8, 2) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "diamond-n8-g2-s0"


def test_a_plan_for_another_problem_is_refused(plan: Plan, chain: Path, tmp_path: Path, capsys: Said) -> None:
    out, other = tmp_path / "plan.json", tmp_path / "other.json"
    plan("generate", "chain", 40, 2, "--seed", 4, "--out", other)
    plan("solve", chain, "--strategy", "batch", "--out", out)
    assert plan("check", other, out) == 2
    assert (
        f"{out}: The plan is for the problem 'chain-n40-g2-s3', but this problem is 'chain-n40-g2-s4'."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "chains", 10, 2), "Unknown family 'chains'"),
        (("generate", "chain", 10, 2, "--out", "/nowhere/x.json"), "Cannot write /nowhere/x.json"),
        (("solve", "/nowhere/x.json"), "/nowhere/x.json: No such file or directory."),
        (("solve", "x.json", "--strategy", "magic"), "Unknown strategy 'magic'"),
        (("compare", "x.json", "--strategies", "batch,magic"), "Unknown strategy 'magic'"),
        (("solve", "x.json", "--out", "/nowhere/plan.json"), "Cannot write /nowhere/plan.json: folder /nowhere does not exist."),
        (("solve", "x.json", "--out", "/tmp"), "Cannot write /tmp: it is a folder."),
        (("generate", "chain", 10, 2, "--out", "/tmp"), "Cannot write /tmp: it is a folder."),
        (("compare", "x.json", "--strategies", ","), "--strategies is empty; omit it to compare all strategies."),
        (("compare", "x.json", "--strategies", ""), "--strategies is empty; omit it to compare all strategies."),
        (("solve", "x.json", "--seconds", "nan"), "nan is not a plausible number"),
    ],
)  # fmt: skip
def test_impossible_requests_are_one_sentence_and_exit_code_2(
    plan: Plan, capsys: Said, words: tuple[object, ...], said: str
) -> None:
    assert plan(*words) == 2
    assert said in capsys.readouterr().err


def test_an_unwritable_file_is_reported_before_anything_is_planned(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda _, how: how != os.W_OK)  # to root, who may run this, everything is allowed
    assert plan("solve", chain, "--out", tmp_path / "plan.json") == 2
    assert capsys.readouterr().err == f"gpuyard: Cannot write {tmp_path / 'plan.json'}: Permission denied.\n"


def test_output_never_overwrites_input(plan: Plan, chain: Path, tmp_path: Path, capsys: Said) -> None:
    before = chain.read_bytes()
    assert plan("solve", chain, "--strategy", "batch", "--out", chain) == 2
    assert (
        plan("solve", chain, "--strategy", "batch", "--out", tmp_path / "a.html", "--gantt", tmp_path / "a.html") == 2
    )
    assert capsys.readouterr().err.count("is given twice") == 2
    assert chain.read_bytes() == before
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("solve", "--strategy", "exact"), "exact plans at most 60 calls, and this problem has 100"),
        (("run", "--strategy", "exact"), "exact plans at most 60 calls, and this problem has 100"),
        (("compare", "--strategies", "batch,exact"), "exact plans at most 60 calls, and this problem has 100"),
        (
            ("solve", "--max-slowdown", 0.1),
            "--max-slowdown needs GPUs with several power levels (gpus[].levels), and the file has none",
        ),
    ],
)
def test_an_invalid_problem_is_reported_before_anything_is_compiled(
    plan: Plan, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], said: str
) -> None:
    file = tmp_path / "many.json"
    plan("generate", "chain", 100, 2, "--out", file)

    def compile_for_a_minute(*_: object) -> None:
        raise AssertionError("this would have taken a while")

    import_module("gpuyard.plan.workers.running")  # it must not keep the replaced function for later tests
    for place in ("gpuyard.plan.planner.generate.generate", "gpuyard.plan.planner.bounds.lower_bound"):
        monkeypatch.setattr(place, compile_for_a_minute)
    assert plan(words[0], file, *words[1:]) == 2
    assert said in capsys.readouterr().err


def test_the_extension_of_a_picture_may_be_in_capitals(plan: Plan, chain: Path, tmp_path: Path) -> None:
    picture = tmp_path / "x.PNG"
    assert plan("solve", chain, "--strategy", "batch", "--gantt", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_record_of_a_run_can_be_drawn_but_not_checked_or_executed(
    plan: Plan, chain: Path, tmp_path: Path, capsys: Said
) -> None:
    actual = tmp_path / "actual.json"
    assert plan("run", chain, "--strategy", "batch", "--speed-up", 100_000, "--out", actual) == 0
    assert plan("draw", chain, actual, "--out", tmp_path / "actual.html") == 0
    capsys.readouterr()
    for words in (("check", chain, actual), ("run", chain, "--plan", actual), ("submit", chain, "--plan", actual, "--", "{calls}")):  # fmt: skip
        assert plan(*words) == 2
        assert capsys.readouterr().err == (
            f"gpuyard: {actual}: This file is not a plan but the record of an execution: "
            "`gpuyard plan draw` draws it.\n"
        )


PREDICTED = """
models: {encoder: {memory_gb: 4, load_time: 1}}
workflows: {w: {nodes: [{id: a, model: encoder, exec_time: predicted, work: {model: NAME, mode: infer, batch: 64, steps: 100}}]}}
requests: [{id: r, workflow: w, count: 3}]
gpus: {count: 1, type: H200}
"""


def test_the_time_of_a_node_is_predicted_for_the_type_of_the_gpus(plan: Plan, tmp_path: Path, capsys: Said) -> None:
    from gpuyard import predict

    file = tmp_path / "lab.yaml"
    file.write_text(PREDICTED.replace("NAME", "bert-base"))
    assert plan("solve", file, "--strategy", "dynamic", "--json") == 0
    (one,) = predict({"model": "bert-base", "mode": "infer", "batch": 64, "steps": 100}, "H200")
    said = capsys.readouterr()
    assert json.loads(said.out)["makespan_s"] == pytest.approx(1 + 3 * one.seconds)
    assert said.err.startswith(f"exec_time predicted: {one.seconds:.4g} s (")
    assert f" on {one.gpu} for 100 x bert-base, inference, batch 64, size " in said.err
    assert said.err.splitlines()[0].endswith(f"; from {one.from_}.")


def test_an_unknown_model_of_a_predicted_node_is_reported_with_its_line(
    plan: Plan, tmp_path: Path, capsys: Said
) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text(PREDICTED.replace("NAME", "no-such-model"))
    assert plan("solve", file, "--strategy", "dynamic") == 2
    assert "line 3, workflows.w.nodes[0].work: Unknown model 'no-such-model'" in capsys.readouterr().err
