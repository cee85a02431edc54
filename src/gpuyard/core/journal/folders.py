"""Folders that only their owner can enter, whoever made them.

A folder of ours that others can enter is closed: its mode becomes 0700. A folder that another user owns, or could
replace because one of its parents is that user's or can be written to by others, is refused: modes of what is inside
would protect nothing. A parent with the sticky bit, such as /tmp, is safe: there only the owner can rename a folder.
"""

import grp
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.system.files import sync_folder

_OVERFLOW_UID = 65534
"""How the kernel shows owners that have no number in our user namespace; they are outside, as root of the machine is."""


class FolderNotSafe(GpuyardError):
    """Another user could read or replace a folder that must be closed. Use a folder of your own."""


def closed_folder(folder: Path, name: str, setting: str) -> str:
    """Make a folder, or close one that is there. Returns a sentence for the log if its mode had to be changed.

    `name` and `setting` are for the sentences: "data folder", "storage.data_dir". Raises OSError and FolderNotSafe; a
    folder that is refused and did not exist is not made.
    """
    refuse_unsafe_folder(folder, name, setting)
    _make(folder.absolute())
    refuse_unsafe_folder(folder, name, setting)  # in a sticky folder another user may have been faster
    real = folder.resolve()
    mode = stat.S_IMODE(real.stat().st_mode)
    if not mode & 0o077:
        return ""
    real.chmod(0o700)
    return f"The {name} {folder} could be entered by other users (mode {mode:04o}); its mode is 0700 now."


def refuse_unsafe_folder(folder: Path, name: str, setting: str) -> None:
    """Raise FolderNotSafe if another user could read or replace a folder, which need not exist. Nothing is changed."""
    way_out = f"Set {setting} to a folder of your own."
    real = Path(os.path.realpath(folder))
    found = _stat(real)
    if found is not None and found.st_uid != os.geteuid():
        raise FolderNotSafe(f"The {name} {folder} belongs to another user ({_named(found.st_uid)}). {way_out}")
    for parent in dict.fromkeys((*real.parents, *folder.absolute().parents)):
        if wrong := _wrong_with_parent(parent):
            message = f"The {name} {folder} is not safe: its parent {parent} {wrong}. {way_out}"
            raise FolderNotSafe(message)
    if found is not None and stat.S_ISDIR(found.st_mode) and _others_can_write(found) and any(real.iterdir()):
        message = f"The {name} {folder} can be written to by other users, and what is in it may be theirs. {way_out}"
        raise FolderNotSafe(message)


def close_files(folder: Path) -> None:
    """Take every file in a folder of ours away from other users."""
    for entry in os.scandir(folder):
        with suppress(OSError):  # gone meanwhile, or not ours
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mode & 0o077:
                os.chmod(entry.path, 0o600, follow_symlinks=True)  # noqa: PTH101 - of a directory entry


def _make(folder: Path) -> None:
    """With what is missing above it, so that it is there after a power loss."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing[1:]):
        path.mkdir(mode=0o755, exist_ok=True)  # whatever the umask is, nobody else can write there
    folder.mkdir(exist_ok=True, mode=0o700)
    for path in missing:
        sync_folder(path.parent)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _wrong_with_parent(parent: Path) -> str:
    try:
        found = _stat(parent)
    except PermissionError:
        return ""  # nobody but its owner can look into what is above it, and that owner was looked at
    if found is None:
        return ""  # it will be ours
    trusted = {0, os.geteuid(), *([_OVERFLOW_UID] if _in_user_namespace() else [])}
    if found.st_uid not in trusted:
        return f"belongs to another user ({_named(found.st_uid)})"
    if found.st_mode & stat.S_ISVTX or not _others_can_write(found):
        return ""
    who = "other users" if found.st_mode & stat.S_IWOTH else f"the group {_group(found.st_gid)}"
    return f"can be written to by {who}"


def _others_can_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found.st_gid, found.st_uid)


def _is_private_group(gid: int, owner: int) -> bool:
    """Root's, or a group of one: many systems give every user a group of the same name."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(owner)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _in_user_namespace() -> bool:
    try:
        return Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _named(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
