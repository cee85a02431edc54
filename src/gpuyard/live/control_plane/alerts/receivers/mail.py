"""Send notifications by e-mail, over SMTP with STARTTLS and a login where the server has them.

smtplib blocks, so it runs in a thread of its own. A server that hangs ends with the timeout of its socket, or when the
connection is shut down from here; no thread is ever waited for at the end of the process.

A message is delivered when the server has accepted its text. What happens on the connection afterwards does not matter:
a message that was accepted and is sent again would arrive twice.
"""

import asyncio
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime, make_msgid
from typing import Any, Literal

import structlog

from gpuyard.live.control_plane.alerts.receivers.notification import (
    SEND_SECONDS,
    NotDelivered,
    Notification,
    one_line,
    plain_text,
)

LONGEST_SUBJECT = 200
"""In characters."""
Security = Literal["starttls", "tls", "none"]
log = structlog.get_logger()


@dataclass(frozen=True)
class Mail:
    """Mail addresses behind one server."""

    name: str
    host: str
    port: int
    sender: str
    to: Sequence[str]
    security: Security = "starttls"
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    """A PEM file of the authority of the server; empty: those of the system."""
    send_resolved: bool = True

    async def send(self, notification: Notification) -> None:
        """Send one message to all addresses."""
        await self.deliver(self.message(notification))

    async def deliver(self, message: EmailMessage) -> None:
        """Hand a message to the server, or raise `NotDelivered`."""
        delivery = _Delivery(self, message)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        threading.Thread(target=delivery.run, args=(done,), name=f"mail-{self.name}", daemon=True).start()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await done
        except TimeoutError:
            if delivery.accepted:  # just now
                return
            raise NotDelivered(f"The mail server did not finish within {SEND_SECONDS:g} s.") from None
        finally:
            delivery.abort()

    def message(self, notification: Notification) -> EmailMessage:
        """Return the message. Values of labels are text without line breaks, so none can add a header."""
        count = len(notification.firing) or len(notification.resolved)
        group = " ".join(value for _, value in notification.group)
        return self.envelope(
            f"[{notification.status.upper()}:{count}] {group} (gpuyard)", plain_text(notification), self.to
        )

    def envelope(self, subject: str, text: str, to: Sequence[str]) -> EmailMessage:
        """Return a message with a subject and a text."""
        message = EmailMessage(policy=SMTP)
        subject = one_line(subject)
        message["Subject"] = subject if len(subject) <= LONGEST_SUBJECT else subject[: LONGEST_SUBJECT - 1] + "…"
        message["From"] = self.sender
        message["To"] = ", ".join(to)
        message["Date"] = format_datetime(localtime())
        message["Message-ID"] = make_msgid(domain="gpuyard.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        return message


class _Delivery:
    """One message on its way."""

    def __init__(self, mail: Mail, message: EmailMessage) -> None:
        self._mail = mail
        self._message = message
        self._connection: socket.socket | None = None
        """A second handle of the connection: the one of smtplib is replaced while it becomes encrypted."""
        self._aborted = False
        self.accepted = False
        """Whether the server has taken the message."""
        self._loop = asyncio.get_running_loop()

    def run(self, done: "asyncio.Future[None]") -> None:
        """Send it; in a thread."""
        try:
            self._send(done)
        except Exception as problem:  # smtplib fails in many ways when its socket is shut down
            self._answer(done, NotDelivered(one_line(str(problem) or type(problem).__name__)[:500]))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _send(self, done: "asyncio.Future[None]") -> None:
        mail = self._mail
        secure = None if mail.security == "none" else ssl.create_default_context(cafile=mail.ca or None)
        server: smtplib.SMTP = (
            _EncryptedServer(self.opened, secure) if mail.security == "tls" and secure else _Server(self.opened)
        )
        server._host = mail.host  # type: ignore[attr-defined]  # the name in the certificate; connect() does not set it
        try:
            server.connect(mail.host, mail.port)
            if mail.security == "starttls":
                server.starttls(context=secure)
            if mail.username:
                server.login(mail.username, mail.password)
            refused = server.send_message(self._message)
            self.accepted = True
            self._answer(done, None)
            if refused:
                said = {
                    one_line(to): one_line(f"{code} {text.decode(errors='replace')}")[:200]
                    for to, (code, text) in refused.items()
                }
                log.warning("recipients_refused", receiver=mail.name, recipients=said)
            with suppress(OSError, smtplib.SMTPException):
                server.quit()
        finally:
            server.close()

    def opened(self, connection: socket.socket) -> None:
        """Take note of the connection; in the thread."""
        self._connection = connection.dup()
        if self._aborted:  # while the connection was made
            connection.close()
            raise TimeoutError

    def abort(self) -> None:
        """Shut the connection down, which ends the thread, unless the message was accepted."""
        self._aborted = True
        if self._connection is not None and not self.accepted:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # closing it would not wake a thread that reads

    def _answer(self, done: "asyncio.Future[None]", error: NotDelivered | None) -> None:
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._loop.call_soon_threadsafe(_settle, done, error)


class _Server(smtplib.SMTP):
    """A client of smtplib that shows its connection as soon as there is one, before anything is said on it."""

    def __init__(self, opened: Callable[[socket.socket], None]) -> None:
        self._opened = opened
        super().__init__(timeout=SEND_SECONDS)

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:
        connection = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        self._opened(connection)
        return connection


class _EncryptedServer(_Server):
    """The same for a server that expects TLS from the first byte."""

    def __init__(self, opened: Callable[[socket.socket], None], context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(opened)

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:
        return self._context.wrap_socket(super()._get_socket(host, port, timeout), server_hostname=host)


def _settle(done: "asyncio.Future[None]", error: NotDelivered | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
