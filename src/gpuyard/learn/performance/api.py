"""The Python interface of the performance model, which `gpuyard predict` also uses.

from gpuyard import predict

for one in predict({"model": "resnet50", "mode": "train", "batch": 64}, gpus=("H200", "A100")):
    print(one.gpu, one.step_ms, one.memory_mib, one.fits)
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from msgspec.structs import asdict, replace

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.input.arguments import argument
from gpuyard.input.arguments import names as names_in
from gpuyard.input.document import InputDocument, Unreadable, parse
from gpuyard.input.error_location import shortened
from gpuyard.input.files import LARGEST_TEXT_BYTES, AnyPath, is_file, path_of, read_file, shown_path
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.learn.performance import gpu_specs, model_configs
from gpuyard.learn.performance.calibration import read_peaks
from gpuyard.learn.performance.gpu_specs import GpuSpecs
from gpuyard.learn.performance.model import SHIPPED, load
from gpuyard.learn.performance.model_configs import TransformerConfig, read_config
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.performance.query import GpuPrediction, predict_on_gpus, profile_of
from gpuyard.learn.performance.serving import ServingPrediction
from gpuyard.learn.performance.serving import load as load_serving
from gpuyard.learn.performance.serving import prediction as serving
from gpuyard.live.wire.tasks import WorkRequest

SCRIPT_SECONDS = 120.0
"""Time limit for finding the model in a script."""

_FIELDS = get_type_hints(WorkRequest, include_extras=True)


@dataclass(frozen=True, slots=True)
class DescribedWorkload:
    """A workload and the operations that it consists of."""

    spec: WorkloadSpec
    profile: OperationProfile
    defaults: frozenset[str] = frozenset()
    """Fields of the workload that a script does not state."""

    def changed(self, *, batch: int | None = None, precision: str | None = None) -> "DescribedWorkload":
        """Return the same workload with another batch size or precision. Raises `WrongInput` as for a file."""
        changes: dict[str, Any] = {"batch": batch, "precision": precision}
        given = {name: argument(name, value, _FIELDS[name]) for name, value in changes.items() if value is not None}
        return DescribedWorkload(replace(self.spec, **given), self.profile, self.defaults - given.keys())


def predict(
    workload: DescribedWorkload | WorkloadSpec | Mapping[str, Any] | AnyPath,
    gpus: Sequence[str] | str,
    *,
    batch: int | None = None,
    precision: str | None = None,
    model: AnyPath | None = None,
    specs: AnyPath | None = None,
    calibration: AnyPath | None = None,
) -> list[GpuPrediction]:
    """Predict time, memory and utilization of one step on each of these GPUs, whether they were measured or not.

    `workload`: the name of a model; a `config.json` or a folder with one; the fields that a task of the API declares
    under `work`, as a mapping or as a YAML file; or a script (`.py`) that creates a PyTorch model, which is read in a
    separate process. `model`: a file written by `gpuyard train predictor`, instead of the shipped one. `specs`,
    `calibration`: files of GPUs and of their measured peaks. Raises `WrongInput` if an argument or a file cannot be
    meant.
    """
    found = describe_workload(workload).changed(batch=batch, precision=precision)
    names = names_in("gpus", gpus)
    if not names:
        raise WrongInput("No GPU is given; use names such as H200,A100.")
    try:
        learned = load(SHIPPED if model is None else existing(model, "model"))
    except OSError as error:
        raise WrongInput(f"{shown_path(str(model))}: {error.strerror}") from None
    known = learned.specs if specs is None and calibration is None else read_gpu_specs(specs, calibration)
    return predict_on_gpus(learned, found.spec, found.profile, names, known)


def predict_serving(
    model: AnyPath,
    gpus: Sequence[str] | str,
    *,
    prompt: int = 1024,
    output: int = 256,
    batches: Sequence[int] = serving.BATCHES,
    precision: str = "bf16",
    tensor_parallel: int = 1,
    specs: AnyPath | None = None,
) -> list[ServingPrediction]:
    """Predict prefill, decode, throughput and memory of a served language model on each of these GPUs.

    `model`: the name of a decoder, such as `meta-llama/Meta-Llama-3-8B`; or its `config.json`, or the folder that
    contains it. Raises `WrongInput` if an argument or a file cannot be meant.
    """
    names = names_in("gpus", gpus)
    if not names:
        raise WrongInput("No GPU is given; use names such as H200,A100.")
    known = read_gpu_specs(specs, None)
    return serving.predict_serving(
        load_serving(), config_of(model), [known.find(name) for name in names], known,
        prompt=prompt, output=output, batches=batches, precision=precision, gpus=tensor_parallel,
    )  # fmt: skip


def config_of(model: AnyPath) -> TransformerConfig:
    """Return the configuration of a transformer given by its name, or by its `config.json` or folder."""
    if not isinstance(model, str) or not is_model_name(model):
        return read_config(path_of("model", model))
    found = model_configs.find(model)
    if found is None:
        if (plain := model_configs.without_quantization(model)) is not None:
            raise WrongInput(
                f"{shortened(model)!r} names quantized weights. Serving is predicted with weights of 16 bits or in fp8: use "
                f"{plain.name}, with --precision fp8 for 8 bits."
            )
        near = model_configs.similar(model)
        known = [one for name in near if (one := model_configs.find(name)) and _begins(one.name, model)]
        if known and not any(one.is_decoder for one in known):
            raise WrongInput(
                f"{shortened(model)!r} is not a decoder, as {known[0].name} is not; serving is predicted for decoders only."
            )
        offered = f"; similar names: {', '.join(near)}" if near else ""
        raise WrongInput(f"Unknown language model {shortened(model)!r}{offered}. Use the config.json of the model.")
    return found


def _begins(name: str, start: str) -> bool:
    """Return whether the name of a model, without its owner, begins with that of another."""
    return name.rpartition("/")[2].lower().startswith(start.rpartition("/")[2].lower())


def describe_workload(workload: DescribedWorkload | WorkloadSpec | Mapping[str, Any] | AnyPath) -> DescribedWorkload:
    """Return the workload given in any of the forms that `predict` accepts."""
    match workload:
        case DescribedWorkload():
            return workload
        case WorkloadSpec() | Mapping():
            fields = asdict(workload) if isinstance(workload, WorkloadSpec) else dict(workload)
            try:
                return _of_fields(fields, "the workload")
            except WrongRequest as error:
                raise WrongInput(str(error)) from None
    if isinstance(workload, str) and is_model_name(workload):
        return workload_of_model(workload)
    path = path_of("workload", workload)
    if path.suffix == ".json" or path.is_dir():
        return workload_of_model(path)
    path = existing(path, "workload")
    return workload_of_script(path) if path.suffix == ".py" else workload_of_file(path)


def is_model_name(text: str) -> bool:
    """Return whether a text is the name of a model rather than a path: no file has that name, and it does not look so."""
    if not text.strip():
        raise WrongInput("The name of the model is empty.")
    path = Path(text)
    is_path = text.startswith((".", "/", "~")) or path.suffix in {".py", ".yaml", ".yml", ".json"}
    return not is_path and "\0" not in text and not path.exists()


def workload_of_model(model: str | Path, *, mode: str | None = None, size: int | None = None) -> DescribedWorkload:
    """Return steps of a model given by its name, or by its `config.json` or the folder that contains it."""
    changes: dict[str, Any] = {"mode": mode, "size": size}
    given = {name: argument(name, value, _FIELDS[name]) for name, value in changes.items() if value is not None}
    if isinstance(model, str):
        return describe_workload({"model": model, **given})
    config = read_config(model)
    if config.quantized:
        raise WrongInput(
            f"The weights of {config.name} are quantized ({config.quantized}), whose steps are not predicted. Remove "
            "quantization_config from its config.json to predict it without."
        )
    spec = WorkloadSpec(model=config.name, family=config.family, **given)
    return DescribedWorkload(spec, config.profile(spec.mode, spec.size))


def workload_of_file(path: Path) -> DescribedWorkload:
    """Return the workload that a YAML file declares."""
    try:
        document = parse(read_file(path, largest=LARGEST_TEXT_BYTES))
    except OSError as error:
        raise WrongInput(f"{shown_path(path)}: {error.strerror}.") from None
    except Unreadable as error:
        raise WrongInput(error.within(shown_path(path))) from None
    try:
        return _of_fields(document.value, "the file")
    except WrongRequest as error:
        line = _line_of(error, document)
        raise WrongInput(
            f"{shown_path(path)}, line {line}: {error}" if line else f"{shown_path(path)}: {error}"
        ) from None
    except WrongInput as error:
        raise WrongInput(f"{shown_path(path)}: {error}") from None


def _line_of(error: WrongRequest, document: InputDocument) -> int | None:
    try:
        return document.line_of(error.path)
    except Unreadable:  # JSON that is not YAML
        return None


def workload_of_script(path: Path) -> DescribedWorkload:
    """Return the model that a script creates, found in a separate process that does not run the rest of the script."""
    call = [sys.executable, "-W", "ignore", "-m", "gpuyard.learn.performance.script", str(path)]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=SCRIPT_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise WrongInput(f"Reading the model of {shown_path(path)} took longer than {SCRIPT_SECONDS:g} s") from None
    try:
        said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise WrongInput(f"{shown_path(path)} ended the process that read its model: {last}") from None
    if "error" in said:
        raise WrongInput(said["error"])
    profile = OperationProfile.of(said["groups"], said["kept"], said["largest"], said["parameters"])
    names = ("model", "mode", "batch", "precision", "compiled", "size")
    return DescribedWorkload(WorkloadSpec(**{name: said[name] for name in names}), profile, frozenset(said["defaults"]))


def read_gpu_specs(specs: AnyPath | None, calibration: AnyPath | None) -> GpuSpecs:
    """Return the GPUs of a file, or the shipped ones, with their measured peaks."""
    try:
        found = gpu_specs.shipped() if specs is None else gpu_specs.read_specs(existing(specs, "specs"))
    except UnicodeDecodeError:
        raise WrongInput(f"{shown_path(str(specs))} is not text in UTF-8") from None
    return found if calibration is None else found.with_peaks(read_peaks(existing(calibration, "calibration")))


def existing(file: object, name: str) -> Path:
    """Return the path that an argument of this name has; fail if there is no such file."""
    path = path_of(name, file)
    if not is_file(path):
        raise WrongInput(f"File {shown_path(path)} does not exist.")
    return path


def _of_fields(value: object, what: str) -> DescribedWorkload:
    spec = WorkloadSpec(**asdict(Strict(WorkRequest, what=what).plain(value)))
    return DescribedWorkload(spec, profile_of(spec))
