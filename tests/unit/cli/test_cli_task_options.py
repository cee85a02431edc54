"""The options of `submit` and `run`: the request they produce, and errors."""

import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.wire.answers import ExplainAnswer
from gpuyard.system.machine import machine
from tests.unit.cli.plain_environment import without_usual_variables
from tests.unit.live.sdk.fake_server import fake_server, task


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUYARD_WAIT_FOR_SCHEDULER", "0")
    for name in ("GPUYARD_SERVER", "GPUYARD_TOKEN", "GPUYARD_CA", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    without_usual_variables(monkeypatch)


def submitted(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """The request that `gpuyard submit` with these arguments sends, without the umask and limits of this process."""
    body = whole_request(monkeypatch, *words)
    body.pop("submit_process", None)
    return body


def whole_request(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    with fake_server(lambda line: line.say(task(), 201)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", server.url, *words])
        assert cli.main() == 0
    asked = server.asked[0]
    body: dict[str, Any] = asked.body
    return body


def test_words_after_the_dashes_are_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert submitted(monkeypatch, "--", "python", "a b.py", "-g", "3")["command"] == ["python", "a b.py", "-g", "3"]


def test_dashes_can_be_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = submitted(monkeypatch, "-g", "2", "python", "train.py", "--gpus", "7")

    assert (asked["command"], asked["gpu_count"]) == (["python", "train.py", "--gpus", "7"], 2)


@pytest.mark.parametrize("words", [("--shell", "make | tee log"), ("make | tee log",), ("--", "make | tee log")])
def test_the_command_may_be_a_shell_line(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    assert submitted(monkeypatch, *words)["command"] == "make | tee log"


def test_declared_work_is_given_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "model=resnet50,batch=64,precision=amp,compiled=true,flops=4.1e9"
    assert submitted(monkeypatch, "--work", said, "--", "true")["work"] == {
        "model": "resnet50", "batch": 64, "precision": "amp", "compiled": True, "flops": 4.1e9,
    }  # fmt: skip


def test_every_option_reaches_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "from me")
    monkeypatch.setenv("API_KEY", "hush")
    words = (
        "-g 2 -m H100 -m A100 -p high --class online -n train --cpus 8 --mem 1024 --gpu-mem 40000 --nodes 2 -t vision "
        "--project p --timeout 2h --grace 2m --retries 3 --after 4 --after task-5 --after-any 6 -e A=1=2 -e MINE --secret API_KEY "
        "-C /data --preemption suspend --on-lost fence --estimate 1h30m --label zone=a --link nvlink --model llama "
        "--require-fit --description why --gpu-speed H100=2 --gpu-speed A100=0.9"
    )

    assert submitted(monkeypatch, *words.split(), "--", "true") == {
        "command": ["true"],
        "gpu_count": 2,
        "gpu_model": ["H100", "A100"],
        "gpu_speeds": {"H100": 2.0, "A100": 0.9},
        "priority": "high",
        "class": "online",
        "name": "train",
        "description": "why",
        "cpu_count": 8,
        "memory_mb": 1024,
        "gpu_memory_mb": 40000,
        "nodes": 2,
        "tenant_id": "vision",
        "project": "p",
        "timeout": 7200.0,
        "grace": 120.0,
        "retries": 3,
        "depends_on": ["4", "task-5"],
        "after_any": ["6"],
        "env": {"A": "1=2", "MINE": "from me"},
        "secrets": {"API_KEY": "hush"},
        "work_dir": "/data",
        "preemption": "suspend",
        "on_lost": "fence",
        "estimated_seconds": 5400.0,
        "labels": {"zone": "a"},
        "link": "nvlink",
        "model": "llama",
        "require_fit": True,
    }


def test_units_and_gpus_have_one_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = submitted(
        monkeypatch,
        "-g",
        "A100:2",
        "--gpu-memory",
        "24G",
        "--mem",
        "8GB",
        "--timeout",
        "2:00:00",
        "--after",
        "34,task-35",
        "true",
    )
    assert (asked["gpu_count"], asked["gpu_model"], asked["gpu_memory_mb"]) == (2, ["A100"], 22856)
    assert (asked["memory_mb"], asked["timeout"], asked["depends_on"]) == (8192, 7200.0, ["34", "task-35"])
    asked = submitted(monkeypatch, "--any-of", "H100, A100", "--fraction", "0.5", "--gpu-mem", "8G", "true")
    assert (asked["gpu_model"], asked["gpu_memory_mb"], "gpu_count" in asked) == (["H100", "A100"], 8192, False)


def test_a_small_plain_number_as_memory_is_pointed_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted(monkeypatch, "--gpu-memory", "24", "true")["gpu_memory_mb"] == 24
    assert "--gpu-memory 24 is 24 MiB; write 24G for GiB." in capsys.readouterr().err


def test_a_task_runs_in_the_folder_it_is_submitted_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert submitted(monkeypatch, "-p", "30", "--fraction", "0.5", "true") == {
        "command": ["true"],
        "priority": 30,
        "gpu_fraction": 0.5,
        "work_dir": str(tmp_path),
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give either a command or --shell"),
        (("--shell", "make", "make"), "give either a command or --shell"),
        (("--timeout", "soon", "true"), "a duration above zero"),
        (("--estimate", "0", "true"), "a duration above zero"),
        (("-e", "=1", "true"), "NAME=VALUE"),
        (("-e", "NOT_THERE", "true"), "a variable of your environment"),
        (("--label", "zone", "true"), "NAME=VALUE"),
        (("--gpu-speed", "H100", "true"), "NAME=VALUE"),
        (("--gpu-speed", "H100=fast", "true"), "not a number"),
        (("--gpu-speed", "H100=nan", "true"), "not a number"),
        (("--gpu-speed", "H100=inf", "true"), "not a number"),
        (("--secret", "KEY=value", "true"), "give only the name"),
        (("--secret", "NOT_THERE", "true"), "no terminal to prompt on"),
        (("-g", "two", "true"), "-g"),
        (("--color", "true"), "--color"),
        (("--timeout", "2:00", "true"), "write 2h0m or 2m0s"),
        (("--timeout", "2", "hours", "--", "true"), "belong to a duration"),
        (("--mem", "8X", "true"), "a size"),
        (("--after-any", "7,", "true"), "name a task, such as 7, task-7 or train"),
        (("--array", "8%0", "true"), "20%4 to run at most 4 at the same time"),
        (("--max-running", "2", "true"), "it needs --array or --sweep"),
        (("--max-running", "2", "--array", "8%4", "true"), "give the limit only once"),
        (("-g", "H100,A100", "true"), "--any-of"),
        (("-g", "A100:1", "-m", "A100", "true"), "use one of the two"),
        (("--any-of", ",", "true"), "names no model"),
        (("-t", "30", "--", "true"), "-t is the tenant, and '30' reads as a time; a time limit is --timeout 30m"),
        (("-t30m", "true"), "-t is the tenant"),
        (("-yt", "2:00:00", "true"), "-t is the tenant"),
        (("-t", "2:00", "true"), "-t is the tenant"),
        (("-t", "1-00:00", "true"), "a tenant of this name is --tenant 1-00:00"),
        (
            ("-p", "a100", "true"),
            "'a100' is not high, low or a number from 0 to 100; there are no partitions: -g A100:2",
        ),
        (("-n", "4", "true"), "-n is the name, and 4 would mean task-4; CPUs are --cpus 4, nodes --nodes 4"),
    ],
)
def test_wrong_use_is_one_sentence_and_nothing_is_sent(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", "http://127.0.0.1:1", *words])

    assert cli.main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_tenant_may_be_called_as_a_time_if_the_option_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert submitted(monkeypatch, "--tenant", "30", "true")["tenant_id"] == "30"
    assert submitted(monkeypatch, "--tenant=30", "true")["tenant_id"] == "30"
    assert submitted(monkeypatch, "-t", "team-30", "true")["tenant_id"] == "team-30"


def test_a_lease_takes_no_time_for_a_tenant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "lease", "--server", "http://127.0.0.1:1", "-t", "30m"])
    assert cli.main() == 2
    assert "a time limit is --timeout 30m" in capsys.readouterr().err


def test_an_array_cannot_be_run_in_the_foreground(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "run", "--array", "3", "true"])

    assert cli.main() == 2
    assert "gpuyard submit" in capsys.readouterr().err


@pytest.mark.parametrize("group", ["nodes", "tenants", "users", "tokens", "lease"])
def test_an_option_before_a_subcommand_applies_to_it(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = {
        "nodes": ("remove", "n"),
        "tenants": ("set", "t", "--reset"),
        "users": ("remove", "u"),
        "tokens": ("revoke", "x"),
        "lease": ("release", "1"),
    }
    monkeypatch.setenv("GPUYARD_SERVER", "http://127.0.0.1:1")
    told: dict[str, object] = {
        "id": "t",
        "task_id": "t",
        "status": "cancelled",
        "message": "It was released.",
        "max_gpus": None,
        "max_gpus_by_model": {},
        "guaranteed_gpus": None,
        "weight": 1,
        "gpu_hours": None,
        "gpu_hours_period": None,
        "used_gpus": 0,
        "pending_tasks": 0,
        "running_tasks": 0,
    }
    with fake_server(lambda line: line.say(told)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", group, "--server", server.url, *verbs[group]])
        assert cli.main() == 0
    assert len(server.asked) == 1


def test_the_active_virtual_environment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/home/anna/proj/env")
    monkeypatch.setenv("PATH", "/home/anna/proj/env/bin:/usr/bin")
    assert submitted(monkeypatch, "--", "python", "train.py")["env"] == {
        "VIRTUAL_ENV": "/home/anna/proj/env", "PATH": "/home/anna/proj/env/bin:/usr/bin",
    }  # fmt: skip
    assert submitted(monkeypatch, "--no-venv", "--", "python", "train.py")["env"] == {"PATH": "/usr/bin"}
    assert submitted(monkeypatch, "-e", "PATH=/bin", "--", "python")["env"] == {"PATH": "/bin"}


def test_the_active_conda_environment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda/envs/torch")
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "torch")
    monkeypatch.setenv("PATH", "/opt/conda/envs/torch/bin:/usr/bin")
    sent = submitted(monkeypatch, "-e", "A=1", "--", "python", "train.py")["env"]
    assert sent == {
        "A": "1", "CONDA_DEFAULT_ENV": "torch", "CONDA_PREFIX": "/opt/conda/envs/torch",
        "PATH": "/opt/conda/envs/torch/bin:/usr/bin",
    }  # fmt: skip


def test_gpuyards_own_environment_travels_only_if_it_is_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:/usr/bin")
    assert submitted(monkeypatch, "--", "python", "train.py")["env"] == {"PATH": "/usr/bin"}
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    request = whole_request(monkeypatch, "--", "python", "train.py")
    assert request["env"] == {"PATH": f"{sys.prefix}/bin:/usr/bin", "VIRTUAL_ENV": sys.prefix}
    assert "python" not in request["submit_process"], "nodes without it can run the task"


def test_the_whole_environment_travels_with_secrets_as_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET", "imagenet")
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    monkeypatch.setenv("DATABASE", "postgres://anna:hush@db/runs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    usual = submitted(monkeypatch, "--", "true")
    assert ("env" in usual, usual["secrets"]) == (False, {"WANDB_API_KEY": "hush"})
    sent = submitted(monkeypatch, "--env-all", "--", "true")
    assert sent["env"]["DATASET"] == "imagenet"
    assert sent["secrets"].items() >= {"WANDB_API_KEY": "hush", "DATABASE": "postgres://anna:hush@db/runs"}.items()
    assert not {"CUDA_VISIBLE_DEVICES", "HOME", "PWD", "SSH_AUTH_SOCK"} & (sent["env"].keys() | sent["secrets"].keys())


def test_variables_named_with_e_are_secrets_if_they_look_like_them(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("-e", "MY_TOKEN=t", "-e", "MODEL=hf_abcdefghijkl", "-e", "TOKENIZERS_PARALLELISM=true", "-e", "PLAIN=hf")
    sent = submitted(monkeypatch, *words, "--", "true")
    assert sent["secrets"] == {"MY_TOKEN": "t", "MODEL": "hf_abcdefghijkl"}
    assert sent["env"] == {"TOKENIZERS_PARALLELISM": "true", "PLAIN": "hf"}


def test_a_clean_environment_has_nothing_of_this_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("HF_TOKEN", "hush")
    request = whole_request(monkeypatch, "--clean-env", "-e", "A=1", "--", "true")
    assert request["env"] == {"A": "1"}
    assert not {"secrets", "submit_process"} & request.keys()
    monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--clean-env", "--env-all", "--", "true"])
    assert cli.main() == 2
    assert "--env-all has no meaning beside it" in capsys.readouterr().err


def test_umask_and_limits_of_this_process_are_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    monkeypatch.setenv("PATH", f"{tmp_path}/env/bin:/usr/bin")
    before = os.umask(0o027)
    try:
        sent = whole_request(monkeypatch, "--", "true")["submit_process"]
    finally:
        os.umask(before)
    assert (sent["umask"], sent["host"], sent["python"]) == (0o027, machine(), f"{tmp_path}/env/bin/python")
    assert sent["limits"]["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert set(sent["limits"]) == {"nofile", "stack", "memlock", "core"}


def test_no_gpu_and_no_cpu_is_wrong_use(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("run", "submit"):
        monkeypatch.setattr(sys, "argv", ["gpuyard", verb, "-g", "0", "--", "true"])
        assert cli.main() == 2
        assert "a task without GPUs needs --cpus N" in capsys.readouterr().err
    assert submitted(monkeypatch, "-g", "0", "--cpus", "1", "--", "true")["gpu_count"] == 0


def test_submit_reports_at_once_that_no_present_node_can_hold_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "The task needs 8 GPUs of one model on a node; the largest suitable node has 4."
    told = ExplainAnswer("task-7", TaskStatus.PENDING, reason, "NodeTooSmall", 0, None, None, None, [])
    with fake_server(lambda line: line.say(told if line.path.endswith("explain") else task(), 200)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", server.url, "-g", "8", "--", "true"])
        assert cli.main() == 0
    out, err = capsys.readouterr()
    assert out == "task-7\n"
    assert reason in err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("gpu=2", "gpu=2 is not a program; set a variable with -e gpu=2; if the option is meant, write --gpus 2"),
        ("DEBUG=1", "DEBUG=1 is not a program; set a variable with -e DEBUG=1;"),
        ("priorty=9", "if the option is meant, write --priority 9"),
    ],
)
def test_an_assignment_before_the_command_names_what_to_write(
    word: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", "http://127.0.0.1:9", "--", word, "true"])
    assert cli.main() == 2
    assert said in capsys.readouterr().err


def test_a_program_whose_path_has_an_equals_sign_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert submitted(monkeypatch, "--", "./lr=1/run", "x=1")["command"] == ["./lr=1/run", "x=1"]


NO_SCRIPT = (
    "is neither in this folder nor a program on your PATH; a file that only the nodes have needs its absolute path"
)


@pytest.mark.parametrize("word", ["nosuch.sh", "./nosuch.sh", "jobs/nosuch.sbatch", "nosuch.slurm", "a.bash", "a.py"])
@pytest.mark.parametrize("verb", ["submit", "run"])
def test_a_script_that_does_not_exist_is_not_submitted(
    verb: str, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpuyard", verb, "--server", "http://127.0.0.1:1", "-g", "1", word, "a b"])
    assert cli.main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{word!r} {NO_SCRIPT}; see 'gpuyard {verb} --help'.\n" in said.err


@pytest.mark.parametrize(
    "words",
    [
        ("here.sh",),
        ("./here.sh",),
        ("onpath.py", "x"),
        ("/on/the/nodes.sh",),
        ("-C", "/on/the", "nodes.sh"),
        ("--setup", "make run.sh", "./run.sh"),
        ("--after", "7", "./written.sh"),
        ("-e", "PATH=/on/the/nodes", "nosuch.sh"),
        ("--clean-env", "nosuch.sh"),
        ("--shell", "nosuch.sh"),
        ("nosuch.sh && true",),
        ("nosuch",),
        ("python", "nosuch.py"),
    ],
)
def test_a_script_that_exists_or_may_exist_on_the_nodes_is_submitted(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    for file in (tmp_path / "here.sh", tmp_path / "bin" / "onpath.py"):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    assert submitted(monkeypatch, *words)["command"]


@pytest.mark.parametrize("words", [("--sweep", "s=a,b", "{s}.sh"), ("--snapshot", "nosuch.sh")])
def test_the_script_of_a_sweep_or_snapshot_is_not_looked_for(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", "http://127.0.0.1:1", *words])
    assert cli.main() == 1
    assert "No scheduler answers" in capsys.readouterr().err


def test_options_behind_a_task_file_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tasks.yaml"
    file.write_text("command: 'true'")
    monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", str(file), "--dry-run"])
    assert cli.main() == 2
    assert "a task file has no arguments ('--dry-run'); options go before it" in capsys.readouterr().err
