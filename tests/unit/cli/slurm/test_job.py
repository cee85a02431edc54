"""What the options of a job script become: fields of a task, remarks, or a refusal."""

from typing import Any

import pytest

from gpuyard.cli.slurm.job import JobRequest, job_of, with_whole_arrays
from gpuyard.cli.slurm.options import WrongDirective
from gpuyard.cli.slurm.script import parse_script
from gpuyard.live.sdk import connect
from tests.unit.live.sdk.fake_server import Answering, fake_server, refusal, task

ENVIRON = {
    "PATH": "/usr/bin",
    "DATA": "/d",
    "WANDB_API_KEY": "hush",
    "SLURM_NTASKS": "9",
    "DISPLAY": ":0",
    "BASH_FUNC_module%%": "() { :; }",
    "RANK": "3",
}


def job(options: str, body: str = "echo", typed: dict[str, Any] | None = None, *arguments: str) -> JobRequest:
    script = parse_script("job.sh", f"#!/bin/bash\n#SBATCH {options}\n{body}\n".encode())
    return job_of(script, arguments, {"work_dir": "/here", **(typed or {})}, environ=ENVIRON, folder="/here")


def fields(options: str, body: str = "echo", typed: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a job that are set, without command and variables."""
    request = job(options, body, typed).request
    return {
        name: value
        for name, value in request.items()
        if value is not None and name not in {"command", "env", "secrets", "work_dir"}
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-J a --gres=gpu:2 -c 4 --mem=8GB -t 90", {"name": "a", "gpu_count": 2, "cpu_count": 4, "memory_mb": 8192, "timeout": 5400}),
        ("--gpus-per-task=1 -n 4 -c 2 --mem-per-cpu=1G", {"name": "job.sh", "gpu_count": 4, "cpu_count": 8, "memory_mb": 8192}),
        ("-G a100:4 -N 2 --cpus-per-gpu=3 --mem-per-gpu=10G", {"name": "job.sh", "gpu_count": 2, "gpu_model": ["a100"], "cpu_count": 6, "memory_mb": 20480, "nodes": 2}),
        ("--gres=gpu:1 -C 'a100|h100'", {"name": "job.sh", "gpu_count": 1, "gpu_model": ["a100", "h100"]}),
        ("--gres=gpu:1 -C vram40 --mem=0", {"name": "job.sh", "gpu_count": 1, "gpu_memory_mb": 38093}),
        ("-n 3", {"name": "job.sh", "gpu_count": 0, "cpu_count": 3}),
        ("-A lab --comment=why --requeue -t 0", {"name": "job.sh", "gpu_count": 0, "cpu_count": 1, "project": "lab", "description": "why", "preemption": "requeue"}),
        ("-a 1-5:2,9 --no-requeue -d afterok:7", {"name": "job.sh", "gpu_count": 0, "cpu_count": 1, "array": 4, "on_lost": "wait", "depends_on": ["7"]}),
    ],
)  # fmt: skip
def test_options_become_fields(options: str, expected: dict[str, Any]) -> None:
    assert fields(options) == expected


def test_options_of_gpuyard_override_the_script() -> None:
    typed = {
        "gpu_count": 1,
        "timeout": 60.0,
        "name": "mine",
        "gpu_model": None,
        "env": {"DATA": "/e"},
        "secrets": {"PATH": "/s"},
    }
    asked = job("--gres=gpu:a100:2 -t 90 -J x --chdir=sub", typed=typed)
    request = asked.request
    assert (request["gpu_count"], request["timeout"], request["name"], request["gpu_model"]) == (
        1,
        60.0,
        "mine",
        ["a100"],
    )
    assert (request["env"]["DATA"], request["secrets"], request["work_dir"]) == (
        "/e",
        {"WANDB_API_KEY": "hush", "PATH": "/s"},
        "/here/sub",
    )
    assert asked.meaning == "1 GPU (a100), time limit 1m00s"
    assert job("-c 1", typed={"work_dir": "/there"}).request["work_dir"] == "/there"


def test_everything_but_the_session_and_other_schedulers_travels() -> None:
    request = job("-c 1").request
    assert request["env"].keys() == {"PATH", "DATA", "BASH_FUNC_module%%", "SBATCH_START", "SBATCH_SCRIPT_TEXT"}
    assert request["secrets"] == {"WANDB_API_KEY": "hush"}
    assert request["command"] == ["/bin/bash", "-c", 'eval "$SBATCH_START"', "job.sh"]
    assert job("--export=NONE").request["env"].keys() == {"SBATCH_START", "SBATCH_SCRIPT_TEXT"}
    assert job("-N 2 --export=NONE").request["secrets"].keys() == {"SBATCH_STEPS_SECRET"}
    only = job("--export=DATA,A=1").request
    assert (only["env"].keys(), only["secrets"]) == ({"DATA", "A", "SBATCH_START", "SBATCH_SCRIPT_TEXT"}, None)
    assert job("--export=ALL,A=1").request["env"].keys() >= {"PATH", "A"}


def test_an_array_may_limit_its_running_tasks() -> None:
    limited = job("-a 0-9%2")
    assert (limited.request["array"], limited.request["max_running"]) == (10, 2)
    assert limited.meaning.startswith("10 tasks, at most 2 at once, each")
    assert job("-a 0-9").request["max_running"] is None


def test_what_is_not_done_is_named_once() -> None:
    remarks = job(
        "-p gpu --mail-type=END --mail-user=x -a 0-9 --gres=gpu:1,lic:2 -C fast --reservation=r --gpu-bind=none -L a"
    ).remarks
    assert remarks == (
        "--gres=lic:2: gpuyard manages only GPUs",
        "--constraint=fast: neither a GPU model nor its memory; use --label",
        "--partition has no effect: there are no partitions",
        "--mail-type and --mail-user have no effect: no mail is sent",
        "--reservation has no effect: there are no reservations for jobs",
        "--licenses has no effect: not supported",
    )


@pytest.mark.parametrize(
    ("options", "body", "sentence"),
    [
        ("--container-image=x", "", "outside of the image"), ("--hold", "", "would start at once"), ("--begin=now+2h", "", "Submit it later"),
        ("-N 2", "mpirun -np 4 a", "Start the ranks with srun"), ("-N 2 -G 3", "", "cannot be divided"), ("-t 2h", "", "write 120"),
        ("-d afternotok:1", "", "not supported"), ("--mem=x", "", "a size"), ("-c=4", "", "without ="), ("--wrap=x", "", "only valid on the command line"),
        ("-a 0-99999", "", "maximum of an array"),
    ],
)  # fmt: skip
def test_what_would_mislead_is_refused_with_the_line(options: str, body: str, sentence: str) -> None:
    with pytest.raises(WrongDirective, match=sentence) as refused:
        job(options, body)
    assert str(refused.value).startswith("job.sh, line 2: ")


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("export CUDA_VISIBLE_DEVICES=0", 'export CUDA_VISIBLE_DEVICES="$(echo "$SLURM_JOB_GPUS" | cut -d, -f1)"'),
        ("CUDA_VISIBLE_DEVICES='0,1' python a.py", 'CUDA_VISIBLE_DEVICES="$(echo "$SLURM_JOB_GPUS" | cut -d, -f1,2)" python a.py'),
        ("CUDA_VISIBLE_DEVICES=1 a & CUDA_VISIBLE_DEVICES=0 b", None), ("export CUDA_VISIBLE_DEVICES=2", ""), ("# CUDA_VISIBLE_DEVICES=0", ""),
        ("X_CUDA_VISIBLE_DEVICES=0", ""), ("CUDA_VISIBLE_DEVICES=$i a", ""),
    ],
)  # fmt: skip
def test_gpus_by_number_become_gpus_of_the_task(line: str, becomes: str | None) -> None:
    asked = job("--gres=gpu:2", line)
    text = asked.request["env"]["SBATCH_SCRIPT_TEXT"].split("\n")[2]
    if becomes is None:
        assert text.count("cut -d, -f2)") == text.count("cut -d, -f1)") == 1
    else:
        assert text == (becomes or line)
    assert any("CUDA_VISIBLE_DEVICES" in remark for remark in asked.remarks) == (text != line or "=2" in line)


def test_a_dependency_on_the_first_task_of_an_array_means_all_of_it() -> None:
    def answers(line: Answering) -> None:
        number = int(line.path.partition("?")[0].rpartition("/")[2].removeprefix("task-"))
        if number > 40:
            line.say(refusal("UnknownTask", "Task does not exist."), 404)
        else:
            line.say(task(number, array_index=number - 10 if 10 <= number < 23 else None))

    with fake_server(answers) as server:
        cluster = connect(server.url)
        whole = with_whole_arrays(cluster, {"depends_on": ["10", "5"], "after_any": ["11"], "name": "x"})
    assert whole == {"depends_on": [*map(str, range(10, 23)), "5"], "after_any": ["11"], "name": "x"}
