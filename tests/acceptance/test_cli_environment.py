"""What travels from the shell that submits a task: environment, umask, limits, secrets; real processes."""

import json
import os
import pty
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.live.sdk import Refused
from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def activated(cluster: CliCluster) -> dict[str, str]:
    """The shell after a virtual environment with one library was activated."""
    folder = cluster.folder / "myenv"
    base = Path(sys.base_prefix) / "bin" / "python3"
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "fakelib.py").write_text("answer = 42\n")
    return {"VIRTUAL_ENV": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}"}


def test_the_active_environment_is_the_one_of_the_task(cluster: CliCluster, activated: dict[str, str]) -> None:
    words = ("--", "python", "-c", "import fakelib, os; print(fakelib.answer, os.environ['HF_HOME'])")
    done = cluster.call("run", "-q", *words, env={**activated, "HF_HOME": "/models"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "42 /models\n", "")


def test_a_missing_module_is_explained_if_the_environment_did_not_travel(
    cluster: CliCluster, activated: dict[str, str]
) -> None:
    done = cluster.call("run", "-q", "--no-venv", "--", "python3", "-c", "import fakelib", env=activated)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("gpuyard: The module fakelib was not found, and your active environ")
    done = cluster.call("run", "-q", "--", "python3", "-c", "import nonesuch", env=activated)
    assert (done.returncode, "gpuyard:" in done.stderr) == (1, False)


def test_umask_and_limits_travel_and_a_clean_environment_has_none(cluster: CliCluster) -> None:
    def set_both() -> None:
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (333, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def printed(*options: str) -> list[str]:
        done = subprocess.run(
            [GPUYARD, "run", "-q", *options, "--shell", "umask; ulimit -Sn; echo ${HF_HOME:-none}"],
            env={**cluster.env, "HF_HOME": "/models"}, preexec_fn=set_both, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.split()

    assert printed() == ["0027", "333", "/models"]
    mask, files, home = printed("--clean-env")
    assert (mask == "0027", files == "333", home) == (False, False, "none")


def test_secrets_travel_and_are_shown_by_name_only(cluster: CliCluster) -> None:
    shell = {"HF_TOKEN": "hf_abcdefgh", "OTHER": "not sent"}
    line = "echo $HF_TOKEN $MY_API_KEY ${OTHER:-none}"
    done = cluster.call("submit", "-e", "MY_API_KEY=hush", "--shell", line, env=shell)
    task = done.stdout.strip()
    assert cluster.does("logs", "-f", task) == "hf_abcdefgh hush none\n"
    shown = cluster.does("show", "--env", task).splitlines()
    assert {"HF_TOKEN=(secret)", "MY_API_KEY=(secret)"} <= set(shown)
    assert any(line.startswith("umask ") for line in shown)
    assert any(line.startswith("limit nofile ") for line in shown)
    everything = cluster.does("show", "--json", task)
    assert "hf_abcdefgh" not in everything
    assert "hush" not in everything
    done = cluster.call("run", "-q", "--env-all", "--shell", "echo $OTHER", env=shell)
    assert done.stdout == "not sent\n"


def test_an_environment_that_the_node_does_not_have_is_named(cluster: CliCluster) -> None:
    task = cluster.client().submit(["true"], submit_process={"python": "/nowhere/env/bin/python"})
    ended = cluster.client().wait(task)
    assert ended.status == "failed"
    assert "/nowhere/env/bin/python, does not exist on this node" in (ended.reason or "")
    assert "--clean-env" in (ended.reason or "")


def test_elsewhere_only_the_environment_and_the_home_folder_stay_on_the_path(cluster: CliCluster) -> None:
    home = Path.home()
    asked = f"/opt/env/bin:/opt/other:{home}/bin:/usr/games"
    env = {"PATH": asked, "VIRTUAL_ENV": "/opt/env"}
    client = cluster.client()
    for host, begins in (("another:0123456789ab", f"/opt/env/bin:{home}/bin:"), ("", asked)):
        task = client.submit(["/bin/sh", "-c", "echo $PATH"], env=env, submit_process={"host": host})
        assert client.wait(task).status == "success"
        printed = b"".join(part for part in client.logs(task)).decode()
        assert printed.startswith(begins)
        assert ("/opt/other" in printed) is (host == "")


def test_submit_tells_a_terminal_what_travels(cluster: CliCluster, activated: dict[str, str]) -> None:
    screen, theirs = pty.openpty()
    env = {**cluster.env, **activated, "HF_TOKEN": "hf_abcdefgh"}
    done = subprocess.run(
        [GPUYARD, "submit", "true"], env=env, stdout=subprocess.PIPE, stderr=theirs, check=True, cwd=cluster.folder
    )
    os.close(theirs)
    told = os.read(screen, 4096).decode()
    os.close(screen)
    assert done.stdout.startswith(b"task-")
    assert told.startswith("environment: myenv (Python 3.")
    assert told.rstrip().endswith("1 secret")
    sent = json.loads(cluster.does("show", "--json", done.stdout.decode().strip()))
    assert f"{len(sent['env'])} variables" in told


def test_a_task_can_submit_tasks_and_gets_no_token(cluster: CliCluster) -> None:
    program = "import gpuyard; print(gpuyard.connect().submit('true', cpu_count=1, name='inner').id)"
    line = f'echo $GPUYARD_SERVER ${{GPUYARD_TOKEN-none}}; {sys.executable} -c "{program}"; {GPUYARD} whoami --json'
    done = cluster.call("run", "-g", "0", "--cpus", "1", "--shell", line)
    assert done.returncode == 0, done.stderr
    address, inner, me = done.stdout.split("\n", 2)
    assert address == f"{cluster.url} none"
    assert cluster.client().wait(inner).name == "inner"
    assert json.loads(me)["role"] == "admin"
    with pytest.raises(Refused, match="pass the token as a secret with another name"):
        cluster.client().submit("true", secrets={"GPUYARD_TOKEN": "gy_x"})
    with pytest.raises(Refused, match="GPUYARD_SERVER is set by gpuyard for every task"):
        cluster.client().submit("true", env={"GPUYARD_SERVER": "http://evil"})
