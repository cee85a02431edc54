"""The check for TLS, against servers that do not speak it."""

import gc
import select
import socket
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuyard.live.wire.tls import speaks_tls

RESETS = 20
RESET_SECONDS = 5.0


@contextmanager
def resetting_server() -> Iterator[int]:
    """A server that resets each connection as soon as it is there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _address = listener.accept()
                except OSError:
                    return
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        serving = threading.Thread(target=serve)
        serving.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()


def test_no_socket_stays_open_when_the_server_resets_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 leaks a connected socket that is reset before the handshake; here every reset arrives that early."""
    leaked: list[object] = []
    connect = socket.create_connection

    def slow_connect(*arguments: object) -> socket.socket:
        connection = connect(*arguments)  # type: ignore[arg-type]
        poll = select.poll()
        poll.register(connection, select.POLLHUP)
        assert poll.poll(RESET_SECONDS * 1000)
        return connection

    monkeypatch.setattr(socket, "create_connection", slow_connect)
    monkeypatch.setattr("sys.unraisablehook", lambda caught: leaked.append(caught.exc_value))
    with resetting_server() as port, warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        answers = {speaks_tls("127.0.0.1", port, 2.0) for _ in range(RESETS)}
        gc.collect()
    assert answers == {False}
    assert leaked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
def test_an_address_without_a_server_does_not_speak_tls(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert not speaks_tls(host, port, 2.0)
