"""Starts the command of an attempt: its own session, its own user, its output in a file, nothing else of ours.

`subprocess.Popen` is used as it is: where the user does not change it goes by vfork, about as fast as `posix_spawn`
and with a folder to begin in, a mask for new files and an error that says what was wrong (the measures are in
docs/decisions).
"""

import errno
import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.agent.supervisor.messages import Launch

_UMASK = 0o022


class CanNotSpawn(Exception):
    """Carries the sentence for the user."""


def spawn(launch: Launch, env: dict[str, str], null: int) -> int:
    """Start it and answer with its pid; a reason not to is a `CanNotSpawn`."""
    argv: tuple[str, ...] = launch.argv or ("/bin/sh", "-c", launch.shell)
    output = null
    try:
        if launch.output:
            output = _open_output(launch)
        if launch.uid is None:
            return _start(argv, env, null, output, launch.cwd)
        _check_user(launch.uid)
        gid = launch.uid if launch.gid is None else launch.gid
        with _inside(launch.cwd, launch.uid, gid, launch.groups):
            return _start(argv, env, null, output, None, user=launch.uid, group=gid, extra_groups=launch.groups)
    except ValueError as error:
        raise CanNotSpawn(
            f"The command, its environment or its work dir is not text a process can be given: {error}."
        ) from error
    except OSError as error:
        raise CanNotSpawn(_sentence(error, argv[0], launch)) from error
    finally:
        if output != null:
            os.close(output)


def _start(
    argv: tuple[str, ...],
    env: dict[str, str],
    null: int,
    output: int,
    cwd: str | None,
    user: int | None = None,
    group: int | None = None,
    extra_groups: tuple[int, ...] | None = None,
) -> int:
    child = subprocess.Popen(  # noqa: S603 - running what users submit is what this is for
        argv, env=env, cwd=cwd, stdin=null, stdout=output, stderr=output, start_new_session=True, umask=_UMASK,
        user=user, group=group, extra_groups=extra_groups,
    )  # fmt: skip
    child.returncode = 0  # we wait for all children ourselves; this object must neither wait nor complain
    return child.pid


def _open_output(launch: Launch) -> int:
    """The output file, owned by whom the task runs as. It is never followed through a link somebody put there."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            descriptor = os.open(launch.output, flags, 0o600)
        except FileNotFoundError:
            Path(launch.output).parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(launch.output, flags, 0o600)
        if launch.uid is not None and os.geteuid() == 0:
            os.fchown(descriptor, launch.uid, -1 if launch.gid is None else launch.gid)
    except OSError as error:
        raise CanNotSpawn(
            f"Its output can not be written to {launch.output} on this node: {error.strerror}."
        ) from error
    return descriptor


def _check_user(uid: int) -> None:
    if os.geteuid() not in {0, uid}:
        raise CanNotSpawn(f"The agent of this node is not root, so it can not run anything as uid {uid}.")
    if not 0 <= uid < 2**32 - 1:
        raise CanNotSpawn(f"There is no user with uid {uid} on this node.")


@contextmanager
def _inside(folder: str, uid: int, gid: int, groups: tuple[int, ...]) -> Iterator[None]:
    """Stand in a folder that was entered with the user's own rights: a home on NFS may be closed to root itself."""
    if os.geteuid() != 0:
        os.chdir(folder)
    else:
        own_groups = os.getgroups()
        try:
            os.setgroups(groups)
            os.setegid(gid)
            os.seteuid(uid)
            os.chdir(folder)
        except OSError as error:
            error.filename = folder
            raise
        finally:
            os.seteuid(0)
            os.setegid(os.getgid())
            os.setgroups(own_groups)
    try:
        yield
    finally:
        os.chdir("/")


def _sentence(error: OSError, command: str, launch: Launch) -> str:
    """What was wrong, and what to do about it."""
    who = "the agent's user" if launch.uid is None else _name_of(launch.uid)
    if error.filename == launch.cwd and launch.cwd != command:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return f"The work dir {launch.cwd} does not exist on this node. Create it there, or name another one."
        if error.errno == errno.EACCES:
            return f"The work dir {launch.cwd} may not be entered by {who} on this node. Open it, or name another one."
        return f"The work dir {launch.cwd} can not be used on this node: {error.strerror}."
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return f"The command {command!r} was not found on this node. Give its full path, or install it there."
    if error.errno == errno.EACCES:
        return f"The command {command!r} may not be executed by {who} on this node."
    if error.errno == errno.ENOEXEC:
        return f"The command {command!r} is not a program this node can execute. A script begins with #! and its interpreter."
    if error.errno == errno.E2BIG:
        return f"The command {command!r} with its environment is longer than the node's kernel accepts."
    return f"The command {command!r} could not be started on this node: {error.strerror}."


def _name_of(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
