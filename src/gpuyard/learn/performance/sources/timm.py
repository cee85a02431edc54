"""Image models of timm, measured by their maintainer (huggingface/pytorch-image-models, `results/`, Apache-2.0).

The files give the arithmetic and the activations of a model; its operations are looked up by its name. For models that
were not counted, a typical mixture of layers with the same totals is used.
"""

import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance import operation_profile
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column, families, missing_column
from gpuyard.learn.performance.operation_profile import Library, OperationProfile, OperationProfiles

PRECISIONS = {"amp_fp16": "fp16", "amp_bf16": "bf16", "bf16": "bf16", "fp16": "fp16", "amp": "fp16", "fp32": "fp32"}


def rows(columns: CsvColumns) -> list[ProfileRows]:
    """Return rows of whole models. A row with neither known operations nor totals is left out."""
    model, mode = columns.texts("model"), columns.texts("mode")
    size = columns.numbers("img_size", above=0)
    flops = columns.numbers("gmacs_per_sample", empty=np.nan) * 2e9
    activations = columns.numbers("mactivations_per_sample", empty=np.nan) * 1e6
    parameters = columns.numbers("params_m", above=0) * 1e6
    library = operation_profile.shipped()
    found: dict[tuple[str, str, float], OperationProfile | None] = {}
    for key, *totals in zip(
        zip(model.tolist(), mode.tolist(), size.tolist(), strict=True), flops, activations, parameters, strict=True
    ):
        if found.get(key) is None:
            found[key] = _anatomy(library, *key, *totals)
    works = [found[key] for key in zip(model.tolist(), mode.tolist(), size.tolist(), strict=True)]
    known = np.array([w is not None for w in works])
    if not known.any():
        raise WrongInput(
            f"{columns.path}: the operations of {model[0]} are unknown, and no row has its gmacs_per_sample"
        )
    given = columns.texts("precision")
    precision = np.array([PRECISIONS.get(p, "fp32") for p in given.tolist()])
    all_rows = ProfileRows(
        "network",
        columns.texts("gpu"),
        columns.texts("family") if "family" in columns.names else families(model),
        precision,
        columns.numbers("step_time_ms", above=0),
        {
            "batch": columns.numbers("batch_size", above=0),
            "torch": _version(columns),
            "launch_us": missing_column(len(columns)),
        },
        {
            "source": constant_column("timm", len(columns)),
            "mode": np.where(mode == "train", "train", "infer"),
            "compiled": np.where(columns.numbers("compiled") > 0, "yes", "no"),
            "layout": columns.texts("layout"),
            "numbers": given,
            "model": model,
        },
        None,
    )
    return [all_rows.take(known).of(OperationProfiles.of([w for w in works if w is not None]))]


def _version(columns: CsvColumns) -> FloatArray:
    """Return torch's version in hundredths: 113 is 1.13 and stays, 240 is 2.4 and becomes 204."""
    if "torch" not in columns.names:
        return missing_column(len(columns))
    said = columns.numbers("torch", empty=np.nan)
    return np.floor(said / 100) * 100 + np.where(said % 100 < 20, said % 100, said % 100 / 10)


def _anatomy(
    library: Library, model: str, mode: str, size: float, flops: float, activations: float, parameters: float
) -> OperationProfile | None:
    found = operation_profile.find_profile(library, model.split(".", maxsplit=1)[0], "infer", int(size))
    if found is None and np.isfinite(flops) and np.isfinite(activations):
        found = OperationProfile.typical(max(flops, 1e6), activations, parameters)
    return found.times(3.0) if found is not None and mode == "train" else found
