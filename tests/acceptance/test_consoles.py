"""Terminals of tasks, with real processes and real terminals: keys, sizes, ends, and everything that can be killed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuyard.live.sdk import Client, ClusterError, Task
from tests.acceptance.cli_cluster import GPUYARD
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.terminals import BASH, PROMPT, Person, at_terminal, environment, person
from tests.acceptance.waiting import until

pytestmark = pytest.mark.slow
RUN = ("run", "-g", "1", "--pty")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("consoles")) as made:
        yield made


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose processes a test may kill."""
    with running_cluster(tmp_path) as made:
        yield made


def the_task(client: Client) -> Task:
    """The one task that runs."""

    def running() -> Task | None:
        with suppress(ClusterError):
            return next(iter(client.tasks(status="running")), None)
        return None

    return until(running, what="a task runs")


def output_of(client: Client, task: Task) -> str:
    return b"".join(client.logs(task)).decode(errors="replace")


def call(cluster: Cluster, *words: str, given: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [GPUYARD, *words], env=environment(cluster), cwd=cluster.folder, input=given, timeout=120, check=False,
        capture_output=True, stdin=subprocess.DEVNULL if given is None else None,
    )  # fmt: skip


# --- what a terminal is -------------------------------------------------------------------------------------------------


def test_a_task_has_a_terminal_of_the_same_size_and_kind_on_its_gpus(cluster: Cluster) -> None:
    with person(cluster, *RUN, *BASH, size=(33, 101)) as one:
        one.sees(PROMPT)
        one.types(
            "stty size; echo gpu=$CUDA_VISIBLE_DEVICES term=$TERM lang=$LANG; [ -t 0 -a -t 1 -a -t 2 ] && tty; pwd"
        )
        one.sees("33 101")
        one.sees_like(r"gpu=\d term=xterm-256color lang=C.UTF-8")
        one.sees("/dev/pts/")
        one.sees(str(cluster.folder))
        one.types("exit 7")
        assert one.ends() == 7


def test_the_size_is_right_at_once_and_follows_the_window(cluster: Cluster) -> None:
    program = "import os,signal,time;show=lambda *_:print('size',*os.get_terminal_size(),flush=True);signal.signal(signal.SIGWINCH,show);show();[time.sleep(9) for _ in range(9)]"
    with person(cluster, *RUN, "--", "python3", "-c", program, size=(30, 91)) as one:
        one.sees("size 91 30")
        one.child.setwinsize(41, 122)
        one.sees("size 122 41")
        one.presses("c")
        one.ends()


def test_control_keys_reach_the_job_in_the_foreground(cluster: Cluster) -> None:
    with person(cluster, *RUN, *BASH) as one:
        one.sees(PROMPT)
        one.types("cat")
        one.types("echoed")
        one.sees("echoed\r\nechoed")
        one.presses("z")
        one.sees("Stopped")
        one.sees(PROMPT)
        one.types("fg")
        one.sees("cat\r\n")
        one.types("again")
        one.sees("again\r\nagain")
        one.presses("c")
        one.sees(PROMPT)
        one.types("echo status=$?")
        one.sees("status=130")
        one.presses("d")
        assert one.ends() == 0


def test_much_output_ends_soon_after_ctrl_c_and_is_in_the_log(cluster: Cluster) -> None:
    with person(cluster, *RUN, *BASH) as one:
        one.sees(PROMPT)
        one.types("yes 0123456789012345678901234567890123456789")
        one.sees("0123456789" * 3)
        one.presses("c")
        after = one.sees(PROMPT, seconds=30)
        assert len(after) < 6_000_000
        one.types("head -c 3000000 /dev/zero | tr '\\0' x | fold; echo whole=$((1+1))")
        shown = one.sees("whole=2\r\n")
        assert shown.count("x") >= 3_000_000
        task = the_task(cluster.client())
        one.types("exit")
        assert one.ends() == 0
    assert "whole=2" in output_of(cluster.client(), task)


def test_a_signal_that_ends_the_command_is_in_the_exit_code(cluster: Cluster) -> None:
    with person(cluster, *RUN, "--", "sh", "-c", "kill -USR1 $$") as one:
        assert one.ends() == 128 + signal.SIGUSR1


def test_a_short_command_prints_everything(cluster: Cluster) -> None:
    for _ in range(3):
        with person(cluster, *RUN, "--", "sh", "-c", "echo first; exit 3") as one:
            assert one.ends() == 3
            assert "first" in one.rest


def test_much_output_at_once_is_shown_from_its_first_byte(cluster: Cluster) -> None:
    program = "import sys; sys.stdout.write('first-byte' + 'x' * 4_000_000 + 'last-byte')"
    with person(cluster, *RUN, "--", "python3", "-c", program) as one:
        one.sees("first-byte")
        assert len(one.sees("last-byte")) == 4_000_000
        assert one.ends() == 0


def test_a_program_that_does_not_exist_is_named(cluster: Cluster) -> None:
    with person(cluster, *RUN, "--", "no-such-program") as one:
        assert one.ends() == 1
        assert "no-such-program" in one.rest


def test_a_dumb_terminal_gets_no_escape_sequences_of_ours(cluster: Cluster) -> None:
    with person(cluster, *RUN, "--", "sh", "-c", "echo term=$TERM; sleep 0.1", TERM="dumb") as one:
        assert one.ends() == 0
        assert "term=dumb" in one.rest
        assert "\x1b" not in one.rest.replace("\x1b[K", "")


def test_pty_without_a_terminal_says_what_to_do(cluster: Cluster) -> None:
    done = call(cluster, *RUN, "--", "true", given=b"")
    assert done.returncode == 2
    assert b"leave out --pty" in done.stderr


# --- the terminal of the user -------------------------------------------------------------------------------------------


def _modes(shell: Person) -> str:
    shell.types("echo mode=$(stty -g)=")
    return shell.sees_like(r"mode=([0-9a-f:]+)=").group(1)


@pytest.mark.parametrize("how", ["exit", "leave", "TERM", "scheduler"])
def test_the_terminal_is_sane_afterwards(own_cluster: Cluster, how: str) -> None:
    with at_terminal(
        "bash", "--norc", "--noediting", env=environment(own_cluster, PS1="local> "), folder=own_cluster.folder
    ) as shell:
        shell.sees("local> ")
        before = _modes(shell)
        shell.types(f"{GPUYARD} run -g 1 --pty -e 'PS1={PROMPT}' -- bash --norc --noediting & fg")
        shell.sees("ready> '")
        shell.sees(PROMPT)
        shell.types(r"printf '\033[?1049h\033[?2004hfull''screen\n'")
        shell.sees("fullscreen")
        if how == "exit":
            shell.types("exit")
        elif how == "leave":
            shell.presses("]", 3)
        elif how == "TERM":
            pids = subprocess.run(
                ["pgrep", "-f", f"{GPUYARD} run -g 1 --pty"], capture_output=True, text=True, check=True
            )
            own = [int(pid) for pid in pids.stdout.split() if f"{own_cluster.http}" in _variables(int(pid))]
            os.kill(own[0], signal.SIGTERM)
        else:
            own_cluster.kill_server()
            shell.sees("no connection")
            shell.presses("]", 3)
        shell.sees("local> ")
        assert "\x1b[?1049l" in shell.rest
        assert "\x1b[?2004l" in shell.rest
        assert _modes(shell) == before


def _variables(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text(errors="replace")


def test_without_escape_the_keys_go_to_the_task(cluster: Cluster) -> None:
    with person(
        cluster, *RUN, "--escape", "none", "--", "sh", "-c", "stty raw -echo; echo ready; head -c 3 | wc -c; sleep 0.2"
    ) as one:
        one.sees("ready")
        one.presses("]", 3)
        one.sees("3")
        assert one.ends() == 0


# --- leaving and coming back --------------------------------------------------------------------------------------------


def test_attaching_to_a_task_that_waits_goes_on_when_it_starts(cluster: Cluster) -> None:
    client = cluster.client()
    holder = client.submit(["sleep", "600"], gpu_count=0, cpu_count=1)
    console = {"terminal": True, "columns": 80, "rows": 24, "linger": 60.0}
    words: dict[str, Any] = {"gpu_count": 0, "cpu_count": 1, "console": console}
    shell = ["bash", "--norc", "--noediting"]
    waits = client.submit(shell, after_any=[holder.id], env={"PS1": PROMPT}, **words)
    with person(cluster, "attach", waits.id) as one:
        one.sees("waits")
        client.cancel(holder)
        one.sees(PROMPT)
        one.types("exit 7")
        assert one.ends() == 7
    never = client.submit(shell, after_any=[client.submit(["sleep", "600"], gpu_count=0, cpu_count=1).id], **words)
    with person(cluster, "attach", never.id) as one:
        one.sees("waits")
        client.cancel(never)
        assert one.ends() == 130
        assert "ended as cancelled" in one.rest
    with suppress(ClusterError):
        client.cancel(never.after_any[0])


def test_a_session_that_was_left_is_attached_to_again(cluster: Cluster) -> None:
    with person(cluster, *RUN, "--keep", *BASH) as one:
        one.sees(PROMPT)
        one.types("kept=41; printf '\\033[6n'")
        assert "\x1b[6n" in one.sees(PROMPT), "it asks where the cursor is"
        one.presses("]", 3)
        assert one.ends() == 0
        task = one.rest.split("gpuyard attach ")[-1].split()[0]
    assert cluster.client().task(task).console is not None
    with person(cluster, "attach", task, size=(40, 99)) as one:
        shown = one.sees(PROMPT)
        one.presses("u")  # the keys that left the session may be in the line
        one.types("echo value=$((kept+1)); stty size")
        shown += one.sees("value=42")
        assert "kept=41" in shown, "the end of the output is shown again"
        assert "\x1b[6n" not in shown, "this terminal would answer the question of then, and bash take it for typed"
        one.sees("40 99")
        one.types("exit 5")
        assert one.ends() == 5


def test_a_killed_client_loses_nothing(cluster: Cluster) -> None:
    with person(cluster, *RUN, *BASH) as one:
        one.sees(PROMPT)
        one.types("kept=7; echo set")
        one.sees("\nset")
        task = the_task(cluster.client())
        os.kill(one.pid, signal.SIGKILL)
    with person(cluster, "attach", task.id) as one:
        one.sees("set")  # a part of the output is shown again
        one.types("echo value=$kept")
        one.sees("value=7")
        one.types("exit")
        assert one.ends() == 0


def test_one_client_types_and_others_watch(cluster: Cluster) -> None:
    with person(cluster, *RUN, *BASH) as one:
        one.sees(PROMPT)
        task = the_task(cluster.client())
        with person(cluster, "attach", task.id) as second:
            assert second.ends() == 1
            assert "--steal" in second.rest
        with person(cluster, "attach", "--read-only", task.id) as viewer:
            viewer.sees(PROMPT)
            one.types("echo seen=both")
            viewer.sees("seen=both\r\n")
            viewer.types("echo forbidden")
            one.types("echo last=line")
            assert "forbidden" not in viewer.sees("last=line\r\n")
            viewer.presses("c")
            assert viewer.ends() == 0
        with person(cluster, "attach", "--steal", task.id) as thief:
            one.sees("taken over")
            one.ends()
            thief.sees(PROMPT)
            thief.types("exit 4")
            assert thief.ends() == 4


def test_a_terminal_without_a_client_is_closed_after_its_linger(cluster: Cluster) -> None:
    with person(cluster, *RUN, "--linger", "1", *BASH) as one:
        one.sees(PROMPT)
        task = the_task(cluster.client())
        assert task.console is not None
        assert task.console.linger == 1
        os.kill(one.pid, signal.SIGKILL)
    ended = cluster.client().wait(task, timeout=30)
    assert (ended.status, ended.signal) == ("failed", signal.SIGHUP)
    assert "no client was attached for 1 s" in output_of(cluster.client(), task)


def test_cancelling_closes_the_terminal(cluster: Cluster) -> None:
    with person(cluster, *RUN, *BASH) as one:
        one.sees(PROMPT)
        cluster.client().cancel(the_task(cluster.client()))
        assert one.ends(30) == 130


# --- kill -9 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["agent", "scheduler", "supervisor"])
def test_the_session_goes_on_when_a_part_is_killed(own_cluster: Cluster, victim: str) -> None:
    with person(own_cluster, *RUN, *BASH) as one:
        one.sees(PROMPT)
        one.types("count=1; echo begun")
        one.sees("\nbegun")
        task = the_task(own_cluster.client())
        if victim == "agent":
            own_cluster.kill(own_cluster.agents["node-1"])
        elif victim == "scheduler":
            own_cluster.kill_server()
        else:
            own_cluster.kill(own_cluster.supervisor("node-1"))
        one.types("count=$((count+1)); echo typed-while-it-was-away=$count")
        if victim == "agent":
            own_cluster.start_agent("node-1")
        elif victim == "scheduler":
            own_cluster.start_server()
        one.sees("while-it-was-away=2\r\n")
        one.types("echo count=$count; exit 6")
        one.sees("count=2\r\n")
        assert one.ends() == 6, own_cluster.logs()
    assert output_of(own_cluster.client(), task).count("away=2") == 1


def test_the_keys_that_were_lost_on_the_way_are_sent_once(own_cluster: Cluster) -> None:
    """Numbers typed through four restarts of the agent arrive whole and in order."""
    with person(
        own_cluster, *RUN, "--", "sh", "-c", "stty -echo; echo ready; head -n 400 > typed; echo done; sleep 0.2"
    ) as one:
        one.sees("ready")
        for number in range(400):
            one.types(str(number))
            if number % 100 == 50:
                own_cluster.kill(own_cluster.agents["node-1"])
                own_cluster.start_agent("node-1")
        one.sees("done")
        assert one.ends() == 0
    assert (own_cluster.folder / "typed").read_text().split() == [str(number) for number in range(400)]


# --- standard input -----------------------------------------------------------------------------------------------------


def test_run_passes_a_pipe_and_its_end(cluster: Cluster) -> None:
    done = call(cluster, "run", "-g", "1", "--", "python3", "-", given=b"print(1+1)\n")
    assert (done.returncode, done.stdout) == (0, b"2\n"), done.stderr
    much = os.urandom(3_000_000)
    done = call(cluster, "run", "-g", "1", "--", "sh", "-c", "cat > copy; wc -c < copy", given=much)
    assert (done.returncode, done.stdout.strip()) == (0, b"3000000"), done.stderr
    assert (cluster.folder / "copy").read_bytes() == much


def test_run_passes_a_file_and_nothing_if_there_is_nothing(cluster: Cluster) -> None:
    script = cluster.folder / "script.sh"
    script.write_text("echo from-a-file\n")
    with script.open("rb") as given:
        done = subprocess.run(
            [GPUYARD, "run", "-g", "1", "--", "sh"],
            stdin=given,
            env=environment(cluster),
            capture_output=True,
            timeout=60,
            check=False,
            cwd=cluster.folder,
        )
    assert done.stdout == b"from-a-file\n", done.stderr
    done = call(cluster, "run", "-g", "1", "--", "cat", given=b"")
    assert (done.returncode, done.stdout) == (0, b"")
    newest = next(iter(cluster.client().tasks()))
    assert newest.console is None  # nothing to pass on


def test_a_command_that_does_not_read_ends_by_itself(cluster: Cluster) -> None:
    with subprocess.Popen(
        [GPUYARD, "run", "-g", "1", "--", "echo", "done"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(cluster),
        cwd=cluster.folder,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.read() == b"done\n"  # although its standard input is open
        assert run.wait(30) == 0
