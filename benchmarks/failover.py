"""Faults of two schedulers that share a journal, with real processes under a steady load.

    .venv/bin/python benchmarks/failover.py --kills 20 --seed 1 [--kinds kill,pause] [--rate 50] [--write]
    .venv/bin/python benchmarks/failover.py --storage replication --kills 20 --seed 1
    .venv/bin/python benchmarks/failover.py --storage replication --kills 15 --kinds cuts        # as root

Starts PostgreSQL (or nothing: the schedulers replicate their journal), two schedulers with the default settings and agents
with virtual GPUs, all on this machine. For cuts of the network each is in a network namespace of its own, and a router
between them loses packets in silence, in one direction or in both, for 5 to 20 s. Threads submit short tasks through the SDK,
each with an idempotency key. For every fault it measures how long it takes until

    leads    another scheduler answers /health as the leader
    starts   the process of a task runs that was placed after that; if the same one leads, of a task submitted after the fault
    gap      the longest time without the start of any task, which includes the waits of the clients
    again    after the end of the fault: one scheduler leads and the other one follows

A fault begins when one scheduler leads and the other one follows; with replication, when the other one also has every
event. At the end, all tasks finish and the promises are counted from the journal, from the acknowledged submissions, from what
the tasks have written about themselves and from the answers of /health. The exit code is 1 when one was broken; then the
folder with all logs is kept.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.output import report_progress
from benchmarks.common.results import about, write_result
from benchmarks.two_schedulers.counts import broken_promises, find_starts, lines_of, summary
from benchmarks.two_schedulers.faults import (
    CUTS,
    DATABASE_ONLY,
    DISKS,
    GROUPS,
    KINDS,
    LONG_PAUSE_SECONDS,
    RECOVERY_SECONDS,
    Bench,
)
from benchmarks.two_schedulers.load import Load
from benchmarks.two_schedulers.pair import NAMES, Databases, Pair, boot, why_not_here
from benchmarks.two_schedulers.watch import Watch
from gpuyard.core.domain import events
from gpuyard.core.journal.read import read_journal
from gpuyard.core.journal.records import Record
from gpuyard.live.sdk import ClusterError
from tests.acceptance.pair import HOSTS
from tests.acceptance.waiting import until
from tests.netns import Network

DRAIN_SECONDS = 180.0
SHOWN = 20
OPEN = {"status": "pending,running,suspended", "limit": 1}


def _journal(pair: Pair, databases: Databases | None) -> tuple[list[Record], list[str]]:
    """Return all events, and what differs between the copies of two schedulers that replicate."""
    if databases is not None:
        return _events(databases.own_url, *map(pair.retired, NAMES)), []
    one, other = sorted((_events(str(pair.folder / name / "journal"), pair.retired(name)) for name in NAMES), key=len)
    differ = [f"event {mine.seq} differs" for mine, theirs in zip(one, other, strict=False) if mine != theirs]
    return other, differ


def _events(journal: str, *retired: Path) -> list[Record]:
    """Return the events of a journal with those that have left it; each scheduler keeps what it has removed itself."""
    places = [str(folder) for folder in retired if any(folder.glob("*"))]
    found = {record.seq: record for place in (*places, journal) for record in read_journal(place)}
    records = [found[seq] for seq in sorted(found)]
    missing = (records[-1].seq if records else 0) - len(records)
    assert not missing, f"{missing} events are neither in {journal} nor in {', '.join(map(str, retired))}"
    return records


def _run(
    folder: Path, databases: Databases | None, network: Network | None, asked: argparse.Namespace, plan: list[str]
) -> dict[str, Any]:
    ledger = folder / "ledger"
    ledger.touch()
    pair = Pair(folder, databases.url if databases is not None else "", network, disks=bool({*plan} & {*DISKS}))
    watch, bench = None, None
    try:
        pair.start_named("a", "master")
        pair.start_named("b", "standby")
        watch = Watch(pair)
        for number in range(asked.agents):
            pair.start_agent(f"node-{number + 1}", 8)
        until(lambda: watch.leader() is not None, RECOVERY_SECONDS, "a scheduler leads")
        pair.token()
        until(watch.is_whole, RECOVERY_SECONDS, "one scheduler leads and one follows")
        client = pair.client()

        def online() -> bool:
            with suppress(ClusterError):
                return bool(sum(node.status == "online" for node in client.nodes().nodes) >= asked.agents)
            return False

        until(online, RECOVERY_SECONDS, "all nodes online")
        load = Load(pair, ledger, asked.rate, asked.seed)
        bench = Bench(pair, databases, watch, load, random.Random(asked.seed), asked.long_pause)
        load.start()
        time.sleep(2)
        began, give_up_at = boot(), boot() + 60 * asked.minutes
        for number, kind in enumerate(plan):
            if boot() > give_up_at:
                report_progress(f"{asked.minutes:g} minutes are over; {len(plan) - number} faults are left out")
                break
            before = len(bench.faults)
            bench.hurt(kind)
            for fault in bench.faults[before:]:
                took_over = (
                    "the same one leads" if fault.leads is None else f"another one leads after {fault.leads:.2f} s"
                )
                report_progress(
                    f"{number + 1}/{len(plan)} {kind} of {fault.target} {fault.note}: {took_over}, all works "
                    f"{fault.again:.1f} s after the fault; {len(load.acknowledged)} acknowledged, "
                    f"load average {os.getloadavg()[0]:.1f}"
                )
            until(online, RECOVERY_SECONDS, f"all nodes online after {kind}")
            time.sleep(bench.draw.uniform(0.5, 2.5))
        seconds = boot() - began
        all_acknowledged = load.stop()
        report_progress("waiting until all tasks have ended")
        drained = _drain(client)
        until(watch.is_whole, RECOVERY_SECONDS, "both are complete at the end")
        watch.stop()
        lines = lines_of(ledger)
    finally:
        if network is not None:
            network.heal()
        if bench is not None:
            bench.load.over.set()
        if watch is not None:
            watch.stop()
        pair.end()
        pair.keep_disks()
    records, differ = _journal(pair, databases)
    find_starts(bench.faults, records, load.acknowledged, lines)
    broken = broken_promises(records, load.acknowledged, lines)
    broken["two leaders"] = watch.two_leaders()
    broken["copies differ"] = differ
    broken["not drained"] = [] if drained else [f"tasks still wait or run after {DRAIN_SECONDS:g} s"]
    broken["refused for good"] = [sentence for sentence in load.repeated if sentence.startswith("Refused:")]
    broken["never acknowledged"] = [] if all_acknowledged else ["a submission was never acknowledged"]
    acknowledged_in = sorted(load.seconds)
    return {
        "storage": asked.storage,
        "seed": asked.seed,
        "seconds": round(seconds, 1),
        "asked_rate": asked.rate,
        "rate": round(len(load.acknowledged) / seconds, 1),
        "agents": asked.agents,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[1], 1),
        "acknowledged": len(load.acknowledged),
        "acknowledged_in_worst": round(acknowledged_in[-1], 2) if acknowledged_in else None,
        "events": len(records),
        "epochs": sum(isinstance(record.event, events.EpochBegan) for record in records),
        "attempts_above_one": sum(
            isinstance(record.event, events.TaskPlaced) and record.event.attempt > 1 for record in records
        ),
        "refusals": dict(load.repeated),
        "broken": {name: len(found) for name, found in broken.items()},
        "sentences": [f"{name}: {sentence}" for name, found in broken.items() for sentence in found[:SHOWN]],
        "kinds": summary(bench.faults),
        "faults": [asdict(fault) for fault in bench.faults],
    }


def _drain(client: Any) -> bool:
    """Wait until no task waits or runs."""

    def is_idle() -> bool:
        with suppress(ClusterError):
            return int(json.loads(client.connection.send("GET", "/api/v1/tasks", query=OPEN))["total"]) == 0
        return False

    try:
        until(is_idle, DRAIN_SECONDS, "all tasks ended")
    except AssertionError:
        return False
    return True


def _plan(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> list[str]:
    """Return the kinds of all faults in turn; refuse those that are not possible here."""
    words = [word.strip() for word in asked.kinds.split(",") if word.strip()]
    kinds: list[str] = []
    for word in words:
        named = GROUPS.get(word, (word,))
        kinds += [kind for kind in named if asked.storage == "database" or word == kind or kind not in DATABASE_ONLY]
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no such kind: {', '.join(wrong)}")
    if asked.storage == "replication" and (wrong := [kind for kind in kinds if kind in DATABASE_ONLY]):
        parser.error(f"{', '.join(wrong)} needs --storage database")
    for kind in kinds:
        if why := why_not_here(kind):
            parser.error(f"{kind} is not possible here: {why}")
    if "postgres-failover" in kinds and {*kinds} & {*CUTS}:
        parser.error("postgres-failover and cuts need runs of their own")
    return [kinds[number % len(kinds)] for number in range(asked.kills)]


def _about(asked: argparse.Namespace) -> dict[str, Any]:
    """Return how a run is made; ask before it, because the working tree may change meanwhile."""
    words = ["benchmarks/failover.py", f"--storage {asked.storage}", f"--kinds {asked.kinds}", f"--kills {asked.kills}"]
    words += [
        f"--rate {asked.rate:g}",
        f"--seed {asked.seed}",
        *(["--long-pause"] if asked.long_pause else []),
        "--write",
    ]
    return about(f"python {' '.join(words)}", [asked.seed], lease_seconds=1.5)


def _write(figures: dict[str, Any], asked: argparse.Namespace, made: dict[str, Any]) -> None:
    """Write the result of this run; it is one of those from which the table of the manual is made."""
    for fault in figures["faults"]:
        for name, value in fault.items():
            fault[name] = round(value, 3) if isinstance(value, float) else value
    kinds = asked.kinds.replace(",", "_").replace("-", "_")
    path = write_result(f"failover_{asked.storage}_{kinds}", made, [figures])
    report_progress(f"written: {path.name}; `make tables` makes the table from it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", choices=("database", "replication"), default="database")
    parser.add_argument("--kills", type=int, default=20, help="number of faults")
    parser.add_argument(
        "--kinds", default="kill", help=f"in turns, separated by commas: {', '.join(KINDS)}, or {', '.join(GROUPS)}"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=50.0, help="submissions a second, at most 100")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--long-pause", action="store_true", help=f"the first pause lasts {LONG_PAUSE_SECONDS:g} s")
    parser.add_argument("--minutes", type=float, default=15.0, help="no new fault after this time")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--write", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    asked = parser.parse_args()
    asked.rate = min(asked.rate, 100.0)
    plan, made = _plan(parser, asked), _about(asked)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces and disks are removed then, too
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-failover-"))
    report_progress(f"everything is in {folder}")
    network = Network(HOSTS) if {*plan} & {*CUTS} else None
    databases = None
    try:
        if asked.storage == "database":
            databases = Databases(network, replica="postgres-failover" in plan)
        figures = _run(folder, databases, network, asked, plan)
    except BaseException:
        report_progress(f"failed; kept: {folder}")
        raise
    finally:
        if databases is not None:
            databases.stop()
        if network is not None:
            network.end()
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")
    for name, value in figures.items():
        if name not in {"faults", "kinds", "sentences"}:
            print(f"{name}: {value}")
    for row in figures["kinds"]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    for sentence in figures["sentences"][:SHOWN]:
        print(f"BROKEN  {sentence}")
    if asked.write:
        _write(figures, asked, made)
    is_broken = any(figures["broken"].values())
    if is_broken or asked.keep:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main())
