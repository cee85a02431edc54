"""Steps on several nodes: their layout, and two nodes of a job as two real processes without a scheduler."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.slurm import steps
from gpuyard.cli.slurm.job import job_of
from gpuyard.cli.slurm.script import parse_script
from tests.ports import free_port

NAMES = ["one.example.org", "two", "three"]


@pytest.mark.parametrize(
    ("options", "env", "expected"),
    [
        ({}, {}, [(0, [0]), (1, [1]), (2, [2])]),
        ({}, {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "6"}, [(0, [0, 1]), (1, [2, 3]), (2, [4, 5])]),
        ({}, {"SLURM_NTASKS": "4"}, [(0, [0, 1]), (1, [2]), (2, [3])]),
        ({"tasks": "4"}, {}, [(0, [0, 1]), (1, [2]), (2, [3])]),
        ({"tasks": "4", "distribution": "cyclic"}, {}, [(0, [0, 3]), (1, [1]), (2, [2])]),
        ({"tasks": "1"}, {"SLURM_NTASKS": "6"}, [(0, [0])]),
        ({"nodes": "1", "tasks": "1", "nodelist": "two"}, {}, [(1, [0])]),
        ({"nodelist": "three,one"}, {"SLURM_NTASKS_PER_NODE": "2"}, [(0, [0, 1]), (2, [2, 3])]),
        ({"nodes": "2", "nodelist": "three"}, {}, [(0, [0]), (2, [1])]),
        ({"nodes": "1", "nodelist": "localhost"}, {}, [(0, [0])]),
        ({"nodes": "2"}, {"SLURM_NTASKS": "6"}, [(0, [0, 1]), (1, [2, 3])]),
        ({"nodes": "1-2", "per_node": "3"}, {}, [(0, [0, 1, 2])]),
        ({"exclude": "one.example.org"}, {}, [(1, [0]), (2, [1])]),
    ],
)
def test_where_the_ranks_of_a_step_are(
    options: dict[str, str], env: dict[str, str], expected: list[tuple[int, list[int]]]
) -> None:
    assert steps.layout(options, env, NAMES) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nodes": "4"}, "requests 4 nodes, and the job has 3"), ({"nodelist": "four"}, "four is no node of the job"),
        ({"tasks": "x"}, "x is not a number of tasks"), ({"tasks": "0"}, "0 is not"), ({"tasks": "7", "per_node": "2"}, "do not fit"),
        ({"exclude": "one,two,three"}, "excludes all nodes of the job"), ({"nodes": "²"}, "² is not a number of nodes"),
        ({"nodes": "3", "exclude": "two"}, "requests 3 nodes, and the job has 2 without those that it excludes"),
    ],
)  # fmt: skip
def test_a_step_that_the_job_cannot_hold_is_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(steps.StepRefused, match=sentence):
        steps.layout(options, {}, NAMES)


@pytest.mark.parametrize("name", ["gpus_each", "gpus_node", "gpus_total"])
def test_a_number_of_gpus_that_cannot_be_read_is_refused(name: str) -> None:
    with pytest.raises(steps.StepRefused, match="² is not a number of GPUs"):
        steps.gpus_on_node({name: "²"}, 2, 2)


def test_tasks_on_each_node_as_slurm_writes_them() -> None:
    assert steps.tasks_per_node([2, 2, 2, 1]) == "2(x3),1"


def test_patterns_of_output_files() -> None:
    letters = {"t": "3", "j": "42", "x": "a%j"}
    assert steps.filled("%j/%3t-%%t-%q-%x%", letters) == "42/003-%t-%q-a%j%"


def ran_on_two(
    folder: Path, options: str, body: str, other: dict[str, str] | None = None, port: int | None = None
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Run a script as a gang of two nodes runs it; `other` are more variables of the second one."""
    script = parse_script("two.sh", f"#!/bin/bash\n#SBATCH -N 2 {options}\n{body}\n".encode())
    request: dict[str, Any] = job_of(script, (), {"work_dir": str(folder)}, environ={}, folder=str(folder)).request
    (folder / "tmp").mkdir()
    env = {
        "PATH": os.environ["PATH"], "GPUYARD_TASK_ID": "42", "GPUYARD_ATTEMPT": "1", "GPUYARD_GRACE_SECONDS": "2", "USER": "ann",
        "TMPDIR": str(folder / "tmp"), **request["env"], **request["secrets"], "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port or free_port()), "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0",
    }  # fmt: skip
    parts = []
    for rank, own in enumerate(({}, other or {})):
        variables = {
            "NODE_RANK": str(rank),
            "GPUYARD_NODE_ID": f"node-{rank}",
            "CUDA_VISIBLE_DEVICES": f"{rank}0,{rank}1",
        }
        parts.append(
            subprocess.Popen(
                request["command"],
                env={**env, **variables, **own},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    done = []
    for part in parts:
        out, err = part.communicate(timeout=60)
        done.append(subprocess.CompletedProcess(part.args, part.returncode, out, err))
    assert list((folder / "tmp").iterdir()) == []
    return done[0], done[1]


def test_the_script_runs_once_with_the_variables_of_slurm_and_no_others(tmp_path: Path) -> None:
    body = (
        "echo $SLURM_NNODES ${RANK-none} ${WORLD_SIZE-none} ${MASTER_PORT-none} $MASTER_ADDR ${SLURM_NTASKS-none} $SLURM_TASKS_PER_NODE\n"
        "[ $SLURM_JOB_NODELIST = $(scontrol show hostnames | paste -sd,) ] && echo same; env | grep -c SBATCH_"
    )
    first, second = ran_on_two(tmp_path, "--gres=gpu:2", body)
    assert first.stdout == "2 none none none 127.0.0.1 none 1(x2)\nsame\n0\n", first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")


def test_the_exit_code_is_that_of_the_script(tmp_path: Path) -> None:
    first, second = ran_on_two(tmp_path, "-n 2", "srun sh -c 'exit $SLURM_PROCID'; exit $(($? + 5))")
    assert (first.returncode, second.returncode) == (6, 0)


def test_the_variables_of_a_step(tmp_path: Path) -> None:
    body = (
        "export MINE=mine SLURM_JOB_GPUS\nsrun true\n"
        "srun -n 3 --gpus-per-task=1 -l sh -c 'echo $SLURM_STEP_ID $SLURM_STEPID $SLURM_STEP_NUM_NODES $SLURM_STEP_NUM_TASKS $SLURM_STEP_TASKS_PER_NODE "
        "$SLURM_NTASKS $SLURM_NPROCS $SLURM_NNODES $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_GTIDS $CUDA_VISIBLE_DEVICES "
        "$SLURM_STEP_GPUS $SLURM_LAUNCH_NODE_IPADDR $MINE $GPUYARD_NODE_ID ${SBATCH_STEPS_SECRET-none}'"
    )
    first, _ = ran_on_two(tmp_path, "--gres=gpu:2", body)
    said = "1 1 2 3 2,1 3 3 2"
    assert sorted(first.stdout.splitlines()) == [
        f"0: {said} 0 0 0 0,1 00 00,01 127.0.0.1 mine node-0 none",
        f"1: {said} 1 1 0 0,1 01 00,01 127.0.0.1 mine node-0 none",
        f"2: {said} 2 0 1 2 10 10 127.0.0.1 mine node-1 none",
    ], first.stderr


def test_each_node_uses_its_own_copy_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "copy" / "sub").mkdir(parents=True)
    body = f"mkdir sub; cd sub; export GPUYARD_SNAPSHOT_DIR={tmp_path}; srun -l pwd | sort"
    first, _ = ran_on_two(tmp_path, "-n 2", body, {"GPUYARD_SNAPSHOT_DIR": str(tmp_path / "copy")})
    assert first.stdout == f"0: {tmp_path}/sub\n1: {tmp_path}/copy/sub\n", first.stderr


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    body = f"export GPUYARD_SNAPSHOT_DIR={tmp_path}; srun true; echo code $?; mkdir gone; cd gone; rmdir ../gone; srun true; echo code $?"
    first, _ = ran_on_two(tmp_path, "-n 2", body, {"GPUYARD_SNAPSHOT_DIR": "/no/such"})
    assert first.stdout == "code 1\ncode 1\n"
    assert "true: the folder /no/such does not exist on this node" in first.stderr
    assert "srun: the current folder cannot be used: No such file or directory." in first.stderr


def test_a_node_without_python_says_so(tmp_path: Path) -> None:
    (tmp_path / "no-python").mkdir()
    wrapper = (Path(steps.__file__).parent / "job.sh").read_text()
    text = wrapper.replace("/usr/bin/python3", "/no/such/python")
    env = {
        "PATH": str(tmp_path / "no-python"),
        "TMPDIR": str(tmp_path),
        "NODE_RANK": "1",
        "GPUYARD_TASK_ID": "42",
        "SBATCH_SCRIPT_TEXT": "",
    }
    for name in ("mktemp", "chmod", "uname", "rm"):
        (tmp_path / "no-python" / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        ["/bin/bash", "-c", f"_job_gang=1 _job_name=job\n{text}"], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs Python 3.8 or newer with ssl on each of them" in done.stderr


def test_the_number_of_a_rank_that_has_ended_stays_its_own_while_it_is_signalled(tmp_path: Path) -> None:
    """Otherwise the signals at the end of the step would reach another process group, to which the number was given."""
    body = (
        "srun -N1 -n2 bash -c '[ $SLURM_PROCID = 0 ] || { echo $$ >one; exit 0; }; until [ -s one ]; do sleep 0.05; done; "
        'read -r pid <one; while read -r _ _ state _ <"/proc/$pid/stat" && [ $state != Z ]; do sleep 0.05; done 2>/dev/null; '
        "sleep 0.5; [ -e /proc/$pid ] && echo kept'\n"
        "[ -e /proc/$(cat one) ] || echo gone"
    )
    first, _ = ran_on_two(tmp_path, "-n 2", body)
    assert first.stdout == "kept\ngone\n", first.stderr


STRANGERS = """
import pathlib, socket, sys, time
from gpuyard.cli.slurm import steps
kind, port = sys.argv[1], int(sys.argv[2])
held = []
for _ in range(300):
    try:
        one = socket.create_connection(("127.0.0.1", port), 5)
        held.append(steps.tls(False).wrap_socket(one) if kind == "tls" else one)
    except OSError:
        pass
def closed(one):
    one.setblocking(False)
    try:
        while data := one.recv(4096):
            pass
        return True
    except OSError as error:
        return not isinstance(error, BlockingIOError) and "did not complete" not in str(error)
end = time.monotonic() + 5
while len(held) > 64 and time.monotonic() < end:
    held = [one for one in held if not closed(one)]
    time.sleep(0.05)
pathlib.Path("held").write_text(str(len(held)))
time.sleep(300)
"""


@pytest.mark.parametrize("kind", ["tls", "raw"])
def test_connections_that_prove_nothing_keep_no_step_from_starting(tmp_path: Path, kind: str) -> None:
    port = free_port()
    (tmp_path / "strangers.py").write_text(STRANGERS)
    body = (
        f"{sys.executable} strangers.py {kind} {port} & until [ -s held ]; do sleep 0.05; done; cat held; echo\n"
        "srun -l echo here | sort; kill $!"
    )
    first, _ = ran_on_two(tmp_path, "-n 2", body, port=port)
    held, *lines = first.stdout.splitlines()
    assert 0 < int(held) <= steps.MOST_STRANGERS
    assert lines == ["0: here", "1: here"], first.stderr


def test_steps_that_request_gpus_at_the_same_time_get_different_ones(tmp_path: Path) -> None:
    body = (
        "srun --gres=gpu:1 sh -c '>started.$SLURM_PROCID; until [ -e go ]; do sleep 0.05; done; echo first' &\n"
        "until [ -e started.0 ] && [ -e started.1 ]; do sleep 0.05; done\n"
        "srun --gres=gpu:2 --overlap sh -c 'echo beside $CUDA_VISIBLE_DEVICES' | sort\n"
        "srun --gres=gpu:2 echo second 2>said & until [ -s said ] || ! kill -0 $! 2>&-; do sleep 0.05; done\n"
        "touch go; wait; cat said"
    )
    first, _ = ran_on_two(tmp_path, "--gres=gpu:2", body)
    assert first.stdout.splitlines() == [
        "beside 00,01",
        "beside 10,11",
        *["first"] * 2,
        *["second"] * 2,
        "srun: the step waits for GPUs of other steps; with --overlap it would share them",
    ], first.stderr


def test_the_gpus_of_a_step_depend_on_no_variable_of_the_script(tmp_path: Path) -> None:
    body = "unset SLURM_JOB_GPUS\nsrun --gres=gpu:1 sh -c 'echo $CUDA_VISIBLE_DEVICES' | sort"
    first, _ = ran_on_two(tmp_path, "--gres=gpu:2", body)
    assert first.stdout == "00\n10\n", first.stderr
