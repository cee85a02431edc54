"""What `gpuyard analyze --submit` hands to a real yard runs there, in the order the sources need."""

import json
from pathlib import Path

from tests.acceptance.cli_yard import a_yard
from tests.unit.analysis.test_submission import PIPELINE


def test_the_parts_of_a_script_run_on_a_yard_and_one_waits_for_the_other(tmp_path: Path) -> None:
    with a_yard(tmp_path) as yard:
        (tmp_path / "pipeline.py").write_text(PIPELINE)
        said = json.loads(yard.does("analyze", "pipeline.py", "--submit", "--json"))
        tasks = yard.client().wait(said["submitted"], timeout=60, check=True)
        assert [task.name for task in tasks] == ["prepare", "greet", "total"]
        assert tasks[2].depends_on == [tasks[0].id]
        assert [task.gpu_count for task in tasks] == [0, 0, 0]
        assert (tmp_path / "total.json").read_text() == "6"

        (tmp_path / "run.sh").write_text("torchrun --nproc_per_node=64 nowhere.py\n")
        refused = yard.call("analyze", "run.sh", "--submit", "--dry-run")
        assert refused.returncode == 0
        assert "64" in refused.stdout
