"""Finds GPUs with the command `nvidia-smi`, for nodes where NVML cannot be loaded. Each query starts a process."""

import csv
import re
import shutil
import subprocess

from gpuyard.live.agent.inventory.pci import address, groups, numa_of
from gpuyard.live.agent.inventory.port import GpuDevice, GpuProcess, GpuUsage, NoSuchInventory

_SECONDS = 20.0
_CARD_FIELDS = ("index", "uuid", "name", "memory.total", "pci.bus_id", "driver_version")
_USE_FIELDS = ("index", "utilization.gpu", "memory.used", "temperature.gpu", "power.draw", "power.limit", "fan.speed")
_PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")
_SAYS_NOTHING = re.compile(
    r"\[?(N/A|Not Supported|Unknown Error|Insufficient Permissions|Not Found|GPU requires reset)\]?"
)
_NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)(?: ?(%|MiB|W|C))?")


class NvidiaSmi:
    """The command, found on the path or named."""

    def __init__(self, command: str = "nvidia-smi") -> None:
        found = shutil.which(command)
        if found is None:
            raise NoSuchInventory(f"The command {command} was not found on this node. Install the NVIDIA driver.")
        self._command = found
        self._devices = self._find()

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs found at the start."""
        return self._devices

    def use(self) -> list[GpuUsage]:
        """Query all GPUs with two commands. A GPU missing in the answer is broken; if a command fails, all are."""
        try:
            rows = {int(row[0]): row for row in self._ask("gpu", _USE_FIELDS)}
            processes = self._processes()
        except NoSuchInventory as error:
            return [GpuUsage(device.index, broken=str(error)) for device in self._devices]
        return [
            _use(device.index, rows[device.index], processes.get(device.uuid, ()))
            if device.index in rows
            else GpuUsage(device.index, broken=f"nvidia-smi no longer lists GPU {device.index}.")
            for device in self._devices
        ]

    def _find(self) -> tuple[GpuDevice, ...]:
        rows = self._ask("gpu", _CARD_FIELDS)
        nvlink = groups(len(rows), self._links(len(rows)))
        devices = []
        for place, row in enumerate(rows):
            index, memory = _number(row[0]), _number(row[3])
            if index != place or memory is None or not row[1].startswith("GPU-"):
                raise NoSuchInventory(f"nvidia-smi printed an unexpected GPU: {', '.join(row)}.")
            pci = address(row[4])
            devices.append(GpuDevice(place, row[1], row[2], int(memory), pci, numa_of(pci), nvlink[place], row[5]))
        return tuple(devices)

    def _processes(self) -> dict[str, tuple[GpuProcess, ...]]:
        """Return the compute processes by GPU. nvidia-smi does not list graphics processes in this form."""
        found: dict[str, tuple[GpuProcess, ...]] = {}
        for uuid, pid, memory in self._ask("compute-apps", _PROCESS_FIELDS):
            if (number := _number(pid)) is not None:
                found[uuid] = (*found.get(uuid, ()), GpuProcess(int(number), int(_number(memory) or 0), display=False))
        return found

    def _links(self, count: int) -> set[tuple[int, int]]:
        """Return the pairs of GPUs that the topology matrix joins with NVn; empty if the driver prints none."""
        try:
            drawing = self._run("topo", "-m")
        except NoSuchInventory:
            return set()
        linked = set()
        for line in drawing.splitlines():
            words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
            if len(words) > count and (row := re.fullmatch(r"GPU([0-9]+)", words[0])) and "X" in words:
                here = int(row[1])
                linked |= {
                    (min(here, there), max(here, there))
                    for there, word in enumerate(words[1 : count + 1])
                    if re.fullmatch(r"NV[0-9]+", word)
                }
        return linked

    def _ask(self, what: str, fields: tuple[str, ...]) -> list[list[str]]:
        """Return the rows of an answer, each with one cell per field."""
        answer = self._run(f"--query-{what}={','.join(fields)}", "--format=csv")
        rows = [row for row in csv.reader(answer.splitlines(), skipinitialspace=True) if row]
        rows = [[cell.strip() for cell in row] for row in rows]
        header = [cell.split(" [")[0] for cell in rows[0]] if rows else []
        if not rows or len(header) != len(fields) or header[0] != fields[0]:
            if what != "gpu":  # without compute processes some drivers print nothing, or a sentence
                return []
            began = next((line.strip()[:80] for line in answer.splitlines() if line.strip()), "nothing")
            raise NoSuchInventory(
                f"nvidia-smi printed unexpected output, beginning with: {began}. Check that it is the "
                "program of NVIDIA. For virtual GPUs, set gpu.detection_method: virtual and "
                'gpu.virtual: "4:V100:32".'
            )
        for row in rows[1:]:
            if len(row) != len(fields):
                raise NoSuchInventory(f"nvidia-smi printed an unexpected line: {', '.join(row)}.")
        return rows[1:]

    def _run(self, *arguments: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - the administrator's own command
                [self._command, *arguments],
                capture_output=True,
                timeout=_SECONDS,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise NoSuchInventory(f"nvidia-smi did not answer within {_SECONDS:.0f} s. The driver may hang.") from None
        except OSError as error:
            raise NoSuchInventory(f"nvidia-smi cannot be started: {error}.") from error
        if done.returncode:
            words = (done.stdout + done.stderr).strip().splitlines()
            raise NoSuchInventory(f"nvidia-smi failed: {words[-1] if words else f'exit code {done.returncode}'}")
        return done.stdout


def _use(index: int, row: list[str], processes: tuple[GpuProcess, ...]) -> GpuUsage:
    utilization, memory, temperature, power, limit, fan = (_number(cell) for cell in row[1:])
    return GpuUsage(
        index, utilization, None if memory is None else int(memory), temperature, power, limit, fan, processes
    )  # fmt: skip


def _number(cell: str) -> float | None:
    """Parse a figure with or without its unit; None if the driver reports that it has none."""
    if _SAYS_NOTHING.fullmatch(cell):
        return None
    match = _NUMBER.fullmatch(cell)
    if match is None:
        raise NoSuchInventory(f"nvidia-smi printed an unexpected number: {cell!r}.")
    return float(match[1])
