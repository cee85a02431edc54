"""`gpuyard analyze --submit` on a real cluster: the parts run in dependency order."""

import json
from pathlib import Path

import pytest

from tests.acceptance.cli_cluster import running_cluster
from tests.unit.learn.analysis.test_submission import PIPELINE, SWEEP


def test_the_parts_of_a_script_run_on_a_cluster_in_dependency_order(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        folder = tmp_path / "scripts"
        folder.mkdir()
        (folder / "pipeline.py").write_text(PIPELINE)
        said = json.loads(cluster.does("analyze", "scripts/pipeline.py", "--submit", "--json"))
        assert said["trial"]["outcome"] == "not tried"
        [task] = cluster.client().wait(said["submitted"], timeout=60, check=True)
        assert task.name == "pipeline"

        said = json.loads(cluster.does("analyze", "scripts/pipeline.py", "--submit", "--json", "--trial"))
        assert said["trial"]["outcome"] == "equal"
        tasks = cluster.client().wait(said["submitted"], timeout=60, check=True)
        assert [task.name for task in tasks] == ["prepare", "greet", "total"]
        assert tasks[2].depends_on == [tasks[0].id]
        assert [task.gpu_count for task in tasks] == [0, 0, 0]
        assert (folder / "total.json").read_text() == "6"

        (folder / "sweep.py").write_text(SWEEP)
        said = json.loads(cluster.does("analyze", "scripts/sweep.py", "--submit", "--json", "--trial"))
        rounds = cluster.client().wait(said["submitted"], timeout=60, check=True)
        assert [task.array_index for task in rounds] == [0, 1, 2, None]
        assert rounds[3].depends_on == [task.id for task in rounds[:3]]
        assert (folder / "all.json").read_text() == "[0.2, 0.4, 0.6]"


def test_if_one_part_is_refused_none_is_submitted(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        long = "count_" * 40  # longer than the name of a task may be
        folder = tmp_path / "scripts"
        folder.mkdir()
        (folder / "two.py").write_text(
            "from pathlib import Path\ndef prepare(): Path('a.txt').write_text('1')\n"
            f"def {long}(): return len(Path('a.txt').read_text())\nprepare()\n{long}()\n"
        )
        done = cluster.call("analyze", "scripts/two.py", "--submit", "--trial")
        assert done.returncode == 1
        assert "at most 200" in done.stderr
        left = cluster.client().wait(list(cluster.client().tasks()), timeout=60)
        assert [(task.name, task.status) for task in left] == [("prepare", "cancelled")]


@pytest.mark.parametrize(
    ("source", "content", "sentence"),
    [
        ("bad.py", "def f(:\n", "bad.py:1: this is not valid Python: invalid syntax."),
        ("missing.py", None, "missing.py: no such file."),
        ("empty", None, "empty: this is a folder; give one Python script in it."),
    ],
)
def test_an_unreadable_source_submits_nothing(tmp_path: Path, source: str, content: str | None, sentence: str) -> None:
    with running_cluster(tmp_path) as cluster:
        if content is not None:
            (tmp_path / source).write_text(content)
        (tmp_path / "empty").mkdir()
        done = cluster.call("analyze", source, "--submit", "--yes")
        assert (done.returncode, done.stderr) == (2, f"gpuyard: {sentence}\n")
        assert list(cluster.client().tasks()) == []
