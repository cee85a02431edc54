"""Make the stills of sessions for the manual: `python -m tools.session_stills [--out docs/manual]`.

A real cluster with four virtual GPUs runs on this machine, and the real program in a real terminal, once in English and once in
Chinese. Each session is a list of lines that are typed; the still is what the terminal showed.
"""

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket

import pexpect

from gpuyard.live.sdk import Client, connect
from gpuyard.live.sdk.errors import Unreachable
from tools.stills import Run, prompt, runs_of, svg_of

PROMPT, INNER_PROMPT = "=> ", "gpu> "
COLUMNS = 100
PATIENCE_SECONDS = 60
DETACH = "\x1d" * 3
_MOVES = re.compile(r"\x1b(?:\[[0-9;?<>=]*[A-Za-ln-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")
LANGUAGES = {"": "en", ".zh-CN": "zh"}

_TERMINAL = "gpuyard run -g 1 --pty --name notebook -- bash"
_TYPED = {_TERMINAL: f"gpuyard run -g 1 --pty --name notebook -- env PS1='{INNER_PROMPT}' bash --norc --noprofile"}
"""What is really typed: the shell of the still has no settings of its own."""

SESSIONS: Mapping[str, tuple[str, ...]] = {
    "sweep": (
        "gpuyard submit -g 1 --estimate 20m --sweep lr=1e-2,1e-3 --sweep seed=0..7 -- sh -c 'sleep 1200 # {lr} {seed}'",
        "gpuyard ps",
    ),
    "explain": (
        "gpuyard submit -g 3 --estimate 2h --name train -- sleep 7200",
        "gpuyard submit -g 4 --estimate 1h --name finetune -- sleep 3600",
        "gpuyard explain finetune",
    ),
    "terminal": (
        _TERMINAL,
        "x=42; echo $CUDA_VISIBLE_DEVICES",
        DETACH,
        "gpuyard attach notebook",
        "echo $x",
        "exit",
    ),
    "run": ("gpuyard run -g 1 -- sh -c 'echo training on GPU $CUDA_VISIBLE_DEVICES; exit 3'; echo $?",),
}
"""What is typed; a line after `run --pty` or `attach` is typed into the terminal of the task."""


class Session:
    """A shell in a terminal. `lines` has what was shown."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self.lines: list[list[Run]] = []
        shell = {**env, "PS1": PROMPT, "TERM": "xterm-256color", "BASH_SILENCE_DEPRECATION_WARNING": "1"}
        self._child = pexpect.spawn(
            "bash", ["--norc", "--noprofile"], env=shell, cwd=str(folder), dimensions=(40, COLUMNS), encoding="utf-8",
            timeout=PATIENCE_SECONDS, echo=False,
        )  # fmt: skip
        self._child.expect_exact(PROMPT)
        self._child.sendline("bind 'set enable-bracketed-paste off' 2> /dev/null")
        self._child.expect_exact(PROMPT)
        self._inside = False

    def types(self, line: str) -> None:
        """Type a line, and wait for the next prompt."""
        attaches, was_inside = " attach " in line, self._inside
        if line == DETACH:
            self._child.send(line)
        else:
            shown = prompt(line)
            self.lines.append([Run(INNER_PROMPT, "cyan"), *shown[1:]] if was_inside else shown)
            self._child.sendline(_TYPED.get(line, line))
        self._inside = "--pty" in line or attaches or (was_inside and line not in {DETACH, "exit"})
        if attaches:  # what was shown before is shown again, then the shell answers the new line with a new prompt
            self._child.send("\r")
            self._child.expect(f"(?={INNER_PROMPT}(?:\\x1b\\[\\?2004[hl]|[\\r\\n])+{INNER_PROMPT})")
            before = str(self._child.before)
            self._child.expect(f"{INNER_PROMPT}(?:\\x1b\\[\\?2004[hl]|[\\r\\n])+{INNER_PROMPT}")
        else:
            self._child.expect_exact(INNER_PROMPT if self._inside else PROMPT)
            before = str(self._child.before)
        text = _MOVES.sub("", before).replace("\r\n", "\n").replace("\r", "\n")
        told = [one for one in text.split("\n") if one.strip() and _typed(one) not in {line, _TYPED.get(line)}]
        self.lines += [runs_of(one) for one in told]

    def close(self) -> None:
        """End the shell."""
        self._child.close(force=True)


def _typed(text: str) -> str:
    return text.removeprefix(INNER_PROMPT).removeprefix(PROMPT).strip()


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Run scheduler and agent, and yield the environment of their clients."""
    ports = free_ports(2)
    env = {
        "HOME": str(folder),
        "PATH": os.pathsep.join((sysconfig.get_path("scripts"), "/usr/bin", "/bin")),
        "GPUYARD_SERVER": f"http://127.0.0.1:{ports[0]}",
    }
    gpuyard = [sys.executable, "-m", "gpuyard.cli"]
    data = ["--data-dir", str(folder / "data")]
    words = ["--http-address", f"127.0.0.1:{ports[0]}", "--grpc-address", f"127.0.0.1:{ports[1]}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603
            [*gpuyard, "up", *data, *words, "--virtual-gpus", "4:RTX4090:24"], env=env, stdout=log, stderr=log
        )
        try:
            client = connect(env["GPUYARD_SERVER"])
            while not _idle_gpus(client):
                if process.poll() is not None:
                    raise SystemExit(f"The cluster did not start:\n{(folder / 'log').read_text()}")
            yield env
        finally:
            subprocess.run([*gpuyard, "down", "--stop-tasks", *data], env=env, capture_output=True, check=False)  # noqa: S603
            process.wait(PATIENCE_SECONDS)


def free_ports(count: int) -> list[int]:
    """Return ports that no process listens at."""
    with ExitStack() as held:
        listeners = [held.enter_context(socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def _idle_gpus(client: Client) -> int:
    try:
        return client.gpus().idle
    except Unreachable:
        return 0


def shown_by(session: str, env: Mapping[str, str], folder: Path) -> str:
    """Return the still of a session, whose tasks are cancelled then."""
    shell = Session(env, folder)
    try:
        for line in SESSIONS[session]:
            shell.types(line)
    finally:
        shell.close()
    client = connect(env["GPUYARD_SERVER"])
    for task in client.tasks(status="pending,running"):  # the newest first
        client.cancel(task)
        client.wait(task, timeout=PATIENCE_SECONDS)
    return svg_of(shell.lines, COLUMNS)


def stills(languages: Mapping[str, str] = LANGUAGES) -> dict[str, str]:
    """Return all stills by the name of their file."""
    made = {}
    for suffix, language in languages.items():
        with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as env:
            spoken = {**env, "GPUYARD_LANG": language, "LC_ALL": "C.UTF-8"}
            for session in SESSIONS:
                made[f"session_{session}{suffix}.svg"] = shown_by(session, spoken, Path(name))
    same = [name for name in made if name.endswith(".zh-CN.svg") and made[name] == made.get(name.replace(".zh-CN", ""))]
    return {name: picture for name, picture in made.items() if name not in same}


def main() -> None:
    """Make all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/manual"))
    asked = parser.parse_args()
    for name, picture in stills().items():
        (asked.out / name).write_text(picture, encoding="utf-8")
        print(f"{asked.out / name}: {len(picture.encode()) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
