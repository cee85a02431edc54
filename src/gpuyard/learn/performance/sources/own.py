"""Rows measured by `gpuyard profile run`: time, memory and utilization of one step.

The operations of a step are looked up by the model's name, or taken from the row if the profiler counted them.
"""

import re

import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance import operation_profile
from gpuyard.learn.performance.arrays import FloatArray, TextArray
from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column, missing_column
from gpuyard.learn.performance.operation_profile import OperationProfile, OperationProfiles, memory_shape

PRECISIONS = {"amp": "bf16"}
COUNTS = (
    "flops",
    "bytes",
    "heavy_bytes",
    "kernels",
    "heavy_kernels",
    "parameter_bytes",
    "activation_bytes",
    "largest_bytes",
)


def rows(columns: CsvColumns) -> list[ProfileRows]:
    """Return rows of three kinds: time, memory and utilization."""
    works = _works(columns)
    known = np.array([w is not None for w in works])
    if not known.any():
        first = columns.texts("model")[0]
        raise WrongInput(
            f"{columns.path}, line 2: the operations of {first} are unknown; profile it with counts, "
            "or give its anatomy"
        )
    kept = OperationProfiles.of([w for w in works if w is not None])
    given = columns.texts("precision")
    words = {
        "source": constant_column("gpuyard", len(columns)),
        "mode": columns.texts("mode"),
        "compiled": np.where(np.isin(np.char.lower(columns.texts("compiled")), ("true", "1")), "yes", "no"),
        "layout": constant_column("nchw", len(columns)),
        "numbers": given,
        "model": columns.texts("model"),
    }
    gpu, family = columns.texts("gpu"), columns.texts("family")
    precision = np.array([PRECISIONS.get(p, p) for p in given.tolist()])
    batch = columns.numbers("batch", above=0)

    def kind(
        name: str,
        measured: FloatArray,
        shape: dict[str, FloatArray],
        words: dict[str, TextArray],
        made_of: OperationProfiles | None,
    ) -> ProfileRows:
        every = ProfileRows(name, gpu, family, precision, measured, shape, words).take(known)
        every = every if made_of is None else every.of(made_of)
        return every.take(np.isfinite(every.measured))

    few = {name: words[name] for name in ("source", "mode", "numbers")}
    launch = (
        columns.numbers("launch_us", above=0, empty=np.nan)
        if "launch_us" in columns.names
        else missing_column(len(columns))
    )
    step = {"batch": batch, "torch": _version(columns.texts("torch")), "launch_us": launch}
    memory = memory_shape([work or OperationProfile.of([]) for work in works], batch, given, words["mode"])
    return [
        kind("network", columns.numbers("step_ms", above=0), step, words, kept),
        kind("memory", columns.numbers("memory_reserved_mib", above=0), memory, few, None),
        kind("utilization", np.maximum(columns.numbers("utilization", empty=np.nan), 0.01), step, words, kept),
    ]


def _version(said: TextArray) -> FloatArray:
    """Convert 2.11.0+cu130 to 211."""
    parts = [re.match(r"(\d+)\.(\d+)", text) for text in said.tolist()]
    return np.array([100.0 * int(found[1]) + int(found[2]) if found else np.nan for found in parts])


def _works(columns: CsvColumns) -> list[OperationProfile | None]:
    names = zip(
        columns.texts("model").tolist(),
        columns.texts("mode").tolist(),
        columns.numbers("size", above=0).tolist(),
        strict=True,
    )
    library = operation_profile.shipped()
    found: dict[tuple[str, str, float], OperationProfile | None] = {}
    works = [
        found.setdefault(key, operation_profile.find_profile(library, key[0], key[1], int(key[2]))) for key in names
    ]
    if set(COUNTS) <= set(columns.names):
        counts = zip(
            columns.numbers("batch", above=0), *(columns.numbers(name, empty=0.0) for name in COUNTS), strict=True
        )
        works = [
            work if work is not None else OperationProfile.totals(*map(float, said))
            for work, said in zip(works, counts, strict=True)
        ]
    return works
