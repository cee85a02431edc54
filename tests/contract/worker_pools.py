"""The contract of worker pools. Run with a pool of three GPUs of which none is open at first."""

import os
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

from gpuyard.plan.executor.messages import Back, Done, ExecutorEvent, Failed, Lost
from gpuyard.plan.workers.order import CallInput, Order, OrderKind, Runtime
from gpuyard.plan.workers.pool import Pool

ECHO = Runtime("python", {"python": "tests.unit.plan.workers.toy_models:Echo"})
PATIENCE_S = 60.0


def until(pool: Pool, wanted: Callable[[list[ExecutorEvent]], bool]) -> list[ExecutorEvent]:
    """All events up to those that are wanted."""
    events: list[ExecutorEvent] = []
    end = monotonic() + PATIENCE_S
    while not wanted(events):
        assert monotonic() < end, f"only {events} happened"
        events += pool.wait(0.5)
    return events


def all_there(pool: Pool, *gpus: int) -> None:
    pool.open(gpus)
    events = until(pool, lambda events: len(events) >= len(gpus))
    assert sorted(events, key=repr) == [Back(gpu) for gpu in gpus]


def ask(pool: Pool, gpu: int, number: int, kind: OrderKind, question: CallInput | None = None) -> ExecutorEvent:
    pool.send([(gpu, Order(number, kind, "echo", ECHO, 1, 0.0, question))])
    return until(pool, bool)[0]


def call(pool: Pool, gpu: int, number: int, said: object, results: dict[str, Any] | None = None) -> Any:
    event = ask(pool, gpu, number, OrderKind.CALL, CallInput("r", "n", 1, said, results or {}))
    assert isinstance(event, Done), event
    assert event.operation == number
    return event.result


def models_are_held_and_results_travel_between_workers(pool: Pool) -> None:
    all_there(pool, 0, 1)
    assert isinstance(ask(pool, 0, 1, OrderKind.LOAD), Done)
    assert isinstance(ask(pool, 1, 2, OrderKind.LOAD), Done)
    small, large = call(pool, 0, 3, "you"), call(pool, 0, 4, "large")
    answer = pool.fetch(call(pool, 1, 5, "me", {"small": small, "large": large}))
    assert answer["said"] == "echo me"
    assert answer["from"] == {"small": 4, "large": 3 << 20}
    for result in (small, large):
        pool.forget(result)


def what_fails_is_told_and_the_worker_lives(pool: Pool) -> None:
    all_there(pool, 0)
    assert isinstance(ask(pool, 0, 1, OrderKind.LOAD), Done)
    assert ask(pool, 0, 2, OrderKind.CALL, CallInput("r", "n", 1, "fail", {})) == Failed(2, "ValueError: as asked for")
    event = ask(pool, 0, 3, OrderKind.CALL, CallInput("r", "n", 1, "lock", {}))
    assert isinstance(event, Failed), event
    assert pool.fetch(call(pool, 0, 4, "you"))["said"] == "echo you"
    assert isinstance(ask(pool, 0, 5, OrderKind.UNLOAD), Done)


def a_killed_worker_is_noticed_while_it_is_idle_and_another_one_begins(pool: Pool) -> None:
    all_there(pool, 0, 1)
    pid: Any = pool.pid(0)  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)
    lost, back = until(pool, lambda events: len(events) >= 2)
    assert isinstance(lost, Lost)
    assert lost.gpu == 0
    assert back == Back(0)
    assert isinstance(ask(pool, 0, 1, OrderKind.LOAD), Done)


def a_worker_that_dies_in_a_call_is_lost_and_says_nothing_else(pool: Pool) -> None:
    all_there(pool, 0)
    assert isinstance(ask(pool, 0, 1, OrderKind.LOAD), Done)
    pool.send([(0, Order(2, OrderKind.CALL, "echo", ECHO, 1, 0.0, CallInput("r", "n", 1, "die", {})))])
    lost, back = until(pool, lambda events: len(events) >= 2)
    assert isinstance(lost, Lost)
    assert back == Back(0)


def a_stopped_worker_begins_anew_unless_it_is_for_good(pool: Pool) -> None:
    all_there(pool, 0, 1)
    pool.stop([0], for_good=False)
    assert until(pool, bool) == [Back(0)]
    pool.stop([1], for_good=True)
    assert pool.wait(0.5) == []
    assert not pool.expects_workers
    all_there(pool, 1)


def a_model_is_loaded_beside_a_call(pool: Pool) -> None:
    """The call waits until the other model is there: it could not end if the load came after it."""
    waits, comes = (
        Runtime("python", {"python": f"tests.unit.plan.workers.toy_models:{name}"}) for name in ("Waits", "Comes")
    )
    all_there(pool, 0)
    pool.send([(0, Order(1, OrderKind.LOAD, "waits", waits, 1, 0.0))])
    assert isinstance(until(pool, bool)[0], Done)
    pool.send([(0, Order(2, OrderKind.CALL, "waits", waits, 1, 0.0, CallInput("r", "n", 1, None, {})))])
    pool.send([(0, Order(3, OrderKind.LOAD, "comes", comes, 1, 0.0, beside=True))])
    events = {
        event.operation: event for event in until(pool, lambda events: len(events) >= 2) if isinstance(event, Done)
    }
    assert sorted(events) == [2, 3]
    assert pool.fetch(events[2].result) == "it came"
    pool.send([(0, Order(4, OrderKind.UNLOAD, "waits", waits, 1, 0.0, beside=True))])
    assert isinstance(until(pool, bool)[0], Done)


PROMISES: list[Callable[[Pool], None]] = [
    models_are_held_and_results_travel_between_workers,
    what_fails_is_told_and_the_worker_lives,
    a_killed_worker_is_noticed_while_it_is_idle_and_another_one_begins,
    a_worker_that_dies_in_a_call_is_lost_and_says_nothing_else,
    a_stopped_worker_begins_anew_unless_it_is_for_good,
    a_model_is_loaded_beside_a_call,
]
