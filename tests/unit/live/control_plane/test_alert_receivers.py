"""Receivers of alerts: against real servers on loopback."""

import asyncio
import email
import email.policy
import shutil
import ssl
import subprocess
import threading
import time
from email.message import EmailMessage
from pathlib import Path

import pytest

from gpuyard.live.control_plane.alerts.receivers import mail as mail_module
from gpuyard.live.control_plane.alerts.receivers import webhook as webhook_module
from gpuyard.live.control_plane.alerts.receivers.mail import Mail
from gpuyard.live.control_plane.alerts.receivers.notification import MOST_ALERTS, NotDelivered, Notification
from gpuyard.live.control_plane.alerts.receivers.webhook import Webhook, wrong_address
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus, Severity
from tests.unit.live.control_plane.receiving import CurtSmtpServer, SmtpServer, hanging_server, webhook_server

HOSTILE = 'n1\r\nBcc: everyone@example.org\r\n\r\n"\\<script>\x00'


def alert(node: str = "n1", *, resolved_at: float | None = None) -> Alert:
    return Alert(
        "gpu_hot",
        (("gpu", f"{node}/0"), ("node", node)),
        AlertStatus.FIRING if resolved_at is None else AlertStatus.RESOLVED,
        Severity.WARNING,
        f"GPU {node}/0 is hot.",
        91.5,
        since=1_000.0,
        held_at=1_100.0,
        seen_at=1_100.0,
        fired_at=1_060.0,
        resolved_at=resolved_at,
    )


def notification(node: str = "n1", *, firing: int = 1, resolved: int = 0) -> Notification:
    return Notification(
        "ops",
        (("alertname", "gpu_hot"), ("node", node)),
        (alert(node),) * firing,
        (alert(node, resolved_at=1_200.0),) * resolved,
    )


# --- webhooks ---------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_the_body_that_alertmanager_sends() -> None:
    with webhook_server() as server:
        hook = Webhook("ops", server.url, token="secret", external_url="https://yard.example")
        asyncio.run(hook.send(notification(resolved=1)))
    (body,) = server.bodies
    assert body["version"] == "4"
    assert body["status"] == "firing"
    assert body["receiver"] == "ops"
    assert body["groupKey"] == '{}:{alertname="gpu_hot", node="n1"}'
    assert body["groupLabels"] == {"alertname": "gpu_hot", "node": "n1"}
    assert body["commonLabels"] == {"alertname": "gpu_hot", "severity": "warning", "gpu": "n1/0", "node": "n1"}
    assert body["truncatedAlerts"] == 0
    firing, resolved = body["alerts"]
    assert (firing["status"], resolved["status"]) == ("firing", "resolved")
    assert firing["startsAt"] == "1970-01-01T00:17:40.000000Z"
    assert firing["endsAt"] == "0001-01-01T00:00:00Z"
    assert resolved["endsAt"] == "1970-01-01T00:20:00.000000Z"
    assert firing["fingerprint"] == resolved["fingerprint"] == alert().id
    assert firing["annotations"] == {"summary": "GPU n1/0 is hot.", "value": "91.5"}
    assert firing["generatorURL"] == "https://yard.example/#/alerts"
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.headers[0]["Content-Type"] == "application/json"


def test_hostile_labels_are_text_in_a_webhook() -> None:
    with webhook_server() as server:
        asyncio.run(Webhook("ops", server.url).send(notification(HOSTILE)))
    (body,) = server.bodies
    assert body["alerts"][0]["labels"]["node"] == HOSTILE
    assert "Bcc" not in server.headers[0]


def test_a_notification_is_cut_at_the_maximum_and_says_how_much_is_missing() -> None:
    with webhook_server() as server:
        asyncio.run(Webhook("ops", server.url).send(notification(firing=MOST_ALERTS + 7)))
    assert len(server.bodies[0]["alerts"]) == MOST_ALERTS
    assert server.bodies[0]["truncatedAlerts"] == 7


@pytest.mark.parametrize("status", [301, 400, 404, 500, 503])
def test_any_other_status_than_success_is_a_failure(status: int) -> None:
    with webhook_server() as server:
        server.status = status
        with pytest.raises(NotDelivered, match=f"status {status}"):
            asyncio.run(Webhook("ops", server.url).send(notification()))


def test_a_server_that_hangs_costs_the_time_limit_and_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "SEND_SECONDS", 0.2)
    with hanging_server() as (port, _):
        began = time.monotonic()
        with pytest.raises(NotDelivered, match=r"did not answer within 0\.2 s"):
            asyncio.run(Webhook("ops", f"http://127.0.0.1:{port}/").send(notification()))
        assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("answer", [b"", b"hello\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n", b"x" * 200_000])
def test_a_server_that_does_not_speak_http_is_a_failure(answer: bytes) -> None:
    async def story() -> None:
        async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NotDelivered):
                await Webhook("ops", f"http://127.0.0.1:{port}/").send(notification())

    asyncio.run(story())


def test_nobody_at_the_address_is_a_failure() -> None:
    with hanging_server() as (port, _):
        pass
    with pytest.raises(NotDelivered):
        asyncio.run(Webhook("ops", f"http://127.0.0.1:{port}/").send(notification()))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "gopher://host",
        "//host/x",
        "http://",
        "http:///x",
        "http://host:99999/",
        "http://host:0/",
        "http://user:secret@host/",
        "http://host/\r\nX-Evil: 1",
        "http://ho st/",
        "",
    ],
)
def test_only_plain_web_addresses_are_accepted(url: str) -> None:
    assert wrong_address(url) is not None


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "https://host/a?b=c", "http://[::1]:80/"])
def test_web_addresses_are_accepted(url: str) -> None:
    assert wrong_address(url) is None


# --- mail -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    made_by = ["openssl", *words.split(), "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(made_by, check=True, capture_output=True, timeout=60)
    return tmp_path / "cert.pem"


def mail_to(port: int, **more: object) -> Mail:
    return Mail("ops", "127.0.0.1", port, "yard@example.org", ("a@example.org", "b@example.org"), **more)  # type: ignore[arg-type]


def read(message: bytes) -> EmailMessage:
    found = email.message_from_bytes(message, policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    return found


def test_a_mail_goes_to_all_addresses_and_says_what_fires() -> None:
    server = SmtpServer()
    try:
        asyncio.run(mail_to(server.port, security="none").send(notification(resolved=1)))
    finally:
        server.close()
    message = read(server.messages[0])
    assert server.recipients == [["a@example.org", "b@example.org"]]
    assert message["Subject"] == "[FIRING:1] gpu_hot n1 (gpuyard)"
    assert message["From"] == "yard@example.org"
    text = message.get_content()
    assert "firing: gpu_hot (warning) gpu=n1/0 node=n1" in text
    assert "until 1970-01-01T00:20:00" in text


def test_a_hostile_label_adds_no_header_and_no_recipient() -> None:
    server = SmtpServer()
    try:
        asyncio.run(mail_to(server.port, security="none").send(notification(HOSTILE + "x" * 1000)))
    finally:
        server.close()
    message = read(server.messages[0])
    assert message["Bcc"] is None
    assert server.recipients == [["a@example.org", "b@example.org"]]
    assert len(message["Subject"]) <= 202, "folding adds a space"
    assert "Bcc: everyone" in message["Subject"], "as text"
    assert set(message.keys()) <= {
        "Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted", "MIME-Version", "Content-Type",
        "Content-Transfer-Encoding", "X-Peer", "X-MailFrom", "X-RcptTo",
    }  # fmt: skip


def test_mail_is_encrypted_and_logged_in_where_the_server_wants_it(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server = SmtpServer(context)
    more = {"username": "yard", "ca": str(certificate)}
    try:
        asyncio.run(mail_to(server.port, password="correct horse", **more).send(notification()))
        with pytest.raises(NotDelivered, match="535"):
            asyncio.run(mail_to(server.port, password="wrong", **more).send(notification()))
        with pytest.raises(NotDelivered, match="certificate verify failed"):
            asyncio.run(mail_to(server.port, username="yard", password="correct horse").send(notification()))
    finally:
        server.close()
    assert len(server.messages) == 1
    assert server.logins[0] == (b"yard", b"correct horse")


def test_mail_is_not_sent_in_the_clear_to_a_server_without_starttls() -> None:
    server = SmtpServer()
    try:
        with pytest.raises(NotDelivered, match="STARTTLS"):
            asyncio.run(mail_to(server.port).send(notification()))
    finally:
        server.close()
    assert server.messages == []


def test_a_mail_server_that_hangs_costs_the_time_limit_and_its_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_module, "SEND_SECONDS", 0.3)
    with hanging_server() as (port, _):
        with pytest.raises(NotDelivered):
            asyncio.run(mail_to(port, security="none").send(notification()))
        for thread in threading.enumerate():
            if thread.name == "mail-ops":
                thread.join(5)
                assert not thread.is_alive()


def test_a_mail_that_was_accepted_is_delivered_although_the_connection_breaks_then() -> None:
    server = CurtSmtpServer(ends_after_message=True)
    try:
        asyncio.run(mail_to(server.port, security="none").send(notification()))
    finally:
        server.close()
    assert len(server.messages) == 1


def test_a_recipient_that_is_refused_is_logged_and_the_others_get_the_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(
        mail_module.log, "warning", lambda event, **more: told.append((event, more["recipients"])), raising=False
    )
    server = CurtSmtpServer(refuses="b@example.org")
    try:
        asyncio.run(mail_to(server.port, security="none").send(notification()))
        server.served()
    finally:
        server.close()
    assert len(server.messages) == 1
    assert told == [("recipients_refused", {"b@example.org": "550 no such user"})]


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_mail_that_is_given_up_during_the_handshake_is_not_sent_later(certificate: Path, security: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    goes_on = threading.Event()
    server = CurtSmtpServer(context, starttls=security == "starttls", goes_on=goes_on)

    async def story() -> None:
        sending = asyncio.create_task(mail_to(server.port, security=security, ca=str(certificate)).send(notification()))
        assert await asyncio.to_thread(server.shakes_hands.wait, 20)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        goes_on.set()
        await asyncio.to_thread(server.served)

    try:
        asyncio.run(story())
    finally:
        goes_on.set()
        server.close()
    assert server.messages == []
