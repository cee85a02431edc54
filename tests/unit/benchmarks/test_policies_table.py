"""The table of relative differences between policies."""

import json

from benchmarks.common.results import RESULTS
from benchmarks.policies import BASE, as_json, difference_table
from gpuyard.simulator.bootstrap import Interval, IntervalsOfRun


def test_a_stored_ratio_is_shown_as_a_relative_difference() -> None:
    result = json.loads((RESULTS / "preemptible_jobs.json").read_text(encoding="utf-8"))
    for rows in result["rows"].values():
        for label, row in rows.items():
            if label != BASE:
                it = IntervalsOfRun(14, 3, {}, {}, {"avg_jct_s": Interval(0.05, 0.85)})
                row["ratio"] = as_json(it)["ratio"]
    cells = [line for line in difference_table(result).splitlines() if line.startswith("| **`default`** ")]
    assert cells
    assert all(line.count("(-95% to -15%)") == 4 for line in cells)


def test_a_result_without_ratios_shows_the_difference_over_the_base() -> None:
    result = json.loads((RESULTS / "preemptible_jobs.json").read_text(encoding="utf-8"))
    for rows in result["rows"].values():
        base = rows.get(BASE, {}).get("avg_jct_s")
        for label, row in rows.items():
            row.pop("ratio", None)
            if label != BASE and base:
                row["difference"]["avg_jct_s"] = [-0.5 * base, 0.25 * base]
    assert "(-50% to +25%)" in difference_table(result)
