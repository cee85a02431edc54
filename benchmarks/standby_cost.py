"""What a second scheduler costs: one scheduler alone, two that replicate, and two on PostgreSQL, in turns in one run.

    .venv/bin/python benchmarks/standby_cost.py [--rounds 2] [--rate 1000] [--seconds 10] [--only alone,replicated,database] [--write]

All processes run on this machine with default settings, and all journals, that of PostgreSQL too, are on the disk of the
temporary folder. Nodes are simulated: they speak real gRPC from a process of their own, and a task runs for 0.2 s. Every
round starts each kind of cluster with new folders, in one order and then in the reverse one, and measures

    submits    durable submissions a second: 32 connections with one task a request, and two with 1,000 tasks a request
    start      from the submission of one task to its start, one task at a time
    load       so many tasks a second for some seconds, or as many as the machine bears beside the nodes and the clients: the
               CPU time of the scheduler that leads, of the standby and of PostgreSQL, and how far the standby is behind, as
               the standby says twenty times a second

Standby and nodes share the cores with the scheduler that leads, which they do not on machines of their own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.output import report_progress  # noqa: E402
from benchmarks.common.results import about, write_result  # noqa: E402
from benchmarks.common.watched_load import GPUS_EACH, NODES, PLAYERS, Loaded, cpu_seconds, sustained_rate  # noqa: E402
from benchmarks.live import SUBMITTER  # noqa: E402
from tests.acceptance.pair import Pair  # noqa: E402
from tests.acceptance.waiting import until  # noqa: E402
from tests.postgres_server import PostgresServer  # noqa: E402

KINDS = ("alone", "replicated", "database")
TITLES = {"alone": "one scheduler", "replicated": "two that replicate", "database": "two on PostgreSQL"}
LOOK_SECONDS = 0.05
STARTS = 120
WARM_UP = 20
Row = dict[str, Any]


class Measured:
    """A cluster that runs: who leads, who follows, and what else works for them."""

    def __init__(self, pair: Pair, postgres: PostgresServer | None) -> None:
        assert pair.a.process is not None
        self.pair = pair
        self.leader = Loaded(pair.a.http, pair.a.process)
        self.postgres = postgres

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU time so far."""
        used = {"leader": cpu_seconds(self.leader.server.pid)}
        if self.pair.b.process is not None:
            used["standby"] = cpu_seconds(self.pair.b.process.pid)
        if self.postgres is not None and self.postgres.process is not None:
            used["database"] = sum(_cpu_of_all(self.postgres.process.pid))
        return used


def _cpu_of_all(parent: int) -> Iterator[float]:
    """CPU seconds of a process and of those that it has started."""
    yield cpu_seconds(parent)
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        with suppress(OSError):
            yield cpu_seconds(int(child))


@contextmanager
def cluster(kind: str) -> Iterator[Measured]:
    """Run schedulers and simulated nodes."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user
        postgres = PostgresServer(beside=folder) if kind == "database" else None
        if postgres is not None:
            postgres.start()
        pair = Pair(folder, postgres.url("cost") if postgres is not None else "")
        try:
            if kind == "alone":
                pair.replication = {"enabled": False}
            pair.start(pair.a, "master")
            pair.until(pair.a.leads, "the first scheduler leads")
            if kind != "alone":
                pair.start(pair.b)
                if kind == "replicated":
                    pair.start_witness()
                pair.until(pair.b.follows, "the second scheduler follows")
                pair.until_complete()
            measured = Measured(pair, postgres)
            words = [sys.executable, "-c", PLAYERS.replace('"join"', repr(pair.join_token)), f"127.0.0.1:{pair.a.grpc}"]
            processes.append(subprocess.Popen([*words, str(NODES), str(GPUS_EACH)]))
            until(lambda: measured.leader.ask("GET", "nodes")["total"] == NODES, 90, f"{NODES} nodes")
            yield measured
        finally:
            for process in processes:
                process.terminate()
                process.wait(30)
            pair.end()
            if postgres is not None:
                postgres.stop()


# --- what is measured --------------------------------------------------------------------------------------------------


def submits(on: Measured, connections: int, each: int, batch: int) -> float:
    """Return durable submissions a second of tasks that no node can run."""
    words = [sys.executable, "-c", SUBMITTER, str(on.leader.port), str(connections), str(each), str(batch)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def starts(on: Measured) -> Row:
    """Return how long one task takes from its submission to its start."""
    waits = []
    for _ in range(STARTS):
        told = on.leader.ask("POST", "tasks", {"command": "true", "gpu_count": 1})
        path = f"tasks/{told['task_id']}"
        give_up_at = time.monotonic() + 10
        while (task := on.leader.ask("GET", path))["status"] != "success":
            assert time.monotonic() < give_up_at, "a task does not end"
            time.sleep(0.01)
        waits.append(1000 * _between(task))
    waits = sorted(waits[WARM_UP:])
    return {
        "submit_to_start_p50_ms": round(statistics.median(waits), 2),
        "submit_to_start_p99_ms": round(waits[int(0.99 * len(waits))], 2),
    }


def _between(task: Row) -> float:
    began, started = (datetime.fromisoformat(task[name]).timestamp() for name in ("created_at", "started_at"))
    return started - began


class Lag:
    """Asks the standby again and again how far it is behind, on one connection: opening others would be part of its cost."""

    def __init__(self, pair: Pair) -> None:
        self._line = HTTPConnection("127.0.0.1", pair.b.http, timeout=60)
        self._over = threading.Event()
        self.seen: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._line.request("GET", "/health")
            self.seen.append(float(json.load(self._line.getresponse())["behind_seconds"]))

    def stop(self) -> list[float]:
        """Return all answers, sorted."""
        self._over.set()
        self._thread.join()
        self._line.close()
        return sorted(self.seen)


def load(on: Measured, rate: int, seconds: float) -> Row:
    """Run so many tasks a second, or as many as the machine bears."""
    bears = sustained_rate(on.leader, rate)
    lag = Lag(on.pair) if on.pair.b.process is not None else None
    ended, before, began = on.leader.ended(), on.cpu(), time.perf_counter()
    on.leader.load(bears, seconds)
    passed = time.perf_counter() - began
    ended, after = on.leader.ended() - ended, on.cpu()
    row: Row = {"asked_tasks_per_s": bears, "tasks_per_s": round(ended / passed, 1)}
    for name, used in after.items():
        row[f"{name}_percent_of_a_core"] = round(100 * (used - before[name]) / passed, 1)
    if lag is not None:
        behind = lag.stop()
        row["behind_p50_ms"] = round(1000 * statistics.median(behind), 1)
        row["behind_p99_ms"] = round(1000 * behind[int(0.99 * len(behind))], 1)
        row["behind_worst_ms"] = round(1000 * behind[-1], 1)
    return row


def one_round(kind: str, rate: int, seconds: float) -> Row:
    """Measure one cluster with new folders."""
    with cluster(kind) as on:
        row: Row = {"kind": kind, **starts(on), **load(on, rate, seconds)}
        row["single_submits_per_s"] = round(max(submits(on, 32, 100, 0) for _ in range(2)))
        row["batched_submits_per_s"] = round(max(submits(on, 2, 5, 1000) for _ in range(2)))
    return row


# --- the run -----------------------------------------------------------------------------------------------------------


def medians(rounds: list[Row]) -> list[Row]:
    """Return one row for each kind: the median of its rounds."""
    found = []
    for kind in KINDS:
        mine = [row for row in rounds if row["kind"] == kind]
        if mine:
            names = [name for name in mine[0] if name != "kind"]
            found.append({"kind": kind, **{name: statistics.median(row[name] for row in mine) for name in names}})
    return found


COLUMNS = (
    ("single_submits_per_s", "submissions/s"),
    ("batched_submits_per_s", "in batches/s"),
    ("submit_to_start_p50_ms", "to start p50, ms"),
    ("submit_to_start_p99_ms", "p99, ms"),
    ("tasks_per_s", "load, tasks/s"),
    ("leader_percent_of_a_core", "leader, % of a core"),
    ("standby_percent_of_a_core", "standby, % of a core"),
    ("database_percent_of_a_core", "PostgreSQL, % of a core"),
    ("behind_p50_ms", "behind p50, ms"),
    ("behind_p99_ms", "p99, ms"),
)


def render(result: Row) -> str:
    """Return the table of the documentation."""
    lines = [
        "| | " + " | ".join(title for _, title in COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    rows = {row["kind"]: row for row in medians(result["rows"])}
    alone = rows.get("alone")
    for kind in KINDS:
        if (row := rows.get(kind)) is None:
            continue
        cells = []
        for name, _ in COLUMNS:
            cell = "–" if name not in row else f"{row[name]:,.0f}" if row[name] >= 100 else f"{row[name]:.1f}"
            if alone and row is not alone and name.endswith("submits_per_s"):
                cell += f" ({row[name] / alone[name]:.2f})"
            cells.append(cell)
        lines.append(f"| {TITLES[kind]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=int, default=1000, help="tasks a second of the load")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the load")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    asked = parser.parse_args()
    kinds = asked.only.split(",")
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no such kind: {', '.join(wrong)}")
    rows = []
    for number in range(asked.rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            rows.append(one_round(kind, asked.rate, asked.seconds))
            report_progress(json.dumps(rows[-1]))
    made = about(
        "python benchmarks/standby_cost.py --write", [], cores=os.cpu_count(), load_average=round(os.getloadavg()[1], 1),
        rounds=asked.rounds, gpus=NODES * GPUS_EACH,
    )  # fmt: skip
    if asked.write:
        write_result("standby_cost", made, rows)
    print(render({"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
