"""The table of the manual, from the results of several runs."""

from typing import Any

from benchmarks.two_schedulers.faults import KINDS

STORAGES = {"replication": "replicated", "database": "PostgreSQL"}
TITLES = {
    "kill": "leader killed (`kill -9`)",
    "pause": "leader paused for 2 to 6 s, once for 60 s",
    "terminate": "leader told to stop (SIGTERM)",
    "promote": "`gpuyard promote`",
    "both-killed": "both killed, started in either order",
    "standby-killed": "standby killed",
    "postgres-restart": "PostgreSQL crashes and starts again",
    "postgres-failover": "PostgreSQL fails over to a synchronous replica",
    "cut-store": "cut: leader and PostgreSQL",
    "cut-standby": "cut: leader and standby",
    "cut-some-nodes": "cut: leader and half of the nodes",
    "cut-nodes": "cut: leader and all nodes",
    "cut-all": "cut: leader and everything",
    "clock-ahead": "clocks 300 s apart, a kill to and from the one ahead",
    "clock-behind": "clocks 300 s apart, a kill to and from the one behind",
    "clock-jump": "a clock jumps by 300 s while its scheduler leads, then a kill",
    "disk-leader": "disk of the leader full for 5 to 12 s",
    "disk-standby": "disk of the standby full for 5 to 12 s",
}


def render(results: list[dict[str, Any]]) -> str:
    """Return one row for each storage and kind of fault of each run."""
    lines = [
        "| storage | fault | number | another one leads | leads p50 / worst | starts p50 / worst | broken promises |",
        "|---|---|---|---|---|---|---|",
    ]
    runs = [run for result in results for run in result["rows"]]
    for storage, shown in STORAGES.items():
        found = [(row, run) for run in runs if run["storage"] == storage for row in run["kinds"]]
        lines += [
            f"| {shown} | {TITLES[kind]} | {row['faults']} | {row['take_overs']} | {_times(row, 'leads')} "
            f"| {_times(row, 'starts')} | {_broken(run)} |"
            for kind in KINDS
            for row, run in found
            if row["kind"] == kind
        ]
    accepted = sum(run["acknowledged"] for run in runs)
    loads = sorted(run["load_average"] for run in runs)
    cores = sorted({run["cores"] for run in runs})
    conditions = (
        f"{accepted:,} acknowledged submissions in {len(runs)} runs, {_spoken(cores)} cores for all processes and clients, load "
        f"average {_spoken([loads[0], loads[-1]])}, default settings (lease 1.5 s), "
        f"{_spoken(sorted({run['agents'] for run in runs}))} agents. A run counts for all its kinds."
    )
    return "\n".join([*lines, "", conditions])


def _times(row: dict[str, Any], name: str) -> str:
    p50, worst = row[f"{name}_p50"], row[f"{name}_worst"]
    return "–" if p50 is None else f"{p50:.2f} / {worst:.2f} s"


def _broken(run: dict[str, Any]) -> str:
    found = [f"{count} {name}" for name, count in run["broken"].items() if count]
    return ", ".join(found) or "0"


def _spoken(values: list[Any]) -> str:
    return f"{values[0]}" if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
