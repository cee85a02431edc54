"""Runs a workload under one policy variant: the live engine, a virtual clock and nodes that follow the workload."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.refusals import ClassQuotaTooSmall, Refusal, TenantQuotaTooSmall
from gpuyard.core.domain.remaining_time import levels_of_run, run_level_of
from gpuyard.core.domain.task import Estimate, NewTask, TaskSpec
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.explain import why_all_wait
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.scheduling.advice import Advisor
from gpuyard.core.engine.state import State
from gpuyard.learn.estimates.history import HistoryPredictor, RuntimePredictor, TaskFeatures
from gpuyard.learn.estimates.task_estimator import KEEPS_PROGRESS, TaskEstimator
from gpuyard.simulator.accuracy import RuntimeForecast, RuntimeForecasts
from gpuyard.simulator.energy import HOUR, PowerMeter
from gpuyard.simulator.fragmentation import FragmentationSampler
from gpuyard.simulator.measures import SimulationMeasures, measure
from gpuyard.simulator.policy_variants import EstimateSource, PolicyVariant
from gpuyard.simulator.recorder import Recorder
from gpuyard.simulator.scenarios import AppliedScenario, Scenario
from gpuyard.simulator.workloads.arrival import Arrival, Workload
from gpuyard.simulator.world import TimedCommand, World

LEAST_SECONDS = 1e-3
"""Shortest estimate: an estimate of zero would count as no estimate."""

ProgressCallback = Callable[[int], None]
NO_SCENARIO = Scenario()
NEVER_END = (
    "needed nodes are gone, a quota or limit is too small, or a task that runs until it is cancelled uses the GPUs or the "
    "budget"
)
"""Why tasks are left at the end of a simulation."""
QUOTA_TOO_SMALL = "the quota of the class or the limit of the tenant has too few GPUs"
"""The same, if this is known to be the reason of all of them."""


class NothingEnded(GpuyardError):
    """There is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Result:
    """The run of one policy variant."""

    policy_variant: PolicyVariant
    measures: SimulationMeasures
    recorder: Recorder
    further: Mapping[str, float] = field(default_factory=dict)
    """Figures that only some runs have: those of a scenario, and fragmentation, which recorded runs lack."""
    meter: PowerMeter | None = None
    forecasts: Collection[RuntimeForecast] = ()
    """The run times that were predicted and observed."""
    never_end: str = NEVER_END
    """Why tasks are left, if any are."""


def simulate_policy(
    workload: Workload,
    policy_variant: PolicyVariant,
    *,
    oracle: bool = False,
    predictor: Callable[[], RuntimePredictor] = HistoryPredictor,
    progress: ProgressCallback = lambda _: None,
    scenario: Scenario = NO_SCENARIO,
    advisor: Advisor | None = None,
    watch: Callable[[World], None] = lambda _: None,
) -> Result:
    """Simulate to the end of the last task. `progress` is called about every thousand tasks with the number submitted
    so far; `watch` is called with the world before the first task arrives.

    Policies that use run times get the real ones with `oracle`, otherwise those of a new predictor that learns during
    the run.
    """
    world = World(
        Engine(State(_policies(policy_variant)), advisor),
        stop_seconds=workload.stop_seconds,
        restart_seconds=workload.restart_seconds,
        slowed_by=workload.slowed_by,
    )
    recorder = Recorder()
    setting = AppliedScenario(world, scenario, workload.opening())
    for order in (
        command.CreateCluster("simulated"),
        command.ChangeSettings(policy_variant.settings),
        *setting.opening,
    ):
        answer = world.tell(order)
        assert not isinstance(answer, Refusal), answer.sentence()
    fragmentation = FragmentationSampler(world.engine.state)
    world.listeners += [recorder.hear, fragmentation.hear]
    watch(world)
    estimate_source: _EstimateSource = _SubmittedEstimate()
    forecasts = RuntimeForecasts()
    if policy_variant.estimate_source is not EstimateSource.NONE:
        estimate_source = _OracleEstimate() if oracle else _LearnedEstimate(world, predictor(), forecasts)
    world.feed(_orders(world, workload, policy_variant, estimate_source, progress))
    world.run_to_end()
    never_end = _why_never(world)
    if next(recorder.lives.over(), None) is None:
        raise NothingEnded(f"Under {policy_variant.name} no task ends: {never_end}.")
    figures = {"fragmentation": fragmentation.average, **setting.figures()}
    measures = measure(recorder, setting.gpus(workload.gpus))
    if world.preemption_loss_gpu_seconds:  # none without preemptions; unknown in a journal
        figures["preemption_loss_gpu_hours"] = world.preemption_loss_gpu_seconds / HOUR
    return Result(policy_variant, measures, recorder, figures, setting.meter, forecasts, never_end)


def _why_never(world: World) -> str:
    """Return why the tasks that are left never end."""
    state = world.engine.state
    reasons = why_all_wait(state, state.tasks, world.now)
    too_small = (ClassQuotaTooSmall, TenantQuotaTooSmall)
    by_quota = bool(state.tasks) and all(isinstance(reasons.get(task), too_small) for task in state.tasks)
    return QUOTA_TOO_SMALL if by_quota else NEVER_END


def _policies(policy_variant: PolicyVariant) -> Mapping[str, Policy]:
    """Return the policies that the engine of a run knows; one of the user's own replaces another of the same name."""
    return {**POLICIES, policy_variant.own.name: policy_variant.own} if policy_variant.own else POLICIES


def _orders(
    world: World,
    workload: Workload,
    policy_variant: PolicyVariant,
    estimate_source: "_EstimateSource",
    progress: ProgressCallback,
) -> Iterator[TimedCommand]:
    come = 0

    def submit(arrivals: Sequence[Arrival]) -> command.SubmitTasks:
        new = []
        for arrival in arrivals:
            world.runs[arrival.task] = arrival.run
            new.append(NewTask(arrival.task, estimate_source.estimate(arrival, world.now)))
        return command.SubmitTasks(tuple(new))

    for at, coming in workload.arrivals(policy_variant):
        if isinstance(coming, command.Command):
            yield at, coming
            continue
        yield at, partial(submit, coming)
        before, come = come, come + len(coming)
        if before // 1000 < come // 1000:
            progress(come)
    progress(come)


# --- run-time estimates -----------------------------------------------------------------------------------------------


class _EstimateSource(Protocol):
    def estimate(self, arrival: Arrival, now: float) -> TaskSpec:
        """Return the task with its run-time estimate at submission."""
        ...


class _SubmittedEstimate:
    """Leaves the estimate as submitted."""

    def estimate(self, arrival: Arrival, now: float) -> TaskSpec:  # noqa: ARG002
        return arrival.spec


class _OracleEstimate:
    """Sets the real run time as the estimate, and the levels that follow from it."""

    def estimate(self, arrival: Arrival, now: float) -> TaskSpec:  # noqa: ARG002
        if arrival.seconds is None:
            return arrival.spec
        seconds = max(arrival.seconds, LEAST_SECONDS)
        return replace(
            arrival.spec,
            estimate=Estimate(seconds, seconds, seconds),
            remaining_time_levels=levels_of_run(seconds),
            run_level=None if arrival.spec.preemption in KEEPS_PROGRESS else run_level_of(seconds),
        )


class _LearnedEstimate:
    """Keeps the submitted estimate, or predicts from the tasks that have ended and those that run, as a live cluster does."""

    def __init__(self, world: World, predictor: RuntimePredictor, forecasts: RuntimeForecasts) -> None:
        self._estimator = TaskEstimator(predictor)
        self._forecasts = forecasts
        self._open: dict[TaskId, tuple[Arrival, float, Estimate | None]] = {}
        world.listeners.append(self._hear)

    def estimate(self, arrival: Arrival, now: float) -> TaskSpec:
        spec = self._estimator.estimated(arrival.spec, arrival.features, now, arrival.spec.estimate)
        self._open[arrival.task] = arrival, now, spec.estimate
        return spec

    def _hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        for event in new_events:
            if isinstance(event, events.AttemptStarted | events.AttemptEnded):
                self._estimator.hear(event, self._open[event.task][0].features, at)
            elif isinstance(event, events.TaskEnded):
                arrival, came, estimate = self._open.pop(event.task)
                if arrival.seconds is not None:
                    self._learn(arrival.features, arrival.seconds, came, at, estimate)

    def _learn(self, features: TaskFeatures, seconds: float, came: float, at: float, estimate: Estimate | None) -> None:
        self._estimator.ended(features, seconds, at, estimate)
        if estimate is not None and estimate.runs:
            self._forecasts.add(came, estimate, seconds)
