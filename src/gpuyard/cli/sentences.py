"""Facts in words: one sentence each, for people who watch.

A fact names tasks by number only; the teller remembers the names they were submitted with, so it has to hear every
fact from the beginning.
"""

from collections.abc import Callable
from typing import Any

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import MILLI, Outcome, TaskId

_OUTCOMES = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.STOPPED: "was stopped",
    Outcome.LOST: "was lost",
    Outcome.NOT_LAUNCHED: "could not be launched",
    Outcome.OUT_OF_MEMORY: "ran out of GPU memory",
    Outcome.TIMED_OUT: "took too long",
}


class Teller:
    """Tells facts to people."""

    def __init__(self) -> None:
        self._names: dict[TaskId, str] = {}

    def sentence(self, event: fact.Event) -> str:
        """One sentence for one fact."""
        if isinstance(event, fact.TaskSubmitted) and event.spec.name:
            self._names[event.task] = event.spec.name
        return _SENTENCES[type(event)](self, event)

    def task(self, number: TaskId) -> str:
        """A task as people call it."""
        name = self._names.get(number)
        return f"Task {number} ({name})" if name else f"Task {number}"

    def _reserved(self, event: fact.ReservationMade) -> str:
        if event.claim:
            return f"{self.task(event.task)} gets {_list(event.nodes)} as soon as the tasks in its way are stopped."
        when = "when it is free" if event.starts_at is None else f"from {clock(event.starts_at)} on"
        return f"{_list(event.nodes)} {_is(event.nodes)} reserved for {_small(self.task(event.task))} {when}."

    def _requeued(self, event: fact.TaskRequeued) -> str:
        pause = f", not before {clock(event.not_before)}" if event.not_before else ""
        more = f" It asks for {event.gpu_memory_mib:,} MiB of GPU memory now." if event.gpu_memory_mib else ""
        return f"{self.task(event.task)} waits again{pause}. {event.cause.sentence()}{more}"

    def _member_ended(self, event: fact.MemberEnded) -> str:
        return f"The part of {_small(self.task(event.task))} on {event.node} {_OUTCOMES[event.outcome]}."

    def _attempt_ended(self, event: fact.AttemptEnded) -> str:
        code = f" with exit code {event.exit_code}" if event.exit_code else ""
        return f"Attempt {event.attempt} of {_small(self.task(event.task))} {_OUTCOMES[event.outcome]}{code}."

    def _submitted(self, event: fact.TaskSubmitted) -> str:
        spec = event.spec
        asks = asked(spec.resources)
        return f"{self.task(event.task)} of {spec.tenant} was submitted: {spec.task_class}, {asks}."


def clock(at: float) -> str:
    """An instant as hours, minutes and seconds since the beginning."""
    seconds = int(at)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def asked(ask: Resources) -> str:
    """What a task asks for, in a few words."""
    models = f" {'/'.join(ask.models)}" if ask.models else ""
    if ask.share is not None:
        if not ask.share.fraction_milli:
            return f"{ask.share.memory_mib} MiB of a GPU"
        return f"{ask.share.fraction_milli / MILLI:g} of {'one' if models else 'a'}{models} GPU"
    if not ask.gpus:
        return _counted(ask.cpus, "CPU")
    each = "all" if ask.whole_nodes else str(ask.gpus)
    if ask.nodes > 1:
        return f"{ask.nodes} nodes × {each}{models} GPUs"
    return "a whole node" if ask.whole_nodes else f"{each}{models} {'GPU' if ask.gpus == 1 else 'GPUs'}"


def _placed(placement: Placement) -> str:
    return " and ".join(_part(part) for part in placement.slices)


def _part(part: Slice) -> str:
    if not part.gpus:
        return str(part.node)
    word = "GPU" if len(part.gpus) == 1 else "GPUs"
    share = "" if part.milli == MILLI else f"{part.milli / MILLI:g} of "
    return f"{part.node}, {share}{word} {_span(part.gpus)}"


def _span(gpus: tuple[int, ...]) -> str:
    """0–3 for neighbours, 0, 2, 5 for others."""
    if len(gpus) > 2 and gpus == tuple(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}–{gpus[-1]}"
    return ", ".join(str(gpu) for gpu in gpus)


def _list(nodes: tuple[str, ...]) -> str:
    return " and ".join(nodes)


def _is(nodes: tuple[str, ...]) -> str:
    return "is" if len(nodes) == 1 else "are"


def _small(text: str) -> str:
    return text[0].lower() + text[1:]


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


_SENTENCES: dict[type[fact.Event], Callable[[Teller, Any], str]] = {
    fact.YardFounded: lambda _, it: f"The yard {it.yard} was founded.",
    fact.TaskSubmitted: Teller._submitted,
    fact.TaskHeld: lambda t, it: f"{t.task(it.task)} is on hold.",
    fact.TaskReleased: lambda t, it: f"{t.task(it.task)} may go on.",
    fact.PriorityChanged: lambda t, it: f"{t.task(it.task)} has priority {it.priority} now.",
    fact.EstimateRevised: lambda t, it: f"{t.task(it.task)} is thought to run for another time than before.",
    fact.TaskRequeued: Teller._requeued,
    fact.TaskEnded: lambda t, it: f"{t.task(it.task)} is over: {it.status}. {it.cause.sentence()}",
    fact.TaskPlaced: lambda t, it: f"{t.task(it.task)} was placed on {_placed(it.placement)}.",
    fact.AttemptStarted: lambda t, it: f"{t.task(it.task)} runs.",
    fact.AttemptSuspending: lambda t, it: f"{t.task(it.task)} is being suspended. {it.cause.sentence()}",
    fact.AttemptSuspended: lambda t, it: f"{t.task(it.task)} is in host memory; its GPUs are free.",
    fact.AttemptResuming: lambda t, it: f"{t.task(it.task)} goes on, on {_placed(it.placement)}.",
    fact.AttemptResumed: lambda t, it: f"{t.task(it.task)} runs again.",
    fact.AttemptStopping: lambda t, it: f"{t.task(it.task)} is being stopped. {it.cause.sentence()}",
    fact.MemberEnded: Teller._member_ended,
    fact.AttemptEnded: Teller._attempt_ended,
    fact.MemberReady: lambda t, it: f"The part of {_small(t.task(it.task))} on {it.node} is ready.",
    fact.SuspensionFailed: lambda t, it: f"{t.task(it.task)} could not be suspended and runs on. {it.message}".rstrip(),
    fact.TaskExtended: lambda t, it: f"{t.task(it.task)} may run for {it.timeout_seconds:g} s now.",
    fact.RemainsEnded: lambda t, it: f"What {it.node} still had of {_small(t.task(it.task))} is gone.",
    fact.ReservationMade: Teller._reserved,
    fact.ReservationDropped: lambda t, it: (
        f"The reservation of {_small(t.task(it.task))} is off. {it.cause.sentence()}"
    ),
    fact.NodeJoined: lambda _, it: f"Node {it.node.id} joined with {_counted(len(it.node.gpus), 'GPU')}.",
    fact.NodeChanged: lambda _, it: f"Node {it.node.id} describes itself anew.",
    fact.NodeLost: lambda _, it: f"Node {it.node} is lost.",
    fact.NodeReturned: lambda _, it: f"Node {it.node} is back.",
    fact.NodeStopped: lambda _, it: (
        f"The agent of node {it.node} was stopped; it is expected back by {clock(it.back_by)}."
    ),
    fact.RemainsFound: lambda _, it: (
        f"Node {it.node} has attempt {it.attempt} of a task {it.task} that is not known here; what it holds is taken."
    ),
    fact.AttemptRecovered: lambda t, it: f"{t.task(it.task)} still runs on {it.node}, which is back, and goes on.",
    fact.TaskNumbersSkipped: lambda _, it: f"Task numbers up to {it.last_task} are not given out again.",
    fact.NodeRemoved: lambda _, it: f"Node {it.node} was taken out of the yard.",
    fact.NodeCordoned: lambda _, it: f"Node {it.node} {'is being emptied' if it.draining else 'is closed'}.",
    fact.NodeUncordoned: lambda _, it: f"Node {it.node} is open again.",
    fact.GpuHealthChanged: lambda _, it: f"GPU {it.gpu} of {it.node} is {it.health}.",
    fact.EpochBegan: lambda _, it: f"A scheduler took over (epoch {it.epoch}).",
    fact.EpochEnded: lambda _, it: (
        f"The scheduler stopped; nodes wait for the next one until {clock(it.patient_until)}."
    ),
    fact.AccessChanged: lambda _, it: f"Access: {it.what.replace('_', ' ')}, {it.subject}.",
    fact.TenantSet: lambda _, it: f"Tenant {it.tenant.id} {_limits(it.tenant.max_gpus)}.",
    fact.SplitSet: lambda _, it: (
        f"Online work gets {it.split.online_percent:.0%} of the GPUs, batch the rest ({it.split.mode})."
        if it.split.mode != "none"
        else "There is no split between online and batch work."
    ),
    fact.SettingsChanged: lambda _, it: (
        f"The queue is ordered by {it.settings.policy}, with backfill {it.settings.backfill}."
    ),
}


def _limits(max_gpus: int | None) -> str:
    return "may use as many GPUs as there are" if max_gpus is None else f"may use {_counted(max_gpus, 'GPU')} at once"
