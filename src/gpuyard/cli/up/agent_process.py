"""The agent of `gpuyard up`: `python -m gpuyard.cli.up.agent_process CONFIG PARENT VIRTUAL_GPUS`.

It differs from `gpuyard agent` in two ways. It always ends with its parent, because the next `up` starts its own agent.
And a machine without GPUs gets virtual ones.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from msgspec.structs import replace

from gpuyard.cli.agent import read_settings, run_agent
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.agent.inventory import detect
from gpuyard.live.agent.settings import AgentSettings

PR_SET_PDEATHSIG = 1


def main(config: str, parent: str, virtual_gpus: str) -> int:
    """Run the agent to its end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return 0  # the parent ended before we could register for its death signal
    try:
        run_agent(with_gpus(read_settings(Path(config)), virtual_gpus))
    except GpuyardError as error:
        print(f"gpuyard: {error}", file=sys.stderr)
        return 1
    return 0


def with_gpus(settings: AgentSettings, virtual_gpus: str) -> AgentSettings:
    """Return the settings; if they do not mention GPUs and the machine has none, with these virtual ones."""
    gpu = settings.gpu
    if gpu.virtual or gpu.detection_method != "auto" or detect("auto", node=settings.node_id).devices():
        return settings
    return replace(settings, gpu=replace(gpu, detection_method="virtual", virtual=virtual_gpus))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
