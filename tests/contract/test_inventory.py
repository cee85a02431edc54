"""The contract of GPU inventories, checked on each implementation. NVML and the real nvidia-smi need a GPU."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.live.agent.inventory import Inventory, NoSuchInventory, detect
from gpuyard.live.agent.inventory.nvidia_smi import NvidiaSmi
from tests.unit.live.agent.fake_smi import TWO_GPUS, fake_smi


def nvml(_: Path) -> Inventory:
    try:
        return detect("nvml", node="a")
    except NoSuchInventory as reason:
        pytest.skip(f"no GPU here: {reason}")


def real_nvidia_smi(_: Path) -> Inventory:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no GPU here: no nvidia-smi")
    return detect("nvidia-smi", node="a")


def scripted_nvidia_smi(folder: Path) -> Inventory:
    return NvidiaSmi(fake_smi(folder, TWO_GPUS))


def virtual(_: Path) -> Inventory:
    return detect("virtual", node="a", virtual="3:RTX4090:24", busy=lambda: {1: 0})


@pytest.fixture(params=[nvml, real_nvidia_smi, scripted_nvidia_smi, virtual], ids=lambda make: make.__name__)
def inventory(request: pytest.FixtureRequest, tmp_path: Path) -> Inventory:
    make: Callable[[Path], Inventory] = request.param
    return make(tmp_path)


def test_gpus_are_numbered_from_0(inventory: Inventory) -> None:
    cards = inventory.devices()
    assert cards
    assert [card.index for card in cards] == list(range(len(cards)))


def test_every_gpu_has_a_unique_name(inventory: Inventory) -> None:
    cards = inventory.devices()
    assert len({card.uuid for card in cards}) == len(cards)
    assert all(card.uuid for card in cards)


def test_every_gpu_is_described(inventory: Inventory) -> None:
    for card in inventory.devices():
        assert card.model
        assert card.memory_mib > 0
        assert card.numa >= 0
        assert card.virtual or card.pci.count(":") == 2
        assert card.virtual or card.driver


def test_gpus_keep_their_identity(inventory: Inventory) -> None:
    assert inventory.devices() == inventory.devices()


def test_usage_is_reported_for_every_gpu_in_order(inventory: Inventory) -> None:
    assert [use.index for use in inventory.use()] == [card.index for card in inventory.devices()]


def test_figures_are_plausible(inventory: Inventory) -> None:
    for card, use in zip(inventory.devices(), inventory.use(), strict=True):
        assert not use.broken
        assert use.utilization_percent is None or 0 <= use.utilization_percent <= 100
        assert use.memory_used_mib is None or 0 <= use.memory_used_mib <= card.memory_mib
        assert use.temperature_c is None or -50 < use.temperature_c < 150
        assert use.power_watts is None or use.power_watts >= 0
        assert all(process.pid > 0 and process.memory_mib >= 0 for process in use.processes)
