"""The connection to the scheduler: kept open, retried where that is safe, with one sentence for each error."""

import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.live.sdk import ClusterError, NotAllowed, NotFound, Refused, TemporarilyRefused, Unreachable, connect
from gpuyard.live.sdk.connection import CONNECT_SECONDS, NOTICE_SECONDS
from gpuyard.live.sdk.errors import NotGpuyard, WrongAddress
from gpuyard.live.sdk.tokens import store_token, stored_token
from tests.ports import free_port
from tests.unit.certificates import dated_certificate, needs_openssl
from tests.unit.live.sdk.fake_server import Answering, fake_server, refusal, task


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPUYARD_SERVER", "GPUYARD_TOKEN", "GPUYARD_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def answers(line: Answering) -> None:
    line.say(task())


def test_one_connection_serves_many_requests() -> None:
    with fake_server(answers) as server:
        cluster = connect(server.url)
        for _ in range(5):
            cluster.task(7)

        assert server.connections == 1
        assert server.asked[0].path == "/api/v1/tasks/task-7"


def test_every_thread_has_a_connection_of_its_own() -> None:
    with fake_server(answers) as server:
        cluster = connect(server.url)
        threads = [threading.Thread(target=cluster.task, args=(7,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

        assert len(server.asked) == 4
        assert {asked.connection for asked in server.asked} == {1, 2, 3, 4}


def test_a_connection_the_server_closed_is_reopened() -> None:
    def answers_once(line: Answering) -> None:
        line.say(task())
        line.close_connection = True

    with fake_server(answers_once) as server:
        cluster = connect(server.url)
        assert [cluster.task(7).id for _ in range(3)] == ["task-7"] * 3
        assert server.connections == 3


def test_a_submission_whose_answer_is_lost_is_sent_again_with_the_same_key() -> None:
    def breaks_first(line: Answering) -> None:
        if line.number == 1:
            line.hang_up()
        else:
            line.say(task(), 201)

    with fake_server(breaks_first) as server:
        assert connect(server.url).submit("true").id == "task-7"

        keys = [asked.headers["Idempotency-Key"] for asked in server.asked]
        assert len(keys) == 2
        assert keys[0] == keys[1]
        assert server.asked[0].body == server.asked[1].body == {"command": "true"}


def test_two_submissions_have_two_keys() -> None:
    with fake_server(lambda line: line.say(task(), 201)) as server:
        cluster = connect(server.url)
        cluster.submit("true")
        cluster.submit("true")

        assert server.asked[0].headers["Idempotency-Key"] != server.asked[1].headers["Idempotency-Key"]


def test_requests_that_are_not_idempotent_are_not_repeated() -> None:
    with fake_server(lambda line: line.hang_up()) as server:
        with pytest.raises(Unreachable, match="may have been executed") as caught:
            connect(server.url).create_token("ci")

        assert caught.value.may_have_arrived
        assert len(server.asked) == 1


def test_a_truncated_answer_is_requested_again() -> None:
    def half(line: Answering) -> None:
        if line.number == 1:
            line.send_response(200)
            line.send_header("Content-Length", "100000")
            line.end_headers()
            line.wfile.write(b"{")
            line.hang_up()
        else:
            line.say(task())

    with fake_server(half) as server:
        assert connect(server.url).task(7).id == "task-7"


def test_a_restarting_scheduler_is_waited_for() -> None:
    """The first server takes the request and dies with it; another one listens on the same port a moment later."""
    port = free_port()
    got_it = threading.Event()

    def takes_it(line: Answering) -> None:
        got_it.set()
        line.hang_up()

    made: list[str] = []

    def submit() -> None:
        made.append(connect(f"http://127.0.0.1:{port}").submit("true").id)

    submitting = threading.Thread(target=submit)
    with fake_server(takes_it, port):
        submitting.start()
        assert got_it.wait(10)
    with fake_server(lambda line: line.say(task(), 201), port):
        submitting.join(10)
    assert made == ["task-7"]


def test_a_sent_submission_may_have_arrived_whatever_answers_later() -> None:
    def breaks_off_then_is_another(line: Answering) -> None:
        if len(server.asked) == 1:
            line.hang_up()
        else:
            line.say(b"<html>hello</html>")

    with fake_server(breaks_off_then_is_another) as server, pytest.raises(NotGpuyard) as caught:
        connect(server.url).ask_for_lease(1, idempotency_key="mine")
    assert caught.value.may_have_arrived
    assert [asked.headers["Idempotency-Key"] for asked in server.asked] == ["mine", "mine"]


def test_without_a_listener_the_message_says_how_to_start_a_cluster() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable) as caught:
        connect(address).task(7)

    assert not caught.value.may_have_arrived
    assert address in str(caught.value)
    assert "`gpuyard up`" in str(caught.value)


def test_a_client_that_waits_for_a_scheduler_sends_its_request_once_when_one_listens() -> None:
    """Nothing was sent before, so this holds for requests that must not be repeated, too."""
    port, told = free_port(), threading.Event()
    cluster = connect(f"http://127.0.0.1:{port}", wait_for_scheduler=20, on_wait=lambda _error, _seconds: told.set())
    asking = threading.Thread(target=cluster.hold, args=(7,))
    asking.start()
    assert told.wait(10)
    with fake_server(answers, port) as server:
        asking.join(10)
        assert [asked.method for asked in server.asked] == ["POST"]


def test_a_caller_that_handles_outages_itself_is_not_told_of_waiting() -> None:
    told = threading.Event()
    starting, began = refusal("NotReady", "The scheduler is starting."), time.monotonic()

    def starts(line: Answering) -> None:
        if time.monotonic() - began < NOTICE_SECONDS + 0.5:
            line.say(starting, 503)
        else:
            answers(line)

    with fake_server(starts) as server:
        cluster = connect(server.url, on_wait=lambda _error, _seconds: told.set())
        cluster.without_waiting().task(7)
    assert not told.is_set()


def test_a_silent_server_is_given_up() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        cluster = connect(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_seconds=0.2)
        with pytest.raises(Unreachable, match=r"did not answer within 0\.2 seconds"):
            cluster.task(7)


def test_a_scheduler_that_is_cut_off_does_not_hold_up_a_request_to_several() -> None:
    """Its machine answers no attempt to connect, as with a full queue of connections here."""
    with socket.socket() as cut_off, socket.socket() as queued, fake_server(answers) as server:
        cut_off.bind(("127.0.0.1", 0))
        cut_off.listen(0)
        queued.connect(cut_off.getsockname())
        began = time.monotonic()
        assert connect(f"http://127.0.0.1:{cut_off.getsockname()[1]},{server.url}").task(7).id == "task-7"
        assert time.monotonic() - began < CONNECT_SECONDS / 2


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Refused), (401, NotAllowed), (403, NotAllowed), (404, NotFound), (409, Refused)]
)
def test_a_refusal_carries_the_message_of_the_scheduler(status: int, kind: type[Refused]) -> None:
    said = refusal("WrongType", "gpu_count must be a number.", "gpu_count")
    with fake_server(lambda line: line.say(said, status)) as server:
        with pytest.raises(kind) as caught:
            connect(server.url).submit("true", gpu_count=1)

        error = caught.value
        assert (str(error), error.code, error.field, error.status) == (
            "gpu_count must be a number.",
            "WrongType",
            "gpu_count",
            status,
        )
        assert type(error) is kind


@pytest.mark.parametrize("answer", [b"<html>hello</html>", b"[]", b'{"id": 7}'])
def test_another_program_at_the_address_is_distinguished_from_a_scheduler(answer: bytes) -> None:
    with fake_server(lambda line: line.say(answer)) as server, pytest.raises(NotGpuyard, match="gpuyard scheduler"):
        connect(server.url).task(7)


def test_a_port_without_http_is_distinguished_from_a_scheduler_at_once() -> None:
    def greet(line: Answering) -> None:
        line.wfile.write(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x04\x00@\r\n")
        line.hang_up()

    with fake_server(greet) as server:
        began = time.monotonic()
        with pytest.raises(NotGpuyard, match=r"does not use HTTP; .* not the one for agents\.$"):
            connect(server.url).nodes()
        with pytest.raises(NotGpuyard, match="does not use HTTP"):
            list(connect(server.url).logs(7))
        assert time.monotonic() - began < 5


def test_an_empty_id_is_not_sent() -> None:
    with fake_server(lambda line: line.say({})) as server:
        cluster = connect(server.url)
        for ask in (
            cluster.cancel,
            cluster.task,
            cluster.release_lease,
            cluster.drain,
            cluster.remove_user,
            cluster.revoke_token,
        ):
            with pytest.raises(NotFound, match="empty"):
                ask("")
    assert server.asked == []


def test_an_html_error_page_is_no_refusal() -> None:
    with fake_server(lambda line: line.say(b"<h1>Bad</h1>", 502)) as server, pytest.raises(NotGpuyard, match="502"):
        connect(server.url).task(7)


@pytest.mark.parametrize("address", ["ftp://yard", "http://", "http://yard:port", "http://yard:99999", "http://y?a=b"])
def test_an_invalid_address_is_refused_before_anything_is_sent(address: str) -> None:
    with pytest.raises(WrongAddress, match=r"http://127\.0\.0\.1:8080"):
        connect(address)


def test_an_address_without_scheme_and_one_with_a_path_both_work() -> None:
    with fake_server(answers) as server:
        connect(server.url.removeprefix("http://")).task(7)
        connect(f"{server.url}/yard/").task(7)

        assert [asked.path for asked in server.asked] == ["/api/v1/tasks/task-7", "/yard/api/v1/tasks/task-7"]


def test_address_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server(answers) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        monkeypatch.setenv("GPUYARD_TOKEN", "gy_secret")
        connect().task(7)
        connect(token="").task(7)

        assert [asked.headers.get("Authorization") for asked in server.asked] == ["Bearer gy_secret", None]


def test_a_token_with_a_line_break_is_never_sent() -> None:
    with pytest.raises(ClusterError, match="copy it again"):
        connect("http://127.0.0.1:1", token="gy_a\r\nX-Evil: 1")


def test_an_invalid_certificate_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for ca in ("ca.pem", "missing.pem"):
        with pytest.raises(WrongAddress, match="GPUYARD_CA"):
            connect("https://127.0.0.1:1", ca=str(tmp_path / ca))


def test_http_at_a_tls_port_is_reported_in_one_sentence() -> None:
    with fake_server(answers) as server, pytest.raises(Unreachable, match="does not use TLS"):
        connect(server.url.replace("http:", "https:")).task(7)


def test_a_starting_scheduler_is_waited_for() -> None:
    starting = refusal("NotReady", "The scheduler is starting.")

    def starts(line: Answering) -> None:
        if len(line.fake_server.asked) < 3:
            line.say(starting, 503)
        else:
            line.say(task(), 201)

    with fake_server(starts) as server:
        assert connect(server.url).submit("true").id == "task-7"


def test_a_request_that_finds_no_database_is_repeated_for_a_while() -> None:
    away = refusal("StorageUnreachable", "The database of the scheduler does not answer.")

    def returns(line: Answering) -> None:
        if len(line.fake_server.asked) < 3:
            line.say(away, 503)
        else:
            line.say(task(), 201)

    with fake_server(returns) as server:
        assert connect(server.url).submit("true").id == "task-7"


def test_a_full_disk_is_reported_at_once() -> None:
    full = refusal("StorageFull", "No space is left.")
    with fake_server(lambda line: line.say(full, 503)) as server:
        with pytest.raises(TemporarilyRefused, match="No space is left"):
            connect(server.url).submit("true")

        assert len(server.asked) == 1


@needs_openssl
@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ("20200101000000Z", "20200102000000Z", "has expired. Renew it"),
        ("20400101000000Z", "20400102000000Z", "is not valid yet. Check the clocks"),
    ],
)
def test_a_certificate_outside_its_validity_is_not_blamed_on_its_authority(
    tmp_path: Path, first: str, last: str, words: str
) -> None:
    pair = dated_certificate(tmp_path, "server", first, last)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def shakes_hands_once() -> None:
            line, _ = listener.accept()
            with line, suppress(OSError):
                context.wrap_socket(line, server_side=True).close()

        answering = threading.Thread(target=shakes_hands_once)
        answering.start()
        with pytest.raises(Unreachable) as caught:
            connect(f"https://127.0.0.1:{listener.getsockname()[1]}", token="", ca=str(pair.cert)).task(7)
        answering.join(10)
    assert words in str(caught.value)
    assert "GPUYARD_CA" not in str(caught.value)


def test_every_call_has_its_own_id_that_a_retry_keeps() -> None:
    def breaks_off_once(line: Answering) -> None:
        if len(line.fake_server.asked) == 2:
            line.hang_up()
        else:
            line.say(task())

    with fake_server(breaks_off_once) as server:
        cluster = connect(server.url)
        cluster.task(7)
        cluster.task(7)

    first, broken, repeated = [asked.headers["X-Request-ID"] for asked in server.asked]
    assert broken == repeated != first


@pytest.mark.parametrize(("status", "shown"), [(500, True), (409, False), (503, False)])
def test_an_internal_error_message_contains_the_id(status: int, shown: bool) -> None:
    def fails(line: Answering) -> None:
        body = msgspec.json.encode(refusal("Wrong", "It went wrong."))
        line.send_response(status)
        line.send_header("X-Request-ID", line.asked.headers["X-Request-ID"])
        line.send_header("Content-Length", str(len(body)))
        line.end_headers()
        line.wfile.write(body)

    with fake_server(fails) as server, pytest.raises(Refused) as refused:
        connect(server.url).task(7)

    assert (f"(request id {server.asked[0].headers['X-Request-ID']})" in str(refused.value)) is shown


def test_a_stream_that_a_standby_or_a_starting_scheduler_refuses_is_read_at_the_next_one() -> None:
    for status, code in ((307, "NotLeading"), (503, "NotReady")):
        said = {"error": {"code": code, "message": "Another one leads.", "field": None}}

        def refuses(line: Answering, status: int = status, said: Any = said) -> None:
            line.say(said, status)

        def streams(line: Answering) -> None:
            line.begin_stream()
            line.wfile.write(b"output\n")

        with fake_server(refuses) as standby, fake_server(streams) as leader:
            assert b"".join(connect(f"{standby.url},{leader.url}").logs(7)) == b"output\n"
            with pytest.raises(TemporarilyRefused):
                list(connect(standby.url).logs(7))


def test_a_login_counts_for_each_address_of_a_cluster_in_any_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    store_token("https://a:1,https://b:2/", "gy_secret")
    for address in ("https://a:1", "https://b:2", "https://B:2,https://a:1/", " https://c:3 , https://a:1"):
        assert stored_token(address) == "gy_secret"
    assert stored_token("https://c:3") is None
    store_token("https://b:2,https://a:1", None)
    assert stored_token("https://a:1") is None


def test_a_task_without_an_address_or_a_token_learns_why(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match="Start one with `gpuyard up`"):
        connect(nowhere).task(7)
    monkeypatch.setenv("GPUYARD_TASK_ID", "7")
    with pytest.raises(Unreachable, match=r"This task has no GPUYARD_SERVER, because .* set server\.public_url"):
        connect(nowhere).task(7)
    monkeypatch.setenv("GPUYARD_SERVER", nowhere)
    with pytest.raises(Unreachable, match="Start one with `gpuyard up`"):
        connect().task(7)

    def refuses(line: Answering) -> None:
        line.say(refusal("LoginRequired", "Log in."), 401)

    with fake_server(refuses) as server:
        with pytest.raises(NotAllowed, match=r"Log in\. This is a task, and a task gets no token of its own"):
            connect(server.url).task(7)
        with pytest.raises(NotAllowed) as refused:
            connect(server.url, token="gy_x").task(7)
        assert "This is a task" not in str(refused.value)
