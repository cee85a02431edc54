"""A fake nvidia-smi for machines without GPUs: a script that answers our queries as a driver would."""

import json
import sys
from pathlib import Path

GPU_HEADER = "index, uuid, name, memory.total [MiB], pci.bus_id, driver_version"
USE_HEADER = (
    "index, utilization.gpu [%], memory.used [MiB], temperature.gpu, power.draw [W], power.limit [W], fan.speed [%]"
)
PROCESS_HEADER = "gpu_uuid, pid, used_gpu_memory [MiB]"

TWO_GPUS = {
    "gpu=index,uuid": f"""{GPU_HEADER}
0, GPU-aaaa, NVIDIA GeForce RTX 4090, 24564 MiB, 00000000:01:00.0, 550.54.14
1, GPU-bbbb, NVIDIA GeForce RTX 4090, 24564 MiB, 00000000:C1:00.0, 550.54.14
""",
    "gpu=index,utilization": f"""{USE_HEADER}
0, 97 %, 20110 MiB, 71, 402.15 W, 450.00 W, 64 %
1, 0 %, 1 MiB, 33, 21.02 W, 450.00 W, 30 %
""",
    "compute-apps": "gpu_uuid, pid, used_gpu_memory [MiB]\nGPU-aaaa, 4711, 20096 MiB\n",
    "topo": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-31\nGPU1\tSYS\t X \t0-31\n",
}


def fake_smi(folder: Path, answers: dict[str, str], exit_code: int = 0) -> str:
    """Write it; the answer to a question is the first one whose key stands in the question."""
    script = folder / "nvidia-smi"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"answers = json.loads({json.dumps(answers)!r})\n"
        "question = ' '.join(sys.argv[1:])\n"
        "print(next((answers[key] for key in answers if key in question), ''), end='')\n"
        f"sys.exit({exit_code})\n"
    )
    script.chmod(0o755)
    return str(script)
