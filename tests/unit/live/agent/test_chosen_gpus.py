"""Only the GPUs that gpu.devices names are used, with the part of their memory that may be allocated."""

import pytest

from gpuyard.live.agent.inventory import NoSuchInventory, SelectedGpus
from gpuyard.live.agent.inventory.virtual import Virtual

ALL = Virtual("4:RTX4090:24", "node", lambda: {2: 9000}, lambda: 0.0)
UUIDS = [card.uuid for card in ALL.devices()]


def test_without_a_choice_all_gpus_are_used() -> None:
    chosen = SelectedGpus(ALL)
    assert chosen.devices() == ALL.devices()
    assert chosen.use() == ALL.use()


def test_gpus_are_chosen_by_number_or_uuid_and_renumbered_from_0() -> None:
    chosen = SelectedGpus(ALL, [3, UUIDS[2].upper()])
    assert [(card.index, card.uuid) for card in chosen.devices()] == [(0, UUIDS[2]), (1, UUIDS[3])]
    assert [(use.index, use.utilization_percent) for use in chosen.use()] == [(0, 100.0), (1, 0.0)]
    assert chosen.numbers == [2, 3]
    assert chosen.missing == []


def test_a_missing_gpu_is_reported_and_the_others_are_used() -> None:
    chosen = SelectedGpus(ALL, [0, 7, "GPU-nobody-has-it"])
    assert chosen.missing == [7, "GPU-nobody-has-it"]
    assert len(chosen.devices()) == 1


def test_if_none_of_the_gpus_is_present_the_message_lists_those_that_are() -> None:
    with pytest.raises(
        NoSuchInventory, match=r"gpu\.devices lists 7, and this node has none of them\. .* 0 \(VIRTUAL-"
    ):
        SelectedGpus(ALL, [7])


def test_memory_percent_limits_the_memory_of_a_gpu() -> None:
    assert {card.memory_mib for card in SelectedGpus(ALL, memory_percent=95).devices()} == {23347}
