"""Counts what models are made of and writes `profile.csv.gz`: nothing is measured, no GPU is needed.

    python benchmarks/anatomy.py --out src/gpuyard/learn/performance/data/anatomy.csv.gz

Models of gpuyard's own zoo in training and inference, and those of timm (`pip install timm`) in inference, each at the size
of input that profiles use. Counting two thousand models takes about twenty minutes on one core; an existing file is
continued.
"""

import argparse
import csv
import gzip
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from gpuyard.learn.performance.flops import count
from gpuyard.learn.performance.operation_profile import KINDS, OperationProfile

COLUMNS = ("model", "mode", "size", "kind", "kernels", "flops", "bytes", "parameter_bytes")
Subject = tuple[str, str, int, Callable[[], Any], Callable[[int], tuple[Any, ...]]]
"""Name, mode, size, and how to make the model and its inputs."""


def of_the_zoo() -> Iterator[Subject]:
    from gpuyard.learn.profiler.zoo import profiled_models

    for one in profiled_models().values():
        for mode in ("train", "infer"):
            yield one.name, mode, one.size, one.build, one.inputs


def of_timm(profiles: Iterable[Path]) -> Iterator[Subject]:
    import timm

    sizes = {
        (name, timm.get_pretrained_cfg(name).input_size[-1] if timm.get_pretrained_cfg(name) else 224)
        for name in timm.list_models()
    }
    for path in profiles:
        with gzip.open(path, "rt") as file:
            sizes |= {(row["model"], int(row["img_size"])) for row in csv.DictReader(file)}
    for name, size in sorted(sizes):
        if timm.is_model(name):
            yield (
                name,
                "infer",
                size,
                lambda name=name: timm.create_model(name),
                lambda batch, size=size: (torch.empty(batch, 3, size, size),),
            )


def profile(build: Callable[[], Any], inputs: Callable[[int], tuple[Any, ...]], mode: str) -> OperationProfile:
    few, many = (count(build, lambda b=b: inputs(b), training=mode == "train") for b in (2, 4))
    return OperationProfile.counted(few, many, 2, 4)


def lines(name: str, mode: str, size: int, found: OperationProfile) -> Iterator[tuple[object, ...]]:
    for kind, *numbers in found.groups.tolist():
        yield name, mode, size, KINDS[int(kind)], int(numbers[0]), *(f"{n:.5g}" for n in numbers[1:])
    for kind, value in (
        ("kept", found.kept_bytes),
        ("largest", found.largest_bytes),
        ("parameters", found.parameter_bytes),
    ):
        yield name, mode, size, kind, 0, 0, f"{value:.5g}", 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--profiles", type=Path, nargs="*", default=[], help="files of timm whose sizes are wanted")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    there: dict[tuple[str, str, str], list[list[str]]] = {}
    if wanted.out.exists():
        with gzip.open(wanted.out, "rt", newline="") as file:
            for line in list(csv.reader(file))[1:]:
                there.setdefault((line[0], line[1], line[2]), []).append(line)
    profiled_models = [
        *(of_the_zoo() if importlib.util.find_spec("gpuyard.learn.profiler") else ()),
        *(of_timm(wanted.profiles) if importlib.util.find_spec("timm") else ()),
    ]
    for name, mode, size, build, inputs in profiled_models:
        if (name, mode, str(size)) in there:
            continue
        try:
            there[name, mode, str(size)] = [
                list(map(str, line)) for line in lines(name, mode, size, profile(build, inputs, mode))
            ]
        except Exception as error:  # a model that cannot be built on meta is left out, and named
            print(f"{name} {size}: {error}")
    with gzip.GzipFile(wanted.out, "wb", mtime=0) as packed:
        text = "\n".join(
            ",".join(line) for line in [list(COLUMNS), *(line for key in sorted(there) for line in there[key])]
        )
        packed.write(text.encode() + b"\n")


if __name__ == "__main__":
    main()
