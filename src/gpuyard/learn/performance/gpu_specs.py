"""GPUs as described by their data sheets: the basis of predictions for GPUs without measurements.

A file of specs is CSV with a line for each GPU; `data/gpus.csv` is shipped. Peaks are without sparsity. Measurements on
a node (`gpuyard profile calibrate`) correct the sheet: boards with a power cap never sustain their peaks.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from io import StringIO
from pathlib import Path

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.input.files import LARGEST_TEXT_BYTES, read_file, shown_path

SHIPPED = Path(__file__).parent / "data" / "gpus.csv"

PICOJOULES = {
    "kepler": (35.0, 35.0, 35.0),
    "pascal": (27.0, 13.5, 13.5),
    "volta": (18.0, 2.2, 2.2),
    "turing": (18.0, 2.2, 2.2),
    "ampere": (11.0, 1.5, 1.5),
    "ada": (7.5, 1.5, 1.0),
    "hopper": (7.5, 0.85, 0.52),
    "blackwell": (7.0, 1.45, 0.8),
}
"""Energy of an operation of a matrix product by generation, in fp32, 16 bits and 8 bits. Derived from the rates at
which boards settle that cannot sustain their peak: P4 and P100, T4 and V100, L4, L40S, RTX PRO 6000, H100."""

REACHED, COPIED = 0.95, 0.85
"""The share that the best matrix products reach of the power-limited rate, and the best copies of the sheet's
bandwidth: medians over P4, P100, V100, T4, A100, H100, L40S and RTX PRO 6000. Measured values are divided by it,
because the GPUs they are compared with are described by their sheets."""
MOST_OFFERED = 5
"""Most GPUs that the message about an unknown one lists."""
SAME_CHIP_RATIO = 1.16
"""Largest ratio of the multiprocessor counts of two boards with one chip: some are disabled on the cheaper board."""


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One GPU model."""

    gpu: str
    aliases: str = ""
    vendor: str = ""
    arch_family: str = ""
    compute_capability: str = ""
    sm_count: float
    boost_clock_mhz: float
    fp32_tflops: float
    tf32_dense_tflops: float | None = None
    bf16_dense_tflops: float | None = None
    fp16_dense_tflops: float | None = None
    fp8_dense_tflops: float | None = None
    memory_gb: float
    mem_bw_gbs: float
    l2_mb: float
    tdp_w: float
    pcie_gen: int = 4
    nvlink_gbs: float | None = None
    """Bandwidth to all other GPUs of a node, both directions together; 0 or None without NVLink."""
    launch_us: float | None = None
    """Time of the smallest kernel; None if it was not measured."""
    kept_up: dict[str, float] = {}
    """Measured TFLOPS by number type, scaled to be comparable with a data sheet."""

    @property
    def names(self) -> list[str]:
        """Its name and aliases."""
        return [name for name in (self.gpu, *self.aliases.split("|")) if name]

    @property
    def link_gbs(self) -> float:
        """Bandwidth in one direction between two GPUs of a node: NVLink, otherwise PCIe as it is in practice."""
        return self.nvlink_gbs / 2 if self.nvlink_gbs else 12.5 * 2.0 ** (self.pcie_gen - 3)

    def tflops(self, precision: str) -> float:
        """Return its peak for this number type; an unsupported type is computed in the next wider one."""
        named = {
            "fp8": (self.fp8_dense_tflops, self.fp16_dense_tflops),
            "bf16": (self.bf16_dense_tflops, self.fp16_dense_tflops),
            "fp16": (self.fp16_dense_tflops, self.bf16_dense_tflops),
            "tf32": (self.tf32_dense_tflops,),
        }.get(precision, ())
        return max(next((peak for peak in named if peak), self.fp32_tflops), 0.25 * self.fp32_tflops)

    def sustained_tflops(self, precision: str) -> float:
        """Return the part of that peak that its power limit sustains, as measured or by its generation."""
        peak = self.tflops(precision)
        if precision in self.kept_up or self.arch_family not in PICOJOULES:
            return min(peak, self.kept_up.get(precision, peak))
        full, half, quarter = PICOJOULES[self.arch_family]
        cost = {"fp32": full, "tf32": 2 * half, "fp8": quarter}.get(precision, half)
        return min(peak, self.tdp_w / cost)

    def has_same_chip_as(self, other: "GpuSpec") -> bool:
        """Return whether both boards have nearly the same chip: the same kernels, with other memory and power."""
        size = self.sm_count / other.sm_count
        return (
            self.compute_capability == other.compute_capability != "" and 1 / SAME_CHIP_RATIO < size < SAME_CHIP_RATIO
        )

    def is_unlike(self, known: Sequence["GpuSpec"]) -> bool:
        """Return whether these are GPUs of other makers, or all compute in bf16 and this one does not.

        Without bf16 (Volta, Turing and older) a GPU has none of the number types and kernels that came with Ampere.
        """
        if self.vendor not in {one.vendor for one in known}:
            return True
        return not self.bf16_dense_tflops and all(one.bf16_dense_tflops for one in known)


class GpuSpecs:
    """GPUs by name."""

    def __init__(self, gpus: Iterable[GpuSpec]) -> None:
        self.gpus = {gpu.gpu: gpu for gpu in gpus}
        self._by_name = {_plain(name): gpu for gpu in self.gpus.values() for name in gpu.names}

    def find(self, name: str) -> GpuSpec:
        """Find a GPU by name, alias, or a prefix that leaves only the memory size or socket open."""
        plain = _plain(name)
        if plain in self._by_name:
            return self._by_name[plain]
        begins = [gpu for gpu in self.gpus.values() if any(plain in _beginnings(known) for known in gpu.names)]
        if begins and len({(gpu.compute_capability, gpu.sm_count) for gpu in begins}) == 1:
            return begins[0]
        near = get_close_matches(plain, self._by_name, n=3, cutoff=0.5)
        if near:
            offered = f"similar names: {', '.join(dict.fromkeys(self._by_name[n].gpu for n in near))}"
        elif len(self.gpus) <= MOST_OFFERED:
            offered = f"known names: {', '.join(self.gpus)}"
        else:
            offered = "no known name is similar; the page performance.md of the manual lists those that ship"
        raise WrongInput(
            f"Unknown GPU {shortened(name)!r}; {offered}. Describe other GPUs in a file of specs (--specs)."
        )

    def sharing(self, name: str) -> list[str]:
        """Return the boards that a short name such as A100 can mean; none if it is the full name of one."""
        plain = _plain(name)
        if any(plain == _plain(gpu) for gpu in self.gpus):
            return []
        return [gpu.gpu for gpu in self.gpus.values() if any(plain in _beginnings(known) for known in gpu.names)]

    def with_peaks(self, measured: Mapping[str, Mapping[str, float]]) -> "GpuSpecs":
        """Return the same specs with measured peaks, by GPU name: see `gpuyard profile calibrate`."""
        peaks = {self.find(name).gpu: dict(said) for name, said in measured.items()}
        return GpuSpecs(_measured(gpu, peaks[gpu.gpu]) if gpu.gpu in peaks else gpu for gpu in self.gpus.values())


def _measured(gpu: GpuSpec, peaks: dict[str, float]) -> GpuSpec:
    """Return the GPU with measured values. A long product gives the sustained rate; the peak stays the sheet's."""
    kept = {name.removesuffix("_tflops"): peak / REACHED for name, peak in peaks.items() if name.endswith("_tflops")}
    copied = peaks.get("copy_gb_s")
    return msgspec.structs.replace(
        gpu,
        kept_up=kept,
        mem_bw_gbs=gpu.mem_bw_gbs if copied is None else copied / COPIED,
        launch_us=peaks.get("launch_us", gpu.launch_us),
    )


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


def _beginnings(name: str) -> set[str]:
    """Return the first word of a name, the first two, and so on."""
    return {_plain(name[: word.end()]) for word in re.finditer("[A-Za-z0-9]+", name)}


@cache
def shipped() -> GpuSpecs:
    """Return the GPUs that ship with gpuyard."""
    return read_specs(SHIPPED)


def read_specs(path: Path) -> GpuSpecs:
    """Read a file of specs; errors name the line."""
    try:
        text = read_file(path, largest=LARGEST_TEXT_BYTES).decode()
        reader = csv.DictReader(StringIO(text, newline=""))
        needed = [f.name for f in msgspec.structs.fields(GpuSpec) if f.required]
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise WrongInput(f"{shown_path(path)} has no column {', '.join(missing)}")
        return GpuSpecs(_gpu(path, line, said) for line, said in enumerate(reader, start=2))
    except OSError as error:
        raise WrongInput(f"{shown_path(path)}: {error.strerror}") from None
    except csv.Error as error:
        raise WrongInput(f"{shown_path(path)} is not a table: {error}") from None


def _gpu(path: Path, line: int, said: dict[str, str]) -> GpuSpec:
    try:
        gpu = msgspec.convert({name: text for name, text in said.items() if text}, GpuSpec, strict=False)
    except msgspec.ValidationError as error:
        raise WrongInput(f"{shown_path(path)}, line {line}: {error}") from None
    for name in ("sm_count", "boost_clock_mhz", "fp32_tflops", "memory_gb", "mem_bw_gbs", "l2_mb", "tdp_w"):
        if not 0 < getattr(gpu, name) < float("inf"):
            raise WrongInput(f"{shown_path(path)}, line {line}: {name} of {gpu.gpu} must be above 0")
    return gpu
