"""Nothing lost, nothing twice: a load of short tasks while everything is killed and stopped at random moments.

    GPUYARD_FAULT_SEED=7 GPUYARD_FAULT_SECONDS=120 pytest -s tests/acceptance/test_faults.py

The seed decides what is hurt and when; it is printed, together with the counts. Each task writes down when it began, that
it lives, and when it ended; the journal says what the scheduler knew. At the end both are compared.
"""

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from gpuyard.control_plane.recovery import open_journal
from gpuyard.domain.events import AttemptEnded, TaskEnded, TaskPlaced, TaskRequeued, TaskSubmitted
from gpuyard.domain.values import OnLost, Outcome, TaskStatus
from gpuyard.sdk import YardError
from gpuyard.sdk.client import NewTask
from tests.acceptance.live import Cluster, cluster

SECONDS = float(os.environ.get("GPUYARD_FAULT_SECONDS", "40"))
SEED = int(os.environ.get("GPUYARD_FAULT_SEED", "0")) or random.randrange(1, 10**6)
NODES, GPUS = 2, 4
SCRIPT = """
f="$0/$GPUYARD_TASK_ID.$GPUYARD_ATTEMPT.$GPUYARD_NODE_ID"
echo "begin $EPOCHREALTIME $CUDA_VISIBLE_DEVICES" >> "$f"
for i in $(seq "$1"); do sleep 0.1; echo "alive $EPOCHREALTIME" >> "$f"; done
echo "end $EPOCHREALTIME" >> "$f"
"""


@dataclass
class Life:
    """What a part of an attempt wrote down about itself."""

    task: int
    attempt: int
    node: str
    gpus: list[int] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    last: float = 0.0
    ended: bool = False


def test_nothing_is_lost_and_nothing_counts_twice_while_everything_is_killed(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    diary = tmp_path / "diary"
    diary.mkdir()
    print(f"\nfault test: seed {SEED}, {SECONDS:.0f} s")
    with cluster(tmp_path, nodes=NODES, gpus=GPUS) as yard:
        accepted: list[int] = []
        over = threading.Event()
        clients = threading.Thread(target=_load, args=(yard, diary, accepted, over, random.Random(SEED + 1)))
        clients.start()
        try:
            hurts = _hurt(yard, draw)
        finally:
            over.set()
            clients.join(60)
        _heal(yard)
        yard.ready(NODES)
        _wait_for_all(yard, accepted)
        yard.stop_server()
        _compare(tmp_path / "data" / "journal", diary, accepted, hurts)


# --- the load ---------------------------------------------------------------------------------------------------------


def _load(yard: Cluster, diary: Path, accepted: list[int], over: threading.Event, draw: random.Random) -> None:
    """Clients that submit; what the scheduler answered with a number counts as accepted."""
    client = yard.client()
    while not over.is_set():
        request: NewTask = {
            "command": ["bash", "-c", SCRIPT, str(diary), str(draw.choice((0, 0, 1, 2, 5, 10)))],
            "gpu_count": draw.choice((1, 1, 1, 2)),
            "nodes": draw.choice((1, 1, 1, 1, 1, 2)),
            "on_lost": draw.choice(("rerun", "fence")),
            "name": "fault",
        }
        with suppress(YardError):
            tasks = client.submit_many([request] * draw.choice((1, 3, 8)))
            accepted.extend(int(task.id.removeprefix("task-")) for task in tasks)
        over.wait(draw.uniform(0.05, 0.4))


# --- the hurting ------------------------------------------------------------------------------------------------------


def _hurt(yard: Cluster, draw: random.Random) -> Counter[str]:
    """Kill and stop things at random, each of them brought back a little later."""
    done: Counter[str] = Counter()
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(draw.uniform(0.5, 2.5))
        name = f"node-{draw.randint(1, NODES)}"
        ways = _ways(yard, name, draw)
        way = draw.choice(sorted(ways))
        print(f"  {time.monotonic() - deadline + SECONDS:5.1f} s  {way} ({name})")
        ways[way]()
        done[way] += 1
    return done


def _ways(yard: Cluster, name: str, draw: random.Random) -> dict[str, Callable[[], None]]:
    """All that can be done to a yard, and to one of its nodes."""
    server, agent = yard.server, yard.agents[name]
    assert server is not None
    return {
        "scheduler killed": lambda: _kill_server(yard, draw),
        "scheduler stopped": lambda: _freeze(yard, [server.pid], draw.uniform(0.5, 4.0)),
        "agent killed": lambda: _kill_agent(yard, name, draw),
        "agent stopped": lambda: _freeze(yard, [agent.pid], draw.choice((0.5, 3.0, 18.0))),
        "supervisor killed": lambda: yard.kill(yard.supervisor(name)),
        "supervisor stopped": lambda: _freeze(yard, [yard.supervisor(name)], draw.uniform(0.5, 4.0)),
        "agent and supervisor stopped": lambda: _freeze(
            yard, [agent.pid, yard.supervisor(name)], draw.choice((2.0, 18.0))
        ),
        "node killed": lambda: _kill_node(yard, name, draw),
    }


def _kill_server(yard: Cluster, draw: random.Random) -> None:
    yard.kill(yard.server)
    time.sleep(draw.uniform(0.0, 2.0))
    yard.start_server()


def _kill_agent(yard: Cluster, name: str, draw: random.Random) -> None:
    yard.kill(yard.agents[name])
    time.sleep(draw.uniform(0.0, 3.0))
    yard.start_agent(name, GPUS)


def _kill_node(yard: Cluster, name: str, draw: random.Random) -> None:
    yard.kill_node(name)
    time.sleep(draw.uniform(0.0, 4.0))
    yard.start_agent(name, GPUS)


def _freeze(yard: Cluster, pids: list[int | None], seconds: float) -> None:
    for pid in pids:
        yard.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        yard.kill(pid, signal.SIGCONT)


def _heal(yard: Cluster) -> None:
    if yard.server is not None and yard.server.poll() is not None:
        yard.start_server()
    for name, agent in list(yard.agents.items()):
        if agent.poll() is not None:
            yard.start_agent(name, GPUS)


def _wait_for_all(yard: Cluster, accepted: list[int]) -> None:
    deadline = time.monotonic() + 120
    while True:
        left = yard.count("pending,running,suspended")
        if not left:
            return
        assert time.monotonic() < deadline, f"{left} of {len(accepted)} tasks do not end\n{yard.logs()}"
        time.sleep(0.2)


# --- the comparison ---------------------------------------------------------------------------------------------------


def _compare(folder: Path, diary: Path, accepted: list[int], hurts: Counter[str]) -> None:
    journal = open_journal(folder)
    facts = [(record.at, record.fact) for record in journal.read()]
    journal.close()
    specs = {fact.task: fact.spec for _, fact in facts if isinstance(fact, TaskSubmitted)}
    ends = Counter(fact.task for _, fact in facts if isinstance(fact, TaskEnded))
    how = {fact.task: fact.status for _, fact in facts if isinstance(fact, TaskEnded)}
    lives = _read(diary)

    assert len(accepted) == len(set(accepted))
    assert set(accepted) <= set(specs), "an accepted task is not in the journal"
    assert {task: ends[task] for task in specs if ends[task] != 1} == {}, "every end is counted once"
    assert Counter(how.values()) == {TaskStatus.SUCCESS: len(specs)}

    over = Counter((fact.task, fact.attempt) for _, fact in facts if isinstance(fact, AttemptEnded))
    assert set(over.values()) == {1}, "every attempt ends once"
    lost = [fact for _, fact in facts if isinstance(fact, AttemptEnded) and fact.outcome is not Outcome.SUCCEEDED]
    again = [fact for _, fact in facts if isinstance(fact, TaskRequeued)]
    assert len(again) == len(lost), "every retry has its reason in the journal"
    assert all(fact.cause.sentence() for fact in again)

    twice = [life for life in lives if len(life.begins) != 1]
    assert not twice, f"an attempt was started twice: {twice[:3]}"
    _check_gpus(lives)
    fenced = {task for task, spec in specs.items() if spec.on_lost is OnLost.FENCE}
    _check_fences([life for life in lives if life.task in fenced])
    placed = sum(isinstance(fact, TaskPlaced) for _, fact in facts)
    print(
        f"  accepted {len(accepted)}, in the journal {len(specs)}, ended once {len(ends)}, lost 0, counted twice 0;\n"
        f"  attempts {placed}, retries {len(again)} ({Counter(str(fact.cause.why) for fact in again)});\n"
        f"  gangs {sum(spec.resources.nodes > 1 for spec in specs.values())}, fenced {len(fenced)}; hurt: {dict(hurts)}"
    )


def _read(diary: Path) -> list[Life]:
    lives = []
    for path in diary.iterdir():
        task, attempt, node = path.name.split(".", 2)
        life = Life(int(task), int(attempt), node)
        for line in path.read_text().splitlines():
            what, at, *cards = line.split()
            life.last = max(life.last, float(at))
            if what == "begin":
                life.begins.append(float(at))
                life.gpus = [int(card) for card in cards[0].split(",")]
            life.ended = life.ended or what == "end"
        lives.append(life)
    return lives


def _check_gpus(lives: list[Life]) -> None:
    by_gpu: dict[tuple[str, int], list[Life]] = defaultdict(list)
    for life in lives:
        for gpu in life.gpus:
            by_gpu[life.node, gpu].append(life)
    for card, users in by_gpu.items():
        for one, other in pairwise(sorted(users, key=lambda life: life.begins[0])):
            assert one.last <= other.begins[0], f"GPU {card} was used by two: {one} and {other}"


def _check_fences(lives: list[Life]) -> None:
    by_task: dict[int, list[Life]] = defaultdict(list)
    for life in lives:
        by_task[life.task].append(life)
    for task, parts in by_task.items():
        for one in parts:
            for other in parts:
                apart = one.attempt >= other.attempt or one.last <= other.begins[0]
                assert apart, f"two attempts of fenced task {task} overlap: {one} and {other}"
