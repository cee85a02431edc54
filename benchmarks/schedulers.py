"""What a second scheduler costs, with and without PostgreSQL, beside one scheduler with its journal in a folder.

    .venv/bin/python benchmarks/schedulers.py [--rounds 3] [--rate 1000] [--seconds 10] [--arms NAME,...] [--json FILE]

Every arm is measured once in each round, in alternating order, so that a drift of the machine touches all alike:

    folder              one scheduler, journal in its data folder
    postgres            one scheduler, journal in PostgreSQL
    postgres-standby    two schedulers, journal in PostgreSQL
    replication         two schedulers that replicate their journal, and a witness

An arm is real processes with default settings: the schedulers, PostgreSQL with its files on the disk, and 200 simulated
nodes with eight GPUs each that speak real gRPC; a task runs for 0.2 s. First a client submits durable tasks as fast as it
can, then tasks come at a steady rate. A standby is asked every 100 ms how far it is behind.
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
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.output import print_figures, report_progress  # noqa: E402
from benchmarks.common.watched_load import GPUS_EACH, NODES, PLAYERS, Loaded  # noqa: E402
from benchmarks.live import SUBMITTER  # noqa: E402
from tests.acceptance.waiting import until  # noqa: E402
from tests.ports import free_port  # noqa: E402
from tests.postgres_server import PostgresServer  # noqa: E402

ARMS = ("folder", "postgres", "postgres-standby", "replication")
SUBMITS = {"one_by_one_per_s": (32, 100, 0), "in_batches_per_s": (2, 4, 1000)}
"""Connections, requests on each, and tasks in a request."""
POLL_SECONDS = 0.1
SETTLE_SECONDS = 2.0
Row = dict[str, Any]


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Schedulers:
    """The schedulers of an arm; the first one leads."""

    def __init__(self, folder: Path, database: str, number: int) -> None:
        """Without a database, two of them replicate."""
        self._folder, self._database = folder, database
        self.ports = [(free_port(), free_port()) for _ in range(number)]
        self._for_peers = [free_port() for _ in range(0 if database or number == 1 else number)]
        self._witness: subprocess.Popen[bytes] | None = None
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all of them, and wait until one leads and the others follow."""
        for place, (http, grpc) in enumerate(self.ports):
            storage = f"data_dir: {self._folder}/{place}"
            if self._database:
                storage += f", shared_storage: '{self._database}'"
            settings = self._folder / f"{place}.yaml"
            settings.write_text(
                f"server: {{http_address: '127.0.0.1:{http}', grpc_address: '127.0.0.1:{grpc}'}}\n"
                f"storage: {{{storage}}}\nauth: {{join_token: {'j' * 24}}}\nquota: {{mode: borrow}}\n"
                f"scheduler: {{role: {'standby' if place else 'master'}}}\nlogging: {{output: {self._folder}/{place}.log}}\n"
                f"{self._replication(place)}"
            )
            words = [sys.executable, "-m", "gpuyard.cli", "server", "--config", str(settings)]
            environment = {**os.environ, "GPUYARD_SECRETS_KEY": "5a" * 32}
            self.processes.append(subprocess.Popen(words, env=environment))
            until(lambda place=place: self.role(place) == ("standby" if place else "master"), 60, "the scheduler is up")
        if self._for_peers:
            self._start_witness()
            until(self._is_replicated, 60, "both have every event, and three vote")

    def _replication(self, place: int) -> str:
        if not self._for_peers:
            return ""
        own, peer = (f"127.0.0.1:{port}" for port in (self._for_peers[place], self._for_peers[1 - place]))
        return f"replication: {{enabled: true, address: '{own}', peer_address: '{peer}'}}\n"

    def _start_witness(self) -> None:
        addresses = ",".join(f"127.0.0.1:{port}" for port in self._for_peers)
        options = ["--scheduler", addresses, "--data-dir", f"{self._folder}/witness", "--join-token", "j" * 24]
        with (self._folder / "witness.log").open("wb") as output:
            words = [sys.executable, "-m", "gpuyard.cli", "witness", *options]
            self._witness = subprocess.Popen(words, stdout=output, stderr=output)

    def _is_replicated(self) -> bool:
        line = HTTPConnection("127.0.0.1", self.ports[0][0], timeout=5)
        line.request("GET", "/api/v1/replication")
        told: Row = json.loads(line.getresponse().read())
        line.close()
        return len(told["in_sync"]) == 2 and sum(voter["votes"] for voter in told["voters"]) == 3

    def health(self, place: int) -> Row:
        """Ask a scheduler how it is."""
        line = HTTPConnection("127.0.0.1", self.ports[place][0], timeout=5)
        line.request("GET", "/health")
        told: Row = json.loads(line.getresponse().read())
        line.close()
        return told

    def role(self, place: int) -> str:
        """Return the role of a scheduler that works; empty: it does not."""
        with suppress(OSError, HTTPException, ValueError):
            told = self.health(place)
            return str(told["role"]) if told.get("status") == "ok" else ""
        return ""

    def stop(self) -> None:
        """Stop all of them."""
        for process in [*reversed(self.processes), *([self._witness] if self._witness is not None else [])]:
            process.terminate()
            process.wait(60)


class Lag:
    """How far a standby is behind, by its own answers."""

    def __init__(self, port: int) -> None:
        self._line = HTTPConnection("127.0.0.1", port, timeout=5)
        self._over = threading.Event()
        self.seconds: list[float] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self._line.request("GET", "/health")
            self.seconds.append(float(json.loads(self._line.getresponse().read())["behind_seconds"]))

    def stop(self) -> list[float]:
        """Return all answers, sorted."""
        self._over.set()
        self._thread.join()
        self._line.close()
        return sorted(self.seconds)


@contextmanager
def running(arm: str) -> Iterator[Schedulers]:
    """Run the processes of an arm."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder, ExitStack() as stack:
        database = ""
        if arm.startswith("postgres"):
            server = PostgresServer(beside=Path(tempfile.gettempdir()))
            stack.callback(server.stop)
            server.start()
            database = server.url("gpuyard")
        schedulers = Schedulers(Path(folder), database, 2 if arm in {"postgres-standby", "replication"} else 1)
        stack.callback(schedulers.stop)
        schedulers.start()
        yield schedulers


def measured(arm: str, rate: int, seconds: float) -> Row:
    """Measure an arm once."""
    with running(arm) as schedulers, ExitStack() as stack:
        http, grpc = schedulers.ports[0]
        figures: Row = {"arm": arm}
        for name, (connections, each, batch) in SUBMITS.items():
            words = [sys.executable, "-c", SUBMITTER, str(http), str(connections), str(each), str(batch)]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            figures[name] = round(float(said))
        cluster = Loaded(http, schedulers.processes[0])
        words = [sys.executable, "-c", PLAYERS.replace('"join"', f'"{"j" * 24}"'), f"127.0.0.1:{grpc}"]
        players = subprocess.Popen([*words, str(NODES), str(GPUS_EACH)])
        stack.callback(players.wait, 30)
        stack.callback(players.terminate)
        until(lambda: cluster.ask("GET", "nodes")["total"] == NODES, 60, f"{NODES} nodes")
        cluster.load(rate, SETTLE_SECONDS)
        lag = Lag(schedulers.ports[1][0]) if len(schedulers.ports) > 1 else None
        first, since = cluster.ended(), time.time()
        worked, began = [cpu_seconds(process.pid) for process in schedulers.processes], time.perf_counter()
        cluster.load(rate, seconds)
        passed = time.perf_counter() - began
        percents = [
            100 * (cpu_seconds(process.pid) - before) / passed
            for process, before in zip(schedulers.processes, worked, strict=True)
        ]
        waits = sorted(cluster.starts(since))
        figures |= {
            "tasks_per_s": round((cluster.ended() - first) / passed, 1),
            "submit_to_start_p50_ms": round(1000 * statistics.median(waits), 1),
            "submit_to_start_p99_ms": round(1000 * waits[int(0.99 * len(waits))], 1),
            "leader_percent_of_a_core": round(percents[0], 1),
        }
        if lag is not None:
            behind = lag.stop()
            figures |= {
                "standby_percent_of_a_core": round(percents[1], 1),
                "behind_p50_ms": round(1000 * statistics.median(behind), 1),
                "behind_p99_ms": round(1000 * behind[int(0.99 * len(behind))], 1),
                "behind_worst_ms": round(1000 * behind[-1], 1),
            }
        return figures


def main() -> None:
    """Measure all arms in turns, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=1000, help="tasks a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the steady load")
    parser.add_argument("--arms", default=",".join(ARMS), help="which arms to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file")
    asked = parser.parse_args()
    arms = asked.arms.split(",")
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"unknown arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    (ROOT / "build").mkdir(exist_ok=True)
    rows: list[Row] = []
    for number in range(asked.rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            report_progress(f"round {number + 1} of {asked.rounds}: {arm}")
            rows.append(measured(arm, asked.rate, asked.seconds))
            report_progress(json.dumps(rows[-1]))
    medians = []
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm]
        medians.append(
            {"arm": arm}
            | {name: round(statistics.median(row[name] for row in mine), 1) for name in mine[0] if name != "arm"}
        )
    base = medians[0]
    ratios = [
        {"arm": f"{row['arm']} / {base['arm']}"}
        | {name: round(row[name] / base[name], 2) for name in base if name != "arm" and base[name]}
        for row in medians[1:]
    ]
    figures = {
        "rate": asked.rate,
        "seconds": asked.seconds,
        "rounds": asked.rounds,
        "medians": medians,
        "ratios": ratios,
    }
    if asked.json:
        asked.json.write_text(json.dumps({**figures, "measured": rows}, indent=2) + "\n")
    print_figures(figures, as_json=False)


if __name__ == "__main__":
    main()
