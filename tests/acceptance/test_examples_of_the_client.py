"""examples/client, examples/joblib and examples/optuna, run as people run them, against a real cluster."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.live import Cluster, running_cluster
from tests.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
MANUAL = Path(__file__).parents[2] / "docs" / "manual" / "sdk.md"
IN_MANUAL = re.findall(r"^```python\n(.*?)^```", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("examples")) as made:
        yield made


def run(place: Cluster, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = EXAMPLES / script
    env = {**os.environ, "GPUYARD_SERVER": f"http://127.0.0.1:{place.http}"}
    return subprocess.run(
        [sys.executable, path.name, *words],
        cwd=path.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_the_client_submits_tasks_for_a_tenant_and_shows_their_progress(place: Cluster) -> None:
    api = f"http://127.0.0.1:{place.http}"
    done = run(place, "client/client.py", "--api", api, "--tenant", "tenant-1", "--tasks", "5", "--seconds", "0.1")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"5 tasks submitted for tenant-1: task-\d+ to task-\d+", lines[0])
    assert [line.split("] ")[1].split()[0] for line in lines[1:6]] == [f"{n}/5" for n in range(1, 6)]
    assert re.fullmatch(r"5 succeeded, 0 failed, in [\d.]+ s", lines[6])
    tasks = list(place.client().tasks(tenant="tenant-1"))
    assert ({task.status for task in tasks}, {task.gpu_count for task in tasks}) == ({"success"}, {1})


def test_the_client_names_what_is_wrong(place: Cluster) -> None:
    nobody = run(place, "client/client.py", "--api", f"http://127.0.0.1:{free_port()}")
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    assert "No scheduler answers" in nobody.stderr
    assert "--tasks must be at least 1" in run(place, "client/client.py", "--tasks", "0").stderr
    more = run(
        place,
        "client/client.py",
        "--api",
        f"http://127.0.0.1:{place.http}",
        "--tasks",
        "1",
        "--gpus",
        "99",
        "--timeout",
        "1",
    )
    assert (more.returncode, more.stderr.count("\n")) == (1, 1)
    assert "has not ended within 1 s" in more.stderr


def test_joblib_runs_on_the_cluster(place: Cluster) -> None:
    done = run(place, "joblib/squares.py")
    assert done.stdout == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]\nraised: -1 has no square root\n", done.stderr


def test_optuna_searches_on_the_cluster_and_survives_failed_trials(place: Cluster) -> None:
    done = run(place, "optuna/search.py", "--trials", "12", "--at-once", "4", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^12 trials, best \d\.\d+ with \{'lr': [\d.e-]+, 'depth': \d\}$", done.stdout, re.MULTILINE), (
        done.stdout
    )
    assert len(list(place.client().tasks(name="trial"))) == 12


@pytest.mark.parametrize("example", IN_MANUAL)
def test_every_example_of_the_manual_runs_as_pasted(place: Cluster, example: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example)
    done = run(place, str(tmp_path / "example.py"))
    assert done.returncode == 0, done.stderr
    said = re.findall(r"print\(.*\)  # (.*)$", example, re.MULTILINE)
    if not any(line.startswith("task-") for line in said):  # the ids of tasks differ
        assert done.stdout.splitlines() == said or not said
    else:
        assert done.stdout.split()[-1] == said[-1].split()[-1]
