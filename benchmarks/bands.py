"""How often the ranges of predicted step times hold, by what was measured before.

    .venv/bin/python benchmarks/bands.py --out benchmarks/results/bands.json [--profiles ../shared/profiles] [--rows 5000] [--seed 1]
    .venv/bin/python benchmarks/bands.py --only "unseen family" --out part.json      some situations; the same figures
    .venv/bin/python benchmarks/bands.py --render benchmarks/results/bands.json

Each case trains a model on some rows and judges others: GPUs left out, with no row of theirs or with few rows of one family,
families left out, and cards judged on data of sources that no row of the model comes from: NeuSight's whole models, and
throughputs that NVIDIA and Gavel published (`published/cards.csv`). A range promises 80 %. Rows of one
family are alike, so the interval of a coverage is that of drawing families, not rows. The public files are those of
docs/manual/performance.md; the table there is made by `render`, and the list of all cases by `render_cases`.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance import dataset, kind_model
from gpuyard.learn.performance.dataset import ProfileRows, merge_rows
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.model import SHIPPED, accuracy, load
from gpuyard.learn.performance.query import profile_of, query_rows

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import about  # noqa: E402

FEW = 11
"""Rows of one family that are shown of an otherwise unseen GPU."""
FAMILIES = 3
FOLDS = 5
ASKED = (0.75, 0.90)
"""Between these a coverage should be."""
DRAWS = 2000
PUBLISHED = {
    "nvidia": "card judged on NVIDIA's examples, as shipped",
    "gavel": "card judged on Gavel's ResNet-50, as shipped",
}
LEAST_CLUSTERS = 5
"""Families from which families are drawn for the interval; with fewer, it is that of independent rows."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a model knows, and what it is judged on."""

    situation: str
    gpu: str
    shown: str
    train: ProfileRows | None
    """None: the model that ships."""
    judged: ProfileRows
    few: ProfileRows | None = None
    """Rows of the judged GPU that are shown besides."""


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


def published_cards(source: str) -> ProfileRows:
    """Return the published throughputs of a source as rows, asked for as a user would."""
    parts = []
    with (ROOT / "benchmarks" / "published" / "cards.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["source"] != source:
                continue
            work = WorkloadSpec(
                model=line["model"], mode=line["mode"], batch=int(line["batch"]), size=int(line["size"]),
                precision=line["precision"],
            )  # fmt: skip
            rows = query_rows("network", work, [profile_of(work)], np.array([float(work.batch)]), [line["gpu"]])
            step_ms = 1e3 * work.batch / float(line["samples_per_second"])
            parts.append(
                ProfileRows(
                    rows.kind,
                    rows.gpu,
                    rows.family,
                    rows.precision,
                    np.array([step_ms]),
                    rows.shape,
                    rows.words,
                    rows.works,
                )
            )
    return together(*parts)


def picked(rows: ProfileRows, which: NDArray[Any], most: int, chance: np.random.Generator) -> NDArray[np.bool_]:
    mask = np.zeros(len(rows), dtype=np.bool_)
    mask[chance.permutation(np.flatnonzero(which))[:most]] = True
    return mask


def timm_cases(timm: ProfileRows, seed: int) -> Iterator[Case]:
    chance = np.random.default_rng(seed)
    for gpu in np.unique(timm.gpu).tolist():
        there = timm.gpu == gpu
        others = timm.take(~there)
        yield Case("unseen GPU, data sheet", gpu, "nothing", others, timm.take(there))
        names, counts = np.unique(timm.family[there], return_counts=True)
        for family in names[np.argsort(-counts, kind="stable")][:FAMILIES].tolist():
            same = there & (timm.family == family)
            shown = picked(timm, same, FEW, chance)
            few = timm.take(shown)
            yield Case(f"{FEW} rows of one family, other families", gpu, family, others, timm.take(there & ~same), few)
            yield Case(f"{FEW} rows of one family, the same family", gpu, family, others, timm.take(same & ~shown), few)
        for many in (50, 200):
            shown = picked(timm, there, many, chance)
            yield Case(f"{many} rows of all sorts", gpu, "all", others, timm.take(there & ~shown), timm.take(shown))
        training = timm.words["mode"] == "train"
        for shown_mode, which in (("infer", there & ~training), ("train", there & training)):
            if (there & ~which).any() and which.any():
                shown = picked(timm, which, FEW, chance)
                yield Case(
                    f"{FEW} rows of one mode, the other mode",
                    gpu,
                    shown_mode,
                    others,
                    timm.take(there & ~which),
                    timm.take(shown),
                )
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
    shipped_without = together(timm, own)
    for gpu in np.unique(neusight.gpu).tolist():
        there = neusight.gpu == gpu
        if there.sum() >= FEW // 2:
            yield Case(
                "card judged on a source that was not fitted", gpu, "nothing", shipped_without, neusight.take(there)
            )
    everything = together(timm, own, neusight)
    for gpu in np.unique(timm.gpu).tolist():
        there = everything.gpu == gpu
        yield Case("unseen GPU, all other files known", gpu, "nothing", everything.take(~there), everything.take(there))
    for source, situation in PUBLISHED.items():
        cards = published_cards(source)
        for gpu in np.unique(cards.gpu).tolist():
            yield Case(situation, gpu, "as shipped", None, cards.take(cards.gpu == gpu))


class Judge:
    """Trains a model for each case; cases with the same rows share it, with other few rows each."""

    def __init__(self, seed: int) -> None:
        self.seed, self.specs = seed, shipped()
        self._train: ProfileRows | None = None
        self._model: kind_model.KindModel | None = None

    def predict(self, case: Case) -> kind_model.KindPrediction:
        if case.train is None:
            return load(SHIPPED).predict(case.judged)
        if self._model is None or self._train is not case.train:
            self._train, self._model = case.train, kind_model.fit(case.train, self.specs, self.seed)
        if case.few is None:
            return self._model.predict(case.judged, self.specs)
        before = dict(self._model.corrections)
        self._model.correct(case.few, self.specs)
        said = self._model.predict(case.judged, self.specs)
        self._model.corrections = before
        return said


def judge(case: Case, judge: Judge) -> dict[str, Any]:
    said, seed = judge.predict(case), judge.seed
    width = float(np.mean(np.log(said.high / said.low)) / 2)
    heads = sorted(set(said.head.tolist()))
    inside = (said.low <= case.judged.measured) & (case.judged.measured <= said.high)
    families, low, high = interval(inside, case.judged.family, seed)
    return {
        "situation": case.situation, "gpu": case.gpu, "shown": case.shown, "heads": heads, "half_width": width,
        **accuracy(case.judged.measured, said), "families": families, "coverage_low": low, "coverage_high": high,
    }  # fmt: skip


def interval(inside: NDArray[np.bool_], family: NDArray[Any], seed: int) -> tuple[int, float, float]:
    """Return the number of families, and the 95 % interval of the coverage if families are drawn at random.

    With few families, Wilson's interval of independent rows, which is then too narrow.
    """
    names, place = np.unique(family, return_inverse=True)
    if len(names) < LEAST_CLUSTERS:
        return (len(names), *wilson(float(inside.mean()), len(inside)))
    hits, counts = np.bincount(place, inside), np.bincount(place).astype(np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(names), (DRAWS, len(names)))
    low, high = np.quantile(hits[drawn].sum(1) / counts[drawn].sum(1), (0.025, 0.975))
    return len(names), float(low), float(high)


def wilson(part: float, count: int) -> tuple[float, float]:
    z = 1.96
    middle = (part + z * z / 2 / count) / (1 + z * z / count)
    half = z * np.sqrt(part * (1 - part) / count + z * z / 4 / count**2) / (1 + z * z / count)
    return float(middle - half), float(middle + half)


def beyond_chance(one: dict[str, Any]) -> str:
    """Return whether a coverage is outside of what is asked for by more than chance."""
    if one["coverage_high"] < ASKED[0]:
        return "too few"
    return "too many" if one["coverage_low"] > ASKED[1] else ""


def render(data: dict[str, Any]) -> str:
    """Return the Markdown table: a line for each situation, over its cases."""
    lines = [
        "| situation | cases | rows judged | mean error | inside the range | least and most of a case | outside 75–90 % beyond chance | half width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for situation in dict.fromkeys(one["situation"] for one in data["cases"]):
        some = [one for one in data["cases"] if one["situation"] == situation]
        covered = [100 * one["band_coverage"] for one in some]
        mean = {name: float(np.mean([one[name] for one in some])) for name in ("mape", "half_width")}
        words = [beyond_chance(one) for one in some]
        beyond = ", ".join(f"{words.count(word)} {word}" for word in ("too few", "too many") if word in words)
        lines.append(
            f"| {situation} | {len(some)} | {sum(int(one['rows']) for one in some):,} | {100 * mean['mape']:.1f} % "
            f"| {np.mean(covered):.0f} % | {min(covered):.0f}–{max(covered):.0f} % | {beyond or 'none'} "
            f"| ×/÷ {np.exp(mean['half_width']):.2f} |"
        )
    return "\n".join(lines)


def render_cases(data: dict[str, Any]) -> str:
    """Return the Markdown table of all cases, with the interval of each coverage."""
    lines = [
        "| situation | GPU | shown | rows | families | mean error | inside the range (95 % interval) | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in data["cases"]:
        covered = [round(100 * one[name]) for name in ("band_coverage", "coverage_low", "coverage_high")]
        lines.append(
            f"| {one['situation']} | {one['gpu']} | {one['shown']} | {one['rows']:,} | {one['families']:,} "
            f"| {100 * one['mape']:.1f} % | {covered[0]} % ({covered[1]}–{covered[2]}) | {beyond_chance(one)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, default=ROOT.parent / "shared" / "profiles")
    parser.add_argument("--rows", type=int, default=5000, help="rows of timm that are used")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="REGEX", help="only situations that contain this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--render", type=Path, metavar="JSON", help="only print the table of a result")
    asked = parser.parse_args()
    if asked.render:
        print(render(json.loads(asked.render.read_text())))
        return
    found, model = [], Judge(asked.seed)
    for case in cases(asked.profiles, asked.rows, asked.seed):
        if not re.search(asked.only, case.situation):
            continue
        one = judge(case, model)
        found.append(one)
        print(
            f"{one['situation']:45} {one['gpu']:16} {one['shown']:10} {one['rows']:6} rows "
            f"{100 * one['mape']:5.1f} % {100 * one['band_coverage']:4.0f} % ±{one['half_width']:.2f} {one['heads']}",
            flush=True,
        )
        write(asked, found)
    print(render({"cases": found}))


def write(asked: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Write the cases so far, so that a run that is stopped is not lost."""
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        only = f' --only "{asked.only}"' if asked.only else ""
        command = f"benchmarks/bands.py --rows {asked.rows} --seed {asked.seed}{only}"
        data = {"about": about(command, [asked.seed]), "cases": found}
        asked.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
