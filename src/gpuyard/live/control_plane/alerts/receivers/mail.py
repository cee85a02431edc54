"""Send notifications by e-mail, over SMTP with STARTTLS and a login where the server has them.

smtplib blocks, so it runs in a thread of its own. A server that hangs ends with the timeout of its socket, or when the
socket is closed from here; no thread is ever waited for at the end of the process.
"""

import asyncio
import smtplib
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime, make_msgid
from typing import Literal

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
        delivery = _Delivery(self, self.message(notification))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        threading.Thread(target=delivery.run, args=(done,), name=f"mail-{self.name}", daemon=True).start()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await done
        except TimeoutError:
            raise NotDelivered(f"The mail server did not finish within {SEND_SECONDS:g} s.") from None
        finally:
            delivery.abort()

    def message(self, notification: Notification) -> EmailMessage:
        """Return the message. Values of labels are text without line breaks, so none can add a header."""
        message = EmailMessage(policy=SMTP)
        count = len(notification.firing) or len(notification.resolved)
        group = " ".join(value for _, value in notification.group)
        subject = one_line(f"[{notification.status.upper()}:{count}] {group} (gpuyard)")
        message["Subject"] = subject if len(subject) <= LONGEST_SUBJECT else subject[: LONGEST_SUBJECT - 1] + "…"
        message["From"] = self.sender
        message["To"] = ", ".join(self.to)
        message["Date"] = format_datetime(localtime())
        message["Message-ID"] = make_msgid(domain="gpuyard.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(plain_text(notification))
        return message


class _Delivery:
    """One message on its way."""

    def __init__(self, mail: Mail, message: EmailMessage) -> None:
        self._mail = mail
        self._message = message
        self._server: smtplib.SMTP | None = None
        self._loop = asyncio.get_running_loop()

    def run(self, done: "asyncio.Future[None]") -> None:
        """Send it; in a thread."""
        error: NotDelivered | None = None
        try:
            self._send()
        except Exception as problem:  # smtplib fails in many ways when its socket is shut down
            error = NotDelivered(one_line(str(problem) or type(problem).__name__)[:500])
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._loop.call_soon_threadsafe(_settle, done, error)

    def _send(self) -> None:
        mail = self._mail
        secure = None if mail.security == "none" else ssl.create_default_context(cafile=mail.ca or None)
        if mail.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(timeout=SEND_SECONDS, context=secure)
        else:
            server = smtplib.SMTP(timeout=SEND_SECONDS)
        server._host = mail.host  # type: ignore[attr-defined]  # the name in the certificate; connect() does not set it
        self._server = server
        try:
            server.connect(mail.host, mail.port)
            if mail.security == "starttls":
                server.starttls(context=secure)
            if mail.username:
                server.login(mail.username, mail.password)
            server.send_message(self._message)
            server.quit()
        finally:
            server.close()

    def abort(self) -> None:
        """Close the connection, which ends the thread."""
        connection = getattr(self._server, "sock", None)
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # closing it would not wake a thread that reads


def _settle(done: "asyncio.Future[None]", error: NotDelivered | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
