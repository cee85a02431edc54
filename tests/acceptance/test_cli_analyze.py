"""What `gpuyard analyze --submit` hands to a real yard runs there, in the order the sources need."""

import json
from pathlib import Path

import pytest

from tests.acceptance.cli_yard import a_yard
from tests.unit.learn.analysis.test_submission import PIPELINE, SWEEP


def test_the_parts_of_a_script_run_on_a_yard_and_one_waits_for_the_other(tmp_path: Path) -> None:
    with a_yard(tmp_path) as yard:
        (tmp_path / "pipeline.py").write_text(PIPELINE)
        said = json.loads(yard.does("analyze", "pipeline.py", "--submit", "--json"))
        tasks = yard.client().wait(said["submitted"], timeout=60, check=True)
        assert [task.name for task in tasks] == ["prepare", "greet", "total"]
        assert tasks[2].depends_on == [tasks[0].id]
        assert [task.gpu_count for task in tasks] == [0, 0, 0]
        assert (tmp_path / "total.json").read_text() == "6"

        (tmp_path / "sweep.py").write_text(SWEEP)
        said = json.loads(yard.does("analyze", "sweep.py", "--submit", "--json"))
        rounds = yard.client().wait(said["submitted"], timeout=60, check=True)
        assert [task.array_index for task in rounds] == [0, 1, 2, None]
        assert rounds[3].depends_on == [task.id for task in rounds[:3]]
        assert (tmp_path / "all.json").read_text() == "[0.2, 0.4, 0.6]"


def test_if_one_is_refused_none_is_left(tmp_path: Path) -> None:
    with a_yard(tmp_path) as yard:
        (tmp_path / "run.sh").write_text(
            "wget -O a.tgz http://127.0.0.1:9/a\ntorchrun --nproc_per_node=100000 train.py a.tgz\n"
        )
        done = yard.call("analyze", "run.sh", "--submit")
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert "more than 4096 is not possible" in done.stderr
        left = yard.client().wait(list(yard.client().tasks()), timeout=60)
        assert [(task.name, task.status) for task in left] == [("wget", "cancelled")]


def test_a_folder_with_a_makefile_and_a_shell_script_below_runs_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "work" / "below").mkdir(parents=True)
    (tmp_path / "work" / "Makefile").write_text(
        "PARTS := a b\nall: sum.txt\npart_%.txt:\n\techo $* >> $@\n"
        "sum.txt: $(foreach p,$(PARTS),part_$(p).txt)\n\tcat $^ >> $@\nclean:\n\trm -f *.txt\n"
    )
    (tmp_path / "work" / "below" / "run.sh").write_text("python count.py ../sum.txt > count.txt\n")
    (tmp_path / "work" / "below" / "count.py").write_text("import sys\nprint(len(open(sys.argv[1]).readlines()))\n")
    with a_yard(tmp_path) as yard:
        said = json.loads(yard.does("analyze", "work", "--submit", "--json"))
        tasks = yard.client().wait(said["submitted"], timeout=60, check=True)
        assert [task.name for task in tasks] == ["part_a.txt", "part_b.txt", "sum.txt", "count"]
        assert tasks[3].depends_on == [tasks[2].id]
        assert (tmp_path / "work" / "sum.txt").read_text() == "a\nb\n"
        assert (tmp_path / "work" / "below" / "count.txt").read_text() == "2\n"


@pytest.mark.parametrize(
    ("source", "content", "sentence"),
    [
        ("bad.py", "def f(:\n", "bad.py:1: this is not valid Python: invalid syntax."),
        ("missing.py", None, "missing.py: there is no such file or folder."),
        ("empty", None, "empty: there is no Python file, shell script or Makefile in it."),
    ],
)
def test_a_source_that_can_not_be_read_leaves_the_yard_as_it_was(
    tmp_path: Path, source: str, content: str | None, sentence: str
) -> None:
    with a_yard(tmp_path) as yard:
        if content is not None:
            (tmp_path / source).write_text(content)
        (tmp_path / "empty").mkdir()
        done = yard.call("analyze", source, "--submit", "--yes")
        assert (done.returncode, done.stderr) == (2, f"gpuyard: {sentence}\n")
        assert list(yard.client().tasks()) == []
