"""Completion in real shells: commands, options, values, and names of a running cluster."""

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuyard.cli.shell.scripts import SCRIPTS
from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster
from tests.acceptance.waiting import until
from tools.debian_tools import FOLDER, NoPackages, NotDownloaded, command

PROGRAMS = str(Path(GPUYARD).parent)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.does("submit", "-n", "trainer", "--shell", "sleep 300")
        made.does("submit", "-n", "other", "--shell", "sleep 300")
        (made.folder / "multi_node.sh").write_text("#!/bin/sh\n")
        yield made


def answer(cluster: CliCluster, *words: str, shell: str = "zsh", **more: str) -> list[str]:
    """What the program answers to a shell."""
    env = {**cluster.env, "_GPUYARD_COMPLETE": shell, "LANG": "C.UTF-8", **more}
    done = subprocess.run([GPUYARD, *words], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def words_of(lines: list[str]) -> list[str]:
    return [line.partition("\t")[0] for line in lines]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("canc",), ["cancel"]),
        (("nodes", "dr"), ["drain"]),
        (("submit", "--preem"), ["--preemption"]),
        (("submit", "--preemption", "s"), ["suspend"]),
        (("submit", "--preemption=s"), ["--preemption=suspend"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("help", "nodes", "dr"), ["drain"]),
        (("run", "-C", ""), [":folders"]),
        (("run", "-g", "1", "--", "py"), [":command 4", ":files"]),
        (("run", "-g", "1", "python", "tr"), [":command 3"]),
        (("cancel", "tra"), ["trainer"]),
        (("cancel", "task-"), ["task-2", "task-1"]),
        (("submit", "--after", "task-1,task-2"), ["task-1,task-2"]),
        (("submit", "-m", ""), ["RTX4090"]),
        (("submit", "-t", "d"), ["default"]),
        (("wrongcommand", ""), []),
    ],
)
def test_words_are_completed(cluster: CliCluster, words: tuple[str, ...], expected: list[str]) -> None:
    assert words_of(answer(cluster, *words)) == expected


def test_completions_have_descriptions_and_nodes_their_status(cluster: CliCluster) -> None:
    assert answer(cluster, "cance") == ["cancel\tCancel tasks: waiting ones leave the queue, running ones are stopped"]
    (line,) = answer(cluster, "nodes", "drain", "")
    assert line.endswith("\tonline")
    assert answer(cluster, "show", "trainer") == ["trainer\trunning"]


def test_bash_splits_words_at_equals_signs(cluster: CliCluster) -> None:
    assert answer(cluster, "submit", "--preemption", "=", "s", shell="bash") == ["suspend"]
    assert answer(cluster, "submit", "--preemption", "=", shell="bash") == ["never", "suspend", "checkpoint", "requeue"]


def test_no_scheduler_and_a_wrong_address_complete_nothing_at_once(cluster: CliCluster) -> None:
    began = time.monotonic()
    for server in ("http://127.0.0.1:1", "http://[", "nonsense://"):
        assert answer(cluster, "show", "t", GPUYARD_SERVER=server) == []
    assert answer(cluster, "show", "t", GPUYARD_TOKEN="wrong") == []
    assert time.monotonic() - began < 20


def test_a_silent_server_is_given_up_after_a_third_of_a_second(cluster: CliCluster) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = min(_seconds(cluster, "http://127.0.0.1:1") for _ in range(3))
        waited = min(_seconds(cluster, f"http://127.0.0.1:{silent.getsockname()[1]}") for _ in range(3))
    assert 0.2 < waited - before < 1.5


def _seconds(cluster: CliCluster, server: str) -> float:
    began = time.monotonic()
    assert answer(cluster, "show", "t", GPUYARD_SERVER=server) == []
    return time.monotonic() - began


def test_completion_imports_no_library() -> None:
    code = "import sys; sys.argv=['gpuyard','canc']; import gpuyard.cli as c; c.main(); print(*sys.modules, file=sys.stderr)"
    env = {**os.environ, "_GPUYARD_COMPLETE": "bash", "LANG": "C.UTF-8"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cancel\t")
    assert not {"typer", "msgspec", "typing", "gpuyard.live", "http.client"} & set(done.stderr.split())


def test_the_scripts_are_printed_and_an_unknown_shell_is_refused(cluster: CliCluster) -> None:
    assert {name: cluster.does("completion", name) for name in SCRIPTS} == SCRIPTS
    assert '"shell":"fish"' in cluster.does("completion", "--json", "fish")
    done = cluster.call("completion", "csh")
    assert (done.returncode, "'csh' is not one of bash, zsh, fish" in done.stderr) == (2, True)


def test_bash_completes(cluster: CliCluster) -> None:
    with typing(
        cluster, ["bash", "--norc", "--noprofile", "-i"], "PS1='ready> '; source <(gpuyard completion bash)"
    ) as keys:
        assert keys("gpuyard canc\t") == "gpuyard cancel "
        assert keys("gpuyard show tra\t") == "gpuyard show trainer "
        assert keys("gpuyard submit --preemption=s\t") == "gpuyard submit --preemption=suspend "
        assert keys("gpuyard submit multi_n\t") == "gpuyard submit multi_node.sh "
        assert keys("gpuyard sbatch multi_n\t") == "gpuyard sbatch multi_node.sh "


def test_zsh_completes(cluster: CliCluster) -> None:
    setup = "PS1='ready> '; unsetopt beep zle_bracketed_paste; autoload -U compinit; compinit -u -D; source <(gpuyard completion zsh)"
    with typing(cluster, [*unpacked("zsh"), "-d", "-i"], setup) as keys:
        assert keys("gpuyard canc\t") == "gpuyard cancel "
        assert keys("gpuyard show tra\t") == "gpuyard show trainer "
        assert keys("gpuyard submit --preemption s\t") == "gpuyard submit --preemption suspend "
        assert keys("gpuyard submit multi_n\t") == "gpuyard submit multi_node.sh "
        assert keys("gpuyard sbatch multi_n\t") == "gpuyard sbatch multi_node.sh "


def test_fish_completes(cluster: CliCluster) -> None:
    script = "gpuyard completion fish | source; for each in $lines; echo '>'; complete -C $each; end"
    lines = ["gpuyard canc", "gpuyard show tra", "gpuyard submit --preemption s", "gpuyard submit multi_n", "gpuyard sbatch multi_n"]  # fmt: skip
    words = [*unpacked("fish"), "--no-config", "-c", f"set lines {' '.join(map(repr, lines))}; {script}"]
    done = subprocess.run(words, env=shell_env(cluster), capture_output=True, text=True, check=False, timeout=60, cwd=cluster.folder)  # fmt: skip
    told = [part.strip().split("\t")[0] for part in done.stdout.split(">\n")[1:]]
    assert told == ["cancel", "trainer", "suspend", "multi_node.sh", "multi_node.sh"], done


def unpacked(name: str) -> list[str]:
    """The words that start a shell of this machine, or an unpacked one."""
    try:
        return command(name)
    except (NoPackages, NotDownloaded) as why:
        pytest.skip(str(why))


def shell_env(cluster: CliCluster) -> dict[str, str]:
    env = {**cluster.env, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(cluster.folder), "TERM": "dumb"}
    libraries = next(iter((FOLDER / "usr" / "lib").glob("*-linux-gnu")), None)
    if libraries is not None:
        env |= {"LD_LIBRARY_PATH": str(libraries)}
        if shutil.which("zsh") is None:
            (modules,) = (libraries / "zsh").glob("[0-9]*")
            (cluster.folder / ".zshenv").write_text(f"module_path=({modules})\n")
    return env


@contextmanager
def typing(cluster: CliCluster, words: list[str], setup: str) -> Iterator["Keys"]:
    screen, inside = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *words], env=shell_env(cluster), stdin=inside, stdout=inside, stderr=inside,
        cwd=cluster.folder,
    )  # fmt: skip
    os.close(inside)
    keys = Keys(screen)
    try:
        keys.sends(f"{setup}; echo set''up\r")
        keys.shows("setup\r\n")
        keys.shows("ready> ")
        yield keys
    finally:
        process.kill()
        process.wait(60)
        os.close(screen)


class Keys:
    """Types into a shell, and reads the line as it is shown."""

    def __init__(self, screen: int) -> None:
        self._screen = screen
        os.set_blocking(screen, False)
        self._seen = ""

    def sends(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def shows(self, words: str) -> None:
        until(lambda: words in self._text(), what=f"{words!r} is shown in {self._seen[-500:]!r}")
        self._seen = self._seen.rpartition(words)[2]

    def __call__(self, text: str) -> str:
        """Type a line that ends with TAB, and return what the line is then; it is not executed."""
        self.sends(text)
        self.sends("#end")
        until(lambda: "#end" in self._text(), what="the line is complete")
        line = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x07|\r", "", self._seen)
        while "\b" in line:  # the cursor goes back and writes again
            line = re.sub(".\b", "", line, count=1)
        self.sends("\x15")  # removes the line
        self.sends("\recho ne''xt\r")
        self.shows("next\r\n")
        self.shows("ready> ")
        return line.partition("#end")[0]

    def _text(self) -> str:
        with suppress(BlockingIOError):
            self._seen += os.read(self._screen, 65536).decode(errors="replace")
        return self._seen
