"""Folders that only their owner can enter.

If other users can enter a folder that we own, its mode is set to 0700. A folder is refused if another user owns it, or
could replace it because that user owns one of its parents or others can write to one: file modes inside it would then
protect nothing. A parent with the sticky bit, such as /tmp, is safe: only the owner can rename a folder there.
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
"""The UID that the kernel shows for owners without a mapping in our user namespace, such as root of the host."""


class FolderNotSafe(GpuyardError):
    """Another user could read or replace a folder that must be closed. Use a folder of your own."""


def closed_folder(folder: Path, name: str, setting: str) -> str:
    """Create a folder, or restrict an existing one to its owner. Return a sentence for the log if its mode was changed.

    `name` and `setting` are used in messages: "data folder", "storage.data_dir". Raises OSError and FolderNotSafe; a
    folder that is refused is not created.
    """
    refuse_unsafe_folder(folder, name, setting)
    _make(folder.absolute())
    refuse_unsafe_folder(folder, name, setting)  # in a sticky parent, another user may have created it first
    real = folder.resolve()
    mode = stat.S_IMODE(real.stat().st_mode)
    if not mode & 0o077:
        return ""
    real.chmod(0o700)
    return f"The {name} {folder} was accessible to other users (mode {mode:04o}); its mode is now 0700."


def refuse_unsafe_folder(folder: Path, name: str, setting: str) -> None:
    """Raise FolderNotSafe if another user could read or replace a folder. It need not exist, and nothing is changed."""
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
        message = f"Other users can write to the {name} {folder}, so its files may be theirs. {way_out}"
        raise FolderNotSafe(message)


def close_files(folder: Path) -> None:
    """Remove other users' access to every file in a folder that we own."""
    for entry in os.scandir(folder):
        with suppress(OSError):  # removed in the meantime, or owned by another user
            if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mode & 0o077:
                os.chmod(entry.path, 0o600, follow_symlinks=True)  # noqa: PTH101 - of a directory entry


def _make(folder: Path) -> None:
    """Create a folder and its missing parents durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing[1:]):
        path.mkdir(mode=0o755, exist_ok=True)  # not writable by other users under any umask
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
        return ""  # only the owner of a folder above it can access it, and that owner is checked
    if found is None:
        return ""  # it does not exist; we will create and own it
    trusted = {0, os.geteuid(), *([_OVERFLOW_UID] if _in_user_namespace() else [])}
    if found.st_uid not in trusted:
        return f"belongs to another user ({_named(found.st_uid)})"
    if found.st_mode & stat.S_ISVTX or not _others_can_write(found):
        return ""
    who = "other users" if found.st_mode & stat.S_IWOTH else f"the group {_group(found.st_gid)}"
    return f"is writable by {who}"


def _others_can_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found.st_gid, found.st_uid)


def _is_private_group(gid: int, owner: int) -> bool:
    """Whether a group is root's, or has the owner as its only member: many systems create a group for every user."""
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
