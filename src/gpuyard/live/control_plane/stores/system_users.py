"""The system accounts of users' tasks: a small document next to the users, kept in memory and replaced as a whole."""

import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from gpuyard.core.domain.values import TenantId
from gpuyard.live.control_plane.stores.documents import Document, FolderDocuments


def refuse_own_account(setting: str, account: str, uid: int) -> str:
    """Return why tasks must not run as this account, if the scheduler runs under its uid; empty otherwise.

    A node can still map tasks to it in its own file: there, executor.shared_user is the consent.
    """
    try:
        if not account or pwd.getpwnam(account).pw_uid != uid:
            return ""
    except KeyError:  # the account exists on nodes only
        return ""
    return (
        f"{setting} is {account}, the system user who runs the scheduler: on this machine such a task "
        "could read the journal, the join token and the secrets, so nodes do not start it. Map it to "
        "another system user. To allow it on a node, map it in executor.users or "
        "executor.system_users of that node."
    )


class SystemUsers:
    """System accounts by username. Without a document nothing is stored."""

    def __init__(
        self,
        document: Document | None = None,
        known: dict[str, str] | None = None,
        of_tenant: Callable[[TenantId], str] = lambda _: "",
    ) -> None:
        self._document = document
        self._known = known or {}
        self._of_tenant = of_tenant

    @classmethod
    def open(cls, path: Path, of_tenant: Callable[[TenantId], str] = lambda _: "") -> Self:
        """Read the file, if there is one. `of_tenant` returns the account of a tenant, empty: none."""
        return cls.over(Document(FolderDocuments(path.parent), path.name), of_tenant)

    @classmethod
    def over(cls, document: Document, of_tenant: Callable[[TenantId], str] = lambda _: "") -> Self:
        """Read the document, if there is one."""
        opened = cls(document, None, of_tenant)
        opened.refresh()
        return opened

    def refresh(self) -> None:
        """Read the document again: another scheduler may have written it."""
        content = self._document.read() if self._document is not None else None
        if content:
            self._known = msgspec.json.decode(content, type=dict[str, str])

    def account_of(self, tenant: TenantId, username: str) -> str:
        """Return the account that a user's tasks run as: the user's, otherwise the tenant's; empty: none."""
        return self.of(username) or self._of_tenant(tenant)

    def of(self, username: str) -> str:
        """Return the account of a user; empty: none."""
        return self._known.get(username, "")

    def set(self, username: str, account: str) -> None:
        """Map a user to an account, or to none with an empty name. Durable when it returns."""
        if self.of(username) == account:
            return
        changed = {name: mapped for name, mapped in self._known.items() if name != username}
        if account:
            changed[username] = account
        if self._document is not None:
            self._document.write(msgspec.json.encode(changed))
        self._known = changed
