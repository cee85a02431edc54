"""Python functions on a real cluster: values, exceptions, many calls, the executor."""

import asyncio
import concurrent.futures
import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuyard
from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk import (
    CallCancelled,
    CallFailed,
    CallKilled,
    CallTimedOut,
    Client,
    RemoteError,
    ResultUnreadable,
    TaskFields,
    TookTooLong,
)
from gpuyard.live.sdk.uploads import name_of
from gpuyard.system import payloads
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until

CPU: TaskFields = {"cpu_count": 1}


class Stubborn(Exception):
    """An exception that pickle cannot load: its arguments differ from those of its constructor."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("functions")) as made:
        yield made


@pytest.fixture
def cluster(place: Cluster) -> Client:
    return place.client()


def square(n: int) -> int:
    return n * n


def fails_at_50(n: int) -> int:
    if n == 50:
        raise ValueError(f"no result for {n}")
    return n * 2


def test_a_function_returns_its_value_and_sees_its_gpu(cluster: Client) -> None:
    offset = 7

    def work(a: int, *, b: int = 0) -> tuple[int, str]:
        print("working")
        return a + b + offset, os.environ["CUDA_VISIBLE_DEVICES"]

    call = cluster.submit(work, 1, kwargs={"b": 2}, gpus=1, name="sum")
    value, devices = call.result(timeout=60)
    assert (value, len(devices.split(","))) == (10, 1)
    assert (call.done(), call.exception(), call.task.name) == (True, None, "sum")
    assert b"working" in b"".join(cluster.logs(call))
    assert cluster.wait(call).id == call.id
    assert cluster.result(call.id) == (10, devices)  # in another program, a day later


def test_a_command_is_submitted_as_before(cluster: Client) -> None:
    task = cluster.submit("exit 0", **CPU)
    assert cluster.wait(task, timeout=60).succeeded
    with pytest.raises(WrongInput, match="runs a command"):
        cluster.result(task)
    with pytest.raises(WrongInput, match="pass a list"):
        cluster.submit("echo", "a")  # type: ignore[call-overload]
    with pytest.raises(WrongInput, match="use map"):
        cluster.submit(square, 1, array=3)


def test_an_exception_comes_back_with_the_remote_traceback(cluster: Client) -> None:
    call = cluster.submit(fails_at_50, 50, **CPU)
    with pytest.raises(ValueError, match="no result for 50") as caught:
        call.result(timeout=60)
    assert "in fails_at_50" in caught.value.__notes__[0]
    assert isinstance(call.exception(), ValueError)
    assert (call.task.status, call.task.exit_code) == ("failed", 1)


def test_an_exception_that_cannot_be_sent_is_described(cluster: Client) -> None:
    def refuse() -> None:
        raise Stubborn(3, "not today")

    def leave() -> None:
        sys.exit(4)

    with pytest.raises(RemoteError, match=r"not today \(3\)") as caught:
        cluster.submit(refuse, **CPU).result(timeout=60)
    assert caught.value.type_name.endswith("Stubborn")
    assert "Traceback" in caught.value.__notes__[0]
    with pytest.raises(RemoteError, match="SystemExit"):  # loaded, it would end this program
        cluster.submit(leave, **CPU).result(timeout=60)


def test_signals_time_limits_and_cancellations_have_their_own_errors(cluster: Client) -> None:
    def killed() -> None:
        print("the last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(CallKilled, match="signal 9") as caught:
        cluster.submit(killed, **CPU).result(timeout=60)
    assert caught.value.lines == ["the last words"]
    assert "the last words" in caught.value.__notes__[0]
    slow = cluster.submit(time.sleep, 600, timeout=1, grace=1, cpu_count=1)
    held = cluster.submit(time.sleep, 600, **CPU)
    with pytest.raises(TookTooLong):
        held.result(timeout=0.1)
    held.cancel()
    assert isinstance(held.exception(timeout=60), CallCancelled)
    assert isinstance(slow.exception(timeout=60), CallTimedOut)


def test_a_failure_among_100_items_does_not_stop_the_others(cluster: Client) -> None:
    results = list(cluster.map(fails_at_50, range(100), return_exceptions=True, **CPU))

    assert [one for one in results if not isinstance(one, Exception)] == [n * 2 for n in range(100) if n != 50]
    assert (type(results[50]), str(results[50])) == (ValueError, "no result for 50")


def test_a_map_goes_on_behind_an_exception_that_it_raises(cluster: Client) -> None:
    results = cluster.map(fails_at_50, range(48, 53), max_running=2, **CPU)
    assert [next(results), next(results)] == [96, 98]
    with pytest.raises(ValueError, match="no result"):
        next(results)
    assert list(results) == [102, 104]


def test_a_map_takes_items_as_there_is_room_and_can_yield_them_as_they_end(cluster: Client) -> None:
    taken = []

    def items() -> Iterator[float]:
        for seconds in (1.5, 0.0, 0.0, 0.0, 0.0, 0.0):
            taken.append(seconds)
            yield seconds

    def wait(seconds: float, label: str) -> tuple[float, str]:
        time.sleep(seconds)
        return seconds, label

    results = cluster.map(wait, items(), "abcdef", max_running=2, ordered=False, **CPU)
    first = next(results)
    assert first == (0.0, "b")
    assert len(taken) < 6
    assert sorted([first, *results], key=lambda one: one[1]) == [
        (seconds, label) for seconds, label in zip(taken, "abcdef", strict=True)
    ]


def test_the_executor_works_with_concurrent_futures_and_asyncio(cluster: Client) -> None:
    with cluster.executor(cpu_count=1, name="by-executor") as executor:
        futures = [executor.submit(square, n) for n in range(5)]
        done, left = concurrent.futures.wait(futures, timeout=60)
        assert (len(done), len(left)) == (5, 0)
        assert sorted(it.result() for it in concurrent.futures.as_completed(futures)) == [0, 1, 4, 9, 16]
        assert list(executor.map(square, range(3), timeout=60)) == [0, 1, 4]
        failed = executor.submit(functools.partial(fails_at_50, n=50))
        assert isinstance(failed.exception(timeout=60), ValueError)

        async def wrapped() -> int:
            return await asyncio.wrap_future(executor.submit(square, n=6))

        assert asyncio.run(wrapped()) == 36
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(square, 1)


def test_cancelling_a_future_stops_its_task(cluster: Client) -> None:
    executor = cluster.executor(cpu_count=1)
    future: Any = executor.submit(time.sleep, 600)
    until(future.running, what="the task runs")
    assert future.cancel()
    assert future.cancelled()
    assert concurrent.futures.wait([future], timeout=5).done == {future}
    until(lambda: cluster.task(future.task).status == "cancelled", what="the task has stopped")
    left: Any = executor.submit(time.sleep, 600)
    executor.shutdown(cancel_futures=True)
    assert left.cancelled()


def test_functions_can_be_awaited(place: Cluster) -> None:
    async def work() -> None:
        cluster = gpuyard.aio.connect(f"http://127.0.0.1:{place.http}")
        call = await cluster.submit(square, 5, cpu_count=1)
        assert await call.result(timeout=60) == 25
        results = [one async for one in cluster.map(fails_at_50, range(49, 52), return_exceptions=True, cpu_count=1)]
        assert [type(one) for one in results] == [int, ValueError, int]

    asyncio.run(work())


def test_a_module_of_the_current_folder_travels_with_the_function(place: Cluster, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("FACTOR = 3\ndef times(n):\n    return n * FACTOR\n")
    (tmp_path / "main.py").write_text(
        textwrap.dedent(
            f"""
            import gpuyard, helper, os
            def work(n):
                os.chdir("/")
                return helper.times(n)
            cluster = gpuyard.connect("http://127.0.0.1:{place.http}")
            print(cluster.submit(work, 4, cpu_count=1, work_dir="/").result(timeout=60))
            print(cluster.submit(helper.times, 5, cpu_count=1, snapshot=True).result(timeout=60))
            """
        )
    )
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("12\n15\n", "")


def test_a_result_of_another_python_or_with_other_content_is_not_loaded(cluster: Client) -> None:
    def other(header: dict[str, Any]) -> None:
        content = payloads.pack(b"never loaded", kind="value").replace(
            f'"python": "{payloads.PYTHON}"'.encode(), f'"python": "{header["python"]}"'.encode()
        )
        Path(os.environ["GPUYARD_RESULT_FILE"]).write_bytes(content)
        os._exit(0)

    with pytest.raises(ResultUnreadable, match=r"pickled by Python 3\.99.*this is Python"):
        cluster.submit(other, {"python": "3.99"}, **CPU).result(timeout=60)


def test_a_function_of_another_python_is_not_loaded_on_the_node(cluster: Client) -> None:
    function = payloads.pack(b"never loaded").replace(f'"{payloads.PYTHON}"'.encode(), b'"3.99"')
    arguments = payloads.pack_parts([b""])
    files = {"function": cluster.upload(function), "arguments": cluster.upload(arguments)}
    assert files["function"] == name_of(function)
    command = [sys.executable, "-m", "gpuyard.system.call_runner", "0"]
    task = cluster.submit(command, files=files, store_result=True, cpu_count=1)
    with pytest.raises(payloads.WrongPayload, match=r"pickled by Python 3\.99"):
        cluster.result(task, timeout=60)


def test_large_functions_are_named_and_values_that_cannot_be_pickled_are_refused(cluster: Client) -> None:
    weights = bytes(2 << 20)

    def heavy() -> int:
        return len(weights)

    with pytest.warns(UserWarning, match=r"heavy takes 2\.0 MiB; its largest global is weights \(2\.0 MiB\)"):
        assert cluster.submit(heavy, **CPU).result(timeout=60) == 2 << 20
    with pytest.raises(WrongInput, match="arguments of call 0 cannot be pickled"):
        cluster.submit(square, (n for n in range(3)))
    with pytest.raises(WrongInput, match="cannot be called"):
        list(cluster.map(3, [1]))  # type: ignore[call-overload]
    with pytest.raises(WrongInput, match="max_running is 0"):
        list(cluster.map(square, [1], max_running=0))


def test_a_task_that_cannot_start_says_so(cluster: Client) -> None:
    call = cluster.submit(square, 2, work_dir="/no/such/folder", cpu_count=1)
    with pytest.raises(CallFailed, match="/no/such/folder"):
        call.result(timeout=60)
