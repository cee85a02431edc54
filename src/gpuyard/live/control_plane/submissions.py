"""Accept tasks: number them, keep their secrets, add predictions, and recognize repeated requests.

    request ─► seen before? ─► performance prediction ─► run-time estimate ─► engine ─► journal ─► views
                 └─ yes: the tasks of the first request

A task gets its number when its turn in the loop comes, so its secrets are stored at that moment and dropped again if
the engine refuses the request.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import structlog

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import NewTask, RunLimit, TaskRange, TaskSpec
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.core.engine.engine import Events
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.access.principal import Principal, issuer_of
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor, gpu_memory_by_model
from gpuyard.live.control_plane.prediction.runtime_estimator import RuntimeEstimator
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.stores.idempotency import IdempotentRequests, SubmitResult
from gpuyard.live.control_plane.stores.secrets import SecretStore
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import TaskView, Views
from gpuyard.live.wire.tasks import BatchLimit

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Submission:
    """The tasks of one request, which differ only in their array index, and the values of their secrets."""

    specs: Sequence[TaskSpec]
    secrets: Mapping[str, str]
    after_success: Sequence[int] = ()
    after_any: Sequence[int] = ()
    """Requests of the same batch, by position, that the tasks of this one wait for."""


class Submissions:
    """Accepts the tasks of users."""

    def __init__(
        self,
        loop: EngineLoop,
        views: Views,
        secrets: SecretStore,
        requests: IdempotentRequests,
        *,
        runtime_estimator: RuntimeEstimator | None = None,
        performance_predictor: PerformancePredictor | None = None,
    ) -> None:
        self._loop = loop
        self._views = views
        self._secrets = secrets
        self._requests = requests
        self._runtime_estimator = runtime_estimator
        self._performance_predictor = performance_predictor

    async def submit(
        self,
        submissions: Sequence[Submission],
        who: Principal,
        *,
        key: str = "",
        body: bytes = b"",
        request_id: str = "",
        limits: Sequence[BatchLimit] = (),
    ) -> list[TaskView] | Refusal:
        """Accept all of these or none. A repeated request with the same key gets the tasks of the first one."""
        name = (submissions[0].specs[0].tenant, key)
        digest = self._requests.digest(body) if key else ""
        answer: SubmitResult = asyncio.get_running_loop().create_future()
        if key and (known := await self._sent_before(name, digest, answer)) is not None:
            numbers = await asyncio.shield(known)
            return numbers if isinstance(numbers, Refusal) else self._views_of(numbers)
        given: list[TaskId] = []

        def undo() -> None:
            """Drop the secrets: the next request gets these task numbers and must neither find nor drop them."""
            if given and any(submission.secrets for submission in submissions):
                try:
                    self._secrets.drop(given)
                except StoreError as error:
                    log.warning("secret_removal_failed", message=str(error))

        def make(state: State) -> command.Command:
            undo()  # called again if another request of the batch broke the engine
            given.clear()
            tasks = []
            secrets: dict[TaskId, Mapping[str, str]] = {}
            numbers = _numbers(submissions, state.last_task)
            for submission in submissions:
                waits = _in_the_batch(submission, numbers)
                for asked in submission.specs:
                    spec = asked if waits is None else waits.added_to(asked)
                    given.append(TaskId(state.last_task + 1 + len(given)))
                    tasks.append(NewTask(given[-1], spec))
                    if submission.secrets:
                        secrets[given[-1]] = submission.secrets
            if secrets:
                self._secrets.put(secrets)
            return command.SubmitTasks(tuple(tasks), key, digest, tuple(_run_limit(limit, numbers) for limit in limits))

        made: Events | Refusal
        try:
            seen = await self._predicted(submissions)
            if isinstance(seen, Refusal):
                made = seen
            else:
                submissions = await self._forecast(seen)
                made = await self._loop.tell(make, issuer_of(who), _weight(submissions), undo, request_id)
        except BaseException as error:
            self._requests.fail(name)
            answer.set_exception(error)
            answer.exception()  # mark it as retrieved: asyncio must not warn if no other request waits for it
            raise
        if isinstance(made, Refusal):
            self._requests.fail(name)
            answer.set_result(made)
            return made
        answer.set_result(given)
        return [self._views.tasks[task] for task in given]

    async def predicted(self, submission: Submission) -> TaskSpec | Refusal:
        """Return the first task of a submission with its predictions, as it would be submitted."""
        seen = await self._predicted([submission])
        return seen if isinstance(seen, Refusal) else (await self._forecast(seen))[0].specs[0]

    async def _predicted(self, submissions: Sequence[Submission]) -> Sequence[Submission] | Refusal:
        """Add predictions to tasks that declare a workload; return a refusal if one cannot fit."""
        performance_predictor = self._performance_predictor
        if performance_predictor is None or not any(submission.specs[0].work for submission in submissions):
            return submissions
        gpu_memory = gpu_memory_by_model(view.spec for view in self._views.nodes.values())
        told = await asyncio.to_thread(
            performance_predictor.predict_all, [one.specs for one in submissions], gpu_memory
        )
        if isinstance(told, Refusal):
            return told
        return [replace(one, specs=specs) for one, specs in zip(submissions, told, strict=True)]

    async def _sent_before(self, name: tuple[TenantId, str], digest: str, answer: SubmitResult) -> SubmitResult | None:
        try:
            return await self._requests.known(name, digest, answer)
        except BaseException as error:
            if self._requests.is_first(name, answer):
                self._requests.fail(name)
                answer.set_exception(error)
                answer.exception()  # mark it as retrieved: asyncio must not warn if no other request waits for it
            raise

    async def _forecast(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """Add run-time estimates. The tasks of an array share one estimate: they differ only in their index."""
        runtime_estimator, now = self._runtime_estimator, self._loop.clock()
        if runtime_estimator is None:
            return submissions
        estimated, turns = [], TimeSlicer()
        for submission in submissions:
            first = runtime_estimator.estimated(submission.specs[0], now)
            specs = [first]
            for spec in submission.specs[1:]:
                specs.append(
                    msgspec.structs.replace(
                        spec,
                        estimate=first.estimate,
                        remaining_time_levels=first.remaining_time_levels,
                        run_level=first.run_level,
                        unpredictable=first.unpredictable,
                        kind_varies=first.kind_varies,
                    )
                )
                if turns.due():
                    await turns.give()
            estimated.append(Submission(specs, submission.secrets, submission.after_success, submission.after_any))
            if turns.due():
                await turns.give()
        return estimated

    def _views_of(self, tasks: Sequence[TaskId]) -> list[TaskView]:
        return [view for task in tasks if (view := self._views.tasks.get(task)) is not None]


def _weight(submissions: Sequence[Submission]) -> int:
    """Estimate the work of a request: its tasks, their dependencies, and each dependency range counted once."""
    weight = 0
    for submission in submissions:
        spec = submission.specs[0]
        ranges = (*spec.after_success_ranges, *spec.after_any_ranges)
        waits = len(spec.after_success) + len(spec.after_any) + len(ranges)
        waits += len(submission.after_success) + len(submission.after_any)
        weight += len(submission.specs) * (1 + waits) + sum(last - first + 1 for first, last in ranges)
    return weight


def _numbers(submissions: Sequence[Submission], last: TaskId) -> list[range]:
    """Return the numbers that the tasks of each request will get."""
    numbers, first = [], last + 1
    for submission in submissions:
        numbers.append(range(first, first + len(submission.specs)))
        first += len(submission.specs)
    return numbers


def _run_limit(limit: BatchLimit, numbers: Sequence[range]) -> RunLimit:
    """Return a limit on running tasks with the numbers of the tasks."""
    within = numbers[limit.first : limit.first + limit.count]
    return RunLimit(TaskId(within[0][0]), TaskId(within[-1][-1]), limit.max_running)


@dataclass(frozen=True, slots=True)
class _Waits:
    """Dependencies of a request on its own batch, as task numbers. All tasks of the request share it."""

    after_success: tuple[TaskId, ...]
    after_any: tuple[TaskId, ...]
    after_success_ranges: tuple[TaskRange, ...]
    after_any_ranges: tuple[TaskRange, ...]

    def added_to(self, spec: TaskSpec) -> TaskSpec:
        return msgspec.structs.replace(
            spec,
            after_success=spec.after_success + self.after_success,
            after_any=spec.after_any + self.after_any,
            after_success_ranges=spec.after_success_ranges + self.after_success_ranges,
            after_any_ranges=spec.after_any_ranges + self.after_any_ranges,
        )


def _in_the_batch(submission: Submission, numbers: Sequence[range]) -> _Waits | None:
    if not submission.after_success and not submission.after_any:
        return None
    success, ended = (
        [numbers[place] for place in places] for places in (submission.after_success, submission.after_any)
    )
    return _Waits(_single(success), _single(ended), _ranges(success), _ranges(ended))


def _single(numbers: Sequence[range]) -> tuple[TaskId, ...]:
    return tuple(TaskId(each[0]) for each in numbers if len(each) == 1)


def _ranges(numbers: Sequence[range]) -> tuple[TaskRange, ...]:
    return tuple((TaskId(each[0]), TaskId(each[-1])) for each in numbers if len(each) > 1)
