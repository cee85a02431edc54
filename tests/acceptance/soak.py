"""A load of short tasks on real processes under faults drawn from a seed, and the promises that were broken.

The seed decides which faults happen, where, in which order, for how long and how soon after each other; the instants
within the programs depend on the machine. A fault is a generator: it breaks something, yields for how many seconds,
and repairs it. Faults of different parts overlap; those that affect everything happen alone.

Time-outs are scaled down (a node is lost after 4 s instead of 15), so that an outage longer than every one of them takes
seconds. `outages` measures with the default settings.

`ledger` says what is counted. Run it with benchmarks/soak.py; tests/acceptance/test_faults.py is a short one.
"""

import os
import random
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from gpuyard.live.sdk import Client, ClusterError, connect
from gpuyard.live.sdk.client import NewTaskFields
from tests.acceptance import ledger
from tests.acceptance.ledger import CutOff, Verdict, boot_clock
from tests.acceptance.live import Cluster
from tests.acceptance.proxy import Proxy
from tests.acceptance.waiting import until
from tests.ports import free_port

NODES, GPUS = 3, 4
TIMEOUT_SECONDS = 4.0
AWAY_SECONDS = 6.0
SHORT, LONG = (0.3, 2.5), (1.5 * TIMEOUT_SECONDS, 2.0 * TIMEOUT_SECONDS)
"""Below every time-out, and above all of them."""
RETURN_SECONDS = 2 * TIMEOUT_SECONDS
"""How long a repaired node may take until it is told what to stop: its agent has to start and connect."""
DISK_MIB = 512
MOST_WAITING = 40
MOST_OUTPUTS = 400
TWIN = "twin"
"""The name of the machine on which duplicates of nodes run."""
JUMPS_SECONDS = (-86_400, -3_600, -60, 60, 3_600, 86_400)
WALL_CLOCK = """
import mmap, os, struct, time

with open(os.environ["PYTHON_WALL_CLOCK"], "rb") as found:
    offset = mmap.mmap(found.fileno(), 8, prot=mmap.PROT_READ)
read, read_ns = time.time, time.time_ns
time.time = lambda: read() + struct.unpack("d", offset)[0]
time.time_ns = lambda: read_ns() + int(struct.unpack("d", offset)[0] * 1e9)
"""
"""What Python reads at its start in the processes of a soak. Debian's libfaketime does not do: with the monotonic clock left
alone it breaks time.sleep of Python 3.11 (EINVAL). C code still sees the true time."""
_OFFSET = struct.Struct("d")

OFTEN, SELDOM, RARELY = 8, 3, 1
"""How often a kind of fault is drawn. For a minute after a planned stop of the scheduler no node is counted as lost, so
what stops it on purpose is rare: otherwise none ever would be."""

Steps = Generator[float, None, None]
"""A fault on its way: it yields for how many seconds things stay as they are."""
Tell = Callable[[str], None]


# --- the cluster ------------------------------------------------------------------------------------------------------


class SoakCluster(Cluster):
    """A cluster whose connections, disk and clocks can fail too."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        super().__init__(folder)
        self.diary = folder / "diary"
        self.diary.mkdir()
        self.data = folder / "data"
        self.data.mkdir(mode=0o700)
        self.tell = tell
        self.standby_http, self.standby_grpc = free_port(), free_port()
        self.proxies: dict[str, Proxy] = {}
        self.second: subprocess.Popen[bytes] | None = None
        self.backup_at = 0.0
        """When the copy was made that can be put back; 0: there is none."""
        self.cut_off: list[CutOff] = []
        self.done: Counter[str] = Counter()
        self.verdict = Verdict()
        self.accepted: dict[int, tuple[int, float]] = {}
        """Token -> task number, and when its acceptance was known."""
        self.submitting = threading.Lock()
        self.has_disk = self._mount()
        self._errors_seen = 0
        self.clocks = folder / "clocks"
        self.clocks.mkdir()
        (self.clocks / "sitecustomize.py").write_text(WALL_CLOCK)

    def start(self) -> None:
        """Start everything and wait until it is ready."""
        self.start_server()
        for place in range(NODES):
            name = f"node-{place + 1}"
            self.proxies[name] = Proxy(self.grpc)
            self.start_agent(name, GPUS)
        self.ready(NODES)

    def server_settings(self) -> dict[str, Any]:
        """With short time-outs, and every event kept."""
        return super().server_settings() | {
            "agent": {"heartbeat_timeout": f"{TIMEOUT_SECONDS}s"},
            "scheduler": {"snapshot_interval": "5s"},
            "storage": {"data_dir": str(self.data), "retired_dir": str(self.data / "retired")},
        }

    def agent_settings(self, name: str, gpus: str, executor: dict[str, Any]) -> dict[str, Any]:
        """Connect through the node's proxy, with a standby scheduler."""
        settings = super().agent_settings(name, gpus, executor)
        settings["agent"]["away_timeout"] = f"{AWAY_SECONDS}s"
        settings["scheduler"]["master_address"] = f"127.0.0.1:{self.proxies[name].port}"
        settings["scheduler"]["standby_address"] = f"127.0.0.1:{self.standby_grpc}"
        return settings

    def environment(self, name: str) -> dict[str, str]:
        """With a wall clock that can be made to jump; an agent hands its own on to its supervisor."""
        path = self.folder / f"{name}.clock"
        if not path.exists():
            path.write_bytes(_OFFSET.pack(0.0))
        known = super().environment(name)
        folders = [str(self.clocks), *filter(None, [known.get("PYTHONPATH")])]
        return known | {"PYTHONPATH": os.pathsep.join(folders), "PYTHON_WALL_CLOCK": str(path)}

    def jump(self, name: str, seconds: float) -> None:
        """Let the wall clock of a process be off by so much."""
        with (self.folder / f"{name}.clock").open("r+b") as found:
            found.write(_OFFSET.pack(seconds))

    # --- the disk ----------------------------------------------------------------------------------------------------

    def _mount(self) -> bool:
        asked = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "gpuyard-soak", str(self.data)]
        return os.geteuid() == 0 and subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def limit_disk(self, *, full: bool) -> None:
        """No more space than is used now, or as much as at the beginning."""
        for spare in range(8):
            found = os.statvfs(self.data)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize + spare * 65536
            size = f"{used}" if full else f"{DISK_MIB}m"
            asked = ["mount", "-o", f"remount,size={size}", str(self.data)]
            if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
                return  # otherwise something was written meanwhile
        raise AssertionError(f"{self.data} cannot be remounted")

    # --- repair ------------------------------------------------------------------------------------------------------

    def check_alive(self, hurt: frozenset[str] = frozenset()) -> None:
        """Count what ended and was not killed, and start it again. Two ends of a scheduler are as they should be.

        A deposed one says so, and is told to go on. One that starts while its disk is full says so and ends.
        """
        if "scheduler" not in hurt and self.server is not None and self.server.poll() is not None:
            said = (self.folder / "scheduler.err").read_text(errors="replace")[self._errors_seen :]
            self._errors_seen += len(said)
            if self.last_words("server.log", "scheduler_superseded"):
                self.done["(deposed, taken over)"] += 1
                self.tell("the scheduler was deposed; it is started again with --take-over")
                self.start_server("--take-over")
                return
            if "No space is left" in said:
                self.done["(not started on a full disk)"] += 1
            else:
                sentence = f"the scheduler ended by itself with {self.server.returncode}: {said[-1000:]}"
                self.verdict.breaks("died", [sentence])
            self.start_server()
        for name, agent in self.agents.items():
            if name not in hurt and agent.poll() is not None:
                self.verdict.breaks("died", [f"the agent of {name} ended by itself with {agent.returncode}"])
                self.start_agent(name, GPUS)

    def last_words(self, log: str, word: str) -> bool:
        """Whether a log says so since the last start of its process."""
        text = (self.folder / log).read_text(errors="replace")
        return word in text[max(0, text.rfind("scheduler_started")) :]

    def log_size(self) -> int:
        """Where the scheduler's log ends."""
        return (self.folder / "server.log").stat().st_size

    def registered(self, nodes: list[str], since: int, seconds: float) -> bool:
        """Whether the scheduler has let in these nodes since its log was so long, before so many seconds have passed."""

        def all_said() -> bool:
            with (self.folder / "server.log").open("rb") as log:
                log.seek(since)
                told = [line for line in log.read().decode(errors="replace").splitlines() if "agent_registered" in line]
            return all(any(f"node_id={node} " in line for line in told) for node in nodes)

        with suppress(AssertionError):
            return until(all_said, seconds, "nodes registered")
        return False

    def end(self) -> None:
        """Away with everything, the mount too."""
        for proxy in self.proxies.values():
            proxy.end()
        self.kill(self.second)
        super().end()
        if self.has_disk:
            kept = self.folder / "data.kept"
            shutil.copytree(self.data, kept, ignore=shutil.ignore_patterns("*.sock"))
            subprocess.run(["umount", "-l", str(self.data)], check=False)


# --- the load ---------------------------------------------------------------------------------------------------------


class Load:
    """Clients that submit and read outputs; what the scheduler answered with a number counts as accepted."""

    def __init__(self, cluster: SoakCluster, draw: random.Random) -> None:
        self._cluster, self._draw = cluster, draw
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._submit_all), threading.Thread(target=self._read_all)]
        self._tokens = 0

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _submit_all(self) -> None:
        client = connect(f"http://127.0.0.1:{self._cluster.http}", timeout_seconds=20)
        while not self._over.wait(self._draw.uniform(0.05, 0.5)):
            with suppress(ClusterError, OSError, HTTPException):
                if self._cluster.count("pending") < MOST_WAITING:
                    with self._cluster.submitting:
                        self._submit(client)

    def _read_all(self) -> None:
        """Apart: a node that stands still answers late."""
        client, draw = connect(f"http://127.0.0.1:{self._cluster.http}", timeout_seconds=20), random.Random(0)
        while not self._over.wait(0.2):
            token = draw.randrange(self._tokens + 1)
            number, _ = self._cluster.accepted.get(token, (0, 0.0))
            if number:
                with suppress(OSError, HTTPException):
                    read_output(client, self._cluster.verdict, token, number)

    def _submit(self, client: Client) -> None:
        draw = self._draw
        asked: list[NewTaskFields] = []
        first = self._tokens
        shape: NewTaskFields = {
            "gpu_count": draw.choice((1, 1, 1, 2)),
            "nodes": draw.choice((1, 1, 1, 1, 1, 2)),
            "on_lost": draw.choice(("rerun", "rerun", "fence", "fence", "wait")),
            "name": "fault",
        }
        steps = draw.choice((0, 0, 0, 1, 2, 5, 10, 60))
        for _ in range(draw.choice((1, 3, 8)) if steps < 60 else 1):
            asked.append({**shape, "command": ledger.command(self._cluster.diary, self._tokens, steps)})
            self._tokens += 1
        tasks = client.submit_many(asked)
        for place, task in enumerate(tasks):
            self._cluster.accepted[first + place] = (int(task.id.removeprefix("task-")), boot_clock())


def read_output(client: Client, verdict: Verdict, token: int, number: int, *, must: bool = False) -> None:
    """Look for tokens of other tasks in the output of one; with `must`, for its own as well."""
    output = b""
    try:
        output = b"".join(client.logs(f"task-{number}"))
    except ClusterError as error:
        output = str(error).encode()
    verdict.counts["outputs read"] += 1
    if others := ledger.foreign_tokens(output, token):
        verdict.breaks("foreign output", [f"task {number} (token {token}) shows tokens {others}"])
    if must and f"token:{token}:".encode() not in output:
        verdict.breaks("output missing", [f"task {number} (token {token}) shows {output[:200]!r}"])


# --- the faults -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Something that can happen: what it touches, and how. `lacks` says why it cannot happen here."""

    touches: str
    """`scheduler`, `node`, or `all`."""
    begin: Callable[[SoakCluster, str, random.Random], Steps]
    cuts_off: bool = False
    """Whether its node is out of reach meanwhile."""
    often: int = OFTEN
    lacks: Callable[[SoakCluster], str] = lambda _: ""


def _pause(draw: random.Random) -> float:
    return draw.uniform(*(LONG if draw.random() < 0.2 else SHORT))


def _frozen(cluster: SoakCluster, pids: list[int | None], seconds: float) -> Steps:
    for pid in pids:
        cluster.kill(pid, signal.SIGSTOP)
    yield seconds
    for pid in pids:
        cluster.kill(pid, signal.SIGCONT)


def scheduler_killed(cluster: SoakCluster, _: str, draw: random.Random) -> Steps:
    """kill -9, and a successor."""
    cluster.kill(cluster.server)
    yield _pause(draw)
    cluster.start_server()


def scheduler_frozen(cluster: SoakCluster, _: str, draw: random.Random) -> Steps:
    """Stop it with SIGSTOP."""
    assert cluster.server is not None
    yield from _frozen(cluster, [cluster.server.pid], _pause(draw))


def scheduler_stopped(cluster: SoakCluster, _: str, draw: random.Random) -> Steps:
    """On purpose, as an upgrade does."""
    cluster.stop_server()
    yield _pause(draw)
    cluster.start_server()


def agent_killed(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """kill -9, and a successor."""
    cluster.kill(cluster.agents[node])
    yield _pause(draw)
    cluster.start_agent(node, GPUS)


def agent_frozen(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """Stop it with SIGSTOP."""
    yield from _frozen(cluster, [cluster.agents[node].pid], _pause(draw))


def agent_stopped(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """On purpose; at times for longer than it said."""
    cluster.kill(cluster.agents[node], signal.SIGTERM)
    try:
        cluster.agents[node].wait(20)
    except subprocess.TimeoutExpired:
        cluster.verdict.breaks("died", [f"the agent of {node} does not stop when it is told to"])
        cluster.kill(cluster.agents[node])
    yield _pause(draw)
    cluster.start_agent(node, GPUS)


def supervisor_killed(cluster: SoakCluster, node: str, _: random.Random) -> Steps:
    """kill -9; its agent starts another one."""
    cluster.kill(cluster.supervisor(node))
    yield 0.5


def supervisor_frozen(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """Stop it with SIGSTOP."""
    yield from _frozen(cluster, [cluster.supervisor(node)], _pause(draw))


def node_frozen(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """Agent and supervisor are stopped with SIGSTOP; tasks and the fence watcher continue."""
    yield from _frozen(cluster, [cluster.agents[node].pid, cluster.supervisor(node)], _pause(draw))


def node_killed(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """Everything on it at once."""
    cluster.kill_node(node)
    yield _pause(draw)
    cluster.start_agent(node, GPUS)


def line_held(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """Nothing comes through, in both directions or in one."""
    cluster.proxies[node].hold(draw.choice(("both", "up", "down")))
    yield _pause(draw)
    cluster.proxies[node].restore()


def line_cut(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """Connections are reset, and refused for a while."""
    cluster.proxies[node].cut()
    yield _pause(draw)
    cluster.proxies[node].restore()


def line_reset(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """Connections are reset; it can connect again at once."""
    for _ in range(draw.choice((1, 3))):
        cluster.proxies[node].reset()
        yield draw.uniform(0.1, 1.0)


def line_doubled(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """The agent connects again, and its old connection is still open at the scheduler."""
    cluster.proxies[node].double()
    yield draw.uniform(*SHORT)
    cluster.proxies[node].restore()


def clock_jumped(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """The wall clock of a process is set, and set right again."""
    name = draw.choice(("scheduler", node))
    cluster.jump(name, draw.choice(JUMPS_SECONDS))
    yield _pause(draw)
    cluster.jump(name, 0)


def disk_full(cluster: SoakCluster, _: str, draw: random.Random) -> Steps:
    """No space is left for the journal."""
    cluster.limit_disk(full=True)
    yield _pause(draw)
    cluster.limit_disk(full=False)


def node_twin(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """A second agent with a copy of the node's work folder, as on another machine; sometimes while the first is stopped."""
    original, copy = cluster.folder / node, cluster.folder / "twin"
    is_frozen = draw.random() < 0.5
    if is_frozen:
        cluster.kill(cluster.agents[node], signal.SIGSTOP)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("*.sock", "*.new", "logs"))
    settings = cluster.agent_settings(node, f"{GPUS}:RTX4090:24", {})
    settings["executor"]["work_dir"] = str(copy)
    settings["logging"]["output"] = str(cluster.folder / "twin.log")
    apart = (
        "unshare",
        "--pid",
        "--uts",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        f'hostname {TWIN}; exec "$@"',
        "sh",
    )
    twin = cluster._popen("agent", cluster._write("twin.yaml", settings), within=apart)
    yield draw.uniform(*LONG) + 2.0
    cluster.kill(twin)
    if is_frozen:
        cluster.kill(cluster.agents[node], signal.SIGCONT)


def backup_taken(cluster: SoakCluster, _: str, draw: random.Random) -> Steps:
    """The data folder is copied while the scheduler is away."""
    cluster.stop_server() if draw.random() < 0.2 else cluster.kill(cluster.server)
    with cluster.submitting:
        _copy(cluster.data, cluster.folder / "backup")
        cluster.backup_at = boot_clock()
    yield draw.uniform(*SHORT)
    cluster.start_server()


def backup_restored(cluster: SoakCluster, node: str, draw: random.Random) -> Steps:
    """The copy is put back, and the scheduler told that it is the one to go on with."""
    if not cluster.backup_at:
        yield from backup_taken(cluster, node, draw)
        return
    cluster.stop_server() if draw.random() < 0.2 else cluster.kill(cluster.server)
    with cluster.submitting:  # what was accepted is known as such
        _copy(cluster.folder / "backup", cluster.data)
        undone = [token for token, (_, at) in cluster.accepted.items() if at > cluster.backup_at]
        for token in undone:
            del cluster.accepted[token]
        cluster.done["(accepted, and undone by a restored backup)"] += len(undone)
    yield draw.uniform(*SHORT)
    since = cluster.log_size()
    cluster.start_server("--take-over")
    _until_registered(cluster, list(cluster.agents), since)


def second_scheduler(cluster: SoakCluster, _: str, draw: random.Random) -> Steps:
    """Another one on a copy of the data folder, where agents look when they do not reach the first."""
    assert cluster.server is not None
    cluster.kill(cluster.server, signal.SIGSTOP)
    copy = cluster.folder / "second"
    copy.mkdir(mode=0o700, exist_ok=True)
    _copy(cluster.data, copy)
    cluster.kill(cluster.server, signal.SIGCONT)
    settings = cluster.server_settings() | {
        "server": {
            "http_address": f"127.0.0.1:{cluster.standby_http}",
            "grpc_address": f"127.0.0.1:{cluster.standby_grpc}",
        },
        "storage": {"data_dir": str(copy)},
        "logging": {"format": "text", "output": str(cluster.folder / "second.log")},
    }
    cluster.second = cluster._popen("server", cluster._write("second.yaml", settings))
    yield 2.0
    cut = [node for node in cluster.proxies if draw.random() < 0.7]
    gone_over = [CutOff(node, boot_clock(), to_second=True) for node in cut]
    cluster.cut_off += gone_over
    for node in cut:
        cluster.proxies[node].cut()
    yield draw.uniform(2.0, 6.0)
    cluster.kill(cluster.second)
    since = cluster.log_size()
    for node in cut:
        cluster.proxies[node].restore()
    _until_registered(cluster, cut, since)
    for each in gone_over:
        each.until = boot_clock()


def _until_registered(cluster: SoakCluster, nodes: list[str], since: int) -> None:
    """The nodes come back, or the operator does what the logs tell: start the scheduler once with --take-over."""
    for _ in range(3):
        if cluster.registered(nodes, since, 3 * TIMEOUT_SECONDS):
            return
        since = cluster.log_size()
        if cluster.server is not None and cluster.server.poll() is not None:
            cluster.check_alive()
            continue
        cluster.done["(not obeyed, taken over)"] += 1
        cluster.tell("the nodes do not come back; the scheduler is started again with --take-over")
        cluster.stop_server()
        cluster.start_server("--take-over")
    cluster.verdict.breaks("nodes away", [f"{nodes} do not come back although the scheduler was told to take over"])


def _copy(source: Path, target: Path) -> None:
    """The content of a folder, instead of what was in the other one."""
    target.mkdir(mode=0o700, exist_ok=True)
    for path in target.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(source, target, dirs_exist_ok=True)


def _no_disk(cluster: SoakCluster) -> str:
    return "" if cluster.has_disk else "only root can mount a small disk"


def _no_twin(_: SoakCluster) -> str:
    asked = ["unshare", "--pid", "--uts", "--fork", "--mount-proc", "hostname", "twin"]
    able = os.geteuid() == 0 and subprocess.run(asked, capture_output=True, check=False).returncode == 0
    return "" if able else "only root can run an agent as on another machine"


FAULTS: dict[str, Fault] = {
    "scheduler killed": Fault("scheduler", scheduler_killed),
    "scheduler frozen": Fault("scheduler", scheduler_frozen),
    "scheduler stopped on purpose": Fault("scheduler", scheduler_stopped, often=RARELY),
    "agent killed": Fault("node", agent_killed, cuts_off=True),
    "agent frozen": Fault("node", agent_frozen, cuts_off=True),
    "agent stopped on purpose": Fault("node", agent_stopped, cuts_off=True),
    "supervisor killed": Fault("node", supervisor_killed),
    "supervisor frozen": Fault("node", supervisor_frozen),
    "agent and supervisor frozen": Fault("node", node_frozen, cuts_off=True),
    "node killed": Fault("node", node_killed, cuts_off=True),
    "line held": Fault("node", line_held, cuts_off=True),
    "line cut": Fault("node", line_cut, cuts_off=True),
    "line reset": Fault("node", line_reset),
    "line doubled": Fault("node", line_doubled),
    "clock jumped": Fault("node", clock_jumped),
    "disk full": Fault("scheduler", disk_full, lacks=_no_disk),
    "twin of a node": Fault("node", node_twin, cuts_off=True, often=SELDOM, lacks=_no_twin),
    "backup taken": Fault("all", backup_taken, often=RARELY),
    "backup restored": Fault("all", backup_restored, often=RARELY),
    "second scheduler": Fault("all", second_scheduler, often=SELDOM),
}


@dataclass(frozen=True)
class Drawn:
    """A fault that is to come."""

    name: str
    node: str
    seed: int
    gap_seconds: float

    @property
    def touches(self) -> frozenset[str]:
        """What must be whole when it begins."""
        what = FAULTS[self.name].touches
        everything = frozenset({"scheduler", *(f"node-{place + 1}" for place in range(NODES))})
        return everything if what == "all" else frozenset({self.node if what == "node" else what})


def drawn(seed: int, names: list[str], count: int) -> list[Drawn]:
    """The faults of a seed: always the same ones."""
    draw, often = random.Random(seed), [FAULTS[name].often for name in names]
    return [
        Drawn(
            draw.choices(names, often)[0],
            f"node-{draw.randint(1, NODES)}",
            draw.randrange(2**32),
            draw.uniform(0.1, 1.2),
        )
        for _ in range(count)
    ]


class Hurting:
    """Faults on their way."""

    def __init__(self, cluster: SoakCluster) -> None:
        self._cluster = cluster
        self._running: list[tuple[float, Drawn, Steps, CutOff | None]] = []
        """When each goes on."""

    def begin(self, fault: Drawn) -> None:
        """As soon as nothing else is wrong with what it touches."""
        self.rest(fault.gap_seconds)
        while any(fault.touches & it.touches for _, it, _, _ in self._running):
            self.rest(0.05)
        self._cluster.check_alive(frozenset().union(*(it.touches for _, it, _, _ in self._running)))
        about = FAULTS[fault.name]
        cut = CutOff(fault.node, boot_clock()) if about.cuts_off else None
        if cut is not None:
            self._cluster.cut_off.append(cut)
        steps = about.begin(self._cluster, fault.node, random.Random(fault.seed))
        self._go_on(fault, steps, cut)

    def rest(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            due = min((it[0] for it in self._running), default=until)
            time.sleep(max(0.0, min(left, due - time.monotonic())))
            self._mend(time.monotonic())

    def finish(self) -> None:
        """All of them come to their end."""
        while self._running:
            self.rest(0.1)

    def _mend(self, now: float) -> None:
        ready = [it for it in self._running if it[0] <= now]
        self._running = [it for it in self._running if it[0] > now]
        for _, fault, steps, cut in ready:
            self._go_on(fault, steps, cut)

    def _go_on(self, fault: Drawn, steps: Steps, cut: CutOff | None) -> None:
        try:
            seconds = next(steps)
        except StopIteration:
            self._cluster.done[fault.name] += 1
            if cut is not None:
                cut.until = boot_clock() + RETURN_SECONDS
            return
        self._running.append((time.monotonic() + seconds, fault, steps, cut))


# --- a soak -----------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What a soak did and found."""

    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": sum(count for name, count in self.faults.items() if name in FAULTS),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "left_out": self.left_out,
            "counts": dict(self.verdict.counts),
            "retries": dict(self.verdict.retries),
            "broken": self.verdict.broken,
        }


@contextmanager
def soak_cluster(folder: Path, tell: Tell) -> Iterator[SoakCluster]:
    """Yield a running cluster; stop it at the end."""
    cluster = SoakCluster(folder, tell)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def soak(
    folder: Path, seed: int, *, faults: int, seconds: float, tell: Tell = print, only: tuple[str, ...] = ()
) -> Report:
    """So many faults, or as many as fit into so many seconds."""
    report = Report(seed)
    with soak_cluster(folder, tell) as cluster:
        report.faults, report.verdict = cluster.done, cluster.verdict
        names = sorted(only or FAULTS)
        report.left_out = {name: why for name in names if (why := FAULTS[name].lacks(cluster))}
        for name, why in report.left_out.items():
            tell(f"left out: {name}: {why}")
        began = time.monotonic()
        hurting = Hurting(cluster)
        with Load(cluster, random.Random(seed + 1)):
            for number, fault in enumerate(drawn(seed, [it for it in names if it not in report.left_out], faults)):
                if time.monotonic() - began > seconds:
                    break
                hurting.begin(fault)
                tell(
                    f"{time.monotonic() - began:7.1f} s  {number + 1:5d}  {fault.name}"
                    f"{f' ({fault.node})' if FAULTS[fault.name].touches == 'node' else ''}"
                    f"  accepted {len(cluster.accepted)}, broken {len(cluster.verdict.broken)}"
                )
            hurting.finish()
        report.seconds = time.monotonic() - began
        _settle(cluster)
        cluster.stop_server()
        compare(cluster)
    return report


def _settle(cluster: SoakCluster) -> None:
    """After all repairs, all tasks end and their outputs can be read."""
    time.sleep(TIMEOUT_SECONDS)
    cluster.check_alive()
    cluster.ready(NODES, 60)
    deadline = time.monotonic() + 180
    while (left := cluster.count("pending,running,suspended")) and time.monotonic() < deadline:
        time.sleep(0.2)
    cluster.verdict.breaks("never ended", [f"{left} tasks do not end"] if left else [])
    client = cluster.client()
    elsewhere = {life.token for life in ledger.read(cluster.diary) if life.host == TWIN}  # with its output
    for token in random.Random(0).sample(sorted(cluster.accepted), min(MOST_OUTPUTS, len(cluster.accepted))):
        read_output(client, cluster.verdict, token, cluster.accepted[token][0], must=token not in elsewhere)


def compare(cluster: SoakCluster) -> None:
    """Add to the verdict what ledger and journal say."""
    for what in ("foreign output", "output missing", "died", "nodes away"):
        cluster.verdict.breaks(what, [])
    accepted = {token: number for token, (number, _) in cluster.accepted.items()}
    ledger.compare(cluster.data, ledger.read(cluster.diary), accepted, cluster.cut_off, cluster.verdict)


# --- outages with the default settings ---------------------------------------------------------------------------------


@dataclass
class Outage:
    """One outage, and what came of it. All of these figures should be 0."""

    what: str
    seconds: float
    nodes_lost: int = 0
    attempts_started: int = 0
    processes_stopped: int = 0


class DefaultCluster(Cluster):
    """A cluster whose agents are told nothing about time: every time-out is the default."""

    def agent_settings(self, name: str, gpus: str, executor: dict[str, Any]) -> dict[str, Any]:
        """With the default pauses between tries."""
        settings = super().agent_settings(name, gpus, executor)
        settings["scheduler"] = {"master_address": f"127.0.0.1:{self.grpc}"}
        return settings


WATCH_SECONDS = 25.0
"""Longer than the time after which a node is lost by default."""
OUTAGE_NODES = 3


def outages(
    folder: Path, lengths: tuple[float, ...], *, agent_seconds: float = 60.0, tell: Tell = print
) -> list[Outage]:
    """Outages of the scheduler, killed and planned, and a planned stop of an agent: running tasks continue."""
    diary = folder / "diary"
    diary.mkdir()
    cluster = DefaultCluster(folder)
    names = [f"node-{place + 1}" for place in range(OUTAGE_NODES)]
    try:
        cluster.start_server()
        for name in names:
            cluster.start_agent(name, GPUS)
        client = cluster.ready(OUTAGE_NODES)
        asked: list[NewTaskFields] = [
            {"command": ledger.command(diary, token, 100_000, 1.0), "gpu_count": 2, "on_lost": "rerun"}
            for token in range(2 * OUTAGE_NODES)
        ]
        client.submit_many(asked)
        until(lambda: len(ledger.read(diary)) == len(asked), 60, "all tasks run")
        found = []
        for seconds in lengths:
            for what, stop in (
                ("scheduler killed", cluster.kill_server),
                ("scheduler stopped on purpose", cluster.stop_server),
            ):
                found.append(_outage(cluster, diary, Outage(what, seconds), stop, cluster.start_server, tell))
        if agent_seconds:
            name = names[0]
            found.append(
                _outage(
                    cluster,
                    diary,
                    Outage("agent stopped on purpose", agent_seconds),
                    lambda: cluster.stop_agent(name),
                    lambda: cluster.start_agent(name, GPUS),
                    tell,
                )
            )
        return found
    finally:
        cluster.end()


def _outage(
    cluster: Cluster, diary: Path, it: Outage, stop: Callable[[], None], start: Callable[[], None], tell: Tell
) -> Outage:
    log = cluster.folder / "server.log"
    before, said = ledger.read(diary), log.read_text().count("agent_offline")
    stop()
    time.sleep(it.seconds)
    start()
    cluster.ready(OUTAGE_NODES, 120)
    time.sleep(WATCH_SECONDS)
    checked = boot_clock()
    time.sleep(3)  # every running process has written again
    after = ledger.read(diary)
    alive = {(life.token, life.attempt, life.begins[0]) for life in after if life.last >= checked}
    it.nodes_lost = log.read_text().count("agent_offline") - said
    it.attempts_started = len(after) - len(before)
    lived = [life for life in before if life.last >= checked - it.seconds - WATCH_SECONDS - 200]
    it.processes_stopped = sum((life.token, life.attempt, life.begins[0]) not in alive for life in lived)
    tell(
        f"{it.what} for {it.seconds:g} s: {it.nodes_lost} lost, {it.attempts_started} started, {it.processes_stopped} stopped"
    )
    return it
