"""A `plan run` that was killed goes on where it was, and the next plan uses the measured times."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.test_plan_run import RUN, problem, runtimes
from tests.acceptance.waiting import until

MODELS = """
import os, time

class Model:
    def __init__(self, tag):
        self.tag = tag

    def __call__(self, question):
        with open(os.environ["CALLED"], "a") as file:
            file.write(f"{question.request}/{question.node}\\n")
        while os.path.exists(os.environ["HELD"]) and question.node == "b":
            time.sleep(0.01)
        return [self.tag, question.request, *question.results.values()]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "resumed_models.py").write_text(MODELS)
    monkeypatch.setenv("CALLED", str(tmp_path / "called"))
    monkeypatch.setenv("HELD", str(tmp_path / "held"))
    said = {"models": {name: {"python": "resumed_models:Model", "options": {"tag": name}} for name in ("one", "two")}}
    return [
        *RUN,
        problem(tmp_path),
        "--runtimes",
        runtimes(tmp_path, said),
        "--resume",
        str(tmp_path / "record"),
        "--seconds",
        "1",
        "--json",
    ]


def test_a_killed_run_goes_on_and_finished_calls_are_not_run_again(run: list[str], tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    results = ["--results", str(tmp_path / "results")]
    with subprocess.Popen([*run, *results], stdout=subprocess.DEVNULL) as first:
        until(lambda: (tmp_path / "record").exists() and (tmp_path / "record").read_text().count('"node":"a"') == 3)
        first.send_signal(signal.SIGKILL)
    with (tmp_path / "record").open("a") as file:
        file.write('{"seconds":1.0,"request":"r0","no')  # the line that was being written
    (tmp_path / "held").unlink()
    before = len((tmp_path / "called").read_text().splitlines())
    out = ["--out", str(tmp_path / "actual.json")]
    done = subprocess.run([*run, *results, *out], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["calls"], figures["done"], figures["done_before"], figures["failed"]) == (6, 6, 3, [])
    actual = {
        (task["request"], task["node"]): task for task in json.loads((tmp_path / "actual.json").read_text())["tasks"]
    }
    assert len(actual) == 6, "what the first run did is in the record"
    before_s = max(actual[f"r{n}", "a"]["end"] for n in range(3))
    assert before_s <= figures["resumed_at_s"] <= min(actual[f"r{n}", "b"]["start"] for n in range(3))
    assert figures["makespan_s"] == max(task["end"] for task in actual.values()) > figures["resumed_at_s"]
    assert sorted((tmp_path / "called").read_text().splitlines()[before:]) == ["r0/b", "r1/b", "r2/b"]
    answers = [json.loads(line)["result"] for line in (tmp_path / "results").read_text().splitlines()]
    assert sorted(answers) == [["two", f"r{n}", ["one", f"r{n}"]] for n in range(3)]
    again = subprocess.run([*run, *results], check=False, capture_output=True, text=True, timeout=120)
    assert json.loads(again.stdout)["done_before"] == 6
    assert len((tmp_path / "results").read_text().splitlines()) == 3


def test_the_next_plan_uses_the_measured_times(run: list[str], tmp_path: Path) -> None:
    first = subprocess.run(run, check=False, capture_output=True, text=True, timeout=120)
    assert json.loads(first.stdout)["planned_makespan_s"] == pytest.approx(21, abs=8)
    times = [*run[: run.index("--resume")], "--times", str(tmp_path / "record"), "--json"]
    second = subprocess.run(times, check=False, capture_output=True, text=True, timeout=120)
    assert json.loads(second.stdout)["planned_makespan_s"] < 2


def test_a_missing_file_of_times_is_an_error(run: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*run, "--times", "nowhere"], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "nowhere: No such file or directory." in done.stderr
    assert not (tmp_path / "record").exists()


def test_the_record_of_another_problem_and_a_file_that_is_none_are_refused(run: list[str], tmp_path: Path) -> None:
    record = tmp_path / "record"
    for content, sentence in (
        (
            '{"format":"plan-run/1","instance":"other","calls":6}\n',
            "is the record of 'other' with 6 calls, but the problem is 'small'",
        ),
        ("something else\n", "this is not the record of a run, as `plan run --resume` writes it."),
    ):
        record.write_text(content)
        done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert record.read_text() == content


def test_the_energy_of_a_run_with_real_models_is_reported(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML is a module whose counters advance by 2 J whenever they are read; the problem has two GPUs."""
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "counter = 0\n"
        "def nvmlInit(): pass\n"
        "def nvmlDeviceGetHandleByIndex(number): return number\n"
        "def nvmlDeviceGetTotalEnergyConsumption(gpu):\n"
        "    global counter\n"
        "    counter += 2000\n"
        "    return counter\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["energy_j"] == 8.0
