"""Each runtime loads, answers and unloads."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from gpuyard.plan.workers.model_host import ModelHost
from gpuyard.plan.workers.order import CallInput, Order, OrderKind, Reply, Runtime
from gpuyard.plan.workers.packed import pack

LINES = """
import json, sys
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["input"] == "die":
        sys.exit(4)
    print(json.dumps({"node": asked["node"], "got": asked["results"]}), flush=True)
"""


def asked(input: object = None, results: dict[str, Any] | None = None, attempt: int = 1) -> CallInput:  # noqa: A002
    return CallInput("r0", "n1", attempt, input, {node: pack(result) for node, result in (results or {}).items()})


def told(runtime: Runtime, kind: OrderKind, question: CallInput | None = None, seconds: float = 0.0) -> Order:
    return Order(1, kind, "m", runtime, 1, seconds, question)


def called(runtime: Runtime, *questions: CallInput, seconds: float = 0.0) -> list[Reply]:
    """Load, ask all, unload."""
    host = ModelHost()
    replies = [host.execute(told(runtime, OrderKind.LOAD))]
    if replies[0].why is None:
        replies += [host.execute(told(runtime, OrderKind.CALL, question, seconds)) for question in questions]
        replies.append(host.execute(told(runtime, OrderKind.UNLOAD)))
    return [replace(reply, result=reply.result.unpack()) if reply.result else reply for reply in replies]


def test_python_loads_with_options_and_calls_with_input_and_results() -> None:
    runtime = Runtime("python", {"python": "tests.unit.plan.workers.toy_models:Echo", "options": {"word": "hello"}})
    loaded, answer, unloaded = called(runtime, asked("you", {"n0": "abc"}))
    assert loaded.why is None
    assert answer.result["said"] == "hello you"
    assert answer.result["from"] == {"n0": 3}
    assert unloaded.why is None


def test_an_exception_of_a_python_model_is_an_answer_and_the_worker_continues() -> None:
    runtime = Runtime("python", {"python": "tests.unit.plan.workers.toy_models:Echo"})
    _, failed, left, answer, _ = called(runtime, asked("fail"), asked("exit"), asked("you"))
    assert failed.why == "ValueError: as asked for"
    assert left.why == "SystemExit: 3"
    assert answer.why is None


def test_a_python_model_that_does_not_load_says_why() -> None:
    (loaded,) = called(Runtime("python", {"python": "tests.unit.plan.workers.toy_models:Broken"}))
    assert loaded.why == "MemoryError: no room for it"
    (loaded,) = called(Runtime("python", {"python": "no.such.module:Thing"}))
    assert loaded.why == "ModuleNotFoundError: No module named 'no'"


def test_a_command_answers_a_line_with_a_line_and_ends_when_it_is_unloaded() -> None:
    runtime = Runtime("command", {"command": [sys.executable, "-c", LINES]})
    _, answer, unloaded = called(runtime, asked("x", {"n0": 1}))
    assert answer.result == {"node": "n1", "got": {"n0": 1}}
    assert unloaded.why is None


def test_a_command_that_ends_reports_its_exit_code() -> None:
    runtime = Runtime("command", {"command": [sys.executable, "-c", LINES]})
    _, answer, _ = called(runtime, asked("die"))
    assert answer.why is not None
    assert answer.why.startswith("ProgramEnded:")
    assert answer.why.endswith("ended with exit code 4")
    (loaded,) = called(Runtime("command", {"command": ["/no/such/program"]}))
    assert loaded.why is not None
    assert "No such file" in loaded.why


class _Completions(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        if text == "refuse":
            self._say(429, {"error": "later"})
        else:
            self._say(200, {"choices": [{"message": {"content": f"{body['model']}:{body.get('max_tokens')}:{text}"}}]})

    def _say(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Completions) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/v1"
        http.shutdown()


def test_openai_puts_input_and_results_into_its_prompt_and_returns_the_text(server: str) -> None:
    settings = {"openai": server, "model": "tiny", "prompt": "{input} + {results[n0]}", "options": {"max_tokens": 5}}
    _, answer, _ = called(Runtime("openai", settings), asked("a", {"n0": "b"}))
    assert answer.result == "tiny:5:a + b"


def test_openai_without_a_prompt_joins_the_input_or_sends_the_messages_of_the_request(server: str) -> None:
    settings = {"openai": server, "model": "tiny"}
    messages = {"messages": [{"role": "user", "content": "as is"}]}
    _, joined, sent, _ = called(Runtime("openai", settings), asked("a", {"n0": "b"}), asked(messages))
    assert joined.result == "tiny:None:a\n\nb"
    assert sent.result == "tiny:None:as is"


def test_openai_reports_the_error_of_the_server(server: str) -> None:
    _, answer, _ = called(Runtime("openai", {"openai": server, "model": "tiny"}), asked("refuse"))
    assert answer.why is not None
    assert answer.why.endswith('/v1/chat/completions answered 429: {"error": "later"}')
    (loaded,) = called(Runtime("openai", {"openai": server, "model": "big"}))
    assert loaded.why == f"ServerRefused: {server} has no model 'big'; it has tiny"


def test_virtual_sleeps_as_planned_and_deviates_and_fails_by_its_seed() -> None:
    settings = {"speed_up": 100.0, "drift": 0.5, "seed": 3}
    first = called(Runtime("virtual", settings), asked(attempt=1), asked(attempt=2), seconds=2.0)
    assert all(0.01 <= reply.seconds < 0.06 for reply in first[1:3])
    assert abs(first[1].seconds - first[2].seconds) > 0.0005
    _, failed, _ = called(Runtime("virtual", {"fails": 1.0}), asked())
    assert failed.why == "SimulatedFailure: attempt 1 fails as configured"


def test_each_reason_for_a_failed_model_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    host = ModelHost()
    broken = Runtime("python", {"python": "tests.unit.plan.workers.toy_models:Broken"})
    missing = Runtime("python", {"python": "tests.unit.plan.workers.toy_models:Nothing"})
    for runtime in (broken, missing, broken, broken):
        assert host.execute(told(runtime, OrderKind.LOAD)).why is not None
    assert capsys.readouterr().err.count("Traceback") == 2
