"""The shell text that runs a job script, in a real bash without a scheduler."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.slurm.job import job_of
from gpuyard.cli.slurm.script import parse_script


def ran(
    folder: Path, options: str, body: str, *arguments: str, first: str = "#!/bin/bash", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script as a task runs it."""
    script = parse_script("my job.sh", f"{first}\n#SBATCH {options}\n{body}\n".encode())
    request: dict[str, Any] = job_of(
        script, arguments, {"work_dir": str(folder)}, environ={}, folder=str(folder)
    ).request
    env = {
        "PATH": os.environ["PATH"],
        "GPUYARD_TASK_ID": "42",
        "USER": "ann",
        "TMPDIR": str(folder / "tmp"),
        **request["env"],
        **variables,
    }
    (folder / "tmp").mkdir(exist_ok=True)
    done = subprocess.run(
        request["command"], env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert list((folder / "tmp").iterdir()) == []
    return done


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("a-%j.txt", "a-42.txt"), ("%6j_%x/%u.%%", "000042_a b/ann.%"), ("%A_%a", "42_4294967294"), ("%n%t%s%J", "00batch42"), ("%q", "%q"),
        ("x y", "x y"), ("$(id)`id`*", "$(id)`id`*"), ("%", "%"), ("%99j", "0000000042"),
    ],
)  # fmt: skip
def test_patterns_of_output_files(pattern: str, path: str, tmp_path: Path) -> None:
    done = ran(tmp_path, f"-J 'a b' -o '{pattern}'", "echo out; echo err >&2")
    assert (tmp_path / path).read_text() == done.stdout == "out\nerr\n"


def test_both_outputs_have_their_files_and_the_exit_code_is_kept(tmp_path: Path) -> None:
    done = ran(tmp_path, "-o o.txt -e e.txt", "echo out; echo err >&2; kill -9 $$")
    assert (done.returncode, done.stdout, done.stderr) == (137, "out\n", "err\n")
    assert ((tmp_path / "o.txt").read_text(), (tmp_path / "e.txt").read_text()) == ("out\n", "err\n")
    again = ran(tmp_path, "-o o.txt -e o.txt", "echo more; echo err >&2", GPUYARD_RESTART_COUNT="1")
    assert (again.stdout, (tmp_path / "o.txt").read_text()) == ("more\nerr\n", "out\nmore\nerr\n")
    assert ran(tmp_path, "-e only.txt", "echo out; echo err >&2").stdout == "out\n"
    assert (tmp_path / "only.txt").read_text() == "err\n"


def test_much_output_arrives_whole(tmp_path: Path) -> None:
    done = ran(tmp_path, "-o big.txt", "seq 200000")
    assert (tmp_path / "big.txt").read_text() == done.stdout == "".join(f"{number}\n" for number in range(1, 200001))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = ran(tmp_path, "-o folder", "echo out")
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert "folder cannot be written" in done.stderr


def test_the_first_line_chooses_the_program(tmp_path: Path) -> None:
    body = "import sys, os\nprint(sys.argv[1:], os.environ['SLURM_JOB_NAME'])"
    assert ran(tmp_path, "-c 1", body, "x y", first="#!/usr/bin/env python3").stdout == "['x y'] my job.sh\n"
    missing = ran(tmp_path, "-c 1", "", first="#!/no/such/program")
    assert missing.returncode in {126, 127}


def test_input_is_empty_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "in-42").write_text("given")
    assert ran(tmp_path, "-i in-%j", "cat").stdout == "given"
    assert ran(tmp_path, "-c 1", "cat").stdout == ""


@pytest.mark.parametrize(("place", "index"), [(0, "1"), (2, "5"), (3, "9")])
def test_array_indices(place: int, index: str, tmp_path: Path) -> None:
    body = "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_JOB_ID"
    done = ran(tmp_path, "-a 1-5:2,9 -o %A-%a", body, GPUYARD_ARRAY_INDEX=str(place))
    assert done.stdout == f"{42 - place} {index} 4 42\n"
    assert (tmp_path / f"{42 - place}-{index}").exists()


def test_gpus_by_number_are_those_of_the_task(tmp_path: Path) -> None:
    body = "CUDA_VISIBLE_DEVICES=1 printenv CUDA_VISIBLE_DEVICES\nexport CUDA_VISIBLE_DEVICES=0\necho $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
    assert ran(tmp_path, "--gres=gpu:2", body, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b").stdout == "GPU-b\nGPU-a 2\n"


def test_functions_survive_and_the_script_is_not_in_its_environment(tmp_path: Path) -> None:
    done = ran(
        tmp_path, "-c 1", "module load x; env | grep -c ^SBATCH", **{"BASH_FUNC_module%%": '() { echo "module $@"; }'}
    )
    assert done.stdout == "module load x\n0\n"


def test_variables_of_the_user_reach_the_script_unchanged(tmp_path: Path) -> None:
    mine = dict.fromkeys(
        ("name", "output", "error", "timer", "tasks", "code", "step", "out", "rank", "path", "value"), "mine"
    )
    body = "env | grep -c =mine; srun -n 2 -l sh -c 'env | grep -c =mine' | sort"
    assert ran(tmp_path, "-o o.txt", body, **mine).stdout == "11\n0: 11\n1: 11\n"


def test_background_work_does_not_keep_the_pipes(tmp_path: Path) -> None:
    before = time.monotonic()
    ran(tmp_path, "-o o.txt", "sleep 8 & echo over")
    assert (tmp_path / "o.txt").read_text() == "over\n"
    assert time.monotonic() - before < 7
