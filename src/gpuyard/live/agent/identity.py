"""Selects the system user that a task runs as, and builds its environment.

An agent that is root runs tasks as the system user that their user, or else their tenant, is mapped to. The agent's own
user runs only tasks that the owner of the scheduler submitted without a login. Any other task with that uid could read
the join token, connect to the supervisor and read the output of other tenants; where the scheduler has the same uid, it
could also read the journal and the secrets, and act as an admin over loopback while login is off.
`executor.shared_user` allows this explicitly. The same holds for a task that is mapped to the user that runs the
scheduler on this machine.
"""

import asyncio
import math
import os
import pwd
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpuyard.core.domain.node import MAPPED_ONLY, tenant_account_label, user_account_label
from gpuyard.core.domain.values import PARAMETER_PREFIX, Value
from gpuyard.live.agent.inventory import GpuDevice
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.wire.loopback_peer import shared_user_label

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEVER_THE_TASKS_OWN = "GPUYARD_"
"""The prefix of variables that a task cannot set, except parameters of a sweep."""

KEEP_SECONDS = 60.0
"""How long the result of a successful lookup is kept."""
LOOK_AGAIN_SECONDS = 5.0
"""How long the result is kept for a user that does not exist or could not be looked up."""
LOOK_UP_SECONDS = 5.0
"""How long a directory service (LDAP, SSSD) may take."""


class UserRecord(NamedTuple):
    """A user's passwd entry and groups."""

    entry: pwd.struct_passwd
    groups: tuple[int, ...]


class UserDirectory:
    """Looks up system users in threads, so that a directory service that does not answer cannot block the agent."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, UserRecord | str | None]] = {}
        """Expiry and user. None: no such user; a string: why the lookup failed."""
        self._asked: dict[str, asyncio.Future[None]] = {}

    def get(self, name: str) -> UserRecord | str | None:
        """Return a user. Block if the user is not cached."""
        if not self.knows(name):
            self._keep(name, _look_up(name))
        return self._found[name][1]

    def knows(self, name: str) -> bool:
        """Return whether `get` answers without blocking."""
        return name in self._found and self._found[name][0] > time.monotonic()

    async def look_up(self, name: str) -> None:
        """Look up a user, so that `get` then answers at once: with the user, the last known result, or a sentence."""
        if name not in self._asked:
            loop = asyncio.get_running_loop()
            self._asked[name] = loop.create_future()
            threading.Thread(target=self._ask, args=(name, loop), daemon=True).start()
        await asyncio.wait({self._asked[name]}, timeout=LOOK_UP_SECONDS)
        if not self.knows(name):
            before = self._found.get(name, (0.0, None))[1]
            sentence = (
                f"Looking up the system user {name or os.geteuid()} on this node took longer than "
                f"{LOOK_UP_SECONDS:.0f} s. Check the directory service there (getent passwd, LDAP, "
                "SSSD)."
            )
            self._found[name] = (time.monotonic() + LOOK_AGAIN_SECONDS, before or sentence)

    def _ask(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        try:
            user = _look_up(name)
        except OSError:
            user = None
        with suppress(RuntimeError):  # the agent has ended meanwhile
            loop.call_soon_threadsafe(self._answered, name, user)

    def _answered(self, name: str, user: UserRecord | None) -> None:
        self._keep(name, user)
        self._asked.pop(name).set_result(None)

    def _keep(self, name: str, user: UserRecord | None) -> None:
        seconds = math.inf if not name else KEEP_SECONDS if user is not None else LOOK_AGAIN_SECONDS
        self._found[name] = (time.monotonic() + seconds, user)


def _look_up(name: str) -> UserRecord | None:
    """Look up a user. An empty name is the agent's own user, which is cached by `own_account` instead."""
    if not name:
        own_account()
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return UserRecord(entry, tuple(os.getgrouplist(name, entry.pw_gid)))


class Account(Value, frozen=True):
    """The properties of a system user that a task needs."""

    user: str
    home: str
    shell: str
    uid: int | None = None
    """None: the agent's own uid; nothing is changed."""
    gid: int | None = None
    groups: tuple[int, ...] = ()


class Rendezvous(Value, frozen=True):
    """Where the members of a gang meet, and the rank of this one."""

    master_addr: str
    master_port: int
    node_rank: int
    rank: int
    world_size: int


class Identities:
    """Decides which account a task gets."""

    def __init__(
        self,
        users: Mapping[str, str],
        shared_user: bool,
        *guarded: Path,
        system_users: Mapping[str, str] | None = None,
    ) -> None:
        """Map tenants by `users` and single users by `system_users`, both to system users.

        The owners of the `guarded` paths run a scheduler on this machine.
        """
        self._users = users
        self._system_users = system_users or {}
        self._shared_user = shared_user
        self._guarded = guarded
        self.scheduler_uid: Callable[[], int | None] = lambda: None
        """The uid that runs the scheduler on this machine, as reported by the kernel when this node joined."""
        self._system = UserDirectory()
        _without_own_environment(os.environ.get("PATH", PATH))  # fill the cache now, not during a launch

    def _name(self, tenant: str, by_owner: bool, run_as: str, user: str) -> str:
        own = "" if by_owner else self._system_users.get(user, "")
        return own or self._users.get(tenant) or run_as

    def look_up(self, tenant: str, by_owner: bool, run_as: str = "", user: str = "") -> Awaitable[None] | None:
        """Return an awaitable to await before `account` so that it does not block; None if it does not block anyway."""
        name = self._name(tenant, by_owner, run_as, user)
        return None if self._system.knows(name) else self._system.look_up(name)

    def labels(self) -> dict[str, str]:
        """Return labels that tell the scheduler whose tasks this node can run, and the uid if all share one."""
        if self._shared_user:
            return dict([shared_user_label(os.geteuid())])
        if os.geteuid() != 0:
            return dict([MAPPED_ONLY])
        mapped = [tenant_account_label(tenant) for tenant in self._users] + [
            user_account_label(user) for user in self._system_users
        ]
        return dict([MAPPED_ONLY, *mapped])

    def account(self, tenant: str, by_owner: bool, run_as: str = "", user: str = "") -> Account | str:
        """Return the account, or a sentence that says why this tenant has none here.

        `run_as` is the scheduler's mapping; this node's own settings take precedence.
        """
        name = self._name(tenant, by_owner, run_as, user)
        may_share = by_owner or self._shared_user
        if name:
            return self._mapped(tenant, name, may_share)
        if may_share:
            return self._own()
        if os.geteuid() == 0:
            return (
                f"The agent of this node is root, and tenant {tenant} is not mapped to a system user. "
                f"Map the user with `gpuyard users set {user or 'NAME'} --system-user ACCOUNT`, or "
                "map the tenant in executor.users of the node's settings or tenants.NAME.user of the "
                "scheduler's settings. To run its tasks as root, set executor.shared_user."
            )
        return (
            f"The task of tenant {tenant} was not submitted by the owner of the scheduler, and this "
            f"node would run it as the user of its agent, {own_account().user}, who can read the join "
            "token and the output of all tasks. Run the agent as root and map tenants to system "
            "users in executor.users, or set executor.shared_user: true on this node to allow it."
        )

    def _own(self) -> Account | str:
        found = self._system.get("")
        return found if isinstance(found, str) else own_account()

    def _mapped(self, tenant: str, name: str, may_share: bool) -> Account | str:
        found = self._system.get(name)
        if isinstance(found, str):
            return found
        if found is None:
            return (
                f"Tenant {tenant} is mapped to the system user {name}, who does not exist on this node. "
                "Create that user there."
            )
        entry, groups = found
        if not may_share and entry.pw_uid in {os.geteuid(), *self._scheduler_uids()}:
            whose = "the agent" if entry.pw_uid == os.geteuid() else "the scheduler on this machine"
            return (
                f"Tenant {tenant} is mapped to the system user {name}, who runs {whose}: its tasks "
                "could read the join token and the output of all tasks. Map it to another user, or "
                "set executor.shared_user: true on this node to allow it."
            )
        if entry.pw_uid == os.geteuid():
            return own_account()
        if os.geteuid() != 0:
            return (
                f"Tenant {tenant} is mapped to the system user {name}, but the agent of this node is "
                "not root, so it cannot run tasks as another user. Run the agent as root or remove "
                "the mapping."
            )
        return Account(name, entry.pw_dir, entry.pw_shell or "/bin/sh", entry.pw_uid, entry.pw_gid, groups)

    def _scheduler_uids(self) -> set[int]:
        """Return the uids that run a scheduler on this machine, as far as the agent can tell."""
        found = set()
        for path in self._guarded:
            with suppress(OSError):
                found.add(path.stat().st_uid)
        if (uid := self.scheduler_uid()) is not None:
            found.add(uid)
        return found


@cache
def own_account() -> Account:
    """Return the agent's own user."""
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a container may run with a uid that has no name
        return Account(str(uid), os.environ.get("HOME", "/"), "/bin/sh")
    return Account(entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh")


def environment(
    account: Account,
    key: AttemptKey,
    node: str,
    devices: Sequence[GpuDevice],
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    array_index: int | None = None,
    attempt: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Build the environment of a task: a clean base, its own variables, and on top the ones a task cannot override.

    `attempt` are further variables about this attempt.
    """
    return (
        _base(account)
        | {name: value for name, value in {**env, **secrets}.items() if _may_be_set(name)}
        | visible_devices(devices)
        | {"GPUYARD_TASK_ID": str(key.task), "GPUYARD_ATTEMPT": str(key.attempt), "GPUYARD_NODE_ID": node}
        | ({} if array_index is None else {"GPUYARD_ARRAY_INDEX": str(array_index)})
        | dict(attempt or {})
    )


def path_elsewhere(env: Mapping[str, str], account: Account) -> str:
    """Return a PATH for a task from another machine: its virtual environment, folders below its home, then this node's.

    Other folders are those of the other machine; programs in them need not exist here, or are others.
    """
    roots = [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    roots += [home for home in (account.home,) if home not in {"", "/"}]
    kept = [folder for folder in env["PATH"].split(":") if any(_is_below(folder, root) for root in roots)]
    return ":".join([*kept, _base(account)["PATH"]])


def _is_below(folder: str, root: str) -> bool:
    return folder == root or folder.startswith(f"{root.rstrip('/')}/")


def _may_be_set(name: str) -> bool:
    return name.startswith(PARAMETER_PREFIX) or not name.startswith(_NEVER_THE_TASKS_OWN)


def visible_devices(devices: Sequence[GpuDevice]) -> dict[str, str]:
    """Return variables that make exactly these GPUs visible: real ones by UUID, virtual ones by index."""
    names = ",".join(str(device.index) if device.virtual else device.uuid for device in devices)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": names,
        "NVIDIA_VISIBLE_DEVICES": names or "void",  # "none" for the container toolkit
    }


def rendezvous(gang: Rendezvous) -> dict[str, str]:
    """Return the rendezvous variables of a gang member. A node runs one member, so its local rank is 0."""
    return {
        "MASTER_ADDR": gang.master_addr,
        "MASTER_PORT": str(gang.master_port),
        "RANK": str(gang.rank),
        "WORLD_SIZE": str(gang.world_size),
        "LOCAL_RANK": "0",
        "NODE_RANK": str(gang.node_rank),
    }


def _base(account: Account) -> dict[str, str]:
    """Return the base environment. The agent's own user gets the agent's PATH, but without gpuyard's own Python.

    Python's output is unbuffered, so that it can be followed and is not lost when the task is ended.
    """
    path = _without_own_environment(os.environ.get("PATH", PATH)) if account.uid is None else PATH
    return {
        "HOME": account.home,
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "LOGNAME": account.user,
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        "SHELL": account.shell,
        "TERM": "dumb",
        "USER": account.user,
    }


@cache
def _without_own_environment(path: str) -> str:
    """Remove the virtual environment of gpuyard from a search path.

    Cached, because it resolves every folder on disk.
    """
    if sys.prefix == sys.base_prefix:
        return path
    own = os.path.realpath(f"{sys.prefix}/bin")
    return ":".join(folder for folder in path.split(":") if os.path.realpath(folder) != own) or PATH
