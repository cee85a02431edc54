"""`python -m gpuyard.live.agent.supervisor --folder DIR`: starts the supervisor of a folder and returns when it
listens.

If one listens already, it does nothing. `--resume` takes over from the previous code, in the same process; `--check`
does the same with a copy of the state and in a temporary folder, to test whether this code can take over.
"""

import gc
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import msgspec

from gpuyard.live.agent.supervisor import exit_recorder as keeper_process
from gpuyard.live.agent.supervisor import messages, paths, proc
from gpuyard.live.agent.supervisor.attempts import AttemptManager
from gpuyard.live.agent.supervisor.exit_records import start_keeper
from gpuyard.live.agent.supervisor.server import Handover, SupervisorServer, say_what_broke
from gpuyard.system.locks import take_lock

BACKLOG = 64


def main(arguments: list[str]) -> int:
    """Run one of the three modes. The arguments come from gpuyard itself, so no argument parser is loaded."""
    match arguments:
        case ["--check", descriptor]:
            return check(int(descriptor))
        case ["--folder", folder]:
            return begin(Path(folder))
        case ["--folder", folder, "--resume", descriptor]:
            return resume(Path(folder), int(descriptor))
    print("Usage: python -m gpuyard.live.agent.supervisor --folder DIR", file=sys.stderr)
    return 2


def begin(folder: Path) -> int:
    """Take the lock, detach from the caller and serve. Return 0 in the caller once the supervisor listens."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = take_lock(folder / paths.LOCK)
        paths.claim(folder)
    except BlockingIOError:
        return 0
    except OSError as error:
        print(f"The supervisor cannot use the folder {folder}: {error}.", file=sys.stderr)
        return 1
    ready, tell = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(tell)
        if os.read(ready, 1):
            return 0
        print(f"The supervisor did not start; see {folder / paths.OUT} for the reason.", file=sys.stderr)
        return os.EX_TEMPFAIL
    os.close(ready)
    os.setsid()
    _redirect_output(folder)
    try:
        _stand_on_our_own()
        keeper = os.getpid()
        if supervisor := os.fork():
            start_keeper(folder, supervisor)
        os.setsid()
        _prepare()
        manager = AttemptManager(folder)
        manager.begin()
        server = SupervisorServer(folder, lock, _listen(folder), manager, keeper)
        os.write(tell, b"1")
        os.close(tell)
        _serve(server)
    except BaseException:
        say_what_broke()
        raise
    return 0


def resume(folder: Path, descriptor: int) -> int:
    """Continue with the state that the previous code handed over."""
    try:
        with os.fdopen(descriptor, "rb") as memory:
            state = msgspec.msgpack.decode(memory.read(), type=Handover)
        for inherited in (state.lock, state.listener, *(channel for _, channel in state.starting)):
            os.set_inheritable(inherited, False)
        _prepare()
        manager = AttemptManager(folder)
        manager.continue_from(
            state.attempts, state.waiting, state.watcher_pid, state.queued, state.starting, state.helpers
        )
        _serve(
            SupervisorServer(folder, state.lock, socket.socket(fileno=state.listener), manager, _keeper(state.keeper))
        )
    except BaseException:
        say_what_broke()
        raise
    return 0


def check(descriptor: int) -> int:
    """Take over a copy of the state. No process is signaled or waited for, and only a temporary folder is written."""
    with os.fdopen(descriptor, "rb") as memory:
        state = msgspec.msgpack.decode(memory.read(), type=Handover)
    with tempfile.TemporaryDirectory(prefix="gpuyard-check-") as folder:
        manager = AttemptManager(Path(folder))
        manager.take_up(state.attempts, state.waiting, state.queued)
        messages.frame([manager.attempt_list()])
        manager.end_turn()
        manager.close()
    return 0


def _stand_on_our_own() -> None:
    """Reset signals, umask and folder of the caller, which tasks would inherit. Supervisor and keeper share this."""
    os.chdir("/")
    os.umask(0o022)  # for the tasks; the supervisor's own files have explicit modes
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN and number not in {signal.SIGPIPE, signal.SIGXFSZ}:
            signal.signal(number, signal.SIG_DFL)
    proc.become_subreaper()
    proc.lower_oom_score()


def _keeper(handed_over: int) -> int:
    """Return the parent's pid if it is the keeper, by the pid handed over or by its name; 0 if there is none."""
    parent = os.getppid()
    if handed_over == parent:
        return parent
    try:
        name = Path(f"/proc/{parent}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return 0
    return parent if name == keeper_process.NAME else 0


def _prepare() -> None:
    _stand_on_our_own()
    proc.set_process_name("gpuyard-superv")


def _redirect_output(folder: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(folder / paths.OUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    for descriptor in {null, out} - {0, 1, 2}:
        os.close(descriptor)


def _listen(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (folder / paths.SOCKET).unlink(missing_ok=True)
    before = os.umask(0o177)
    with paths.socket_address(folder) as address:
        listener.bind(address)
    os.umask(before)
    listener.listen(BACKLOG)
    return listener


def _serve(server: SupervisorServer) -> None:
    gc.collect()
    gc.freeze()
    server.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
