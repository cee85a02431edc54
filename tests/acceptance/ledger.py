"""Records that tasks write about themselves, and their comparison with the journal.

Each process of a task writes a file: which submission it belongs to (a token that is part of its command line), its task,
attempt, origin and node, when it began, on which GPUs, that it is alive, and when it ended. Instants are those of the boot
clock, which never jumps. The same token is the first line of the task's output.

Broken promises that are counted here:

    lost               accepted, and never ended (what was accepted after the copy that a restored backup is made of may be)
    ended twice        a task, or an attempt, has two ends in the journal
    failed             a task did not end with success, although its command cannot fail
    started twice      two processes for one attempt on one node
    overlapping        two attempts of a task at once: never with `fence`; else only while the node of the first was cut off
    GPU twice          two processes had one GPU of one node at once
    foreign output     the output of a task holds the token of another one
    output missing     the output of an ended task does not hold its own token
    number twice       one task number was run for two submissions
    retry unexplained  a task was started again, and the journal does not say why
    died               a process ended that was not killed

An attempt whose origin the journal does not know was placed by a scheduler whose events are gone: by a second one on a copy
of the data folder, or after the copy that was put back. The scheduler that continued cannot know of it before its node says
so. The same holds for a node that has gone over to a second scheduler: that one renews its leases. Such overlaps, and
task numbers that a scheduler whose events are gone has given out, are counted apart and break no promise.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from re import findall

from gpuyard.core.domain import events
from gpuyard.core.domain.values import OnLost, Outcome, TaskStatus
from gpuyard.core.journal.records import Record
from gpuyard.core.journal.stores.sqlite import read_folder
from gpuyard.live.control_plane.stores.recovery import open_journal

SCRIPT = """
echo "token:$1:"
f="$0/$1.$GPUYARD_TASK_ID.$GPUYARD_ATTEMPT.${GPUYARD_MARK##*/}.$$.$GPUYARD_NODE_ID"
say() { read -r up _ < /proc/uptime; echo "$1 $up $2 $3" >> "$f"; }
say begin "$HOSTNAME" "$CUDA_VISIBLE_DEVICES"
for ((i = 0; i < $2; i++)); do sleep "${3:-0.1}"; say alive; done
say end
"""


def command(diary: Path, token: int, steps: int, step_seconds: float = 0.1) -> list[str]:
    """A task that records its start, its heartbeats and its end."""
    return ["bash", "-c", SCRIPT, str(diary), str(token), str(steps), str(step_seconds)]


def boot_clock() -> float:
    """The clock of the ledger."""
    return float(Path("/proc/uptime").read_text().split()[0])


@dataclass
class Life:
    """The record of one process."""

    token: int
    task: int
    attempt: int
    origin: int
    node: str
    host: str = ""
    gpus: list[int] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    last: float = 0.0
    ended: bool = False

    def __str__(self) -> str:
        began = self.begins[0] if self.begins else 0.0
        return (
            f"task {self.task} attempt {self.attempt} origin {self.origin} on {self.node} ({self.host}) GPUs {self.gpus}, "
            f"{began:.2f} to {self.last:.2f}{' ended' if self.ended else ''}"
        )


def read(diary: Path) -> list[Life]:
    """All records, by their start."""
    lives = []
    for path in diary.iterdir():
        token, task, attempt, origin, _, node = path.name.split(".", 5)
        life = Life(int(token), int(task), int(attempt), int(origin), node)
        for line in path.read_text().splitlines():
            what, at, *rest = line.split()
            life.last = max(life.last, float(at))
            if what == "begin":
                life.begins.append(float(at))
                life.host = rest[0]
                life.gpus = [int(gpu) for gpu in rest[1].split(",")]
            life.ended = life.ended or what == "end"
        if life.begins:
            lives.append(life)
    return sorted(lives, key=lambda life: (life.begins[0], life.last))  # the clock ticks a hundred times a second


@dataclass
class CutOff:
    """A node was unreachable in this interval of the boot clock."""

    node: str
    since: float
    until: float = float("inf")
    to_second: bool = False
    """It went over to a second scheduler on a copy of the data folder."""


@dataclass
class Verdict:
    """What was counted, and one sentence for each broken promise."""

    counts: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def breaks(self, what: str, sentences: Iterable[str]) -> None:
        """Count broken promises of a kind; 0 is a figure too."""
        found = list(sentences)
        self.counts[what] += len(found)
        self.broken += [f"{what}: {sentence}" for sentence in found]


def foreign_tokens(output: bytes, token: int) -> set[int]:
    """Tokens of other submissions in the output of one."""
    return set(map(int, findall(rb"token:(\d+):", output))) - {token}


def compare(
    data: Path, lives: list[Life], accepted: Mapping[int, int], cut_off: list[CutOff], verdict: Verdict
) -> None:
    """Compare the ledger with the journal of a data folder. `accepted` is token -> task number."""
    records = _records(data)
    specs = {it.event.task: it.event.spec for it in records if isinstance(it.event, events.TaskSubmitted)}
    origins = {it.event.origin for it in records if isinstance(it.event, events.EpochBegan)}
    _compare_journal(records, accepted, verdict)
    fenced = {int(task) for task, spec in specs.items() if spec.on_lost is OnLost.FENCE}
    _check_starts(lives, origins, verdict)
    _check_gpus(lives, verdict)
    _check_overlaps(lives, fenced, origins, cut_off, verdict)
    verdict.counts.update(
        {
            "accepted": len(accepted),
            "in the journal": len(specs),
            "gangs": sum(spec.resources.nodes > 1 for spec in specs.values()),
            "fenced": len(fenced),
            "attempts": sum(isinstance(it.event, events.TaskPlaced) for it in records),
            "processes": len(lives),
            "nodes lost": sum(isinstance(it.event, events.NodeLost) for it in records),
            "attempts recovered": sum(isinstance(it.event, events.AttemptRecovered) for it in records),
            "of forgotten schedulers": sum(life.origin not in origins for life in lives),
        }
    )


def _records(data: Path) -> list[Record]:
    retired = data / "retired"
    found = list(read_folder(retired)) if retired.exists() and any(retired.iterdir()) else []
    journal = open_journal(data / "journal")
    try:
        last = found[-1].seq if found else 0
        return found + [record for record in journal.read(last) if record.seq > last]
    finally:
        journal.close()


def _compare_journal(records: list[Record], accepted: Mapping[int, int], verdict: Verdict) -> None:
    submitted, ends, over, recovered = (
        set[int](),
        Counter[int](),
        Counter[tuple[int, int]](),
        Counter[tuple[int, int]](),
    )
    failures, lost, again, unexplained = [], 0, 0, []
    for record in records:
        match record.event:
            case events.TaskSubmitted(task):
                submitted.add(task)
            case events.TaskEnded(task, status, cause):
                ends[task] += 1
                if status is not TaskStatus.SUCCESS:
                    failures.append(f"task {task} ended with {status.value}: {cause.sentence()}")
            case events.AttemptEnded(task, attempt, outcome):
                over[task, attempt] += 1
                lost += outcome is not Outcome.SUCCEEDED
            case events.AttemptRecovered(task, attempt):
                recovered[task, attempt] += 1
            case events.TaskRequeued(task, cause):
                again += 1
                verdict.retries[str(cause.why)] += 1
                if not cause.sentence():
                    unexplained.append(f"task {task}")
    if again != lost:
        unexplained.append(f"{lost} attempts ended without success, and {again} tasks were queued again")
    verdict.breaks(
        "lost",
        [
            f"task {number} (token {token}) was accepted and {'never ended' if number in submitted else 'is not in the journal'}"
            for token, number in accepted.items()
            if not ends[number]
        ],
    )
    verdict.breaks("ended twice", [f"task {task} ended {count} times" for task, count in ends.items() if count > 1])
    verdict.breaks(
        "attempt ended twice",
        [f"attempt {it} ended {count} times" for it, count in over.items() if count - recovered[it] != 1],
    )
    verdict.breaks("failed", failures)
    verdict.breaks("retry unexplained", unexplained)


def _check_starts(lives: list[Life], origins: set[int], verdict: Verdict) -> None:
    by_attempt: dict[tuple[int, int, int, str], list[Life]] = defaultdict(list)
    tokens: dict[int, set[int]] = defaultdict(set)
    forgotten: dict[int, set[int]] = defaultdict(set)
    complete: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for life in lives:
        by_attempt[life.task, life.attempt, life.origin, life.node].append(life)
        (tokens if life.origin in origins else forgotten)[life.task].add(life.token)
        if life.ended:
            complete[life.token].add((life.attempt, life.origin))
    twice = [found for found in by_attempt.values() if sum(len(life.begins) for life in found) > 1]
    verdict.breaks("started twice", [" and ".join(map(str, found)) for found in twice])
    verdict.breaks(
        "number twice", [f"task {task} was run for tokens {found}" for task, found in tokens.items() if len(found) > 1]
    )
    verdict.counts["number twice, of forgotten schedulers"] = sum(
        len(found | tokens.get(task, set())) > 1 for task, found in forgotten.items()
    )
    verdict.counts["ran to the end again"] = sum(len(runs) > 1 for runs in complete.values())


def _check_gpus(lives: list[Life], verdict: Verdict) -> None:
    by_gpu: dict[tuple[str, str, int], list[Life]] = defaultdict(list)
    for life in lives:
        for gpu in life.gpus:
            by_gpu[life.host, life.node, gpu].append(life)
    verdict.breaks(
        "GPU twice",
        [
            f"GPU {gpu[1:]}: {one} and {other}"
            for gpu, users in by_gpu.items()
            for one, other in pairwise(users)
            if one.last > other.begins[0]
        ],
    )


def _check_overlaps(
    lives: list[Life], fenced: set[int], origins: set[int], cut_off: list[CutOff], verdict: Verdict
) -> None:
    by_token: dict[int, list[Life]] = defaultdict(list)
    for life in lives:
        by_token[life.token].append(life)
    never, uncut = [], []
    for parts in by_token.values():
        for place, one in enumerate(parts):
            for other in parts[place + 1 :]:
                begin = other.begins[0]
                if (one.attempt, one.origin) == (other.attempt, other.origin) or one.last <= begin:
                    continue  # parts of one gang, or one after the other
                if not {one.origin, other.origin} <= origins:
                    verdict.counts["overlapping, of forgotten schedulers"] += 1
                elif any(it.to_second and it.node == one.node and it.since <= begin <= it.until for it in cut_off):
                    verdict.counts["overlapping, beside a second scheduler"] += 1
                elif one.task in fenced:
                    never.append(f"fenced: {one} and {other}")
                elif any(it.node == one.node and it.since <= begin <= it.until for it in cut_off):
                    verdict.counts["overlapping while cut off"] += 1
                else:
                    uncut.append(f"{one} and {other}")
    verdict.breaks("overlapping", never + uncut)
