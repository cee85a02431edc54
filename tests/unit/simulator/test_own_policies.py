"""A policy of one's own, from a file, a module or a notebook."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import gpuyard
from gpuyard import cli
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.task import OpenTask
from gpuyard.simulator import generated_jobs, trace_jobs
from gpuyard.simulator.own_policies import WrongPolicy, load_policy
from gpuyard.simulator.policy_variants import NoSuchPolicy, policy_variant

HEAD = "from gpuyard.core.engine.policies.policy import Policy\n"
JOBS = "submit_s,duration_s,gpu_num\n0,100,8\n1,10,2\n2,20,8\n"
"""Behind the first job, the small one comes before the large one."""
PAGE = Path(__file__).parents[3] / "docs/howto/add_a_policy.md"


def large_first(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
    return -float(task.spec.resources.gpus)


LARGE_FIRST = Policy("large_first", starts_all=False, key=large_first)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def simulated(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["gpuyard", "simulate", *map(str, words)])
    return cli.main()


def test_the_example_of_the_howto_runs(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"Write a file `mine.py` anywhere:\n\n```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(example[1])
    words = ("--trace", trace, "--cluster", "1x8", "--policy")
    assert simulated(monkeypatch, *words, "fifo,mine.py:POLICY,mine.py:POLICY+backfill:preemption=false", "--json") == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert found["fifo"]["avg_jct_s"] == pytest.approx((100 + 109 + 128) / 3, abs=0.001)
    assert found["mine.py:POLICY"]["avg_jct_s"] == pytest.approx((100 + 129 + 118) / 3, abs=0.001)
    assert "mine.py:POLICY+backfill:preemption=false" in found


def test_the_key_of_the_howto_that_uses_estimates_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"This key serves the shortest task first.*?```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(f"{HEAD}\n\n{example[1]}\n\nPOLICY = Policy('shortest', starts_all=False, key=key)\n")
    Path("jobs.csv").write_text("submit_s,duration_s,gpu_num\n0,100,8\n1,50,8\n2,10,8\n")
    words = ("--trace", "jobs.csv", "--cluster", "1x8", "--policy", "mine.py:POLICY:preemption=false", "--json")
    averages = []
    for more in ((), ("--oracle",)):
        assert simulated(monkeypatch, *words, *more) == 0
        (row,) = json.loads(capsys.readouterr().out)["policies"].values()
        averages.append(row["avg_jct_s"])
    without_estimates, shortest_first = (100 + 149 + 158) / 3, (100 + 159 + 108) / 3
    assert averages == [pytest.approx(without_estimates, abs=0.001), pytest.approx(shortest_first, abs=0.001)]


def test_settings_of_the_engine_may_follow_the_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}MINE = Policy('mine', False, key=lambda *_: 0.0)\n")
    plain, changed = policy_variant(f"{path}:MINE"), policy_variant(f"{path}:MINE+backfill:preemption_limit=3")
    assert (plain.settings.backfill, plain.settings.policy) == (Backfill.EASY, "mine")
    assert (changed.settings.backfill, changed.settings.preemption_limit) == (Backfill.GREEDY, 3)


def test_a_notebook_passes_the_policy_itself(trace: Path) -> None:
    runs = list(gpuyard.simulate(trace_jobs(trace, "1x8"), policies=("fifo", LARGE_FIRST)))
    assert [run.name for run in runs] == ["fifo", "large_first"]
    assert runs[0].measures.avg_jct_s < runs[1].measures.avg_jct_s
    (only,) = gpuyard.simulate(trace_jobs(trace, "1x8"), policies=LARGE_FIRST)
    assert only.measures == runs[1].measures


def test_an_installed_module_is_named_without_a_file() -> None:
    assert load_policy("gpuyard.core.engine.policies.fifo", "POLICY").name == "fifo"
    own = policy_variant("gpuyard.core.engine.policies.fifo:POLICY:backfill=none:preemption=false")
    jobs = generated_jobs(40, cluster="2x4", seed=5)
    known, same = gpuyard.simulate(jobs, policies=("fifo", own))
    assert known.measures == same.measures


def test_a_policy_may_have_the_name_of_another_for_its_own_run_only(trace: Path) -> None:
    hidden = replace(LARGE_FIRST, name="fifo")
    mine, other = gpuyard.simulate(trace_jobs(trace, "1x8"), policies=[hidden, "fifo"])
    assert mine.measures.avg_jct_s > other.measures.avg_jct_s


def test_a_policy_that_raises_is_named_with_its_exception(trace: Path) -> None:
    def broken(task: OpenTask, now: float, settings: Settings) -> float:  # noqa: ARG001
        return 1 / (task.submitted_at * 0)

    runs = gpuyard.simulate(trace_jobs(trace, "1x8"), policies=[replace(LARGE_FIRST, key=broken)])
    with pytest.raises(
        WrongInput, match=r"^Policy large_first failed: key raised ZeroDivisionError: float division by zero\.$"
    ):
        next(runs)


def test_a_policy_that_returns_no_number_is_named(trace: Path) -> None:
    runs = gpuyard.simulate(
        trace_jobs(trace, "1x8"),
        policies=[replace(LARGE_FIRST, key=lambda *_: "high")],  # type: ignore[arg-type]
    )
    with pytest.raises(WrongInput, match=r"^Policy large_first failed: key returned 'high'; it must be a number\.$"):
        next(runs)


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("", "POLICY", "has no 'POLICY'; it has no policy; assign a gpuyard Policy to a name."),
        ("MINE = Policy('mine', False, key=len)", "POLICY", "has no 'POLICY'; its policies: MINE."),
        ("POLICY = 5", "POLICY", ":POLICY is of type int; it must be a gpuyard.core.engine.policies.policy.Policy."),
        ("POLICY = Policy('mine', False, key=None)", "POLICY", ":POLICY: key is None; it must be a function."),
        ("POLICY = Policy('', False, key=len)", "POLICY", ":POLICY: its name must be text."),
        ("1 / 0", "POLICY", "cannot be loaded: ZeroDivisionError: division by zero."),
        ("def (", "POLICY", "cannot be loaded: SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "POLICY", "cannot be loaded: SystemExit: 3."),
        ("import nothing_of_this_name", "POLICY", "ModuleNotFoundError: No module named 'nothing_of_this_name'."),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, text: str, name: str, sentence: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + text)
    with pytest.raises(WrongPolicy) as caught:
        load_policy(str(path), name)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_modules_are_named(tmp_path: Path) -> None:
    with pytest.raises(WrongPolicy, match=r"Policy file .*none.py cannot be read: No such file or directory\."):
        policy_variant(f"{tmp_path}/none.py:POLICY")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(WrongPolicy, match=r"Policy file .* cannot be read: Is a directory\."):
        policy_variant(f"{tmp_path}/folder.py:POLICY")
    with pytest.raises(WrongPolicy, match=r"There is no module 'no_such_lab\.policies'; install it"):
        policy_variant("no_such_lab.policies:POLICY")
    with pytest.raises(WrongPolicy, match=r"^:POLICY names no file; write it before the colon: mine\.py:POLICY\.$"):
        policy_variant(":POLICY")
    with pytest.raises(NoSuchPolicy, match=r"Name the policy in mine\.py after a colon: mine\.py:POLICY\."):
        policy_variant("mine.py")
