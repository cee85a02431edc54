"""Checks before a measurement: PyTorch, the device, and whether the output can be written."""

import os
from importlib.util import find_spec
from pathlib import Path

from gpuyard.core.domain.errors import WrongInput

DEVICES = ("cuda", "cpu")
PACKAGES = ("torchvision", "transformers")
"""Optional packages; their models are measured if they are installed."""


class NoTorch(WrongInput):
    """Measuring models needs PyTorch; install it, or gpuyard with its extra: pip install 'gpuyard[profile]'."""


def device_to_measure(said: str | None) -> str:
    """Return the requested device; the default is the GPU, or the CPU if there is none."""
    if not find_spec("torch"):
        raise NoTorch
    if said is not None and said not in DEVICES:
        raise WrongInput(f"--device must be {' or '.join(DEVICES)}, not {said!r}.")
    import torch

    if said == "cuda" and not torch.cuda.is_available():
        raise WrongInput(
            "--device cuda: PyTorch finds no GPU on this machine; use --device cpu to measure the processor."
        )
    return said or ("cuda" if torch.cuda.is_available() else "cpu")


def room_for(out: Path | None) -> None:
    """Check before measuring that the file can be written."""
    if out is None:
        return
    if out.is_dir():
        raise WrongInput(f"--out {out} is a folder; it must be a file.")
    if not out.parent.is_dir():
        raise WrongInput(f"Folder {out.parent} does not exist.")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise WrongInput(f"Cannot write --out {out}.")


def packages_for(patterns: list[str]) -> None:
    """Refuse models of a package that is not installed."""
    for pattern in patterns:
        package = pattern.split("/")[0]
        if package in PACKAGES and not find_spec(package):
            raise WrongInput(f"{pattern} needs the package {package}, which is not installed: pip install {package}.")
