"""The cost of advice: the time of a decision under `dqn`, compared with `default` and with `dqn` without an advisor.

    .venv/bin/python benchmarks/advice.py [--gpus 16,128,1000,12500] [--json FILE]

Clusters of eight GPUs a node, half of them new and half old; jobs that are not preemptible, each program with its own speed
on the old ones, at a load of 1.2: the cluster fills up and the queue grows to the end. Every policy runs the same workload
in the same process, with predicted run times. What is timed is `Engine.decide`, in processor time; decisions in which
an advisor was consulted (*advised*) are counted separately, with all they did. Figures are microseconds.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles
from time import process_time
from typing import Any

from gpuyard.core.engine.scheduling.advice import FEATURES, Advisor, Rows
from gpuyard.learn.policy_network import DEFAULT, AdvantageAdvisor, load
from gpuyard.learn.training.regimes import DESK, Regime
from gpuyard.learn.training.train import TEST_SEEDS
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.world import World

SIZES = (16, 128, 1_000, 12_500)
LOAD, LEAST_JOBS = 1.2, 2_000


class Counted:
    """An advisor that counts its questions."""

    def __init__(self, advisor: Advisor) -> None:
        self._advisor = advisor
        self.questions = 0

    def pick(self, rows: Rows) -> int:
        """See gpuyard.core.engine.scheduling.advice.Advisor."""
        self.questions += 1
        return self._advisor.pick(rows)


class Timed:
    """An engine, and how long its decisions took: those without a question, and those with one."""

    def __init__(self, engine: Any, advisor: Counted) -> None:
        self._engine, self._advisor = engine, advisor
        self.plain: list[float] = []
        self.advised: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def decide(self, at: float) -> Any:
        """See gpuyard.core.engine.engine.Engine."""
        asked, began = self._advisor.questions, process_time()
        events = self._engine.decide(at)
        took = (process_time() - began) * 1e6
        (self.plain if self._advisor.questions == asked else self.advised).append(took)
        return events


def measured(gpus: int) -> dict[str, Any]:
    """One cluster size under every policy."""
    nodes = max(2, gpus // 8)
    kind = Regime("cost", f"{nodes // 2}x8:new+{nodes - nodes // 2}x8:old", LOAD, DESK, jobs=max(LEAST_JOBS, nodes * 8))
    workload = kind.workload(TEST_SEEDS, {})
    advisor = AdvantageAdvisor(load(DEFAULT, FEATURES))
    found: dict[str, Any] = {"gpus": workload.gpus, "jobs": workload.tasks}
    for name, asked in (("default", None), ("no advisor", None), ("dqn", advisor)):
        counted, timed = Counted(advisor), []

        def watch(world: World, counted: Counted = counted, timed: list[Timed] = timed) -> None:
            timed.append(Timed(world.engine, counted))
            world.engine = timed[0]  # type: ignore[assignment]

        policy = "default" if name == "default" else "dqn"
        simulate_policy(workload, policy_variant(policy), advisor=counted if asked else None, watch=watch)
        every = timed[0].plain + timed[0].advised
        found[name] = {"decisions": len(every), "mean": fmean(every), **_percentiles(every)}
        if asked:
            advised = timed[0].advised
            found["advised"] = {"questions": counted.questions, "mean": fmean(advised), **_percentiles(advised)}
    for name in ("no advisor", "dqn"):
        found[name]["over default"] = found[name]["mean"] / found["default"]["mean"]
    return found


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def written(rows: Sequence[dict[str, Any]]) -> str:
    """A table in Markdown."""
    lines = [
        "| GPUs | `default` | `dqn`, no advisor | `dqn` | `dqn` ÷ `default` | questions of decisions | an advised decision, mean / p50 / p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        dqn, advised = row["dqn"], row["advised"]
        lines.append(
            f"| {row['gpus']:,} | {row['default']['mean']:,.0f} | {row['no advisor']['mean']:,.0f} | {dqn['mean']:,.0f} | "
            f"{dqn['over default']:.2f} | {advised['questions']:,} of {dqn['decisions']:,} | "
            f"{advised['mean']:,.0f} / {advised['p50']:,.0f} / {advised['p99']:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Every size in turn."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--gpus", default=",".join(map(str, SIZES)))
    ask.add_argument("--json", type=Path)
    said = ask.parse_args()
    rows = [measured(int(gpus)) for gpus in said.gpus.split(",")]
    print(written(rows))
    if said.json:
        said.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
