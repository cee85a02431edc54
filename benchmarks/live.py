"""The live cluster compared with its peers, in one run.

    .venv/bin/python benchmarks/live.py [--tasks 500] [--json FILE] [--only NAME,...]

Trivial tasks through gpuyard, task-spooler, HyperQueue, simple-gpu-scheduler and Slurm, each with four slots on this
machine; then what only gpuyard is measured for: durable submissions a second, from submission to process, two hundred agents,
a restart with a long history, and the cost of an idle cluster. A peer that is not installed is named with the
command that installs it. Everything uses loopback, is bounded in count and time, and is removed at the end.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpuyard.live.sdk import Client, Unreachable, connect  # noqa: E402
from tests.acceptance.live import free_port  # noqa: E402
from tests.acceptance.waiting import until  # noqa: E402

SLOTS = 4
FOLDERS = tempfile.TemporaryDirectory()
Row = dict[str, Any]


@contextmanager
def fresh_folder() -> Iterator[str]:
    """A new folder, removed at the end of the whole run: ext4 creates files slowly where many were just removed."""
    yield tempfile.mkdtemp(dir=FOLDERS.name)


@contextmanager
def running_cluster(folder: Path, gpus: str = f"{SLOTS}") -> Iterator[tuple[Client, int, subprocess.Popen[bytes]]]:
    """`gpuyard up` on free ports; its client, its HTTP port and its process."""
    http, grpc = free_port(), free_port()
    command = [
        sys.executable, "-m", "gpuyard.cli", "up", "--data-dir", str(folder),
        "--http-address", f"127.0.0.1:{http}", "--grpc-address", f"127.0.0.1:{grpc}", "--virtual-gpus", gpus,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    client = connect(f"http://127.0.0.1:{http}")

    def has_gpus() -> bool:
        with suppress(Unreachable):
            return client.gpus().total > 0
        return False

    try:
        until(has_gpus, 60, "the cluster is up")
        yield client, http, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        stop = [sys.executable, "-m", "gpuyard.cli", "down", "--stop-tasks", "--data-dir", str(folder)]
        subprocess.run(stop, capture_output=True, timeout=60, check=False)


def left(line: HTTPConnection) -> int:
    """Open tasks, by the cheapest query."""
    line.request("GET", "/api/stats")
    told = json.load(line.getresponse())
    return int(told["pending_tasks"]) + int(told["running_tasks"])


def wait_for_all(http: int) -> None:
    """Until no task is open; asked on one connection, and seldom while there are many, so that asking costs little."""
    with closing(HTTPConnection("127.0.0.1", http, timeout=30)) as line:
        while many := left(line):
            time.sleep(0.05 if many > 50 else 0.005)


# --- trivial tasks ----------------------------------------------------------------------------------------------------


def gpuyard_trivial(tasks: int) -> Row:
    """Submitted in one call, run as real processes, ends durable."""
    with fresh_folder() as folder, running_cluster(Path(folder)) as (client, http, _):
        client.wait(client.submit_many([{"command": ["true"], "gpu_count": 1}] * 100))
        began = time.perf_counter()
        client.submit_many([{"command": ["true"], "gpu_count": 1}] * tasks)
        wait_for_all(http)
        return {"tasks_per_s": tasks / (time.perf_counter() - began)}


def task_spooler(tasks: int) -> Row:
    """`tsp -n true`, one client process for each task: that is how it is used."""
    with fresh_folder() as folder:
        env = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TS_MAXFINISHED": "10"}

        def tsp(*words: str) -> str:
            return subprocess.run(["tsp", *words], env=env, capture_output=True, text=True, check=True).stdout

        tsp("-S", str(SLOTS))
        began = time.perf_counter()
        for _ in range(tasks):
            tsp("-n", "true")
        while any(word in tsp() for word in ("running", "queued")):
            time.sleep(0.005)
        rate = tasks / (time.perf_counter() - began)
        tsp("-K")
        return {"tasks_per_s": rate}


HYPERQUEUE = """
import sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=int(sys.argv[2])))
    client = cluster.client()
    for count in (20, int(sys.argv[1])):
        job = Job()
        for _ in range(count):
            job.program(["true"], stdout=None, stderr=None)
        began = time.perf_counter()
        submitted = client.submit(job)
        client.wait_for_jobs([submitted])
        took = time.perf_counter() - began
    print(int(sys.argv[1]) / took)
"""


def hyperqueue(tasks: int, python: str) -> Row:
    """One job of so many tasks, without output files. Its client asks once a second whether the job is over."""
    with fresh_folder() as folder:
        done = subprocess.run(
            [python, "-c", HYPERQUEUE, str(tasks), str(SLOTS)], cwd=folder, capture_output=True, text=True, check=True
        )
    return {"tasks_per_s": float(done.stdout.split()[-1])}


def simple_gpu_scheduler(tasks: int, command: str) -> Row:
    """Commands on its standard input; it keeps nothing."""
    gpus = [str(gpu) for gpu in range(SLOTS)]
    began = time.perf_counter()
    subprocess.run([command, "--gpus", *gpus], input="true\n" * tasks, text=True, capture_output=True, check=True)
    return {"tasks_per_s": tasks / (time.perf_counter() - began)}


SLURM = """ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={first}
SlurmdPort={second}
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,default_queue_depth=10000,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MaxArraySize=10001
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def slurm(tasks: int) -> Row:
    """One job array, with the scheduler configured not to wait between decisions. Needs root; at most 100 tasks: it takes long."""
    tasks = min(tasks, 100)
    with fresh_folder() as folder:
        settings = Path(folder) / "slurm.conf"
        host = socket.gethostname()
        settings.write_text(SLURM.format(host=host, folder=folder, first=free_port(), second=free_port(), slots=SLOTS))
        (Path(folder) / "state").mkdir()
        (Path(folder) / "spool").mkdir()
        env = {**os.environ, "SLURM_CONF": str(settings)}

        def call(*words: str) -> str:
            return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout

        daemons = [
            subprocess.Popen(
                [name, "-D", "-f", str(settings)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for name in ("slurmctld", "slurmd")
        ]
        try:
            until(lambda: "idle" in call("sinfo", "-h"), 60, "Slurm is up")
            began = time.perf_counter()
            call("sbatch", f"--array=0-{tasks - 1}", "-o", "/dev/null", "--wrap", "true")
            until(lambda: not call("squeue", "-h").strip(), 120, "all jobs of Slurm ended")
            return {"tasks_per_s": tasks / (time.perf_counter() - began)}
        finally:
            for daemon in daemons:
                daemon.terminate()
                daemon.wait(20)


# --- submissions ------------------------------------------------------------------------------------------------------

SUBMITTER = """
import asyncio, json, sys
port, connections, each, batch = map(int, sys.argv[1:5])
task = {"command": "true", "gpu_count": 1, "gpu_model": "none-such"}
body = json.dumps({"tasks": [task] * batch} if batch else task).encode()
path = "/api/v1/tasks:batch" if batch else "/api/v1/tasks"
request = (f"POST {path} HTTP/1.1\\r\\nHost: localhost:{port}\\r\\nContent-Type: application/json\\r\\n"
           f"Content-Length: {len(body)}\\r\\n\\r\\n").encode() + body
async def client():
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(each):
        writer.write(request)
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        assert head.startswith(b"HTTP/1.1 201"), head
        size = next(int(line.split(b":")[1]) for line in head.split(b"\\r\\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(size)
    writer.close()
async def all_of_them():
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(client() for _ in range(connections)))
    print(connections * each * (batch or 1) / (loop.time() - began))
asyncio.run(all_of_them())
"""


def _submit(connections: int, each: int, batch: int) -> Row:
    """The best of three; the client is a process beside it, every answer is durable and read."""
    with fresh_folder() as folder, running_cluster(Path(folder)) as (_client, http, _process):
        rates = []
        for _ in range(3):
            words = [sys.executable, "-c", SUBMITTER, str(http), str(connections), str(each), str(batch)]
            rates.append(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
        return {"submits_per_s": max(rates), "all": [round(rate) for rate in rates]}


def single_submits(_: int) -> Row:
    """One task a request, 32 connections kept open."""
    return _submit(32, 150, 0)


def batched_submits(_: int) -> Row:
    """1,000 tasks a request, two connections."""
    return _submit(2, 6, 1000)


def submit_to_start(_: int) -> Row:
    """From before the request to the first thing the process does, one task at a time."""
    with fresh_folder() as folder, running_cluster(Path(folder)) as (client, _http, _process):
        delays = []
        for _ in range(120):
            began = time.time()
            task = client.submit(["date", "+%s.%N"], gpu_count=1)
            client.wait(task)
            delays.append((float(b"".join(client.logs(task))) - began) * 1000)
        delays = sorted(delays[20:])
        return {"p50_ms": statistics.median(delays), "p99_ms": delays[98]}


# --- many agents ------------------------------------------------------------------------------------------------------

PLAYERS = """
import asyncio, sys
import grpc.aio, uvloop
from gpuyard.testing.fake_node import FakeNode
address, token, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
async def play():
    channels = [grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(8)]
    nodes = [FakeNode(f"node-{place:03}", 8, join_token=token, runs_for=0.2) for place in range(count)]
    await asyncio.gather(*(node.play(address, channels[place % 8]) for place, node in enumerate(nodes)))
uvloop.run(play())
"""


def many_agents(_: int, agents: int = 200, rate: int = 1000, seconds: int = 20) -> Row:
    """200 simulated agents with 8 GPUs each in one process over real gRPC, at 1,000 tasks a second."""
    with fresh_folder() as folder:
        http, grpc = free_port(), free_port()
        settings = Path(folder) / "scheduler.yaml"
        settings.write_text(
            f"server: {{http_address: '127.0.0.1:{http}', grpc_address: '127.0.0.1:{grpc}'}}\n"
            f"storage: {{data_dir: {folder}/data}}\nauth: {{join_token: join}}\nquota: {{mode: borrow}}\n"
            f"logging: {{output: {folder}/log}}\n"
        )
        server = subprocess.Popen([sys.executable, "-m", "gpuyard.cli", "server", "--config", str(settings)])
        players = None
        try:
            client = connect(f"http://127.0.0.1:{http}")
            until(lambda: _total(client) >= 0, 30, "the scheduler is up")
            words = [sys.executable, "-c", PLAYERS, f"127.0.0.1:{grpc}", "join", str(agents)]
            players = subprocess.Popen(words)
            until(lambda: _total(client) == agents * 8, 60, f"{agents} agents")
            time.sleep(2)
            before, began, submitted = _cpu(server.pid), time.perf_counter(), 0
            batch = [{"command": ["true"], "gpu_count": 1}] * (rate // 10)
            while (passed := time.perf_counter() - began) < seconds:
                if submitted < passed * rate:
                    client.submit_many(batch)
                    submitted += len(batch)
                else:
                    time.sleep(0.01)
            cores = (_cpu(server.pid) - before) / (time.perf_counter() - began)
            ended = time.perf_counter()
            wait_for_all(http)
            return {
                "agents": agents,
                "tasks_per_s": submitted / seconds,
                "scheduler_cores": cores,
                "scheduler_mib": _rss(server.pid) / 2**20,
                "behind_s": time.perf_counter() - ended,
            }
        finally:
            for process in (players, server):
                if process is not None:
                    process.terminate()
                    process.wait(20)


def _total(client: Client) -> int:
    with suppress(Unreachable):
        return client.gpus().total
    return -1


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0.0


# --- restart and idle -------------------------------------------------------------------------------------------------


def restart(_: int, open_tasks: int = 10_000, ended: int = 1_000_000) -> Row:
    """Killed with 10,000 open tasks and so many ended ones in the archive; how long until it answers /readyz again."""
    from gpuyard.core.domain.values import TaskClass, TaskId, TaskStatus, TenantId
    from gpuyard.live.control_plane.stores.archive import Archive
    from gpuyard.live.control_plane.stores.archive import ArchiveRow as Ended

    with fresh_folder() as folder:
        path = Path(folder)
        with running_cluster(path) as (client, _http, _process):
            for _ in range(open_tasks // 1000):
                client.submit_many([{"command": "true", "gpu_count": 1, "gpu_model": "none-such"}] * 1000)
        archive = Archive.open(path / "archive.sqlite")
        answer = json.dumps(
            {
                "task_id": "task-1",
                "tenant_id": "lab",
                "user": "ann",
                "project": "",
                "name": "",
                "command": "true",
                "gpu_count": 1,
                "nodes": 1,
                "gpu_fraction": None,
                "reason_code": "succeeded",
                "run_seconds": 1.0,
                "status": "success",
                "padding": "x" * 700,
            }
        ).encode()
        for first in range(0, ended, 5000):
            archive.add(
                [
                    Ended(
                        TaskId(10_000_000 + first + place), TenantId("lab"), TaskStatus.SUCCESS, TaskClass.BATCH, 50,
                        "ann", "", "", 1.0, time.time(), answer,
                    )
                    for place in range(5000)
                ],
                archive.seq,
            )  # fmt: skip
        archive.close()
        began = time.perf_counter()
        with running_cluster(path) as (client, http, _process):
            ready = time.perf_counter() - began
            return {
                "ready_s": ready,
                "open": left(HTTPConnection("127.0.0.1", http)),
                "ended": ended,
                "note": "with the start of Python and of the agent",
            }


def idle(_: int, seconds: int = 20) -> Row:
    """Scheduler, agent and supervisor together while nothing happens."""
    with fresh_folder() as folder, running_cluster(Path(folder)) as (client, _http, process):
        client.wait(client.submit(["true"], gpu_count=1))
        time.sleep(5)
        pids = [process.pid, *_below(process.pid), *_supervisors(folder)]
        before = {pid: _cpu(pid) for pid in pids}
        time.sleep(seconds)
        used = sum(_cpu(pid) - before[pid] for pid in pids)
        return {
            "core_percent": 100 * used / seconds,
            "mib": sum(_rss(pid) for pid in pids) / 2**20,
            "processes": len(pids),
        }


def _below(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [int(child) for child in found]


def _supervisors(folder: str) -> list[int]:
    words = ["pgrep", "-f", f"gpuyard.live.agent.supervisor --folder {folder}"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return [int(pid) for pid in found if int(pid) != os.getpid()]


# --- all of it --------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5, help="of the trivial tasks; the median of each counts")
    parser.add_argument("--ended", type=int, default=1_000_000)
    parser.add_argument("--peers", default=str(ROOT / "build" / "peers"), help="a virtual environment with the peers")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    bin_ = Path(asked.peers) / "bin"
    peers: dict[str, tuple[Callable[[int], Row], bool, str]] = {
        "gpuyard": (gpuyard_trivial, True, ""),
        "task-spooler": (task_spooler, shutil.which("tsp") is not None, "apt-get install task-spooler"),
        "HyperQueue": (
            lambda tasks: hyperqueue(tasks, str(bin_ / "python")),
            any(bin_.parent.glob("lib/*/site-packages/hyperqueue")),
            f"python3 -m venv {asked.peers} && {bin_}/pip install hyperqueue simple-gpu-scheduler",
        ),
        "simple-gpu-scheduler": (
            lambda tasks: simple_gpu_scheduler(tasks, str(bin_ / "simple_gpu_scheduler")),
            (bin_ / "simple_gpu_scheduler").exists(),
            "as HyperQueue",
        ),
        "Slurm": (
            slurm,
            shutil.which("slurmctld") is not None and os.geteuid() == 0,
            "as root: apt-get install slurm-wlm",
        ),
    }
    own: dict[str, Callable[[int], Row]] = {
        "single submits": single_submits,
        "batched submits": batched_submits,
        "submit to start": submit_to_start,
        "200 agents": many_agents,
        "restart": lambda tasks: restart(tasks, ended=asked.ended),
        "idle": idle,
    }
    chosen = [name.strip() for name in asked.only.split(",") if name.strip()]
    result: dict[str, Row] = {}
    for round_ in range(asked.rounds):
        for name, (measure, there, how) in peers.items():
            if chosen and name not in chosen:
                continue
            if not there:
                result[name] = {"not installed": how}
                continue
            print(f"trivial tasks, round {round_ + 1}: {name}", file=sys.stderr, flush=True)
            rate = measure(asked.tasks)["tasks_per_s"]
            row = result.setdefault(name, {"tasks_per_s": 0.0, "all": []})
            row["all"].append(round(rate))
            row["tasks_per_s"] = statistics.median(row["all"])
    for name, measure in own.items():
        if not chosen or name in chosen:
            print(name, file=sys.stderr, flush=True)
            result[name] = measure(asked.tasks)
    text = json.dumps(result, indent=2, default=str)
    print(text)
    if asked.json:
        Path(asked.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
