"""GPUs of a cluster, borrowed for a plan, in blocks that are each held by a task (`remote_worker`).

The tasks may be requeued, and are of class batch unless told otherwise: the plan uses what online work leaves. When the
scheduler reclaims a block, it notifies the task first, the executor finishes or stops what runs there within the grace
period, and only then the task ends. It is queued like any other task, and when it is placed again its GPUs are used
again. A task whose node is lost is started elsewhere by the scheduler.

With head-room the plan takes a GPU only while more than so many are idle, and gives one back when fewer are. It then
submits and withdraws tasks one by one, as the number of idle GPUs changes:

    idle GPUs       0 ──────────── head-room ──────────── all
    the plan          gives back             takes more

A block has as many GPUs as the widest model: they are on one node, and one worker of the block can use all of them.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil
from time import monotonic, sleep
from typing import Final
from urllib.parse import urlsplit

from gpuyard.core.domain.errors import GpuyardError, WrongInput
from gpuyard.core.domain.values import TaskClass, TaskStatus
from gpuyard.live.sdk import Client, Task
from gpuyard.live.sdk.client import NewTaskFields
from gpuyard.live.wire.answers import GpusAnswer
from gpuyard.plan.executor.messages import Back, ExecutorEvent, Reclaimed
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.workers.pool import Pool
from gpuyard.plan.workers.remote import BlockChange, RemotePool
from gpuyard.plan.workers.remote_worker import KEY_VARIABLE
from gpuyard.plan.workers.settings import Runtimes

GRACE_S: Final = 8.0
"""A task has ten seconds between SIGTERM and SIGKILL; the plan's workers must have left the GPUs before that."""
KILL_S: Final = 10.0
LOOK_S: Final = 2.0
"""The interval at which the scheduler is asked about tasks that are not connected, and about idle GPUs."""
SETTLE_S: Final = 1.5
"""The time to wait for more GPUs after the first one, before the plan starts."""
TRIES: Final = 3
"""How often a task that ends before it connects is submitted again."""
MOST_PORTS: Final = 65_535
WILDCARDS: Final = {"", "0.0.0.0", "::", "*"}  # noqa: S104 - they are refused


class NoGpus(GpuyardError):
    """The cluster lends no GPU for the plan."""


@dataclass(frozen=True, slots=True)
class HeadRoom:
    """GPUs of the cluster that a plan leaves idle for others: a number, or a part of those that are online."""

    gpus: int = 0
    part: float = 0.0

    def of(self, online: int) -> int:
        """Return the number for a cluster of so many GPUs."""
        return max(self.gpus, ceil(self.part * online - 1e-9))

    def __bool__(self) -> bool:
        return bool(self.gpus or self.part)


@dataclass(frozen=True, slots=True)
class BorrowOptions:
    """How GPUs are borrowed."""

    leave_free: HeadRoom = field(default_factory=HeadRoom)
    task_class: TaskClass = TaskClass.BATCH
    priority: int | None = None
    """Of the tasks that hold GPUs, within their class; None: the scheduler's default."""
    listen: str | None = None
    """HOST or HOST:PORT at which workers reach this process; None: the address that is used to reach the scheduler."""
    python: str = sys.executable
    """The interpreter of the workers, on their nodes."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


def blocks_of(problem: Problem) -> list[range]:
    """Return the GPUs that are borrowed together: as many as the widest model needs that is called."""
    widest = int(problem.width[problem.calls.model].max(initial=1))
    gpus = len(problem.gpus)
    return [range(first, min(first + widest, gpus)) for first in range(0, gpus, widest)]


def in_blocks(problem: Problem) -> Problem:
    """Return the problem with each block on a host of its own, so that no model is planned across two."""
    return replace(problem, hosts=tuple(number for number, block in enumerate(blocks_of(problem)) for _ in block))


class _Stage(Enum):
    """Where a block stands."""

    FREE = "free"
    """No task holds it or waits for it."""
    ASKED = "asked"
    """Its task was submitted, and is not connected."""
    HELD = "held"
    LEAVING = "leaving"
    """It is being given back."""
    CLOSED = "closed"
    """It will not be borrowed any more."""


@dataclass(slots=True)
class _Block:
    gpus: range
    stage: _Stage = _Stage.FREE
    task: Task | None = None
    returned: set[int] = field(default_factory=set)
    ended: int = 0
    """How often its task ended before it connected."""
    reclaimed: bool = False
    """Whether the scheduler reclaims its GPUs: its task then goes back to the queue."""


@dataclass(frozen=True, slots=True)
class _Errand:
    """What is asked of the scheduler at a time, in another thread."""

    cancel: list[Task] = field(default_factory=list)
    submit: list[int] = field(default_factory=list)
    ask: dict[int, Task] = field(default_factory=dict)


@dataclass(slots=True)
class _Answers:
    submitted: dict[int, Task] = field(default_factory=dict)
    found: dict[int, Task] = field(default_factory=dict)
    gpus: GpusAnswer | None = None


class ClusterGpus:
    """Implements `BorrowedGpus`: a source of GPUs and, through `pool`, the workers on them."""

    def __init__(
        self,
        cluster: Client,
        problem: Problem,
        speed_up: float = 1.0,
        options: BorrowOptions | None = None,
        warn: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        self._cluster = cluster
        self._options = options or BorrowOptions()
        self._speed_up = speed_up
        self._warn = warn
        self._name = problem.name or "plan"
        self._blocks = [_Block(gpus) for gpus in blocks_of(problem)]
        self._events: list[ExecutorEvent] = []
        self._leaving: set[str] = set()
        """Tasks that were told to leave GPUs that the scheduler had not reclaimed; these become idle."""
        self._reasons: list[str] = []
        self._errands = ThreadPoolExecutor(1, "cluster-gpus")
        self._under_way: Future[_Answers] | None = None
        self._looked = monotonic()
        host, port = _where_to_listen(self._options.listen, cluster.connection.server)
        try:
            self._pool = RemotePool([block.gpus for block in self._blocks], host, port)
        except OSError as error:
            raise WrongInput(f"Workers cannot connect to {host}:{port}: {os.strerror(error.errno or 0)}.") from None
        try:
            if self._options.leave_free:
                self._adjust(cluster.gpus(), 0.0)
            else:
                for block in self._blocks:
                    block.stage = _Stage.ASKED
            self._take(_Answers(self._submit(cluster, self._to_submit())), 0.0)
        except BaseException:
            self._pool.close()
            raise

    # --- requests to the scheduler ------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        """Ask the scheduler every few seconds, in another thread: the plan goes on although it does not answer."""
        if self._under_way is not None:
            if not self._under_way.done():
                return
            answers, self._under_way = self._under_way.result(), None
            self._take(answers, now_s)
        if monotonic() - self._looked < LOOK_S:
            return
        self._looked = monotonic()
        errand = _Errand(submit=self._to_submit())
        for number, block in enumerate(self._blocks):
            if block.task is not None and block.stage is _Stage.FREE:
                errand.cancel.append(block.task)
                block.task = None
            elif block.task is not None and block.stage is _Stage.ASKED:
                errand.ask[number] = block.task
        self._under_way = self._errands.submit(self._run, errand)

    def _to_submit(self) -> list[int]:
        return [n for n, block in enumerate(self._blocks) if block.stage is _Stage.ASKED and block.task is None]

    def _run(self, errand: _Errand) -> _Answers:
        """Send requests. If the scheduler does not answer or refuses, the rest is left to the next look."""
        answers = _Answers()
        cluster = self._cluster.without_waiting()
        with suppress(GpuyardError):
            for task in errand.cancel:
                cluster.cancel(task)
            answers.submitted = self._submit(cluster, errand.submit)
            for number, task in errand.ask.items():
                answers.found[number] = cluster.task(task)
            if self._options.leave_free:
                answers.gpus = cluster.gpus()
        return answers

    def _submit(self, cluster: Client, numbers: list[int]) -> dict[int, Task]:
        if not numbers:
            return {}
        return dict(zip(numbers, cluster.submit_many(map(self._request, numbers)), strict=True))

    def _request(self, number: int) -> NewTaskFields:
        gpus, options = self._blocks[number].gpus, self._options
        words = [options.python, "-m", "gpuyard.plan.workers.remote_worker", self._pool.address]
        named = f"gpu {gpus[0]}" if len(gpus) == 1 else f"gpus {gpus[0]}-{gpus[-1]}"
        return {
            "command": [*words, str(gpus[0]), str(len(gpus))],
            "gpu_count": len(gpus),
            "name": f"{self._name} {named}",
            "description": "holds GPUs for a plan and runs its workers",
            "task_class": options.task_class,
            "priority": options.priority,
            "preemption": "requeue",
            "grace": KILL_S,
            "model": self._name,
            "env": dict(options.env) or None,
            "secrets": {**options.secrets, KEY_VARIABLE: self._pool.key},
        }

    def _take(self, answers: _Answers, now_s: float) -> None:
        """Take the answers of the scheduler into account."""
        for number, task in answers.submitted.items():
            self._blocks[number].task = task
        for number, task in answers.found.items():
            block = self._blocks[number]
            if task.ended and block.stage is _Stage.ASKED:
                self._ended(block, task)
        if answers.gpus is not None:
            self._adjust(answers.gpus, now_s)

    def _ended(self, block: _Block, task: Task) -> None:
        """A task has ended before it connected: submit it again, unless it was cancelled or that was tried too often."""
        block.task = None
        block.ended += 1
        if task.status is not TaskStatus.CANCELLED and block.ended <= TRIES:
            return
        block.stage = _Stage.CLOSED
        why = " ".join(filter(None, [f"{task.id} of the plan is {task.status}.", task.reason, self._pool.turned_away]))
        self._reasons.append(why)
        self._warn(f"{why} Its GPUs are not borrowed again.")

    # --- head-room ----------------------------------------------------------------------------------------------------

    def _adjust(self, answer: GpusAnswer, now_s: float) -> None:
        """Ask for GPUs and give some back, so that as many stay idle as the options say."""
        spare = -self._options.leave_free.of(answer.total - answer.offline)
        placed: set[str] = set()
        for gpu in answer.gpus:
            placed.update(gpu.tasks)
            spare += gpu.status == "idle" or not self._leaving.isdisjoint(gpu.tasks)
        for block in self._blocks:  # tasks that wait take what is spare, in their order
            if block.stage is _Stage.ASKED and (block.task is None or block.task.id not in placed):
                if len(block.gpus) <= spare:
                    spare -= len(block.gpus)
                else:
                    block.stage = _Stage.FREE
        for block in self._blocks:
            if block.stage is _Stage.FREE and block.task is None and len(block.gpus) <= spare:
                block.stage = _Stage.ASKED
                spare -= len(block.gpus)
        for block in reversed(self._blocks):
            if spare < 0 and block.stage is _Stage.HELD:
                self._leave(block, now_s)
                spare += len(block.gpus)

    def _leave(self, block: _Block, now_s: float) -> None:
        """Begin to give a block back."""
        block.stage = _Stage.LEAVING
        if not block.reclaimed and block.task is not None:
            self._leaving.add(block.task.id)
        self._events += [Reclaimed(gpu, now_s + GRACE_S * self._speed_up) for gpu in block.gpus]

    # --- blocks that come and go --------------------------------------------------------------------------------------

    def _hear(self, now_s: float) -> None:
        for number, change in self._pool.news():
            block = self._blocks[number]
            match change:
                case BlockChange.CAME if block.stage is _Stage.ASKED:
                    block.stage, block.ended, block.reclaimed = _Stage.HELD, 0, False
                    self._events += [Back(gpu) for gpu in block.gpus]
                case BlockChange.CAME:  # it is not wanted any more
                    self._pool.leave(number)
                case BlockChange.NOTICE:
                    block.reclaimed = True
                    if block.stage is _Stage.HELD:
                        self._leave(block, now_s)
                case BlockChange.GONE:
                    self._events = [e for e in self._events if not (isinstance(e, Back) and e.gpu in block.gpus)]
                    self._left(block)

    def _left(self, block: _Block) -> None:
        """The plan uses a block no longer. A task that was reclaimed or lost is queued again, others have ended."""
        given_back = block.stage is _Stage.LEAVING and not block.reclaimed
        block.stage = _Stage.FREE if given_back else _Stage.ASKED
        block.task = None if given_back else block.task
        block.returned.clear()

    # --- `BorrowedGpus` -----------------------------------------------------------------------------------------------

    def pool(self, runtimes: Runtimes) -> Pool:
        """Return the workers on the GPUs that were lent."""
        self._pool.runtimes = list(runtimes.of_model)
        return self._pool

    def wait(self, watch: Callable[[Task], None], ended: Callable[[], bool]) -> None:
        """Wait for the first GPUs and then shortly for others, or until `ended` returns True."""
        told = False
        while not self._are(_Stage.HELD) and not ended():
            if not self.expects_gpus:
                raise NoGpus(f"The cluster lent no GPU: {' '.join(dict.fromkeys(self._reasons))}")
            waiting = next((block.task for block in self._blocks if block.task is not None), None)
            if waiting is not None:
                watch(self._cluster.task(waiting))
            elif not told:
                told = True
                self._warn("No GPU is borrowed yet, because no more are idle than the plan leaves free.")
            sleep(0.2)
            self._hear(0.0)
            self._look(0.0)
        until = monotonic() + SETTLE_S
        while self._are(_Stage.ASKED) and monotonic() < until and not ended():
            sleep(0.05)
            self._hear(0.0)

    def _are(self, stage: _Stage) -> bool:
        return any(block.stage is stage for block in self._blocks)

    def news(self, now_s: float) -> list[ExecutorEvent]:
        """Return events for GPUs that were lent and that must be given back. The pool reports those that are lost."""
        self._hear(now_s)
        self._look(now_s)
        events, self._events = self._events, []
        return events

    def returned(self, gpu: int) -> None:
        """Let the task of a block end once the plan has left all its GPUs."""
        number = self._pool.hosts[gpu]
        block = self._blocks[number]
        block.returned.add(gpu)
        if block.stage is _Stage.LEAVING and block.returned.issuperset(block.gpus):
            self._pool.leave(number)
            self._left(block)

    @property
    def expects_gpus(self) -> bool:
        """Whether more GPUs may be lent later."""
        return not all(block.stage is _Stage.CLOSED for block in self._blocks)

    def close(self) -> None:
        """Give all GPUs back. If the scheduler does not answer, the tasks end by themselves when their line closes."""
        self._errands.shutdown(wait=True)
        if self._under_way is not None and self._under_way.done():
            self._take(self._under_way.result(), 0.0)
        self._pool.close()
        for block in self._blocks:
            if block.task is not None:
                with suppress(GpuyardError):
                    self._cluster.cancel(block.task)
        if turned_away := self._pool.turned_away:
            self._warn(turned_away)


def _where_to_listen(said: str | None, server: str) -> tuple[str, int]:
    """Return host and port for the connections of workers; by default the address that reaches the scheduler."""
    if said is not None:
        host, _, port = said.rpartition(":") if said.rpartition(":")[2].isdecimal() else (said, "", "0")
        host = host.strip("[]")
        if host in WILDCARDS or int(port) > MOST_PORTS:
            raise WrongInput(
                f"--listen {said}: give an address of this machine that the nodes can reach, as HOST or HOST:PORT."
            )
        return host, int(port)
    found = urlsplit(server)
    try:
        family, _, _, _, address = socket.getaddrinfo(found.hostname, found.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
            probe.connect(address)
            return str(probe.getsockname()[0]), 0
    except OSError as error:
        raise WrongInput(
            f"No address of this machine reaches {server} ({error.strerror}); name one with --listen."
        ) from None
