"""Post notifications to a web address, in the form of Alertmanager's webhooks.

HTTP/1.1 on asyncio, so that a server that hangs costs a cancelled task and no thread. Redirects are not followed: a
webhook is an address that the administrator has written into the settings.
"""

import asyncio
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

import msgspec

from gpuyard.live.control_plane.alerts.receivers.notification import (
    SEND_SECONDS,
    NotDelivered,
    Notification,
    alertmanager_body,
    one_line,
)
from gpuyard.version import __version__

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\r?\n")
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")


def wrong_address(url: str) -> str | None:
    """Return what is wrong with the address of a webhook, or None."""
    if _UNSAFE.search(url):
        return "it must not contain spaces or control characters"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it must be an address such as https://host:port/path"
    if parts.scheme not in {"http", "https"}:
        return "it must begin with http:// or https://"
    if not parts.hostname or port == 0:
        return "it must name a host, and a port from 1 to 65535 if any"
    if parts.username is not None or parts.password is not None:
        return "it must not contain a password; use token"
    return None


@dataclass(frozen=True)
class Webhook:
    """A web address."""

    name: str
    url: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Sent as `Authorization: Bearer`; empty: none."""
    send_resolved: bool = True
    external_url: str = ""

    async def send(self, notification: Notification) -> None:
        """Post it. Any status from 200 to 299 is a success."""
        await post(self.url, msgspec.json.encode(alertmanager_body(notification, self.external_url)), token=self.token)


async def post(url: str, body: bytes, *, token: str = "", connect_to: str = "") -> None:
    """Post a body, or raise `NotDelivered`. `connect_to`: the network address of the host, if it was looked up before."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            status = await _post(url, body, token, connect_to)
    except TimeoutError:
        raise NotDelivered(f"It did not answer within {SEND_SECONDS:g} s.") from None
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise NotDelivered(one_line(str(error) or type(error).__name__)) from None
    if not 200 <= status < 300:
        raise NotDelivered(f"It answered with status {status}.")


async def _post(url: str, body: bytes, token: str, connect_to: str) -> int:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    name = parts.hostname if secure and connect_to else None
    reader, writer = await asyncio.open_connection(connect_to or parts.hostname, port, ssl=secure, server_hostname=name)
    try:
        writer.write(_head(parts, len(body), token) + body)
        await writer.drain()
        found = _STATUS.fullmatch(await reader.readline())
        if found is None:
            raise NotDelivered("Its answer is not HTTP.")
        return int(found[1])
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            writer.transport.abort()


def _head(parts: SplitResult, length: int, token: str) -> bytes:
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        f"User-Agent: gpuyard/{__version__}",
        "Connection: close",
    ]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8")
