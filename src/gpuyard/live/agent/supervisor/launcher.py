"""The launcher: a separate process for everything that a file system that does not answer can block.

Changing to a work dir, opening an output file, looking for a program and executing it block for as long as a network
file system does not answer. The supervisor has one thread and never does any of this itself. It keeps one *launcher*,
which forks *starters* ahead of time. A starter waits on a socket for its order (one launch), carries it out and becomes
the command. The supervisor knows the pid of a starter before it sends the order, so it can note the pid first, and it
can kill a starter that takes too long: a process with SIGKILL pending executes nothing any more.

    supervisor ── "one more" ──► launcher ── clone(CLONE_PARENT) ──► starter, a child of the supervisor
    supervisor ◄── pid, socket ──┘                                      │
    supervisor ── order ───────────────────────────────────────────────►│ open, setgroups, setgid, setuid, chdir
    supervisor ◄── "g", closed (it runs); or what failed ───────────────┘ execve

The cost of a fork grows with the memory of the process. So the launcher is an interpreter without anything loaded, run
from this file by its path (`python -I -S`), and this file imports only what is compiled into the interpreter, `os` and
`ctypes`.
"""

import _signal  # type: ignore[import-not-found]  # the compiled half of `signal`: without enums
import _socket
import ctypes
import errno
import gc
import marshal
import os
import sys

TYPE_CHECKING = False  # importing `typing` would double our memory
if TYPE_CHECKING:
    from typing import Any

NAME = "gpuyard-launch"
"""The name of launcher and starters in `ps`; a command loses it when it begins."""
LENGTH_BYTES = 4
WORK_DIR, OUTPUT, CHECKPOINT, PYTHON = "work dir", "output", "checkpoint", "python"
COMMAND, TEXT = "command", "text"
"""The step that failed, in the answer of a starter."""

NOW, LATER = b"n", b"l"
"""What the supervisor requests: a starter that has an order waiting, or one that will wait for an order."""
_EXAMPLE = marshal.dumps((("true",), {"PATH": "/dev", **{f"NAME_{number}": "value" * 6 for number in range(16)}}))

ABOUT_TO_BEGIN = b"g"
"""The last byte a starter sends before `execve`. Without it the command never began."""

_LIMITS = {"stack": 3, "core": 4, "nofile": 7, "memlock": 8}
"""The numbers of Linux for resource limits, the same on x86-64 and ARM."""
_PR_SET_NAME = 15
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_PAGE = 4096
"""Size of reads. Small, because each shared page that a starter writes to is copied, which takes microseconds."""
_SCORE = "/proc/self/oom_score_adj"

LaunchOrder = tuple[
    tuple[str, ...],
    dict[str, str],
    str,
    int | None,
    int,
    tuple[int, ...],
    str,
    str,
    str,
    str,
    int | None,
    dict[str, int],
    dict[str, object] | None,
]
"""argv, env, work dir, uid, gid, groups, output, the file cgroup.procs of its control group, checkpoint folder, Python of its
environment, umask, soft limits, console (None, or what `console_holder.py` needs besides)."""
HOLDER = os.path.join(os.path.dirname(__file__), "console_holder.py")  # noqa: PTH118, PTH120 - pathlib would double our memory
_OF_HOLDER = ("GPUYARD_MARK", "GPUYARD_TASK_ID", "GPUYARD_ATTEMPT", "CUDA_VISIBLE_DEVICES")
"""Variables by which supervisor and agent know the holder of a console. It has the rights of the supervisor, so it gets no
others from the user."""
_NOT_SENT: "tuple[Any, ...]" = ("", "", None, {}, None)
"""What the last parts of an order are if they are missing."""
Failure = tuple[str, int, str]
"""The step that failed, the error number and its text."""


def can_clone() -> bool:
    """Return whether the number of the clone system call is known for this machine."""
    return os.uname().machine in _SYS_CLONE


def serve(control: "_socket.socket") -> None:
    """Fork a starter for each byte received, and send back its pid and socket. Return when the supervisor is gone.

    The bytes are `NOW` or `LATER`.
    """
    clone = ctypes.CDLL(None, use_errno=True).syscall
    number = _SYS_CLONE[os.uname().machine]
    while wanted := control.recv(64):
        for byte in wanted:
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
            pid = clone(number, _CLONE_PARENT | _signal.SIGCHLD, 0, 0, 0, 0)
            if pid == 0:
                control.close()
                ours.close()
                start(theirs, rehearsed=byte == LATER[0])
            word = (pid if pid > 0 else -ctypes.get_errno()).to_bytes(8, "big", signed=True)
            ancillary = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, ours.fileno().to_bytes(4, sys.byteorder))
            control.sendmsg([word], [ancillary] if pid > 0 else [])
            ours.close()
            theirs.close()
            if pid < 0:
                return


def start(channel: "_socket.socket", *, rehearsed: bool = False) -> None:
    """Run as a starter: wait for the order and carry it out. Does not return."""
    try:
        os.setsid()
        if rehearsed:
            _rehearse()
        order = _read(channel)
        if order is not None:
            failure = _carry_out(order, channel)
            channel.sendall(marshal.dumps(failure))
    finally:
        os._exit(127)


def _read(channel: "_socket.socket") -> LaunchOrder | None:
    """Read the order; None if the supervisor is gone."""
    content = b""
    while len(content) < LENGTH_BYTES or len(content) < LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "big"):
        more = channel.recv(_PAGE)
        if not more:
            return None
        content += more
    order: LaunchOrder = marshal.loads(content[LENGTH_BYTES:])  # noqa: S302 - from our own supervisor
    return order


def _rehearse() -> None:
    """Carry out a sample order without effect, so that memory shared with the launcher is copied before the real one.

    This takes a while; an order that comes later is carried out in three quarters of the time.
    """
    argv, env, *_ = marshal.loads(_EXAMPLE)  # noqa: S302 - our own
    os.close(_open_output(os.devnull, None, -1))
    try:
        os.execve(find("null", env), argv, env)  # noqa: S606 - there is no such program
    except OSError:
        return


def _carry_out(order: LaunchOrder, channel: "_socket.socket") -> Failure:
    """Become the command. Return only if that fails, with the reason."""
    argv, env, folder, uid, gid, groups, output, group = order[:8]
    later: tuple[Any, ...] = order[8:]  # an older supervisor sends fewer
    checkpoint, python, mask, limits, console = (*later, *_NOT_SENT[len(later) :])
    step = OUTPUT
    try:
        if group:
            _join(group)
        if output:
            out = _open_output(output, uid, gid)
            os.dup2(out, 1)
            os.dup2(out, 2)
        step = CHECKPOINT
        if checkpoint:
            _make_checkpoint_folder(checkpoint, uid, gid)
        if console:  # its command inherits from it
            step = PYTHON
            _take_from_shell(python, mask, limits)
            _become_holder(order, console, channel)
        step = WORK_DIR
        if uid is not None and os.geteuid() == 0:  # a home on NFS may be closed to root, so change the user first
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        os.chdir(folder)
        step = PYTHON
        _take_from_shell(python, mask, limits)
        step = COMMAND
        path = find(argv[0], env)
        channel.sendall(ABOUT_TO_BEGIN)
        os.execve(path, argv, env)  # noqa: S606 - running what users submit is what this is for
    except ValueError as error:
        return TEXT, 0, str(error)[:1000]
    except OSError as error:
        return step, error.errno or 0, (error.strerror or str(error))[:1000]
    raise AssertionError("execve returns only with an error")


def _take_from_shell(python: str, mask: int | None, limits: dict[str, int]) -> None:
    """Take umask and limits of the shell that submitted the task; raise OSError if the Python of its environment is missing."""
    if python and not os.access(python, os.X_OK):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), python)
    if mask is not None:
        os.umask(mask)
    if limits:
        _set_limits(limits)


def _set_limits(limits: dict[str, int]) -> None:
    """Set soft limits, up to the hard ones of this node. The module `resource` would have to be loaded for this."""
    libc = ctypes.CDLL(None)
    for name, wanted in limits.items():
        number = _LIMITS.get(name)
        pair = (ctypes.c_ulong * 2)()
        if number is None or libc.getrlimit(number, pair) != 0:
            continue
        hard = pair[1]
        pair[0] = hard if wanted < 0 else min(wanted, hard)
        libc.setrlimit(number, pair)


def _become_holder(order: LaunchOrder, console: dict[str, object], channel: "_socket.socket") -> None:
    """Become the holder of a console, which starts the command and answers on the channel."""
    argv, env, folder, uid, gid, groups, output, *_ = order
    whole = {
        "argv": argv, "env": env, "cwd": folder, "uid": uid, "gid": gid, "groups": groups, "group": "", "log": output,
        **console,
    }  # fmt: skip
    memory = order_in_memory(whole)
    os.set_inheritable(channel.fileno(), True)
    os.execve(sys.executable, holder_command(memory, channel.fileno()), of_holder(env))  # noqa: S606


def of_holder(env: dict[str, str]) -> dict[str, str]:
    """Return the environment of the holder itself."""
    return {name: env[name] for name in _OF_HOLDER if name in env}


def order_in_memory(order: dict[str, object]) -> int:
    """Write an order for a holder; return the descriptor, which the holder inherits."""
    memory = os.memfd_create("order", 0)
    content = marshal.dumps(order)
    while content:
        content = content[os.write(memory, content) :]
    return memory


def holder_command(memory: int, channel: int) -> list[str]:
    """Return the command line of a holder, with its order and the channel to report to; -1: none."""
    return [sys.executable, "-I", "-S", "-X", "utf8", HOLDER, str(memory), str(channel)]


def _join(group: str) -> None:
    try:
        descriptor = os.open(group, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)
    except OSError:
        return  # the mark and the session still identify its processes


def _open_output(path: str, uid: int | None, gid: int) -> int:
    """Open the output file, owned by the user of the task. Do not follow a symbolic link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib would double our memory
        descriptor = os.open(path, flags, 0o600)
    if uid is not None and os.geteuid() == 0:
        os.fchown(descriptor, uid, gid)
    return descriptor


def _make_checkpoint_folder(path: str, uid: int | None, gid: int) -> None:
    """Make the checkpoint folder of the task unless an earlier attempt has, owned by the user of the task."""
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - pathlib would double our memory
    except FileExistsError:
        pass
    except FileNotFoundError:
        _make_parents(os.path.dirname(path))  # noqa: PTH120
        os.mkdir(path, 0o700)  # noqa: PTH102
    if uid is not None and os.geteuid() == 0:
        os.chown(path, uid, gid, follow_symlinks=False)


def _make_parents(path: str) -> None:
    """Make a folder and the one above it, which other users can pass through; the rest was made by the agent."""
    for folder in (os.path.dirname(path), path):  # noqa: PTH120
        try:
            os.mkdir(folder)  # noqa: PTH102
            os.chmod(folder, 0o711)  # noqa: PTH101, S103 - others can pass through, not list
        except FileExistsError:
            continue


def find(command: str, env: dict[str, str]) -> str:
    """Return the file of a command, searched on the task's own PATH."""
    if "/" in command:
        return command
    found_any = False
    for folder in env.get("PATH", os.defpath).split(":"):
        path = f"{folder or '.'}/{command}"
        if os.access(path, os.F_OK):  # first, because it does not raise: an exception costs more than the rest
            if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113 - pathlib would double our memory
                return path
            found_any |= os.path.isfile(path)  # noqa: PTH113
    number = errno.EACCES if found_any else errno.ENOENT
    raise OSError(number, os.strerror(number), command)


def restore_oom_score() -> None:
    """Reset the supervisor's low OOM score, which tasks must not inherit."""
    try:
        with open(_SCORE, "r+", encoding="ascii") as file:  # noqa: PTH123
            if int(file.read()) < 0:
                file.seek(0)
                file.write("0")
    except OSError:
        return


def be_silent() -> None:
    """Connect standard input and output to /dev/null. Starters inherit this without a step of their own."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    if null > 2:
        os.close(null)


def main(descriptor: int) -> None:
    """Run as the launcher of the supervisor at the other end of this socket."""
    be_silent()
    # Tasks would inherit the dispositions that Python sets.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT):
        _signal.signal(number, _signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME.encode(), 0, 0, 0)
    restore_oom_score()
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in a starter would copy all of its memory
    control = _socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    try:
        serve(control)
    except OSError:
        return  # the supervisor is gone


if __name__ == "__main__":
    # The second argument is the mark of the supervisor's folder, for `ps` and for the next supervisor.
    main(int(sys.argv[1]))
