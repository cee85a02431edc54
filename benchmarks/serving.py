"""How well the serving of language models is predicted on what was left out.

    .venv/bin/python benchmarks/serving.py --out benchmarks/results/serving.json [--profiles ../shared/profiles]
    .venv/bin/python benchmarks/serving.py --render benchmarks/results/serving.json

Operations: each kind, with each GPU left out in turn (its coefficients are then the mean of the others), and with a fifth of
the rows left out. Layers: the measured operators of a layer of Vidur's models, added up by token count and degree of tensor
parallelism, with the model left out and with the GPU left out. No whole engine was measured: attention and layers are judged apart.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.serving.model import ServingModel, trained
from gpuyard.learn.performance.serving.operations import KINDS, milliseconds
from gpuyard.learn.performance.serving.rows import OperationRows, read

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import about  # noqa: E402

FILES = ("aiconfigurator_gemm.csv.gz", "aiconfigurator_attention_bf16.csv.gz", "vidur_llm_layers_fp16.csv.gz")
SPECS = shipped()


def figures(
    situation: str, kind: str, left_out: str, measured: FloatArray, said: FloatArray, band: FloatArray
) -> dict[str, Any]:
    wrong, ratio = np.abs(said / measured - 1.0), np.log(measured / said)
    return {
        "situation": situation, "kind": kind, "left_out": left_out, "rows": len(measured),
        "mape": float(wrong.mean()), "median_ape": float(np.median(wrong)),
        "band_coverage": float(((band[0] <= ratio) & (ratio <= band[1])).mean()),
    }  # fmt: skip


def operations(model: ServingModel, situation: str, rows: OperationRows, basis: str, left_out: str) -> dict[str, Any]:
    """Judge single operations; ranges are made for sums of several, so fewer of single ones are inside."""
    said = np.zeros(len(rows))
    for gpu in np.unique(rows.gpu).tolist():
        chip, there = SPECS.find(gpu), rows.gpu == gpu
        name, _ = model.basis(rows.kind, chip, SPECS)
        said[there] = milliseconds(
            rows.kind, np.array(model.coefficients[rows.kind][name]), rows.take(there).shape, chip
        )
    return figures(situation, rows.kind, left_out, rows.measured, said, np.array(model.bands[rows.kind][basis]))


def layers(
    model: ServingModel, parts: list[OperationRows], gpu: str, group: str, situation: str, left_out: str
) -> dict[str, Any]:
    """Judge the sums over the operators of a layer with the same number of tokens on the same part of a model."""
    chip = SPECS.find(gpu)
    sums: dict[Any, FloatArray] = {}
    for rows in parts:
        some = rows.take((rows.gpu == gpu) & (rows.group == group))
        name, basis = model.basis(rows.kind, chip, SPECS)
        said = milliseconds(rows.kind, np.array(model.coefficients[rows.kind][name]), some.shape, chip)
        low, high = model.bands[rows.kind]["known" if basis == "gpu" else "unseen"]
        tokens = some.shape["tokens"]
        split = some.shape["parts"]
        for key, *values in zip(
            zip(tokens, split, strict=True), some.measured, said, said * np.exp(low), said * np.exp(high), strict=True
        ):
            sums[key] = sums.get(key, np.zeros(4)) + np.array(values)
    measured, said, low_ms, high_ms = np.array(list(sums.values())).T
    wrong = np.abs(said / measured - 1.0)
    return {
        "situation": situation, "kind": "layer", "left_out": left_out, "rows": len(measured),
        "mape": float(wrong.mean()), "median_ape": float(np.median(wrong)),
        "band_coverage": float(((low_ms <= measured) & (measured <= high_ms)).mean()),
    }  # fmt: skip


def without(parts: list[OperationRows], gpu: str = "", group: str = "") -> list[OperationRows]:
    return [one.take((one.gpu != gpu) if gpu else (one.group != group)) for one in parts]


def cases(parts: list[OperationRows]) -> list[dict[str, Any]]:
    chance = np.random.default_rng(1)
    fold = [chance.integers(0, 5, len(one)) for one in parts]
    model = trained([one.take(lot != 0) for one, lot in zip(parts, fold, strict=True)], SPECS)
    found = [
        operations(model, "a fifth of the rows", one.take(lot == 0), "known", "rows")
        for kind in KINDS
        for one, lot in zip(parts, fold, strict=True)
        if one.kind == kind and len(one)
    ]
    vidur = [one for one in parts if (one.group != "").any()]
    for gpu in sorted({name for one in parts for name in np.unique(one.gpu).tolist()}):
        model = trained(without(parts, gpu=gpu), SPECS)
        there = [one.take(one.gpu == gpu) for one in parts]
        found += [operations(model, "a GPU", one, "unseen", gpu) for one in there if len(one)]
        groups = sorted(set(vidur[0].group[vidur[0].gpu == gpu].tolist()))
        found += [layers(model, vidur, gpu, group, "a GPU", f"{gpu}, {group}") for group in groups]
    for group in sorted(set(vidur[0].group.tolist())):
        model = trained(without(parts, group=group), SPECS)
        gpus = np.unique(vidur[0].gpu[vidur[0].group == group]).tolist()
        found += [layers(model, vidur, gpu, group, "a language model", f"{group}, {gpu}") for gpu in gpus]
    order = ["a fifth of the rows", "a language model", "a GPU"]
    return sorted(found, key=lambda one: order.index(one["situation"]))


def render(data: dict[str, Any]) -> str:
    """Return the Markdown table: a line for each situation and kind, over its cases."""
    lines = [
        "| left out | operation | cases | rows | mean error | of a case | inside the range |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((one["situation"], one["kind"]) for one in data["cases"]):
        some = [one for one in data["cases"] if (one["situation"], one["kind"]) == key]
        errors = [100 * one["mape"] for one in some]
        covered = [100 * one["band_coverage"] for one in some]
        lines.append(
            f"| {key[0]} | {key[1].replace('_', ' ')} | {len(some)} | {sum(one['rows'] for one in some):,} | {np.mean(errors):.1f} % "
            f"| {min(errors):.1f}–{max(errors):.1f} % | {np.mean(covered):.0f} % ({min(covered):.0f}–{max(covered):.0f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, default=ROOT.parent / "shared" / "profiles")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--render", type=Path, metavar="JSON", help="only print the table of a result")
    asked = parser.parse_args()
    if asked.render:
        print(render(json.loads(asked.render.read_text())))
        return
    parts = [one for name in FILES for one in read(asked.profiles / name, SPECS)]
    data = {
        "about": about("benchmarks/serving.py", [1]),
        "cases": cases(parts),
    }
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(data, indent=1) + "\n")
    print(render(data))


if __name__ == "__main__":
    main()
