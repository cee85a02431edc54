"""HTTP to the scheduler of a cluster: a persistent connection per thread; broken requests are repeated if that is safe.

A request is safe to repeat if doing it twice has the same effect as once: GET, PUT, DELETE, and submitting with a key.
Once such a request may have arrived, it is repeated for `REPEAT_SECONDS`, across a restart of the scheduler if
necessary: otherwise it would be unknown whether the task exists. A connection that is refused in the first place raises
`Unreachable` at once, or after `wait_seconds` if the caller asked to wait for a scheduler that is being restarted.

A cluster may have several schedulers, of which one leads: A,B,C. If one does not answer, or only follows, the next one
is asked, for up to `REPEAT_SECONDS`, which is longer than a standby takes to take over. One that stands still keeps its
connections: after `SILENT_SECONDS` without an answer the others are asked whether one of them leads.
"""

import os
import socket
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from http import HTTPStatus
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected
from pwd import getpwnam, getpwuid
from secrets import token_bytes, token_hex
from select import select
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from gpuyard.live.sdk.errors import (
    ClusterError,
    NotGpuyard,
    Refused,
    TemporarilyRefused,
    Unreachable,
    UntrustedServer,
    WrongAddress,
    refused,
)
from gpuyard.live.wire.answers import ErrorAnswer, HealthAnswer
from gpuyard.live.wire.loopback_peer import is_on_this_machine, owner_of_server, trusted_uids
from gpuyard.live.wire.tls import speaks_tls
from gpuyard.version import __version__

if TYPE_CHECKING:
    import ssl

    from gpuyard.live.sdk.websocket import ClientWebSocket

T = TypeVar("T")
REPEAT_SECONDS = 15.0
TIMEOUT_SECONDS = 60.0
CONNECT_SECONDS = 10.0
NOTICE_SECONDS = 1.0
"""A request that is delayed for longer than this is reported to `on_wait`, once."""
IN_TASK = (
    " This is a task, and a task gets no token of its own: pass one as a secret with another name, such as MY_TOKEN, and give "
    "it to the client (token=, --token)."
)
LOOK_FOR_TLS_SECONDS = 2.0
OTHER_NAME = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name or address."""
EXPIRED, NOT_YET_VALID = 10, 9
STARTING = "NotReady"
"""A scheduler that starts or stops carries out nothing, so any request may be repeated; it is ready in a moment."""
NO_DATABASE = "StorageUnreachable"
"""Nothing was carried out; a database that is restarted or replaced is back in a moment."""
NO_STANDBY = "StandbyUnreachable"
"""Nothing was carried out yet; the other scheduler is back in a moment, or left out."""
UNKNOWN = "OutcomeUnknown"
"""The request may have been carried out, as after a broken connection."""
FOLLOWING = "NotLeading"
"""A standby carries out nothing either; another scheduler leads."""
REPEATED = frozenset({STARTING, FOLLOWING, NO_DATABASE, NO_STANDBY})
SILENT_SECONDS = 2.0
"""With several schedulers: how long one may be silent before the others are asked whether one of them leads, and how long
it may take to accept a connection."""
PROBE_SECONDS = 1.0
ANY_USER = "any"
SWITCHING_PROTOCOLS = 101
REPEATABLE = frozenset({"GET", "PUT", "DELETE"})


class _Broken(Exception):
    """The request left, and its answer did not come whole."""


class _Plain(HTTPConnection):
    """A connection that closes itself when it is no longer referenced, because threads end and clients are dropped."""

    def __del__(self) -> None:
        self.close()


class _Secret(HTTPSConnection):
    """`_Plain` over TLS."""

    def __del__(self) -> None:
        self.close()


class _Server(NamedTuple):
    """The address of one scheduler."""

    url: str
    host: str
    port: int | None
    prefix: str
    tls: "ssl.SSLContext | None"

    @classmethod
    def parse(cls, url: str, ca: str | None) -> "_Server":
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment:
            message = f"{url!r} is not an address of a scheduler; use one such as http://127.0.0.1:8080."
            raise WrongAddress(message)
        tls = _trust(ca) if parts.scheme == "https" else None
        return cls(url.rstrip("/"), host, port, parts.path.rstrip("/"), tls)

    def connection(self, timeout_seconds: float) -> HTTPConnection:
        if self.tls is not None:
            return _Secret(self.host, self.port, timeout=timeout_seconds, context=self.tls)
        return _Plain(self.host, self.port, timeout=timeout_seconds)


class Connection:
    """The scheduler of a cluster: its address or addresses, a token and the open connections."""

    def __init__(
        self,
        server: str,
        *,
        token: str | None,
        ca: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        server_user: str | None = None,
        wait_seconds: float = 0.0,
        on_wait: Callable[[ClusterError, float], None] | None = None,
    ) -> None:
        """`server`: one address, or several with commas. `server_user` may run the scheduler on this machine, besides this user and root; `any`: do not check.

        A request waits up to `wait_seconds` for a scheduler that does not listen. `on_wait` is called once for each
        request that waits for more than a second, with the reason and the most seconds it waits.
        """
        self._server_user = server_user
        self._wait_seconds = wait_seconds
        self._on_wait = on_wait
        self._answered = threading.Event()
        self._servers = [_Server.parse(each.strip(), ca) for each in server.split(",")] if server.strip(", ") else []
        if not self._servers:
            raise WrongAddress(f"{server!r} names no scheduler; use an address such as http://127.0.0.1:8080.")
        self._at = 0
        """Which of them is asked."""
        self._timeout = timeout_seconds
        self._headers = {"User-Agent": f"gpuyard/{__version__}"}
        if token:
            if not token.isascii() or not token.isprintable() or " " in token:
                raise WrongAddress("The token contains invalid characters; copy it again.")
            self._headers["Authorization"] = f"Bearer {token}"
        self._here = threading.local()
        self._has_answered = False
        """The server has answered before, so a broken connection is not due to a wrong protocol."""

    @property
    def server(self) -> str:
        """The address of the scheduler that is asked."""
        return self._servers[self._at].url

    @property
    def _host(self) -> str:
        return self._servers[self._at].host

    @property
    def _port(self) -> int | None:
        return self._servers[self._at].port

    @property
    def _tls(self) -> "ssl.SSLContext | None":
        return self._servers[self._at].tls

    def _ask_another(self) -> bool:
        """Ask the next scheduler from now on; return whether there is another one."""
        place: int = getattr(self._here, "place", self._at)
        if self._at == place:  # otherwise another thread has changed it already
            self._at = (place + 1) % len(self._servers)
        return len(self._servers) > 1

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        type_: type[T],
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        key: str | None = None,
    ) -> T:
        """Send a request and decode its answer as this type. `key` makes it safe to repeat a submission."""
        content = self.send(method, path, query=query, body=body, key=key)
        try:
            answer = msgspec.json.decode(content, type=type_)
        except msgspec.MsgspecError as error:
            message = f"{self.server} answered {method} {path} with an unexpected response ({error})."
            stranger = NotGpuyard(f"{message} Check that it is a gpuyard scheduler of this version.")
            stranger.may_have_arrived = self._here.broke
            raise stranger from None
        self._answered.set()
        return answer

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        content: bytes | None = None,
        key: str | None = None,
    ) -> bytes:
        """Send a request and return the body of the answer. `body` is sent as JSON, `content` as it is."""
        headers = {**self._headers, "X-Request-ID": token_hex(8)}
        if content is not None:
            headers["Content-Type"] = "application/octet-stream"
        elif body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        target = self._target(path, query)
        may_repeat = method in REPEATABLE or key is not None
        waiting = _Waiting(self._on_wait)
        try:
            return self._send(method, target, content, headers, waiting, may_repeat=may_repeat)
        except ClusterError as error:
            error.may_have_arrived |= waiting.broke
            raise
        finally:
            self._here.broke = waiting.broke

    def _send(
        self,
        method: str,
        target: str,
        content: bytes | None,
        headers: Mapping[str, str],
        waiting: "_Waiting",
        *,
        may_repeat: bool,
    ) -> bytes:
        """Repeat a request as often as it is safe and time allows."""
        while True:
            self._here.place = self._at
            try:
                return self._exchange(method, self._prefix + target, content, headers, may_repeat=may_repeat)
            except _Broken as broken:
                if not may_repeat:
                    raise Unreachable(
                        (
                            f"The connection to {self.server} broke before the answer ({broken}); the "
                            "request may have been executed."
                        ),
                        may_have_arrived=True,
                    ) from None
                waiting.broke = True
                waiting.allow(REPEAT_SECONDS)
                message = f"{self.server} closes every connection ({broken})."
                self._ask_another()
                waiting.pause_or_raise(Unreachable(message, may_have_arrived=True))
            except Unreachable as away:
                if self._ask_another() and (may_repeat or not away.may_have_arrived):
                    waiting.broke |= away.may_have_arrived
                    waiting.allow(REPEAT_SECONDS)
                elif away.nothing_listens:
                    waiting.allow(self._wait_seconds)
                waiting.pause_or_raise(away)
            except TemporarilyRefused as refusal:
                if refusal.code not in REPEATED:
                    raise
                if self._ask_another() or refusal.code != FOLLOWING:
                    waiting.allow(REPEAT_SECONDS)
                waiting.refusal = refusal
                waiting.pause_or_raise(refusal)

    def _exchange(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str], *, may_repeat: bool
    ) -> bytes:
        """Send one request on this thread's connection."""
        connection, began = self._own_connection(), time.monotonic()
        try:
            # A server that refuses a long body answers before all of it was sent, so the answer may still be readable.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, body=content, headers=dict(headers))
            if may_repeat:
                self._wait_unless_succeeded(connection)
            response = connection.getresponse()
            answer = response.read()
        except TimeoutError:
            connection.close()
            message = f"{self.server} did not answer within {time.monotonic() - began:.0f} seconds."
            raise Unreachable(message, may_have_arrived=True) from None
        except (OSError, HTTPException) as error:
            connection.close()
            self._hint_at_tls(error)
            if _is_no_http(error):
                raise NotGpuyard(self._no_http()) from None
            raise _Broken(str(error) or type(error).__name__) from None
        except BaseException:  # interrupted: the next answer on this connection would belong to this request
            connection.close()
            raise
        if response.status >= 300:
            refusal = self._refusal(response, answer)
            if isinstance(refusal, Refused) and refusal.code == UNKNOWN:
                raise _Broken(str(refusal))
            raise refusal
        self._here.answer = answer
        self._has_answered = True
        return answer

    @property
    def last_answer(self) -> bytes:
        """The body of the last answer to this thread, to show it unchanged."""
        answer: bytes = getattr(self._here, "answer", b"")
        return answer

    def _own_connection(self) -> HTTPConnection:
        """Return this thread's connection; open it if necessary."""
        connection: HTTPConnection | None = getattr(self._here, "connection", None)
        if connection is None or self._here.connected_to != self._at:
            if connection is not None:
                connection.close()
            self._here.connected_to = self._at
            connection = self._here.connection = self._new_connection(self._timeout)
        if connection.sock is not None and select([connection.sock], [], [], 0)[0]:
            connection.close()  # no request is open, so the server has closed the connection
        if connection.sock is None:
            self._open(connection)
        return connection

    # --- listening ----------------------------------------------------------------------------------------------------

    def stream(self, path: str, query: Mapping[str, object] | None = None, **headers: str) -> "ResponseStream":
        """Send a request and return its answer as a stream, on a separate connection."""
        waiting = _Waiting(self._on_wait)
        target, headers = self._target(path, query), {**self._headers, "X-Request-ID": token_hex(8), **headers}
        while True:
            try:
                return self._begin_stream(target, headers)
            except TemporarilyRefused as refusal:
                if refusal.code not in REPEATED or not self._ask_another():
                    raise
                waiting.allow(REPEAT_SECONDS)
                waiting.pause_or_raise(refusal)

    def _begin_stream(self, target: str, headers: Mapping[str, str]) -> "ResponseStream":
        connection = self._open_in_time()
        try:
            connection.request("GET", self._prefix + target, headers=dict(headers))
            self._wait_unless_succeeded(connection)
            response = connection.getresponse()
            if response.status >= 300:
                raise self._refusal(response, response.read())
        except TimeoutError:
            connection.close()
            self._ask_another()
            raise Unreachable(f"{self.server} does not answer.") from None
        except (OSError, HTTPException) as error:
            connection.close()
            self._hint_at_tls(error)
            if _is_no_http(error):
                raise NotGpuyard(self._no_http()) from None
            raise Unreachable(f"The connection to {self.server} broke ({error}).") from None
        except BaseException:
            connection.close()
            raise
        is_succeeded = self._another_leads if len(self._servers) > 1 else None
        return ResponseStream(self.server, connection, response, is_succeeded)

    def upgrade(self, path: str, query: Mapping[str, object] | None = None, *, subprotocol: str) -> "ClientWebSocket":
        """Open a WebSocket, on a separate connection. A refusal is raised as that of any other request."""
        from gpuyard.live.sdk.websocket import ClientWebSocket

        waiting = _Waiting(self._on_wait)
        target = self._target(path, query)
        key = b64encode(token_bytes(16)).decode()
        headers = {
            **self._headers, "X-Request-ID": token_hex(8), "Connection": "Upgrade", "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": subprotocol,
        }  # fmt: skip
        while True:
            try:
                connection, response = self._begin_upgrade(target, headers)
            except TemporarilyRefused as refusal:
                if refusal.code not in REPEATED or not self._ask_another():
                    raise
                waiting.allow(REPEAT_SECONDS)
                waiting.pause_or_raise(refusal)
            else:
                return ClientWebSocket(self.server, connection, response)

    def _begin_upgrade(self, target: str, headers: Mapping[str, str]) -> tuple[HTTPConnection, HTTPResponse]:
        connection = self._open_in_time()
        try:
            connection.request("GET", self._prefix + target, headers=dict(headers))
            self._wait_unless_succeeded(connection)
            response = connection.getresponse()
            if response.status != SWITCHING_PROTOCOLS:
                if response.status < 300:
                    raise NotGpuyard(f"{self.server} does not open WebSockets; its gpuyard may be older than yours.")
                raise self._refusal(response, response.read())
        except TimeoutError:
            connection.close()
            self._ask_another()
            raise Unreachable(f"{self.server} does not answer.") from None
        except (OSError, HTTPException) as error:
            connection.close()
            self._hint_at_tls(error)
            self._ask_another()
            raise Unreachable(f"The connection to {self.server} broke ({error}).") from None
        except BaseException:
            connection.close()
            raise
        return connection, response

    # --- several schedulers -------------------------------------------------------------------------------------------

    def _wait_unless_succeeded(self, connection: HTTPConnection) -> None:
        """Wait until an answer begins; raise `TimeoutError` after the usual time, or when another scheduler leads."""
        if len(self._servers) == 1:
            return
        give_up_at = time.monotonic() + self._timeout
        while not select([connection.sock], [], [], min(SILENT_SECONDS, self._timeout))[0]:
            if time.monotonic() >= give_up_at or self._another_leads():
                raise TimeoutError

    def _another_leads(self) -> bool:
        """Ask the other schedulers whether one of them leads. They are told no token."""
        here: int = getattr(self._here, "place", self._at)
        return any(_leads(server) for place, server in enumerate(self._servers) if place != here)

    # --- small things -------------------------------------------------------------------------------------------------

    @property
    def has_answered(self) -> bool:
        """Whether a scheduler has answered here before, so that another process at its address counts as an outage."""
        return self._answered.is_set()

    def without_waiting(self) -> Self:
        """Return a copy with the same connections for callers that handle an absent scheduler themselves."""
        same = copy(self)
        same._wait_seconds, same._on_wait = 0.0, None
        return same

    def close(self) -> None:
        """Close this thread's connection."""
        connection: HTTPConnection | None = getattr(self._here, "connection", None)
        if connection is not None:
            connection.close()

    def _new_connection(self, timeout_seconds: float) -> HTTPConnection:
        return self._servers[self._at].connection(timeout_seconds)

    def _open_in_time(self) -> HTTPConnection:
        """Return a new connection; wait for a scheduler if the caller asked for it, or if there are several."""
        waiting = _Waiting(self._on_wait)
        while True:
            self._here.place = self._at
            connection = self._new_connection(self._timeout)
            try:
                self._open(connection)
            except Unreachable as away:
                if self._ask_another():
                    waiting.allow(REPEAT_SECONDS)
                elif away.nothing_listens:
                    waiting.allow(self._wait_seconds)
                waiting.pause_or_raise(away)
            else:
                return connection

    def _open(self, connection: HTTPConnection) -> None:
        # A machine that is cut off or gone does not even refuse; the next scheduler is asked instead.
        connection.timeout = min(SILENT_SECONDS if len(self._servers) > 1 else CONNECT_SECONDS, self._timeout)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise Unreachable(self._no_answer(error), nothing_listens=isinstance(error, ConnectionError)) from None
        connection.sock.settimeout(self._timeout)
        if self._tls is None:  # a certificate identifies the server
            try:
                self._check_owner(connection.sock)
            except BaseException:
                connection.close()
                raise

    def _check_owner(self, connection: socket.socket) -> None:
        """Check who runs the server, before anything is sent.

        Any user of this machine can listen at the address while the scheduler is down.
        """
        if sys.platform != "linux" or self._server_user == ANY_USER or not is_on_this_machine(connection):
            return
        seconds = min(self._timeout, SILENT_SECONDS) if len(self._servers) > 1 else self._timeout
        try:
            uid = owner_of_server(connection, seconds)
        except TimeoutError:
            raise Unreachable(f"{self.server} did not answer within {seconds:g} seconds.") from None
        except OSError as error:
            raise Unreachable(f"{self.server} closed the connection ({error}).", nothing_listens=True) from None
        if uid is not None and uid in trusted_uids() | self._accepted_uids():
            return
        if uid is None:
            raise UntrustedServer(
                f"The kernel does not report which user runs {self.server}; nothing was sent. If you "
                f"trust that server, set GPUYARD_SERVER_USER={ANY_USER}, or use https."
            )
        name = _name_of(uid)
        raise UntrustedServer(
            f"The process that listens at {self.server} belongs to the system user '{name}' (uid "
            f"{uid}), not to you or root; nothing was sent. If that user runs the scheduler, trust "
            f"it: gpuyard login --server-user {name}, or set GPUYARD_SERVER_USER={name}."
        )

    def _accepted_uids(self) -> set[int]:
        user = self._server_user
        if not user:
            return set()
        if user.isdecimal():
            return {int(user)}
        try:
            return {getpwnam(user).pw_uid}
        except KeyError:
            raise WrongAddress(f"This machine has no system user {user}; check GPUYARD_SERVER_USER.") from None

    def _no_answer(self, error: OSError) -> str:
        if self._tls is not None and getattr(error, "verify_code", 0) in OTHER_NAME:
            return (
                f"The certificate of {self.server} is for another host name than {self._host}; use a "
                "name of the certificate, or create one whose subjectAltName contains this name."
            )
        if self._tls is not None and getattr(error, "verify_code", 0) == EXPIRED:
            return f"The certificate of {self.server} has expired. Renew it, and check the clocks of both machines."
        if self._tls is not None and getattr(error, "verify_code", 0) == NOT_YET_VALID:
            return f"The certificate of {self.server} is not valid yet. Check the clocks of both machines."
        if self._tls is not None and "CERTIFICATE" in str(error).upper():
            return f"The certificate of {self.server} is not trusted; set GPUYARD_CA to the file of its authority."
        if self._tls is not None and "SSL" in type(error).__name__:
            return f"{self.server} does not use TLS; try an address that begins with http://."
        if isinstance(error, socket.gaierror):
            return f"Host {self._host} does not exist; set GPUYARD_SERVER to the address of a scheduler."
        words = "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        if "GPUYARD_TASK_ID" in os.environ and not os.environ.get("GPUYARD_SERVER"):
            return (
                f"No scheduler answers at {self.server} ({words}). This task has no GPUYARD_SERVER, because the scheduler "
                "accepts clients on its own machine only; let it listen on an address that nodes reach, or set server.public_url."
            )
        return (
            f"No scheduler answers at {self.server} ({words}). Start one with `gpuyard up`, or set "
            "GPUYARD_SERVER to the address of a running one."
        )

    def _hint_at_tls(self, error: Exception) -> None:
        """Raise an error that names TLS if that is the cause.

        A TLS port closes a plain request, or answers it with bytes that are not HTTP.
        """
        if self._tls is not None or self._has_answered or not isinstance(error, ConnectionError | BadStatusLine):
            return
        if speaks_tls(self._host, self._port or 80, LOOK_FOR_TLS_SECONDS):
            https = f"https://{self.server.rpartition('//')[2]}"
            message = f"{self.server} uses TLS; use {https}, and set GPUYARD_CA to the file of its authority."
            raise NotGpuyard(message) from None

    def _no_http(self) -> str:
        return (
            f"{self.server} does not use HTTP; use the address for clients (default port 8080), not the one for agents."
        )

    def _target(self, path: str, query: Mapping[str, object] | None) -> str:
        said = {name: _spoken(value) for name, value in (query or {}).items() if value is not None}
        return f"{path}{'?' + urlencode(said) if said else ''}"

    @property
    def _prefix(self) -> str:
        return self._servers[self._at].prefix

    def _refusal(self, response: HTTPResponse, answer: bytes) -> Refused | NotGpuyard:
        try:
            error = msgspec.json.decode(answer, type=ErrorAnswer).error
        except msgspec.MsgspecError:
            message = f"{self.server} answered {response.status} {response.reason} without a message of gpuyard."
            stranger = NotGpuyard(
                f"{message} Check that it is a gpuyard scheduler.{_request_id_note(response, message)}"
            )
            stranger.may_have_arrived = response.status >= 500  # a proxy that got no answer, or not in time
            return stranger
        self._answered.set()
        message = error.message + _request_id_note(response, error.message)
        if response.status == HTTPStatus.UNAUTHORIZED and "GPUYARD_TASK_ID" in os.environ:
            message += IN_TASK if "Authorization" not in self._headers else ""
        return refused(response.status, error.code, message, error.field)


def _request_id_note(response: HTTPResponse, message: str) -> str:
    """Return a note with the request id if the server failed, to find it in its log. A 503 only asks to retry later."""
    request_id = response.getheader("X-Request-ID", "")
    failed = response.status >= 500 and response.status != 503
    return f" (request id {request_id})" if failed and request_id and request_id not in message else ""


class _Waiting:
    """How long one request is retried. The first allowance counts, from when it was given."""

    def __init__(self, on_wait: Callable[[ClusterError, float], None] | None) -> None:
        self._began = time.monotonic()
        self._give_up_at: float | None = None
        self._seconds = 0.0
        self._on_wait = on_wait
        self._pause = 0.0
        self.broke = False
        """Whether a connection broke after the request was sent, so that it may have arrived."""
        self.refusal: ClusterError | None = None
        """The last refusal of a scheduler that runs. It says more than that another one does not."""

    def allow(self, seconds: float) -> None:
        if self._give_up_at is None and seconds > 0:
            self._give_up_at = time.monotonic() + seconds
            self._seconds = seconds

    def pause_or_raise(self, error: ClusterError) -> None:
        now = time.monotonic()
        if self._give_up_at is None or now > self._give_up_at:
            raise self.refusal or error from None
        if self._on_wait is not None and now - self._began >= NOTICE_SECONDS:
            self._on_wait(error, self._seconds)
            self._on_wait = None
        time.sleep(min(self._pause, max(0.0, self._give_up_at - now)))
        self._pause = min(self._pause * 2 or 0.05, 0.5)


class ResponseStream:
    """An answer that arrives in parts, for one thread to read to its end. Any thread may hang up."""

    def __init__(
        self,
        server: str,
        connection: HTTPConnection,
        response: HTTPResponse,
        is_succeeded: Callable[[], bool] | None = None,
    ) -> None:
        """`is_succeeded`: whether another scheduler leads; asked while this one is silent."""
        self._server = server
        self._is_succeeded = is_succeeded
        self._parts = 0
        self._connection = connection
        self._response = response
        self._socket = connection.sock or _socket_of(response)
        self._is_over = False
        self._ended = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        """Yield bytes as they arrive. A stream may be silent for days; TCP keep-alive detects a dead peer."""
        _keep_alive(self._socket)
        if self._is_succeeded is not None:
            watching = (self._is_succeeded,)
            threading.Thread(target=self._watch, args=watching, name="gpuyard-successor", daemon=True).start()
        try:
            while part := self._response.read1(65536):
                self._parts += 1
                yield part
            if self._ended.is_set() and not self._is_over:
                raise Unreachable(f"{self._server} is silent, and another scheduler leads.")
        except (OSError, HTTPException, ValueError) as error:
            if not self._is_over:
                raise Unreachable(f"The connection to {self._server} broke ({error}).") from None
        finally:
            self._ended.set()
            self._response.close()
            self._connection.close()

    def hang_up(self) -> None:
        """Shut down the connection, so that the reader ends."""
        self._is_over = True
        self._shut_down()

    def _shut_down(self) -> None:
        self._ended.set()
        with suppress(OSError):  # the server has closed it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _watch(self, is_succeeded: Callable[[], bool]) -> None:
        """Shut the connection down when nothing has come for a while and another scheduler leads."""
        before = -1
        while not self._ended.wait(SILENT_SECONDS):
            if self._parts == before and is_succeeded():
                self._shut_down()
            before = self._parts

    def __del__(self) -> None:
        self._response.close()
        self._connection.close()


def _leads(server: _Server) -> bool:
    """Whether a scheduler says that it leads."""
    connection = server.connection(PROBE_SECONDS)
    try:
        connection.request("GET", f"{server.prefix}/health")
        health = msgspec.json.decode(connection.getresponse().read(), type=HealthAnswer)
    except (OSError, HTTPException, msgspec.MsgspecError):
        return False
    finally:
        connection.close()
    return (health.role, health.status) == ("master", "ok")


def _name_of(uid: int) -> str:
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_no_http(error: Exception) -> bool:
    """Return whether the answer is not HTTP. A truncated one still begins with a prefix of `HTTP/`."""
    if isinstance(error, RemoteDisconnected) or not isinstance(error, BadStatusLine):
        return False
    return not "HTTP/".startswith(str(error.args[0])[:5])


def _socket_of(response: HTTPResponse) -> socket.socket:
    """Return the socket of a response. A connection that ends with its answer hands its socket over to it."""
    raw: Any = response.fp
    found: socket.socket = raw.raw._sock
    return found


def _keep_alive(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _trust(ca: str | None) -> "ssl.SSLContext":
    import ssl

    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        words = error.strerror or "it contains no certificate in PEM form"
        raise WrongAddress(f"The file of certificates {ca} cannot be used: {words}. Check GPUYARD_CA.") from None


def _spoken(value: object) -> str:
    """Format a value for the query string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(item) for item in value)
    return str(value)
