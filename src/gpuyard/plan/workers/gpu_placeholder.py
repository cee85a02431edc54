"""A task of the yard that holds one GPU for a plan: `python -m gpuyard.plan.workers.gpu_placeholder SOCKET SLOT`.

It tells whoever follows the plan which GPU it was given. When the yard wants that back it sends SIGTERM, as to any task;
the task passes the notice on, and ends when it is told that the GPU is free, or when nobody is there any more. So
the yard gives the GPU to nobody before the plan's worker has left it.
"""

import os
import signal
import socket
import sys

NOTICE, FREE = b"notice\n", b"free\n"


def main() -> int:
    """Hold the GPU until the other end lets go."""
    path, slot = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(path)
        except OSError as error:
            print(
                f"This task holds a GPU for a plan, and who follows it is not on this machine: {error}", file=sys.stderr
            )
            return 1
        signal.signal(signal.SIGTERM, lambda *_: line.send(NOTICE))
        line.sendall(f"{slot} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}\n".encode())
        line.recv(len(FREE))  # goes on after a signal
    return 0


if __name__ == "__main__":
    sys.exit(main())
