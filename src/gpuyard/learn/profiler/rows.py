"""A row: one measured configuration of one model on one GPU. Rows are stored in CSV files and appended."""

import csv
from collections.abc import Iterable
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from gpuyard.core.domain.errors import WrongInput


class Configuration(msgspec.Struct, frozen=True):
    """What is measured; two rows with the same configuration are repetitions."""

    model: str
    mode: str
    """`train` (forward, backward, AdamW) or `infer`."""
    batch: int
    precision: str
    """`fp32` (no TF32), `tf32`, `bf16` (everything in bf16), `amp` (autocast to bf16)."""
    compiled: bool = False
    clock_mhz: int | None = None
    """The clock that the GPU is locked to; None: its own."""


class ProfileRow(msgspec.Struct, frozen=True, kw_only=True):
    """The result. Times are of one step, on the GPU."""

    model: str
    family: str
    kind: str
    size: int
    mode: str
    batch: int
    precision: str
    compiled: bool
    clock_mhz: int | None
    gpu: str
    driver: str
    launch_us: float
    """Time of the smallest kernel, on this host at this time."""
    torch: str
    measured_on: str
    """Date of the measurement."""
    steps: int
    step_ms: float
    """Median."""
    step_ms_p10: float
    step_ms_p90: float
    gpu_ms: float | None
    """Median of the GPU alone, without waiting for the host to launch kernels; None on a CPU and in older rows."""
    memory_allocated_mib: float
    """Peak memory of PyTorch's tensors."""
    memory_reserved_mib: float
    """Peak memory of PyTorch's allocator."""
    memory_nvml_mib: float | None
    """Memory used on the GPU according to the driver, including the context."""
    utilization: float | None
    """Share of the time in which a kernel ran, according to NVML."""
    memory_utilization: float | None
    power_w: float | None
    energy_j: float | None
    """Energy of a step: by NVML's counter if the measurement took a second or longer, else power × time."""
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    parameters: int
    flops: float
    """This and all following fields are counted, not measured; bytes are those of fp32 for every precision."""
    bytes: float
    """Bytes read and written, added up over operations."""
    heavy_bytes: float
    """Bytes of the operations that have FLOPs."""
    kernels: float
    heavy_kernels: float
    parameter_bytes: float
    activation_bytes: float
    """Bytes kept for the backward pass; 0 without one."""
    largest_bytes: float
    """Inputs and outputs of the largest operation."""

    @property
    def configuration(self) -> Configuration:
        """The configuration that was measured."""
        return Configuration(self.model, self.mode, self.batch, self.precision, self.compiled, self.clock_mhz)


_KINDS = get_type_hints(ProfileRow)
COLUMNS = tuple(_KINDS)
_PERHAPS = frozenset(name for name, kind in _KINDS.items() if kind in (float | None, int | None))


def append(path: Path, row: ProfileRow) -> None:
    """Append a row; it is flushed to the operating system, not synced to disk."""
    begins = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if begins:
            writer.writerow(COLUMNS)
        writer.writerow(_shown(value) for value in msgspec.structs.astuple(row))


def read(path: Path) -> list[ProfileRow]:
    """Read all rows of a file; an error names an incomplete row."""
    try:
        reader = csv.DictReader(StringIO(path.read_bytes().decode("utf-8"), newline=""))
        has, rows = reader.fieldnames or (), [(reader.line_num, said) for said in reader]
    except UnicodeDecodeError:
        raise WrongInput(f"{path} is not a file of profiles: it is not UTF-8") from None
    except csv.Error as error:
        raise WrongInput(f"{path} is not a file of profiles: {error}") from None
    missing = [name for name in COLUMNS if name not in has]
    if missing:
        raise WrongInput(
            f"{path} is not a file of profiles: it has no column {', '.join(missing[:3])}{' …' * (len(missing) > 3)}"
        )
    return [_row(path, line, said) for line, said in rows]


def _row(path: Path, line: int, said: dict[str, Any]) -> ProfileRow:
    values = {name: None if said[name] == "" and name in _PERHAPS else said[name] for name in COLUMNS}
    name = next((name for name, kind in _KINDS.items() if not _can_be(values[name], kind)), None)
    if name is None:
        return msgspec.convert(values, ProfileRow, strict=False)
    wrong = "is missing" if said[name] is None else f"must not be {said[name]!r}"
    raise WrongInput(f"{path}, line {line}: {name} {wrong}")


def _can_be(value: object, kind: Any) -> bool:
    try:
        read = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return not isinstance(read, float) or isfinite(read)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def measured_configurations(paths: Iterable[Path]) -> set[Configuration]:
    """Return the configurations in these files, so that an interrupted run can continue."""
    return {row.configuration for path in paths if path.exists() for row in read(path)}
