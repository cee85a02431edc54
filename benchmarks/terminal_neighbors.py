"""One user's terminal while another user floods the scheduler: the time from a key to its echo.

    .venv/bin/python -m benchmarks.terminal_neighbors [--channels 16] [--keys 200] [--json]

Starts a scheduler and an agent on this machine. The other user has so many shells in which `yes` runs, or downloads
through `forward`, and reads all of it, or nothing. Its client has the lowest priority of the machine (nice 19), but takes
processor time nevertheless. Beside the echo it measures how long the scheduler needs for `GET /api/v1/quota`.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpuyard.live.sdk import Client, ClusterError, Task, connect
from gpuyard.live.sdk.console import ConsoleOutput, TaskConsole
from tests.acceptance.live import Cluster
from tests.acceptance.waiting import until
from tests.ports import free_port

USERS = ("ann", "eve")
KINDS = ("nothing", "shells, not read", "downloads, not read", "shells, read", "downloads, read")
PAUSE_SECONDS = 0.02
READ_BYTES = 1 << 16
DOWNLOAD = (
    "import socket,threading\n"
    "s=socket.create_server(('127.0.0.1',{port}))\n"
    "def give(c):\n"
    "  while True: c.sendall(bytes(65536))\n"
    "while True: threading.Thread(target=give,args=(s.accept()[0],),daemon=True).start()"
)


def echo_ms(console: TaskConsole, client: Client, keys: int) -> dict[str, float]:
    """Return the times of keys and requests."""
    echoes, requests = [], []
    for number in range(keys):
        key = b"%c" % (97 + number % 26)
        began = time.perf_counter()
        console.type(key)
        while not any(isinstance(event, ConsoleOutput) for event in console.read()):
            select.select([console], [], [], 10)
        echoes.append(1000 * (time.perf_counter() - began))
        console.acknowledge()
        if number % 10 == 0:
            began = time.perf_counter()
            client.quota()
            requests.append(1000 * (time.perf_counter() - began))
        time.sleep(PAUSE_SECONDS)
    echoes.sort()
    return {
        "echo_ms_p50": round(statistics.median(echoes), 2),
        "echo_ms_p99": round(echoes[int(len(echoes) * 0.99)], 2),
        "request_ms_p50": round(statistics.median(requests), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def flood(kind: str, count: int, task: str, port: int) -> None:
    """Be the other user, until the end of standard input. Prints a line when everything is open."""
    os.nice(19)
    client = connect(os.environ["GPUYARD_SERVER"], token=os.environ["GPUYARD_TOKEN"])
    poll = select.poll()
    readers: dict[int, Any] = {}
    for _ in range(count):
        channel: Any
        if kind.startswith("shells"):
            channel = client.shell(
                task, ["sh", "-c", "stty -opost; exec yes 0123456789012345678901234567890123456789"], linger_seconds=0.0
            )
            channel.connect()
        else:
            channel = client.forward(client.task(task), port)
        readers[channel.fileno()] = channel
        poll.register(channel.fileno(), select.POLLIN)
    print("open", flush=True)
    poll.register(0, select.POLLIN)
    got, began = 0, time.monotonic()
    if not kind.endswith(", read"):
        sys.stdin.read()
        return
    while True:
        for number, _ in poll.poll():
            if number == 0:
                print(round(got / (time.monotonic() - began) / 1e6, 1), flush=True)
                return
            channel = readers[number]
            for event in channel.read():
                got += len(event.data if isinstance(event, ConsoleOutput) else event)
            if isinstance(channel, TaskConsole):
                channel.acknowledge()


def measure(cluster: Cluster, tokens: dict[str, str], count: int, keys: int) -> dict[str, dict[str, float]]:
    """Measure all kinds of neighbors, one after the other."""
    url = f"http://127.0.0.1:{cluster.http}"
    ann, eve = (connect(url, token=tokens[name]) for name in USERS)
    port = free_port()
    mine = ann.submit("exec sleep 3600", gpus=1)
    other = eve.submit(["python3", "-c", DOWNLOAD.format(port=port)], gpus=1)
    until(lambda: ann.task(mine).started_at and eve.task(other).started_at, what="both tasks run")
    until(lambda: _listens(eve, other, port), what="it listens")
    console = ann.shell(mine, ["sh", "-c", "stty raw -echo; exec cat"])
    console.connect()
    until(lambda: console.read() is not None and console.attached and console.writes, what="it is attached")
    console.type(b"!")
    until(lambda: any(isinstance(event, ConsoleOutput) for event in console.read()), what="it answers")
    results = {}
    for kind in KINDS:
        if kind == "nothing":
            results[kind] = echo_ms(console, ann, keys)
            continue
        words = ["--flood", kind, "--channels", str(count), "--task", other.id, "--port", str(port)]
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.terminal_neighbors", *words], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "GPUYARD_SERVER": url, "GPUYARD_TOKEN": tokens["eve"]},
        ) as flooding:  # fmt: skip
            assert flooding.stdin is not None
            assert flooding.stdout is not None
            assert flooding.stdout.readline() == "open\n"
            results[kind] = echo_ms(console, ann, keys)
            results[kind]["scheduler_mb"] = _memory_mb(cluster)
            flooding.stdin.close()
            if speed := flooding.stdout.readline():
                results[kind]["other_mb_per_second"] = float(speed)
    console.close()
    return results


def _listens(client: Client, task: Task, port: int) -> bool:
    with suppress(ClusterError):
        return port in {one.port for one in client.ports(task).ports}
    return False


def _memory_mb(cluster: Cluster) -> float:
    """Return the resident memory of the scheduler."""
    assert cluster.server is not None
    status = Path(f"/proc/{cluster.server.pid}/status").read_text(encoding="utf-8")
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    for hidden in ("--flood", "--task", "--port"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.flood:
        flood(asked.flood, asked.channels, asked.task, int(asked.port))
        return
    users = [
        {"username": name, "password": f"password of {name}", "role": "member", "tenant_id": name} for name in USERS
    ]
    users.append({"username": "root", "password": "password of root", "role": "admin"})
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), scheduler={"auth": {"enabled": True, "join_token": "join"}, "users": users})
        try:
            cluster.start_server()
            cluster.start_agent("node-1", shared_user=True)
            tokens = {name: until(lambda name=name: _token(cluster, name)) for name in USERS}  # type: ignore[misc]
            results = measure(cluster, tokens, asked.channels, asked.keys)
        finally:
            cluster.end()
    if asked.json:
        print(json.dumps(results))
        return
    for kind, figures in results.items():
        print(f"{kind:20} {figures}")


def _token(cluster: Cluster, name: str) -> str | None:
    with suppress(ClusterError):
        return cluster.client().login(name, f"password of {name}").token
    return None


if __name__ == "__main__":
    main()
