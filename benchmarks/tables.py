"""Tables of the documentation, made from the results of benchmarks.

    .venv/bin/python benchmarks/tables.py [--check]          all tables, from benchmarks/results; make tables

A page has a table between two comments, and everything between them is made here:

    <!-- table NAME -->
    <!-- end table -->

To add a table: let the benchmark write benchmarks/results/RESULT.json (`benchmarks.common.results.write_result`), add a line to
`TABLES` with a function that turns the result into Markdown, put the two comments into a page, and run `make tables`. A test
fails when a page differs from its result.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import RESULTS, read_result  # noqa: E402

PAGES = ("README.md", "README.zh-CN.md", "benchmarks/README.md", "docs/**/*.md")
BEGIN = re.compile(r"^<!-- table \S+ -->$", re.MULTILINE)
PLACE = re.compile(r"^<!-- table (?P<name>\S+) -->\n(?:(?!<!-- table ).*\n)*?<!-- end table -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Table:
    """Where a table comes from."""

    result: str
    """Name of a file in benchmarks/results, without its ending; with `*`: several files."""
    renderer: str
    """`module:function` that is called with the result, or with a list of several, and `arguments`, and returns Markdown."""
    arguments: tuple[Any, ...] = ()


TABLES = {
    "published_venus": Table("published_policies", "benchmarks.policies:published_table", ("venus",)),
    "published_philly": Table("published_policies", "benchmarks.policies:published_table", ("philly",)),
    "mix_venus": Table("preemptible_jobs", "benchmarks.policies:mix_table", ("venus",)),
    "mix_philly": Table("preemptible_jobs", "benchmarks.policies:mix_table", ("philly",)),
    "mix_differences": Table("preemptible_jobs", "benchmarks.policies:difference_table"),
    "mix_tails": Table("preemptible_jobs", "benchmarks.policies:tail_table"),
    "default_parts": Table("default_parts", "benchmarks.policies:parts_table"),
    "elastic_pools": Table("elastic_pools", "benchmarks.policies:elastic_table"),
    "gpu_models": Table("gpu_models", "benchmarks.heterogeneous:render"),
    "learning": Table("dqn", "benchmarks.dqn:render"),
    "objectives": Table("objectives", "benchmarks.objectives:render"),
    "analysis": Table("analysis", "benchmarks.analysis:render"),
    "bands": Table("bands", "benchmarks.bands:render"),
    "bands_cases": Table("bands", "benchmarks.bands:render_cases"),
    "serving": Table("serving", "benchmarks.serving:render"),
    "planner": Table("planner", "benchmarks.planner:render"),
    "planner_times": Table("planner", "benchmarks.planner:render_times"),
    "planner_preload": Table("planner_preload", "benchmarks.planner:render_preload"),
    "plan_energy": Table("plan_energy", "benchmarks.energy:render"),
    "startup": Table("startup", "benchmarks.startup:render"),
    "failover": Table("failover_*", "benchmarks.two_schedulers.table:render"),
    "standby_cost": Table("standby_cost", "benchmarks.standby_cost:render"),
}


class WrongTable(Exception):
    """A page names a table that cannot be made."""


def render(name: str) -> str:
    """Return a table with the line that says how it was measured."""
    table = TABLES.get(name)
    if table is None:
        raise WrongTable(f"there is no table {name} in benchmarks/tables.py; it has {', '.join(TABLES)}.")
    results = [read_result(path.stem) for path in sorted(RESULTS.glob(f"{table.result}.json"))]
    if not results:
        raise WrongTable(f"table {name} needs benchmarks/results/{table.result}.json, which does not exist.")
    module, _, function = table.renderer.partition(":")
    found = results if "*" in table.result else results[0]
    text: str = getattr(import_module(module), function)(found, *table.arguments)
    sources = "<br>\n".join(source(result["about"]) for result in results)
    return f"{text}\n\n{sources}\n"


def source(made: dict[str, Any]) -> str:
    """Return how a result was measured, in one line."""
    seeds = made["seeds"]
    spoken = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}" if seeds else "no seeds"
    return f"<sub>`{made['command']}`, commit {made['commit']}, {made['date']}, {spoken}.</sub>"


def with_tables(text: str, where: str) -> str:
    """Return the text of a page with its tables made anew."""
    if len(PLACE.findall(text)) != len(BEGIN.findall(text)):
        raise WrongTable(f"{where}: a table has no <!-- end table -->.")
    try:
        return PLACE.sub(lambda it: f"<!-- table {it['name']} -->\n{render(it['name'])}<!-- end table -->", text)
    except WrongTable as error:
        raise WrongTable(f"{where}: {error}") from None


def pages() -> list[Path]:
    """Return all pages that may have tables."""
    return [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page differs from its results")
    asked = parser.parse_args()
    different = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        try:
            after = with_tables(before, str(page.relative_to(ROOT)))
        except WrongTable as error:
            print(error, file=sys.stderr)
            return 2
        if after != before:
            different.append(str(page.relative_to(ROOT)))
            if not asked.check:
                page.write_text(after, encoding="utf-8")
    if different:
        print(f"{'Stale' if asked.check else 'Written'}: {', '.join(different)}", file=sys.stderr)
    return 1 if different and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
