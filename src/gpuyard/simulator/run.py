"""Plays a workload under one contender: the live engine, a virtual clock, and nodes that do what the workload says."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Estimate, NewTask, TaskSpec
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.advice import Advisor
from gpuyard.core.engine.engine import Engine
from gpuyard.learn.estimates.history import Asked, History, Predictor
from gpuyard.learn.estimates.remaining_time import Outlooks
from gpuyard.simulator.accuracy import Forecast, Forecasts
from gpuyard.simulator.energy import Meter
from gpuyard.simulator.fragmentation import Fragmentation
from gpuyard.simulator.measures import Measures, measure
from gpuyard.simulator.policy_variants import Contender, Foresight
from gpuyard.simulator.recorder import Recorder
from gpuyard.simulator.scenarios import Conditions, Setting
from gpuyard.simulator.workloads.arrival import Arrival, Workload
from gpuyard.simulator.world import Due, World

LEAST_SECONDS = 1e-3
"""An estimate of nothing is none."""

Progress = Callable[[int], None]
ALONE = Conditions()


class NothingEnded(GpuyardError):
    """There is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Result:
    """One contender's run."""

    contender: Contender
    measures: Measures
    recorder: Recorder
    further: Mapping[str, float] = field(default_factory=dict)
    """Figures that recorded runs and other conditions do not have."""
    meter: Meter | None = None
    forecasts: Collection[Forecast] = ()
    """What was predicted."""


def play(
    workload: Workload,
    contender: Contender,
    *,
    oracle: bool = False,
    predictor: Callable[[], Predictor] = History,
    progress: Progress = lambda _: None,
    conditions: Conditions = ALONE,
    advisor: Advisor | None = None,
    watch: Callable[[World], None] = lambda _: None,
) -> Result:
    """Simulate to the end of the last task; `progress` hears now and then how many have come, and
    `watch` is handed the world before anything comes.

    Policies that go by run times know the real ones with an oracle, and else what a new predictor learns on the way.
    """
    world = World(
        Engine(advisor=advisor),
        stop_seconds=workload.stop_seconds,
        restart_seconds=workload.restart_seconds,
        slowed_by=workload.slowed_by,
    )
    recorder = Recorder()
    setting = Setting(world, conditions, workload.opening())
    for order in (
        command.FoundYard("simulated"),
        command.ChangeSettings(contender.settings),
        *setting.opening,
    ):
        answer = world.tell(order)
        assert not isinstance(answer, Refusal), answer.sentence()
    fragmentation = Fragmentation(world.engine.state)
    world.listeners += [recorder.hear, fragmentation.hear]
    watch(world)
    foresight: _Foresight = _OwnWord()
    forecasts = Forecasts()
    if contender.foresight is not Foresight.NONE:
        foresight = _Oracle() if oracle else _Learner(world, contender.foresight, predictor(), forecasts)
    world.feed(_orders(world, workload, contender, foresight, progress))
    world.run_out()
    if next(recorder.lives.over(), None) is None:
        raise NothingEnded(f"Under {contender.name} no task ends: the nodes that they need are gone.")
    figures = {"fragmentation": fragmentation.average, **setting.figures()}
    measures = measure(recorder, setting.gpus(workload.gpus))
    return Result(contender, measures, recorder, figures, setting.meter, forecasts)


def _orders(
    world: World, workload: Workload, contender: Contender, foresight: "_Foresight", progress: Progress
) -> Iterator[Due]:
    come = 0

    def submit(arrivals: Sequence[Arrival]) -> command.SubmitTasks:
        new = []
        for arrival in arrivals:
            world.runs[arrival.task] = arrival.run
            new.append(NewTask(arrival.task, foresight.foresee(arrival, world.now)))
        return command.SubmitTasks(tuple(new))

    for at, coming in workload.comings(contender):
        if isinstance(coming, command.Command):
            yield at, coming
            continue
        yield at, partial(submit, coming)
        before, come = come, come + len(coming)
        if before // 1000 < come // 1000:
            progress(come)
    progress(come)


# --- foresight --------------------------------------------------------------------------------------------------------


class _Foresight(Protocol):
    def foresee(self, arrival: Arrival, now: float) -> TaskSpec:
        """The task with what is thought of its run time when it is submitted."""
        ...


class _OwnWord:
    """Nobody knows more than who submitted it."""

    def foresee(self, arrival: Arrival, now: float) -> TaskSpec:  # noqa: ARG002
        return arrival.spec


class _Oracle:
    """The truth."""

    def foresee(self, arrival: Arrival, now: float) -> TaskSpec:  # noqa: ARG002
        if arrival.seconds is None:
            return arrival.spec
        seconds = max(arrival.seconds, LEAST_SECONDS)
        return replace(arrival.spec, estimate=Estimate(seconds, seconds, seconds))


class _Learner:
    """Its own word, or what had ended by then, as the live scheduler would have learnt it."""

    def __init__(self, world: World, foresight: Foresight, predictor: Predictor, forecasts: Forecasts) -> None:
        self._predictor = predictor
        self._forecasts = forecasts
        self._outlooks = Outlooks() if foresight is Foresight.OUTLOOK else None
        self._open: dict[TaskId, tuple[Arrival, float, Estimate | None]] = {}
        world.listeners.append(self._hear)

    def foresee(self, arrival: Arrival, now: float) -> TaskSpec:
        if self._outlooks is not None:
            self._open[arrival.task] = arrival, now, None
            return replace(arrival.spec, outlook=self._outlooks.outlook(arrival.asked))
        told = arrival.spec.estimate or self._predictor.foresee(arrival.asked, now)
        self._open[arrival.task] = arrival, now, told
        return replace(arrival.spec, estimate=told)

    def _hear(self, at: float, facts: Sequence[fact.Event]) -> None:
        for event in facts:
            if isinstance(event, fact.TaskEnded):
                arrival, came, told = self._open.pop(event.task)
                if arrival.seconds is not None:
                    self._learn(arrival.asked, arrival.seconds, came, at, told)

    def _learn(self, asked: Asked, seconds: float, came: float, at: float, told: Estimate | None) -> None:
        if self._outlooks is not None:
            self._outlooks.observe(asked, seconds)
            return
        self._predictor.ended(asked, seconds, at, told)
        if told is not None and told.runs:
            self._forecasts.add(came, told, seconds)
