"""A worker as a process: `python -m gpuyard.plan.workers.process FD SPOOL LARGE`.

It receives the runtimes to prepare and then orders on a socket, and sends replies there. A thread reads the socket:
when the other end closes it, the process ends at once with everything that it started, whatever a model does. Orders
are executed one by one; loads and unloads that may run beside calls have a thread of their own. Results are pickled here and unpickled where they are used; large ones are stored in a file in the folder of the run.
"""

import os
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from gpuyard.plan.workers.model_host import ModelHost
from gpuyard.plan.workers.order import Order
from gpuyard.plan.workers.packed import pack
from gpuyard.plan.workers.runtimes import prepare


def main() -> None:
    """Execute orders until the other end closes the socket."""
    connection = Connection(int(sys.argv[1]))
    spool, large = Path(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a notice to the task that this worker is part of, or to its parent
    os.dup2(2, 1)  # output of models must not mix with that of the parent process
    prepare(connection.recv())
    orders: SimpleQueue[Order] = SimpleQueue()
    beside: SimpleQueue[Order] = SimpleQueue()
    Thread(target=_read, args=(connection, orders, beside), daemon=True).start()
    host, sending = ModelHost(), Lock()
    connection.send(None)

    def execute(some: "SimpleQueue[Order]") -> None:
        while True:
            order = some.get()
            path = spool / f"{os.getpid()}-{order.operation}"
            reply = host.execute(order, partial(pack, path=path, large=large))
            with sending:
                connection.send(reply)

    Thread(target=execute, args=(beside,), daemon=True).start()
    execute(orders)


def _read(connection: Connection, orders: "SimpleQueue[Order]", beside: "SimpleQueue[Order]") -> None:
    try:
        while True:
            order: Order = connection.recv()
            (beside if order.beside else orders).put(order)
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
