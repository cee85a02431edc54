"""A cluster task that holds one GPU for a plan: `python -m gpuyard.plan.workers.gpu_placeholder SOCKET SLOT`.

It reports which GPU it was given to the process that follows the plan. To reclaim the GPU, the scheduler sends SIGTERM,
as to any task; this task passes the notice on, and ends when it is told that the GPU is free or when the connection
closes. So the scheduler does not give the GPU to another task before the plan's worker has left it.
"""

import os
import signal
import socket
import sys

NOTICE, FREE = b"notice\n", b"free\n"


def main() -> int:
    """Hold the GPU until the other end releases it."""
    path, slot = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(path)
        except OSError as error:
            print(
                (
                    "This task holds a GPU for a plan, but the process that executes the plan is not on "
                    f"this machine: {error}"
                ),
                file=sys.stderr,
            )
            return 1
        signal.signal(signal.SIGTERM, lambda *_: line.send(NOTICE))
        line.sendall(f"{slot} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}\n".encode())
        line.recv(len(FREE))  # resumes after a signal
    return 0


if __name__ == "__main__":
    sys.exit(main())
