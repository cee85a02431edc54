"""A worker as a process: `python -m gpuyard.plan.workers.process FD SPOOL LARGE`.

It receives the runtimes to prepare and then orders on a socket, and sends replies there. A thread reads the socket:
when the other end closes it, the process ends at once with everything that it started, whatever a model does. Results
are pickled here and unpickled where they are used; large ones are stored in a file in the folder of the run.
"""

import os
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from gpuyard.plan.workers.model_host import ModelHost
from gpuyard.plan.workers.order import Order
from gpuyard.plan.workers.packed import pack
from gpuyard.plan.workers.runtimes import prepare


def main() -> None:
    """Execute orders until the other end closes the socket."""
    connection = Connection(int(sys.argv[1]))
    spool, large = Path(sys.argv[2]), int(sys.argv[3])
    os.dup2(2, 1)  # output of models must not mix with that of the parent process
    prepare(connection.recv())
    orders: SimpleQueue[Order] = SimpleQueue()
    Thread(target=_read, args=(connection, orders), daemon=True).start()
    host = ModelHost()
    connection.send(None)
    while True:
        order = orders.get()
        path = spool / f"{os.getpid()}-{order.operation}"
        connection.send(host.execute(order, partial(pack, path=path, large=large)))


def _read(connection: Connection, orders: "SimpleQueue[Order]") -> None:
    try:
        while True:
            orders.put(connection.recv())
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
