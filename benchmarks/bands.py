"""How often the ranges of predicted step times hold, by what was measured before.

    .venv/bin/python benchmarks/bands.py --out benchmarks/results/bands.json [--profiles ../shared/profiles] [--rows 7000] [--seed 1]
    .venv/bin/python benchmarks/bands.py --render benchmarks/results/bands.json

Each case trains a model on some rows and judges others: GPUs left out, with no row of theirs or with few rows of one family,
families left out, and cards judged on data of a source that no row of the model comes from. A range promises 80 %. The
public files are those of docs/manual/performance.md; the table there is made by `render`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuyard.learn.performance import dataset, kind_model
from gpuyard.learn.performance.dataset import ProfileRows, merge_rows
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.model import accuracy

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import about  # noqa: E402

FEW = 11
"""Rows of one family that are shown of an otherwise unseen GPU."""
FAMILIES = 3
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """What a model knows, and what it is judged on."""

    situation: str
    gpu: str
    shown: str
    train: ProfileRows
    judged: ProfileRows


def network(path: Path) -> ProfileRows:
    return next(rows for rows in dataset.read(path) if rows.kind == "network")


def together(*rows: ProfileRows) -> ProfileRows:
    return merge_rows(rows)["network"]


def without_launch(rows: ProfileRows) -> ProfileRows:
    """The rows as a user asks: the speed of the host is measured beside a row, and nobody who asks has it."""
    return ProfileRows(
        rows.kind, rows.gpu, rows.family, rows.precision, rows.measured,
        {**rows.shape, "launch_us": np.full(len(rows), np.nan)}, rows.words, rows.works,
    )  # fmt: skip


def picked(rows: ProfileRows, which: NDArray[Any], most: int, chance: np.random.Generator) -> NDArray[np.bool_]:
    mask = np.zeros(len(rows), dtype=np.bool_)
    mask[chance.permutation(np.flatnonzero(which))[:most]] = True
    return mask


def timm_cases(timm: ProfileRows, seed: int) -> Iterator[Case]:
    chance = np.random.default_rng(seed)
    for gpu in np.unique(timm.gpu).tolist():
        there = timm.gpu == gpu
        yield Case("unseen GPU, data sheet", gpu, "nothing", timm.take(~there), timm.take(there))
        names, counts = np.unique(timm.family[there], return_counts=True)
        for family in names[np.argsort(-counts, kind="stable")][:FAMILIES].tolist():
            same = there & (timm.family == family)
            shown = picked(timm, same, FEW, chance)
            train = timm.take(~there | shown)
            yield Case(f"{FEW} rows of one family, other families", gpu, family, train, timm.take(there & ~same))
            yield Case(f"{FEW} rows of one family, the same family", gpu, family, train, timm.take(same & ~shown))
        for many in (50, 200):
            shown = picked(timm, there, many, chance)
            yield Case(f"{many} rows of all sorts", gpu, "all", timm.take(~there | shown), timm.take(there & ~shown))
    training = timm.words["mode"] == "train"
    for shown_mode, which in (("infer", ~training), ("train", training)):
        there = timm.gpu == "RTX3090"
        shown = picked(timm, there & which, FEW, chance)
        yield Case(
            f"{FEW} rows of one mode, the other mode", "RTX3090", shown_mode,
            timm.take(~there | shown), timm.take(there & ~which),
        )  # fmt: skip
    yield from family_cases("unseen family, timm", timm, chance)


def family_cases(situation: str, rows: ProfileRows, chance: np.random.Generator) -> Iterator[Case]:
    names = np.unique(rows.family)
    lot = dict(zip(names.tolist(), (chance.permutation(len(names)) % FOLDS).tolist(), strict=True))
    fold = np.array([lot[name] for name in rows.family.tolist()])
    for number in range(FOLDS):
        yield Case(situation, "all", f"fold {number + 1}", rows.take(fold != number), rows.take(fold == number))


def cases(profiles: Path, most: int, seed: int) -> Iterator[Case]:
    chance = np.random.default_rng(1000 + seed)
    whole = network(profiles / "timm_models.csv.gz")
    timm = whole.take(np.sort(chance.permutation(len(whole))[:most]))
    neusight, own = network(profiles / "neusight_e2e_fp32.csv"), network(ROOT / "profiles" / "h200.csv")
    yield from timm_cases(timm, seed)
    yield from family_cases("unseen family, H200", without_launch(own), np.random.default_rng(seed))
    shipped_without = together(whole, own)
    for gpu in np.unique(neusight.gpu).tolist():
        there = neusight.gpu == gpu
        if there.sum() >= FEW // 2:
            yield Case(
                "card judged on a source that was not fitted", gpu, "nothing", shipped_without, neusight.take(there)
            )
    everything = together(whole, own, neusight)
    for gpu in np.unique(whole.gpu).tolist():
        there = everything.gpu == gpu
        yield Case("unseen GPU, all other files known", gpu, "nothing", everything.take(~there), everything.take(there))


def judge(case: Case, seed: int) -> dict[str, Any]:
    specs = shipped()
    said = kind_model.fit(case.train, specs, seed).predict(case.judged, specs)
    width = float(np.mean(np.log(said.high / said.low)) / 2)
    heads = sorted(set(said.head.tolist()))
    return {
        "situation": case.situation, "gpu": case.gpu, "shown": case.shown, "heads": heads, "half_width": width,
        **accuracy(case.judged.measured, said),
    }  # fmt: skip


def render(data: dict[str, Any]) -> str:
    """Return the Markdown table: a line for each situation, over its cases."""
    lines = [
        "| situation | cases | rows judged | mean error | inside the range | least and most of a case | half width |",
        "|---|---|---|---|---|---|---|",
    ]
    for situation in dict.fromkeys(one["situation"] for one in data["cases"]):
        some = [one for one in data["cases"] if one["situation"] == situation]
        covered = [100 * one["band_coverage"] for one in some]
        mean = {name: float(np.mean([one[name] for one in some])) for name in ("mape", "half_width")}
        lines.append(
            f"| {situation} | {len(some)} | {sum(int(one['rows']) for one in some):,} | {100 * mean['mape']:.1f} % "
            f"| {np.mean(covered):.0f} % | {min(covered):.0f}–{max(covered):.0f} % | ×/÷ {np.exp(mean['half_width']):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, default=ROOT.parent / "shared" / "profiles")
    parser.add_argument("--rows", type=int, default=7000, help="rows of timm that are used")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--render", type=Path, metavar="JSON", help="only print the table of a result")
    asked = parser.parse_args()
    if asked.render:
        print(render(json.loads(asked.render.read_text())))
        return
    found = []
    for case in cases(asked.profiles, asked.rows, asked.seed):
        one = judge(case, asked.seed)
        found.append(one)
        print(
            f"{one['situation']:45} {one['gpu']:16} {one['shown']:10} {one['rows']:6} rows "
            f"{100 * one['mape']:5.1f} % {100 * one['band_coverage']:4.0f} % ±{one['half_width']:.2f} {one['heads']}",
            flush=True,
        )
    data = {
        "about": about(f"benchmarks/bands.py --rows {asked.rows} --seed {asked.seed}", [asked.seed]),
        "cases": found,
    }
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(data, indent=1) + "\n")
    print(render(data))


if __name__ == "__main__":
    main()
