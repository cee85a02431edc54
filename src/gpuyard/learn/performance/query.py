"""Queries to the performance model: one workload on several GPUs."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache

import msgspec
import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.input.error_location import shortened
from gpuyard.learn.performance import model_configs, operation_profile
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.dataset import ProfileRows, constant_column, families, missing_column
from gpuyard.learn.performance.gpu_specs import GpuSpecs
from gpuyard.learn.performance.model import PerformanceModel
from gpuyard.learn.performance.operation_profile import OperationProfile, OperationProfiles, memory_shape

MODES = ("train", "infer")
PRECISIONS = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "amp": "bf16",
    "fp16": "fp16",
    "amp_fp16": "fp16",
    "amp_bf16": "bf16",
}
TRAINING_COST_RATIO = 3.5
"""Ratio of a training step to an inference step, where only inference was counted."""
CUDA_CONTEXT_MIB = 1_400.0
"""Memory that CUDA and its libraries hold in addition to PyTorch's allocator."""
MOST_SIMILAR = 4
"""Names that are offered in place of an unknown one."""
MIB_OF_GB = 1_000.0
"""Usable MiB per nominal GB of a GPU's memory."""


class GpuPrediction(msgspec.Struct, frozen=True):
    """The prediction for one GPU."""

    gpu: str
    step_ms: float
    step_low_ms: float
    step_high_ms: float
    seconds: float
    """Time of all steps."""
    memory_mib: float | None
    memory_low_mib: float | None
    memory_high_mib: float | None
    gpu_memory_mib: float
    fits: bool | None
    """Whether the upper bound of the memory plus the CUDA context fits; None if it is unknown."""
    utilization: float | None
    from_: str = msgspec.field(name="from")
    """The head that made the prediction: see `kind_model`."""
    fits_expected: bool | None
    """Whether the expected memory plus the CUDA context fits; None if it is unknown."""


def taken_as(work: WorkloadSpec) -> str | None:
    """Return the name of the known model whose operations `profile_of` returns; None if it is not known by name."""
    config = model_configs.find(work.model)
    if config is not None:
        return config.name
    library, names = operation_profile.shipped(), _names_of(work.model)
    tried = ((name, mode) for mode in dict.fromkeys((work.mode, "infer")) for name in names)
    return next((name for name, mode in tried if operation_profile.find_profile(library, name, mode, work.size)), None)


def _names_of(model: str) -> list[str]:
    """Return the names under which a model may have been counted, the likeliest first."""
    names = [model, *(f"{zoo}/{model}" for zoo in ("torchvision", "transformers", "own"))]
    return names + [found for name in (model, *_without_owner(model)) for found in _models().get(_plain(name), ())]


def profile_of(work: WorkloadSpec) -> OperationProfile:
    """Return the operations of a step: of a known transformer, as counted, or a typical mixture with the declared totals.

    A Hugging Face name of an image model finds the model of timm with the same letters and digits.
    """
    config = model_configs.find(work.model)
    if config is not None:
        return config.profile(work.mode, work.size)
    library, names = operation_profile.shipped(), _names_of(work.model)
    counted = [operation_profile.find_profile(library, name, work.mode, work.size) for name in names]
    inference = [operation_profile.find_profile(library, name, "infer", work.size) for name in names]
    if work.flops and work.activations and work.parameters:
        inference.append(OperationProfile.typical(work.flops, work.activations, work.parameters))
    for found in filter(None, counted):
        return found.with_largest()
    for found in filter(None, inference):
        return (found if work.mode == "infer" else found.as_training(TRAINING_COST_RATIO)).with_largest()
    if (plain := model_configs.without_quantization(work.model)) is not None:
        raise WrongInput(
            f"{shortened(work.model)!r} names quantized weights, whose steps are not predicted. Without quantization it is {plain.name}."
        )
    near = similar_names(work.model)
    offered = f"; similar names: {', '.join(near)}" if near else ""
    raise WrongInput(
        f"Unknown model {shortened(work.model)!r}{offered}. Use the config.json of the model, or specify its flops, "
        "activations and parameters."
    )


def similar_names(name: str) -> list[str]:
    """Return up to four names of known models: similar ones, else those that begin with or contain its first word."""
    known = sorted({one for one, _ in operation_profile.shipped()}, key=lambda one: (one.startswith("own/"), one))
    near = [*model_configs.similar(name), *get_close_matches(name.lower(), known, n=3, cutoff=0.6)]
    word = re.split(r"[^a-z0-9]", name.lower().rpartition("/")[2])[0]
    if len(near) < MOST_SIMILAR and len(word) >= model_configs.LEAST_PART:
        short = {one: one.partition("/")[2] or one for one in known}
        near += [one for one in known if short[one].startswith(word)] or [one for one in known if word in short[one]]
    return list(dict.fromkeys(near))[:MOST_SIMILAR]


def _without_owner(name: str) -> list[str]:
    """Return the name of an image model without its owner, its weights (`.a1_in1k`) and the size of its images."""
    short = name.rpartition("/")[2].partition(".")[0]
    return [short, re.sub(r"[-_](?:\d{3})$", "", short)]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _models() -> dict[str, list[str]]:
    """Return the names of counted models by their letters and digits, without the collection they are from."""
    found: dict[str, list[str]] = {}
    for name, _ in operation_profile.shipped():
        found.setdefault(_plain(name.partition("/")[2] or name), []).append(name)
    return found


def family_of(work: WorkloadSpec) -> str:
    """Return the declared family, that of a known transformer, or the first letters of the name."""
    config = None if work.family else model_configs.find(work.model)
    return work.family or (config.family if config else str(families(np.array([work.model.split("/")[-1]]))[0]))


def predict_on_gpus(
    model: PerformanceModel, work: WorkloadSpec, made: OperationProfile, gpus: Sequence[str], specs: GpuSpecs
) -> list[GpuPrediction]:
    """Predict time, memory and utilization on each of these GPUs."""
    _check(work)
    chips = [specs.find(name) for name in gpus]
    names, batch = [chip.gpu for chip in chips], np.full(len(chips), float(work.batch))
    asked = {
        kind: query_rows(kind, work, [made] * len(chips), batch, names) for kind in ("network", "memory", "utilization")
    }
    step = model.predict(asked["network"], specs)
    memory = model.predict(asked["memory"], specs) if "memory" in model.kind_models and made.parameter_bytes else None
    busy = model.predict(asked["utilization"], specs) if "utilization" in model.kind_models else None
    answers = []
    for at, chip in enumerate(chips):
        room = chip.memory_gb * MIB_OF_GB
        middle = None if memory is None else float(memory.middle[at])
        high = None if memory is None else float(memory.high[at])
        answers.append(
            GpuPrediction(
                chip.gpu,
                float(step.middle[at]),
                float(step.low[at]),
                float(step.high[at]),
                float(step.middle[at]) * work.steps / 1e3,
                middle,
                None if memory is None else float(memory.low[at]),
                high,
                room,
                None if high is None else high + CUDA_CONTEXT_MIB <= room,
                None if busy is None else float(busy.middle[at]),
                str(step.head[at]),
                None if middle is None else middle + CUDA_CONTEXT_MIB <= room,
            )
        )
    return answers


def predict_steps_ms(
    model: PerformanceModel,
    work: WorkloadSpec,
    steps: Sequence[tuple[OperationProfile, int]],
    gpu: str,
    specs: GpuSpecs,
) -> list[float]:
    """Predict the time of many steps on one GPU; `steps` has profiles and numbers of samples, `work` the rest."""
    _check(work)
    made, batch = [profile for profile, _ in steps], np.array([float(samples) for _, samples in steps])
    asked = query_rows("network", work, made, batch, [specs.find(gpu).gpu] * len(steps))
    return [float(ms) for ms in model.predict(asked, specs).middle]


def _check(work: WorkloadSpec) -> None:
    if work.mode not in MODES:
        raise WrongInput(f"mode must be {' or '.join(MODES)}, not {work.mode!r}")
    if work.precision not in PRECISIONS:
        raise WrongInput(f"precision must be {', '.join(PRECISIONS)}, not {work.precision!r}")
    for name in ("batch", "size", "steps"):
        if getattr(work, name) < 1:
            raise WrongInput(f"{name} must be at least 1")


def query_rows(
    kind: str, work: WorkloadSpec, made: Sequence[OperationProfile], batch: FloatArray, gpus: Sequence[str]
) -> ProfileRows:
    """Return rows of one kind without measurements: this workload with each profile, batch and GPU."""
    count = len(gpus)
    numbers, mode = constant_column(work.precision, count), constant_column(work.mode, count)
    words = {
        "source": constant_column("gpuyard", count),
        "mode": mode,
        "compiled": constant_column("yes" if work.compiled else "no", count),
        "layout": constant_column("nchw", count),
        "numbers": numbers,
        "model": constant_column(work.model, count),
    }
    shape = (
        memory_shape(made, batch, numbers, mode)
        if kind == "memory"
        else {"batch": batch, "torch": np.full(count, work.torch), "launch_us": missing_column(count)}
    )
    family = constant_column(family_of(work), count)
    return ProfileRows(
        kind,
        np.array(gpus),
        family,
        constant_column(PRECISIONS[work.precision], count),
        np.full(count, np.nan),
        shape,
        words,
        OperationProfiles.of(made),
    )
