"""What the virtual processes wrote down, what the journal says, what was out of order when, and what that must add up to.

The rules are the promises of the design. For every submission that was accepted:

    lost             it ended
    accepted_twice   it became one task
    ended_twice      its task ended once
    foreign          every end that was counted for it came from a process of its own, and so did all of its output
    needless         a process of it whose end was not counted, or that was stopped, had a reason (below)
    overlap          two attempts ran at once only under `rerun`, and only while the first one's node was cut off
    gpu_twice        no GPU had two processes at once (suspended ones have none)

A reason is trouble of the process's own node: it was out of reach for long enough to be given up, it had to register
again over a connection that takes seconds or while its supervisor was stopped, its supervisor was killed and nothing kept exit
codes, it lost power, it was removed. Trouble of the scheduler is a reason only for `fence`, and only if it was long; a
planned stop (of a scheduler or an agent) for less than a minute never is, unless it began before the nodes were back
from other trouble: they do not hear of it. For `wait` a node out of reach is none.
A restored backup or a second scheduler on a copy of the journal excuses the submissions that it knows less about, but
never `foreign` or `gpu_twice`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.values import OnLost, Outcome, TaskId
from gpuyard.core.journal.records import Record

OUT_OF_REACH = frozenset({"cut", "agent_down", "agent_stopped"})
NO_LEASE = frozenset({"agent_planned", "supervisor_stopped", "scheduler", "slow", "full"})
"""What keeps a lease from being renewed although the node is within reach."""
RECONNECTS = OUT_OF_REACH | {"agent_planned", "scheduler", "scheduler_planned", "full"}
"""After what an agent has to register again."""
HARD = frozenset({"supervisor", "power", "removed"})
SCHEDULER = "*"
Attempt = tuple[int, int, int]
"""Task, attempt, and which scheduler placed it."""
NEVER = float("inf")
GIVEN_UP_SECONDS = 9.0
"""A node that is out of reach for longer may be given up: 15 s without a word, of which 5 may have passed before."""
FENCE_SECONDS = 5.0
"""The same for a lease of 12 s."""
PATIENCE_SECONDS = 50.0
"""Nodes are asked to be patient for a minute, less a margin: planned stops that follow each other within seconds add up."""
NOT_BACK_SECONDS = 8.0
ROUND_A_START_SECONDS = 30.0
"""A scheduler that has just started knows no node yet: shorter trouble may look longer to it."""


@dataclass
class Run:
    """One virtual process, from its start to its end."""

    token: str
    key: Any
    hardware: str
    node: str
    gpus: tuple[int, ...]
    started_at: float
    ended_at: float = NEVER
    how: str = ""
    exit_code: int | None = None
    output_of: str = ""
    """Whose output its file begins with."""
    off: list[list[float]] = field(default_factory=list)
    """When it was suspended."""

    @property
    def attempt(self) -> Attempt:
        return (int(self.key.task), int(self.key.attempt), int(self.key.origin))

    def busy(self) -> list[tuple[float, float]]:
        """When it was on its GPUs."""
        spans, since = [], self.started_at
        for begin, end in self.off:
            spans.append((since, begin))
            since = end
        spans.append((since, self.ended_at))
        return spans


class Trouble(NamedTuple):
    """Something was out of order."""

    kind: str
    where: str
    begin: float
    end: float


class Wrong(NamedTuple):
    """Something that must not be."""

    kind: str
    token: str
    sentence: str


@dataclass
class Submission:
    """A submission of a client."""

    token: str
    on_lost: OnLost
    nodes: int
    retries: int
    task: int | None = None
    """The number it was told."""
    excused: bool = False
    """The journal that knew of it was put away."""
    cancelled: bool = False
    """Its cancellation was requested."""


class Ledger:
    """Written by the processes."""

    def __init__(self, now: Callable[[], float], trace: Callable[[str], None]) -> None:
        self.runs: list[Run] = []
        self._now, self._trace = now, trace

    def started(self, token: str, key: Any, hardware: str, node: str, gpus: tuple[int, ...]) -> Run:
        run = Run(token, key, hardware, node, gpus, self._now())
        self.runs.append(run)
        self._trace(f"  run   {token} starts as {key.task}.{key.attempt} on {hardware} {list(gpus)}")
        return run

    def ended(self, run: Run, how: str, exit_code: int | None) -> None:
        run.ended_at, run.how, run.exit_code = self._now(), how, exit_code
        if run.off and run.off[-1][1] == NEVER:
            run.off[-1][1] = self._now()
        code = "" if exit_code is None else f" {exit_code}"
        self._trace(f"  run   {run.token} of {run.key.task}.{run.key.attempt} on {run.hardware} ends: {how}{code}")

    def suspended(self, run: Run) -> None:
        run.off.append([self._now(), NEVER])

    def resumed(self, run: Run) -> None:
        run.off[-1][1] = self._now()


class Book:
    """All events of a life that count, and all trouble."""

    def __init__(self, now: Callable[[], float], trace: Callable[[str], None]) -> None:
        self.submissions: dict[str, Submission] = {}
        self.events: list[tuple[float, Record]] = []
        self.troubles: list[Trouble] = []
        self.open: set[int] = set()
        """Tasks that have not ended."""
        self.moved_at = 0.0
        """When something was last said of a task."""
        self._now, self._trace = now, trace

    def hear(self, entries: Iterable[Record]) -> None:
        """Events were committed."""
        for entry in entries:
            self.events.append((self._now(), entry))
            self._note(entry.event)
            if said := spoken(entry.event):
                self._trace(f"  event  {said}")

    def _note(self, event: events.Event) -> None:
        if hasattr(event, "task") and not isinstance(event, events.ReservationMade | events.ReservationDropped):
            self.moved_at = self._now()
        if isinstance(event, events.TaskSubmitted):
            self.open.add(event.task)
        elif isinstance(event, events.TaskEnded):
            self.open.discard(event.task)

    def trouble(self, kind: str, where: str, begin: float, end: float) -> None:
        self.troubles.append(Trouble(kind, where, begin, end))

    def excuse_open(self) -> None:
        """A second scheduler knows the same tasks: those that it may run are excused from now on."""
        tokens = tokens_of(self.events)
        for number in self.open:
            if (token := tokens.get(number)) in self.submissions:
                self.submissions[token].excused = True

    def restore(self, length: int) -> None:
        """The journal goes back to where it had so many events: who is in the others is excused from now on."""
        gone, self.events = self.events[length:], self.events[:length]
        self.open = set()
        for _, entry in self.events:
            self._note(entry.event)
        numbers = {int(it.event.task) for _, it in gone if hasattr(it.event, "task")}
        tokens = tokens_of(self.events) | tokens_of(gone)
        for number in numbers:
            if (token := tokens.get(number)) in self.submissions:
                self.submissions[token].excused = True


def spoken(event: events.Event) -> str:
    """An event in a few words; empty: it does not matter here."""
    name = type(event).__name__
    match event:
        case events.TaskPlaced(task, attempt, placement):
            where = ", ".join(f"{part.node}{list(part.gpus)}" for part in placement.slices)
            return f"{name} {task}.{attempt} on {where}"
        case events.AttemptEnded(task, attempt, outcome, exit_code, _, message):
            return f"{name} {task}.{attempt} {outcome} {exit_code} {message[:60]!r}"
        case events.MemberEnded(task, attempt, node, outcome, exit_code):
            return f"{name} {task}.{attempt} on {node} {outcome} {exit_code}"
        case events.TaskEnded(task, status):
            return f"{name} {task} {status}"
        case events.TaskRequeued(task, cause):
            return f"{name} {task} {cause.why}"
        case events.NodeJoined(node):
            return f"{name} {node.id}"
        case events.EpochBegan(epoch):
            return f"{name} {epoch}"
        case events.TaskSubmitted(task, spec):
            return f"{name} {task} {token_in(spec)} {spec.on_lost}"
        case events.GpuHealthChanged(node, gpu, health):
            return f"{name} {node}[{gpu}] {health}"
        case events.ReservationMade() | events.ReservationDropped() | events.EstimateRevised():
            return ""
    what = [str(getattr(event, it)) for it in ("task", "attempt", "node") if hasattr(event, it)]
    return " ".join([name, *what])


def token_in(spec: Any) -> str:
    return str(dict(spec.env).get("FAULTS_TOKEN", ""))


def tokens_of(entries: Iterable[tuple[float, Record]]) -> dict[int, str]:
    return {
        int(it.event.task): token_in(it.event.spec) for _, it in entries if isinstance(it.event, events.TaskSubmitted)
    }


class Judge:
    """Checks a whole scenario at its end."""

    def __init__(self, book: Book, runs: list[Run], ended_at: float) -> None:
        self.wrongs: list[Wrong] = []
        self._book, self._runs, self._ended_at = book, runs, ended_at
        self._task_of: dict[str, list[int]] = defaultdict(list)
        self._token_of = tokens_of(book.events)
        for number, token in self._token_of.items():
            self._task_of[token].append(number)
        self._origins: dict[tuple[int, int], int] = {}
        self._placed: dict[Attempt, tuple[str, ...]] = {}
        self._placed_at: dict[Attempt, float] = {}
        self._counted: set[Attempt] = set()
        self._asked_for: set[Attempt] = set()
        """Attempts that were stopped because of a time-out or on request."""
        self._ended: dict[int, int] = defaultdict(int)
        self._merged: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self._read()

    def _say(self, kind: str, token: str, sentence: str) -> None:
        self.wrongs.append(Wrong(kind, token, sentence))

    def _read(self) -> None:
        origin = 0
        for at, entry in self._book.events:
            match entry.event:
                case events.EpochBegan():
                    origin = entry.event.origin
                case events.TaskPlaced(task, attempt, placement):
                    self._origins[task, attempt] = origin
                    self._placed[task, attempt, origin] = tuple(placement.nodes)
                    self._placed_at[task, attempt, origin] = at
                case events.AttemptEnded(task, attempt, outcome):
                    if outcome not in {Outcome.LOST, Outcome.STOPPED}:
                        self._counted.add(self._attempt(task, attempt))
                    self._check_end(at, task, attempt, entry.event)
                case events.MemberEnded(task, attempt):
                    self._check_end(at, task, attempt, entry.event)
                case events.AttemptStopping(task, attempt, cause):
                    if cause.why in {CauseKind.TIMEOUT, CauseKind.CANCELLED}:
                        self._counted.add(self._attempt(task, attempt))
                        self._asked_for.add(self._attempt(task, attempt))
                case events.TaskEnded(task):
                    self._ended[task] += 1

    def _attempt(self, task: TaskId, attempt: int) -> Attempt:
        """The attempt of that number that was placed last."""
        return (task, attempt, self._origins.get((task, attempt), 0))

    def _check_end(self, at: float, task: TaskId, attempt: int, event: Any) -> None:
        token = self._token_of.get(task)
        said = event.message.removeprefix("token ") if event.message.startswith("token ") else token
        if token and said != token:
            self._say("foreign", token, f"task {task}.{attempt} got the end of {said} at {at:.1f}")
        if (
            token
            and event.outcome in {Outcome.SUCCEEDED, Outcome.FAILED}
            and not any(run.token == token and run.how == "exit" for run in self._runs)
        ):
            self._say("foreign", token, f"task {task}.{attempt} ended at {at:.1f}, and no process of it did")

    def judge(self) -> list[Wrong]:
        """All that is wrong."""
        for submission in self._book.submissions.values():
            self._check_submission(submission)
        by_token: dict[str, list[Run]] = defaultdict(list)
        for run in self._runs:
            by_token[run.token].append(run)
        for token, runs in by_token.items():
            self._check_runs(self._book.submissions[token], runs)
        self._check_gpus()
        for run in self._runs:
            if run.output_of != run.token:
                self._say("foreign", run.token, f"the output of {run.attempt} on {run.hardware} is of {run.output_of}")
        return self.wrongs

    def _check_submission(self, submission: Submission) -> None:
        token, tasks = submission.token, self._task_of.get(submission.token, [])
        if submission.excused:
            return
        if len(tasks) > 1:
            self._say("accepted_twice", token, f"it became the tasks {tasks}")
        if submission.task is not None and submission.task not in tasks:
            self._say("lost", token, f"it was accepted as task {submission.task}, which is not there")
        for task in tasks:
            if not self._ended[task]:
                self._say("lost", token, f"task {task} never ended")
            elif self._ended[task] > 1:
                self._say("ended_twice", token, f"task {task} ended {self._ended[task]} times")

    def _check_runs(self, submission: Submission, runs: list[Run]) -> None:
        if submission.excused:
            return
        attempts: dict[Any, list[Run]] = defaultdict(list)
        for run in runs:
            attempts[run.key].append(run)
        token = submission.token
        ordered = sorted(attempts.values(), key=lambda parts: parts[0].attempt)
        for place, parts in enumerate(ordered):
            later = [part.started_at for others in ordered[place + 1 :] for part in others]
            first = parts[0]
            if len(parts) > submission.nodes or len({part.hardware for part in parts}) < len(parts):
                where = [part.hardware for part in parts]
                self._say("overlap", token, f"attempt {first.key.task}.{first.key.attempt} was started on {where}")
            one_failed = any(
                part.how == "timed_out" or (part.how == "exit" and part.exit_code) for part in parts
            )  # then the gang's others are stopped
            asked_for = one_failed or first.attempt in self._asked_for
            was_stopped = not asked_for and any(part.how == "stopped" for part in parts)
            if (first.attempt not in self._counted or was_stopped) and not submission.cancelled:
                until = max(part.ended_at for part in parts)
                until = min([max([until, *later[:1]]), self._ended_at])
                if not self._has_reason(submission, parts, until):
                    how = ", ".join(f"{part.how or 'runs'} on {part.hardware}" for part in parts)
                    name = f"{first.key.task}.{first.key.attempt}"
                    self._say(
                        "needless", token, f"{submission.on_lost} attempt {name} of {first.started_at:.1f}: {how}"
                    )
            for others in ordered[place + 1 :]:
                self._check_overlap(submission, parts, others)

    def _check_overlap(self, submission: Submission, parts: list[Run], others: list[Run]) -> None:
        for one in parts:
            for other in others:
                begin, end = max(one.started_at, other.started_at), min(one.ended_at, other.ended_at)
                if begin >= end:
                    continue
                allowed = submission.on_lost is OnLost.RERUN and self._has_reason(submission, parts, begin)
                allowed |= submission.on_lost is OnLost.WAIT and self._was_removed(one)
                if not allowed:
                    what = f"{one.key.task}.{one.key.attempt} on {one.hardware} and "
                    what += f"{other.key.task}.{other.key.attempt} on {other.hardware}"
                    self._say("overlap", submission.token, f"{submission.on_lost} {what} from {begin:.1f} to {end:.1f}")

    def _check_gpus(self) -> None:
        spans: dict[tuple[str, int], list[tuple[float, float, Run]]] = defaultdict(list)
        for run in self._runs:
            for gpu in run.gpus:
                spans[run.hardware, gpu] += [(begin, end, run) for begin, end in run.busy()]
        for (hardware, gpu), used in spans.items():
            used.sort(key=lambda span: span[:2])
            before = used[0]
            for span in used[1:]:
                if span[0] < before[1] - 1e-9 and span[2] is not before[2]:
                    what = f"{before[2].token} and {span[2].token} on {hardware}[{gpu}] from {span[0]:.1f}"
                    self._say("gpu_twice", span[2].token, f"{what} to {min(span[1], before[1]):.1f}")
                before = max(before, span, key=lambda it: it[1])

    # --- reasons ------------------------------------------------------------------------------------------------------

    def _has_reason(self, submission: Submission, parts: list[Run], until: float) -> bool:
        """Whether something happened to the nodes of an attempt that explains why it was not the one that counted."""
        began = min(part.started_at for part in parts)  # parts of a gang that were ready wait for the others
        since = min(began, self._placed_at.get(parts[0].attempt, began)) - 20.0
        nodes = {part.hardware for part in parts} | set(self._placed.get(parts[0].attempt, ()))
        for trouble in self._book.troubles:
            if trouble.kind in HARD and trouble.where in nodes and trouble.begin <= until and trouble.end >= since:
                return True
        if submission.on_lost is OnLost.WAIT:
            return False
        for node in nodes:
            for begin, end in self._spans(node, "reach"):
                if begin <= until and end >= since:
                    starts = [it for it in self._book.troubles if it.kind == "scheduler" and it.where == SCHEDULER]
                    near = any(begin - ROUND_A_START_SECONDS <= it.end <= end + 5.0 for it in starts)
                    if end - begin >= (3.0 if near else GIVEN_UP_SECONDS):
                        return True
            if self._could_not_return(node, since, until):
                return True
            if submission.on_lost is OnLost.FENCE:
                for begin, end in self._spans(node, "lease"):
                    if begin <= until and end >= since and end - begin >= FENCE_SECONDS:
                        return True
                for begin, end in self._spans(node, "patience"):
                    if begin <= until and end >= since and end - begin >= PATIENCE_SECONDS:
                        return True
        return False

    def _could_not_return(self, node: str, since: float, until: float) -> bool:
        """Whether a node had to register and could not: over a slow line, or without its supervisor's word of what it has."""
        for slow in self._book.troubles:
            stands_in_the_way = slow.kind == "line_slow" or (
                slow.kind == "supervisor_stopped" and slow.end - slow.begin >= GIVEN_UP_SECONDS
            )
            if stands_in_the_way and slow.where == node and slow.begin <= until and slow.end >= since:
                began = slow.begin - ROUND_A_START_SECONDS
                others = (it for it in self._book.troubles if it.kind in RECONNECTS and it.where in {node, SCHEDULER})
                if any(it.begin <= slow.end and it.end >= began for it in others):
                    return True
        return False

    def _is_not_heard(self, trouble: Trouble, node: str) -> bool:
        """Whether a scheduler stopped on purpose before a node was back from what was before."""
        return trouble.kind == "scheduler_planned" and any(
            it.where in {SCHEDULER, node} and it is not trouble and it.kind in RECONNECTS
            and it.begin <= trouble.begin and it.end >= trouble.begin - NOT_BACK_SECONDS
            for it in self._book.troubles
        )  # fmt: skip

    def _was_removed(self, run: Run) -> bool:
        """Whether an operator decided that what runs there is over."""
        return any(
            it.kind == "removed" and it.where == run.hardware and it.begin <= run.ended_at and it.end >= run.started_at
            for it in self._book.troubles
        )

    def _spans(self, node: str, what: str) -> list[tuple[float, float]]:
        """When a node was out of reach, or its lease could not be renewed: trouble that follows closely is one."""
        kept = self._merged.get((node, what))
        if kept is None:
            kinds = OUT_OF_REACH if what == "reach" else OUT_OF_REACH | NO_LEASE
            if what == "patience":
                kinds |= {"scheduler_planned"}
            wheres = {node} if what == "reach" else {node, SCHEDULER}
            found = sorted(
                (it.begin, it.end)
                for it in self._book.troubles
                if it.where in wheres and (it.kind in kinds or self._is_not_heard(it, node))
            )
            kept = []
            for begin, end in found:
                if kept and begin - kept[-1][1] < 8.0:
                    kept[-1] = (kept[-1][0], max(kept[-1][1], end))
                else:
                    kept.append((begin, end))
            self._merged[node, what] = kept
        return kept
