"""The accuracy of predictions of time and memory on profile files, by what was held out.

    .venv/bin/python benchmarks/performance.py FILE... [--seeds 3] [--rows 12000] [--once] [--target memory]

For each file a line of the tables in docs/manual/performance.md (what users can ask for) and benchmarks/README.md (published
tables of single operations): mean error in percent over all rows, and in brackets the part
of them that the range contained; random rows, whole families and whole GPUs left out, then GPUs of which 200 rows are shown. Each
figure is the mean over seeds, which draw what is left out and, of a file with more rows than `--rows`, which are used. All
parts are left out in turn; with `--once` one fifth of the rows or of the families is, and every GPU.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance import dataset, evaluation, kind_model
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.evaluation import EvaluatedRows
from gpuyard.learn.performance.gpu_specs import shipped

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.published import register

SPLITS = (("random", 0), ("family", 0), ("gpu", 0), ("gpu", 200))
KINDS = {"duration": 0, "memory": 1, "utilization": 2}
"""Their places among the kinds of rows that a file has."""


def drawn(rows: ProfileRows, most: int, seed: int) -> ProfileRows:
    if len(rows) <= most:
        return rows
    return rows.take(np.sort(np.random.default_rng(1000 + seed).permutation(len(rows))[:most]))


def figures(
    rows: ProfileRows, split: str, samples: int, seeds: int, most: int, parts: int | None
) -> Iterator[tuple[float, float]]:
    for seed in range(1, seeds + 1):
        some = drawn(rows, most, seed)
        told = [
            EvaluatedRows(
                some.take(held),
                kind_model.fit(some.take(~held | shown), shipped(), seed).predict(some.take(held), shipped()),
            )
            for held, shown in islice(evaluation.parts(some, split, seed, samples), parts)
        ]
        said = evaluation.report(told)
        yield 100 * said["mape"], 100 * said["band_coverage"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--target", choices=KINDS, default="duration")
    asked = parser.parse_args()
    register()
    print("| profiles | GPUs | random rows | unseen family | unseen GPU, by its sheet | 200 rows measured there |")
    print("|---|---|---|---|---|---|")
    for file in asked.files:
        found = dataset.read(file)
        rows = found[min(KINDS[asked.target], len(found) - 1)]
        cells = []
        for split, samples in SPLITS:
            try:
                parts = 1 if asked.once and split != "gpu" else None
                errors, held = np.mean(list(figures(rows, split, samples, asked.seeds, asked.rows, parts)), axis=0)
                cells.append(f"{errors:.1f} ({held:.0f})")
            except WrongInput:  # one GPU: there is none to leave out
                cells.append("–")
        used = min(len(rows), asked.rows)
        print(f"| {file.name} ({used:,} rows) | {len(np.unique(rows.gpu))} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
