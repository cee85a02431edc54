"""Detects the GPUs of a node and reads their use. `port.py` defines the interface; the other files implement it."""

from collections.abc import Callable, Mapping

from gpuyard.live.agent.inventory.chosen import SelectedGpus
from gpuyard.live.agent.inventory.port import GpuDevice, GpuProcess, GpuUsage, Inventory, NoSuchInventory
from gpuyard.live.agent.inventory.virtual import Virtual

__all__ = ["METHODS", "GpuDevice", "GpuProcess", "GpuUsage", "Inventory", "NoSuchInventory", "SelectedGpus", "detect"]

METHODS = ("auto", "nvml", "nvidia-smi", "virtual")


def detect(method: str, *, node: str, virtual: str = "", busy: Callable[[], Mapping[int, int]] = dict) -> Inventory:
    """Find the GPUs of this node with one of `METHODS`.

    `auto` takes virtual GPUs if they are configured, else what NVML finds, else what nvidia-smi finds; a node on which
    neither finds anything has no GPUs, which is not an error. A method chosen by name that fails is an error.
    """
    match method:
        case "nvml":
            return _nvml()
        case "nvidia-smi":
            return _nvidia_smi()
        case "virtual":
            return Virtual(virtual or "1", node, busy)
        case "auto":
            if virtual:
                return Virtual(virtual, node, busy)
            for find in (_nvml, _nvidia_smi):
                try:
                    found = find()
                except NoSuchInventory:
                    continue
                if found.devices():
                    return found
            return Virtual("0", node)
    raise NoSuchInventory(f"Unknown GPU detection method {method!r}. Choose one of {', '.join(METHODS)}.")


def _nvml() -> Inventory:
    from gpuyard.live.agent.inventory.nvml import Nvml

    return Nvml()


def _nvidia_smi() -> Inventory:
    from gpuyard.live.agent.inventory.nvidia_smi import NvidiaSmi

    return NvidiaSmi()
