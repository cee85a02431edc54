"""Details of each GPU inventory: quirks of drivers, and specs of virtual GPUs."""

from pathlib import Path

import pytest

from gpuyard.live.agent.inventory import GpuProcess, NoSuchInventory, detect
from gpuyard.live.agent.inventory.nvidia_smi import NvidiaSmi
from gpuyard.live.agent.inventory.pci import address, groups
from gpuyard.live.agent.inventory.virtual import Virtual, read_spec
from gpuyard.live.control_plane.alerts.rules.built_in import BUILT_IN
from tests.unit.live.agent.fake_smi import GPU_HEADER, TWO_GPUS, USE_HEADER, fake_smi

# --- nvidia-smi


def test_the_output_of_nvidia_smi_is_parsed(tmp_path: Path) -> None:
    smi = NvidiaSmi(fake_smi(tmp_path, TWO_GPUS))
    first, second = smi.devices()
    assert (first.uuid, first.model, first.memory_mib) == ("GPU-aaaa", "NVIDIA GeForce RTX 4090", 24564)
    assert (second.pci, second.driver, second.nvlink) == ("0000:c1:00.0", "550.54.14", None)
    busy, idle = smi.use()
    assert (busy.utilization_percent, busy.memory_used_mib, busy.temperature_c) == (97.0, 20110, 71.0)
    assert (busy.power_watts, busy.power_limit_watts, busy.fan_percent) == (402.15, 450.0, 64.0)
    assert busy.processes == (GpuProcess(4711, 20096, display=False),)
    assert idle.processes == ()


@pytest.mark.parametrize("nothing", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]"])
def test_a_figure_the_driver_does_not_report_is_none(tmp_path: Path, nothing: str) -> None:
    use = f"{USE_HEADER}\n0, {nothing}, 10 MiB, 50, {nothing}, {nothing}, {nothing}\n1, 5 %, 10 MiB, {nothing}, 1 W, 2 W, 3 %\n"
    smi = NvidiaSmi(fake_smi(tmp_path, TWO_GPUS | {"gpu=index,utilization": use}))
    first, second = smi.use()
    assert first.utilization_percent is first.power_watts is first.power_limit_watts is first.fan_percent is None
    assert (first.memory_used_mib, first.temperature_c, second.temperature_c) == (10, 50.0, None)


def test_memory_of_a_process_may_be_unknown(tmp_path: Path) -> None:
    apps = "gpu_uuid, pid, used_gpu_memory [MiB]\nGPU-bbbb, 12, [N/A]\nGPU-bbbb, 13, [Insufficient Permissions]\n"
    smi = NvidiaSmi(fake_smi(tmp_path, TWO_GPUS | {"compute-apps": apps}))
    assert [process.memory_mib for process in smi.use()[1].processes] == [0, 0]


@pytest.mark.parametrize("answer", ["", "No running processes found\n"])
def test_no_compute_processes_may_be_reported_in_any_form(tmp_path: Path, answer: str) -> None:
    smi = NvidiaSmi(fake_smi(tmp_path, TWO_GPUS | {"compute-apps": answer}))
    assert [use.processes for use in smi.use()] == [(), ()]


def test_a_gpu_that_is_no_longer_listed_is_broken(tmp_path: Path) -> None:
    smi = NvidiaSmi(fake_smi(tmp_path, TWO_GPUS))
    fake_smi(tmp_path, TWO_GPUS | {"gpu=index,utilization": f"{USE_HEADER}\n1, 0 %, 1 MiB, 33, 21 W, 450 W, 30 %\n"})
    first, second = smi.use()
    assert "no longer lists" in first.broken
    assert not second.broken


def test_when_the_command_fails_all_gpus_are_broken(tmp_path: Path) -> None:
    smi = NvidiaSmi(fake_smi(tmp_path, TWO_GPUS))
    fake_smi(tmp_path, {"gpu": "Failed to initialize NVML: Driver/library version mismatch\n"}, exit_code=18)
    assert all("version mismatch" in use.broken for use in smi.use())


def test_gpus_linked_by_nvlink_are_one_group(tmp_path: Path) -> None:
    rows = "".join(f"{i}, GPU-{i}, H100, 81559 MiB, 00000000:0{i}:00.0, 550\n" for i in range(4))
    drawing = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
        "GPU0\t X \tNV18\tSYS\tSYS\t0-31\t0\nGPU1\tNV18\t X \tSYS\tSYS\t0-31\t0\n"
        "GPU2\tSYS\tSYS\t X \tPIX\t32-63\t1\nGPU3\tSYS\tSYS\tPIX\t X \t32-63\t1\n"
    )
    smi = NvidiaSmi(fake_smi(tmp_path, {"gpu=index,uuid": f"{GPU_HEADER}\n{rows}", "topo": drawing}))
    assert [card.nvlink for card in smi.devices()] == [0, 0, None, None]


@pytest.mark.parametrize(
    "answer",
    ["", "rubbish\n", f"{GPU_HEADER}\n0, GPU-a, X\n", f"{GPU_HEADER}\n0, GPU-a, X, lots, 0:1:0.0, 5\n"],
)
def test_an_unparsable_answer_is_refused(tmp_path: Path, answer: str) -> None:
    with pytest.raises(NoSuchInventory, match="nvidia-smi"):
        NvidiaSmi(fake_smi(tmp_path, {"gpu=index,uuid": answer}))


def test_a_missing_command_is_named() -> None:
    with pytest.raises(NoSuchInventory, match="no-such-smi was not found"):
        NvidiaSmi("no-such-smi")


# --- places


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("0000:3b:00.0", "0000:3b:00.0"), ("00010000:01:00.0", "0000:01:00.0")],
)
def test_pci_addresses_are_written_as_the_kernel_does(text: str, expected: str) -> None:
    assert address(text) == expected


def test_indirect_links_make_one_group() -> None:
    assert groups(5, {(0, 1), (1, 2)}) == [0, 0, 0, None, None]


# --- virtual


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("4", (4, "virtual", 24)),
        ("4:RTX4090", (4, "RTX4090", 24)),
        ("2:A100:80", (2, "A100", 80)),
        ("0", (0, "virtual", 24)),
    ],
)
def test_virtual_gpus_are_given_in_one_line(spec: str, expected: tuple[int, str, int]) -> None:
    assert read_spec(spec) == expected


@pytest.mark.parametrize(
    "spec", ["", "x", "-1", "4:", "4:A100:", "4:A100:0", "4:A100:lots", "4:A100:80:x", "1025", "99999:A100"]
)
def test_an_invalid_spec_is_quoted_with_an_example(spec: str) -> None:
    with pytest.raises(NoSuchInventory, match="4:RTX4090:24") as refusal:
        read_spec(spec)
    assert repr(spec) in str(refusal.value)


def test_virtual_gpus_have_the_same_uuids_at_every_start_and_others_on_other_nodes() -> None:
    assert Virtual("2", "a").devices() == Virtual("2", "a").devices()
    assert not {card.uuid for card in Virtual("2", "a").devices()} & {card.uuid for card in Virtual("2", "b").devices()}


def test_virtual_gpus_are_busy_while_something_runs_on_them() -> None:
    running: dict[int, int] = {}
    cards = Virtual("2", "a", lambda: running)
    assert [use.utilization_percent for use in cards.use()] == [0.0, 0.0]
    running[1] = 0
    assert [use.utilization_percent for use in cards.use()] == [0.0, 100.0]


def test_a_virtual_gpu_uses_the_memory_that_its_tasks_declare_and_not_more_than_it_has() -> None:
    running = {0: 0, 1: 6000, 2: 999_999}
    cards = Virtual("4", "a", lambda: running)
    assert [use.memory_used_mib for use in cards.use()] == [0, 6000, 24 * 1024, 0]


def test_a_busy_virtual_gpu_raises_no_alert_by_itself() -> None:
    now = [0.0]
    cards = Virtual("1", "a", lambda: {0: 0}, lambda: now[0])
    now[0] = 3600.0
    (use,), (device,) = cards.use(), cards.devices()
    assert use.memory_used_mib is not None
    assert use.memory_used_mib / device.memory_mib * 100 < BUILT_IN["gpu_memory_full"].threshold
    assert use.temperature_c is not None
    assert use.temperature_c < BUILT_IN["gpu_hot"].threshold
    assert use.utilization_percent is not None
    assert use.utilization_percent > BUILT_IN["idle_gpu_held"].threshold


# --- choosing


def test_requested_virtual_gpus_are_used() -> None:
    assert [card.virtual for card in detect("auto", node="a", virtual="2").devices()] == [True, True]


def test_a_node_may_have_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        detect("nvml", node="a")
    except NoSuchInventory:
        assert detect("auto", node="a").devices() == ()
    else:
        pytest.skip("this one has")


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NoSuchInventory, match=r"'magic'.*auto, nvml, nvidia-smi, virtual"):
        detect("magic", node="a")


def test_an_nvidia_smi_that_only_prints_a_table_suggests_virtual_gpus(tmp_path: Path) -> None:
    """As the test script of the legacy system does."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text('#!/bin/sh\necho "NVIDIA-SMI 550.54.15    Driver Version: 550.54.15"\necho "+------+"\n')
    fake.chmod(0o755)
    with pytest.raises(NoSuchInventory) as wrong:
        NvidiaSmi(str(fake))
    sentence = str(wrong.value)
    assert "beginning with: NVIDIA-SMI 550.54.15" in sentence
    assert sentence.endswith('set gpu.detection_method: virtual and gpu.virtual: "4:V100:32".')
    assert "+---" not in sentence


def test_a_virtual_gpu_warms_up_and_cools_down() -> None:
    running, now = dict[int, int](), [0.0]
    cards = Virtual("2", "a", lambda: running, lambda: now[0])

    def celsius(seconds: float) -> list[float | None]:
        now[0] += seconds
        return [use.temperature_c for use in cards.use()]

    assert celsius(100) == [30, 30]
    running[1] = 0
    first, later, last = celsius(10)[1], celsius(10)[1], celsius(600)[1]
    assert first is not None
    assert later is not None
    assert 30 < first < later < 65
    assert last == pytest.approx(65)
    running.clear()
    assert celsius(600) == pytest.approx([30, 30], abs=0.01)
