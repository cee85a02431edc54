"""Which variables travel with a task, and how that is described."""

import sys
from pathlib import Path

import pytest

from gpuyard.cli.input.environment import (
    described,
    everything,
    for_job_script,
    looks_secret,
    usual,
    without_environment,
)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("WANDB_API_KEY", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("DB_PASSWORD", "x", True),
        ("SOMETHING", "hf_abcdefghijk", True),
        ("SOMETHING", "ghp_0123456789abcdef", True),
        ("SOMETHING", "AKIAIOSFODNN7EXAMPLE", True),
        ("SOMETHING", "eyJhbGciOiJI.eyJzdWIiOiIx.sig", True),
        ("SOMETHING", "-----BEGIN RSA PRIVATE KEY-----\nMII", True),
        ("https_proxy", "http://anna:hush@proxy:3128", True),
        ("WANDB_RUN", "0123456789abcdef0123456789abcdef01234567", True),
        ("GIT_COMMIT", "0123456789abcdef0123456789abcdef01234567", False),
        ("https_proxy", "http://proxy:3128", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MONKEY", "banana", False),
        ("AUTHOR", "anna", False),
        ("PATH", "/usr/bin:/bin", False),
        ("BASH_FUNC_get_token%%", "() { :; }", False),
    ],
)
def test_secrets_are_recognized_by_name_or_form(name: str, value: str, secret: bool) -> None:
    assert looks_secret(name, value) is secret


def test_the_usual_variables_travel_and_no_others() -> None:
    env = {
        "PATH": "/usr/bin", "HF_HOME": "/models", "LC_TIME": "C", "NCCL_DEBUG": "INFO", "HF_TOKEN": "hush", "EDITOR": "vi",
        "SLURM_JOB_ID": "7", "GPUYARD_SERVER": "x", "HOME": "/home/anna", "CUDA_VISIBLE_DEVICES": "0", "MASTER_PORT": "1",
        "LD_LIBRARY_PATH": "/opt/\udcff",
    }  # fmt: skip
    shell = usual(env, own_prefix=sys.base_prefix)
    assert shell.env == {"PATH": "/usr/bin", "HF_HOME": "/models", "LC_TIME": "C", "NCCL_DEBUG": "INFO"}
    assert shell.secrets == {"HF_TOKEN": "hush"}
    assert everything(env, own_prefix=sys.base_prefix).env == {**shell.env, "EDITOR": "vi"}


def test_an_installation_of_gpuyard_that_is_not_activated_is_left_out_of_the_path(tmp_path: Path) -> None:
    own = str(tmp_path / "gpuyard")
    path = f"{own}/bin:/usr/bin"
    assert usual({"PATH": path}, own).env == {"PATH": "/usr/bin"}
    assert usual({"PATH": path, "VIRTUAL_ENV": own}, own).env == {"PATH": path, "VIRTUAL_ENV": own}
    other = {"PATH": f"/env/bin:{path}", "VIRTUAL_ENV": "/env"}
    assert usual(other, own).env == {"PATH": "/env/bin:/usr/bin", "VIRTUAL_ENV": "/env"}


def test_a_job_script_that_activates_an_environment_does_not_get_the_active_one() -> None:
    env = {"PATH": "/conda/envs/a/bin:/usr/bin", "CONDA_PREFIX": "/conda/envs/a", "CONDA_DEFAULT_ENV": "a", "X": "1"}
    functions = {"BASH_FUNC_module%%": "() { :; }"}
    assert for_job_script({**env, **functions})[0] == {**env, **functions}
    assert for_job_script(env, activates=True)[0] == {"PATH": "/usr/bin", "X": "1"}


def test_an_environment_is_removed_with_its_folder_on_the_path() -> None:
    env = {"PATH": "/env/bin:/usr/bin", "VIRTUAL_ENV": "/env", "CONDA_PREFIX": "/conda", "HF_HOME": "/models"}
    assert without_environment(env) == {"PATH": "/usr/bin", "HF_HOME": "/models"}


def test_what_travels_is_described_in_a_few_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_LANG", "en")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv" / "lib" / "python3.12").mkdir(parents=True)
    env = {"VIRTUAL_ENV": str(tmp_path / ".venv"), "PATH": f"{tmp_path}/.venv/bin:/bin"}
    assert described(env, ["A", "B"]) == ".venv (Python 3.12), 2 variables, 2 secrets"
    assert described({"PATH": "/bin"}, []) == "1 variable"
    conda = {"CONDA_PREFIX": "/opt/conda/envs/torch", "CONDA_DEFAULT_ENV": "torch", "PATH": "/opt/conda/envs/torch/bin"}
    assert described(conda, ["A"]) == "torch, 3 variables, 1 secret"
