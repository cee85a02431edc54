"""Whom tasks may tell: web addresses and mail domains that an administrator has listed.

The scheduler sends these messages, from inside the network of the cluster. A user could otherwise let it call services
that only the scheduler reaches, so nothing is allowed by default, and addresses of the scheduler's own machine and of
its link are allowed only by a setting of their own. Names are looked up when a message is sent, and the connection is
made to the address that was checked.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from gpuyard.live.control_plane.alerts.receivers.mail import Mail
from gpuyard.live.control_plane.alerts.receivers.notification import NotDelivered
from gpuyard.live.control_plane.alerts.receivers.webhook import wrong_address
from gpuyard.live.wire.notices import COMMAND, MAIL

MOST_ADDRESSES = 10
NO_COMMANDS = (
    "Tasks may not run commands at their start and end here. An administrator can allow it (notifications.commands)."
)


class NotTriedAgain(NotDelivered):
    """A message could not be delivered, and trying again does not help."""


class TargetForbidden(NotTriedAgain):
    """The target of a message is not allowed."""


@dataclass(frozen=True, slots=True)
class NoticePolicy:
    """What the settings allow."""

    hosts: Sequence[str] = ()
    """Host names; `*.example.org` is every name below, `*` any."""
    local: bool = False
    """Whether loopback and link-local addresses may be called."""
    mail: Mail | None = None
    """The server and sender of mail; None: no mail is sent."""
    mail_domains: Sequence[str] = ()
    commands: bool = True
    """Whether tasks may have commands run on their nodes, as their users."""

    def wrong(self, target: str) -> str | None:
        """Return why a target cannot be used, as a sentence; None: it can."""
        if target.startswith(COMMAND):
            return None if self.commands else NO_COMMANDS
        return self._wrong_mail(target) if target.startswith(MAIL) else self._wrong_web(target)

    def _wrong_web(self, target: str) -> str | None:
        if wrong := wrong_address(target):
            return f"The address of a notice cannot be used: {wrong}."
        host = (urlsplit(target).hostname or "").lower()
        try:
            host.encode("idna")
        except UnicodeError:
            return f"The address of a notice cannot be used: {host[:80]!r} is not the name of a host."
        if not any(_matches(host, allowed) for allowed in self.hosts):
            return f"Tasks may not notify {host}. An administrator can allow it (notifications.hosts)."
        if not self.local and is_local(host):
            return f"{host} is an address of the scheduler's own machine or link, which tasks may not notify."
        return None

    def _wrong_mail(self, target: str) -> str | None:
        if self.mail is None:
            return "This scheduler sends no mail about tasks. An administrator can set it up (notifications.mail)."
        addresses = addresses_of(target)
        if not 1 <= len(addresses) <= MOST_ADDRESSES:
            return f"A notice by mail needs 1 to {MOST_ADDRESSES} addresses, such as mailto:me@example.org."
        for address in addresses:
            name, at, domain = address.rpartition("@")
            if (
                not at
                or not name
                or not domain
                or any(letter in '<>,;:"()' for letter in address)
                or "@" in name
                or "=?" in name
            ):
                return f"{address[:80]!r} is not a mail address."
            if not any(_matches(domain.lower(), allowed) for allowed in self.mail_domains):
                return (
                    f"Tasks may not send mail to {domain}. An administrator can allow it (notifications.mail_domains)."
                )
        return None

    async def address_of(self, target: str) -> str:
        """Return the network address to connect to for a web address, or raise `TargetForbidden`."""
        host = urlsplit(target).hostname or ""
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        if not self.local and any(is_local(one) for one in addresses):
            raise TargetForbidden(f"{host} is an address of the scheduler's own machine or link.")
        return addresses[0]


def addresses_of(target: str) -> list[str]:
    """Return the mail addresses of a target."""
    return [address.strip() for address in target.removeprefix(MAIL).split(",") if address.strip()]


def is_local(host: str) -> bool:
    """Whether a host is written as an address of this machine or link, or as a name for one."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.split("%", maxsplit=1)[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast


def _matches(host: str, allowed: str) -> bool:
    allowed = allowed.lower()
    return allowed in {"*", host} or (allowed.startswith("*.") and host.endswith(allowed[1:]))
