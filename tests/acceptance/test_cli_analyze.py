"""What `gpuyard analyze --submit` hands to a real yard runs there, in the order the sources need."""

import json
from pathlib import Path

from tests.acceptance.cli_yard import a_yard
from tests.unit.analysis.test_submission import PIPELINE, SWEEP


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
