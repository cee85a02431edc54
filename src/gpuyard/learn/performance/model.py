"""The trained performance model (time, memory, utilization) in one value and one file.

The file is compressed msgpack: trees in LightGBM's text format, and their metadata. Reading it executes no code. A file
of another version is rejected: train again, which takes minutes.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import LARGEST_BYTES, shown_path
from gpuyard.learn.performance import kind_model
from gpuyard.learn.performance.calibration import Correction, ErrorShares
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.gpu_specs import GpuSpec, GpuSpecs
from gpuyard.learn.performance.kind_model import Band, KindModel, KindPrediction, TreeModel
from gpuyard.system.files import replace_file

FORMAT = "gpuyard performance model"
VERSION = 6
SHIPPED = Path(__file__).parent / "data" / "performance.model"
"""The model that ships with gpuyard."""


class _Head(msgspec.Struct):
    columns: list[str]
    trees: str


class _KindFile(msgspec.Struct):
    vocabulary: dict[str, list[str]]
    heads: dict[str, list[_Head]]
    bands: dict[str, dict[str, Band]]
    corrections: dict[str, Correction]
    measured: dict[str, float]
    scale: list[float]
    shares: ErrorShares


class _File(msgspec.Struct):
    format: str
    version: int
    trained_on: dict[str, int]
    gpus: list[GpuSpec]
    kind_models: dict[str, _KindFile]
    seen_until: float = 0.0


class _Beginning(msgspec.Struct):
    """The fields that every version of the file has."""

    format: str
    version: int


@dataclass(frozen=True, slots=True)
class PerformanceModel:
    """A kind model for each kind of work, and the GPUs it knows."""

    kind_models: Mapping[str, KindModel]
    specs: GpuSpecs
    trained_on: Mapping[str, int]
    """Number of rows of each kind."""
    seen_until: float = 0.0
    """The model has learned from tasks of a cluster that had ended by this time; 0 means from none."""
    name: str = ""
    """Hash of the file's content: another file has another name."""

    @staticmethod
    def trained(
        kinds: Mapping[str, ProfileRows], specs: GpuSpecs, seed: int = 1, seen_until: float = 0.0
    ) -> "PerformanceModel":
        """Train on rows, by kind."""
        made = {kind: kind_model.fit(rows, specs, seed) for kind, rows in kinds.items()}
        return PerformanceModel(made, specs, {kind: len(rows) for kind, rows in kinds.items()}, seen_until)

    def predict(self, rows: ProfileRows, specs: GpuSpecs | None = None) -> KindPrediction:
        """Predict rows of one kind."""
        if rows.kind not in self.kind_models:
            raise WrongInput(f"The model was trained on {', '.join(self.kind_models)}, not on {rows.kind}")
        return self.kind_models[rows.kind].predict(rows, specs or self.specs)

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        said = _File(
            FORMAT,
            VERSION,
            dict(self.trained_on),
            list(self.specs.gpus.values()),
            {kind: _written(one) for kind, one in self.kind_models.items()},
            self.seen_until,
        )
        replace_file(path, zlib.compress(msgspec.msgpack.encode(said), 6))


def _written(one: KindModel) -> _KindFile:
    heads = {
        name: [_Head(list(head.columns), head.trees.model_to_string(num_iteration=-1)) for head in some]
        for name, some in one.heads.items()
    }
    return _KindFile(one.vocabulary, heads, one.bands, one.corrections, one.measured, one.scale, one.shares)


def load(path: Path) -> PerformanceModel:
    """Read a file that `save` wrote."""
    try:
        packed = path.read_bytes()
        data = zlib.decompressobj().decompress(packed, LARGEST_BYTES)
        beginning = msgspec.msgpack.decode(data, type=_Beginning)
    except (zlib.error, msgspec.DecodeError):
        raise WrongInput(f"{shown_path(path)} is not a performance model of gpuyard") from None
    if beginning.format != FORMAT:
        raise WrongInput(f"{shown_path(path)} is not a performance model of gpuyard")
    if beginning.version != VERSION:
        raise WrongInput(
            f"{shown_path(path)} has version {beginning.version}, and this gpuyard reads version {VERSION}: train "
            "it again with 'gpuyard train predictor'"
        )
    try:
        said = msgspec.msgpack.decode(data, type=_File)
    except msgspec.DecodeError as error:
        raise WrongInput(f"{shown_path(path)} is damaged: {error}") from None
    kind_models = {
        kind: KindModel(
            kind,
            one.vocabulary,
            {
                name: [TreeModel(tuple(head.columns), _trees(head.trees)) for head in some]
                for name, some in one.heads.items()
            },
            one.bands,
            one.corrections,
            one.measured,
            one.scale,
            one.shares,
        )
        for kind, one in said.kind_models.items()
    }
    return PerformanceModel(
        kind_models, GpuSpecs(said.gpus), said.trained_on, said.seen_until, f"{zlib.crc32(packed):08x}"
    )


def _trees(text: str) -> Any:
    import lightgbm

    return lightgbm.Booster(model_str=text)


def accuracy(measured: Any, said: KindPrediction) -> dict[str, float]:
    """Return error measures of predictions, as fractions."""
    wrong = np.abs(said.middle / measured - 1.0)
    inside = (said.low <= measured) & (measured <= said.high)
    return {
        "rows": len(wrong),
        "mape": float(wrong.mean()),
        "median_ape": float(np.median(wrong)),
        "within_20": float((wrong <= 0.2).mean()),
        "band_coverage": float(inside.mean()),
    }
