"""A `concurrent.futures.Executor` whose work runs on the cluster.

Its futures are ordinary ones: `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future` work with them. One
thread follows the events of the cluster for all of them and reads their results.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.sdk.calls import group_of, new_run, submitted_calls
from gpuyard.live.sdk.errors import ClusterError
from gpuyard.live.sdk.functions import PackedFunction, outcome_of
from gpuyard.live.sdk.values import Task
from gpuyard.live.sdk.waiting import AwaitedEnds

if TYPE_CHECKING:
    from gpuyard.live.sdk.client import Client

P = ParamSpec("P")
T = TypeVar("T")


class ClusterFuture(Future[T]):
    """The result of a function on the cluster. `cancel` also stops one that runs."""

    def __init__(self, cluster: "Client", task: Task) -> None:
        super().__init__()
        self._cluster = cluster
        self.task = task
        """The task as it was submitted, or as it ended."""

    def cancel(self) -> bool:
        """Stop the task, or take it out of the queue; return False if it has ended already."""
        if self.done():
            return self.cancelled()
        self._cluster.cancel(self.task)
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        return True

    def running(self) -> bool:
        """Return whether the task runs now; this asks the scheduler."""
        return not self.done() and self._cluster.task(self.task).status is TaskStatus.RUNNING


class ClusterExecutor(Executor):
    """Runs functions as tasks. Create it with `cluster.executor(gpus=1, …)`."""

    def __init__(self, cluster: "Client", defaults: Mapping[str, Any]) -> None:
        from gpuyard.live.sdk.client import check_call

        check_call(defaults, None)
        self._cluster = cluster
        self._defaults = dict(defaults)
        self._run = new_run()
        self._turn = threading.Condition()
        self._open: dict[int, ClusterFuture[Any]] = {}
        self._packed: tuple[Callable[..., Any], PackedFunction] | None = None
        self._is_shut_down = False
        self._thread: threading.Thread | None = None
        self._following: AwaitedEnds | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call; all arguments are those of the function."""
        if self._is_shut_down:
            raise RuntimeError("The executor was shut down; create another one with cluster.executor().")
        cluster: Any = self._cluster
        packed = self._packed[1] if self._packed is not None and self._packed[0] is fn else PackedFunction(fn)
        self._packed = (fn, packed)
        options = {"group": group_of(packed, self._run), **self._defaults}
        tasks = cluster._run(submitted_calls(packed, [(args, kwargs)], options, cluster._submit_bodies))
        future: ClusterFuture[T] = ClusterFuture(self._cluster, tasks[0])
        with self._turn:
            self._open[tasks[0].number] = future
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="gpuyard-executor", daemon=True)
                self._thread.start()
            elif self._following is not None:
                self._following.add(tasks[0].number, tasks[0].created_at)
            self._turn.notify()
        return future

    def open_futures(self) -> "list[ClusterFuture[Any]]":
        """Return the futures that have no result yet."""
        with self._turn:
            return list(self._open.values())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more. With `cancel_futures`, stop all tasks that have not ended; with `wait`, wait for them."""
        with self._turn:
            self._is_shut_down = True
            self._turn.notify()
        if cancel_futures:
            for future in self.open_futures():
                future.cancel()
        if wait:
            with self._turn:
                while self._open:
                    self._turn.wait()

    def _follow(self) -> None:
        """Read results until nothing is open and the executor was shut down."""
        while True:
            with self._turn:
                while not self._open and not self._is_shut_down:
                    self._turn.wait()
                if not self._open:
                    return
                waiting: dict[int, str | None] = {it: future.task.created_at for it, future in self._open.items()}
                connection = self._cluster.connection.without_waiting()
                self._following = AwaitedEnds(connection, waiting, None, grows=True)
            try:
                self._read_all(self._following)
            except ClusterError as error:  # away for two minutes, or a token that is not valid any more
                self._fail_all(error)
            finally:
                self._following.close()

    def _read_all(self, following: AwaitedEnds) -> None:
        cluster: Any = self._cluster
        while (task := cluster._run(following.next())) is not None:
            future = self._open.get(task.number)
            if future is None:
                continue
            future.task = task
            try:
                value, error = cluster._run(outcome_of(task))
            except ClusterError as problem:
                value, error = None, problem
            self._settle(future, value, error)

    def _settle(self, future: "ClusterFuture[Any]", value: Any, error: Exception | None) -> None:
        if future.set_running_or_notify_cancel() if not future.done() else False:
            future.set_exception(error) if error is not None else future.set_result(value)
        with self._turn:
            self._open.pop(future.task.number, None)
            self._turn.notify_all()

    def _fail_all(self, error: ClusterError) -> None:
        for future in list(self._open.values()):
            self._settle(future, None, error)
