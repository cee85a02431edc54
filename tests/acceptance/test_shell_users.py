"""Terminals and shells of tasks that run as another system user: their rights, and who gets in."""

import json
import os
import pwd
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuyard.live.sdk import Client, ClusterError, Refused, Task, connect
from tests.acceptance.live import Cluster
from tests.acceptance.terminals import Person, person
from tests.acceptance.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tasks as another user"),
]
ACCOUNTS = {"blue": "daemon", "red": "nobody"}
USERS = [("root", "admin", None), ("ann", "member", "blue"), ("bob", "member", "blue"), ("eve", "member", "red")]
SEEN = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
def words(name): return status[name].split()
files = []
for number in os.listdir("/proc/self/fd"):
    try:
        files.append(os.readlink("/proc/self/fd/" + number))
    except OSError:
        pass  # the listing itself
def readable(path):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
        return True
    except OSError:
        return False
parents, pid = [], os.getppid()
while pid > 1:
    parents.append(pid)
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
own = [pid for pid in parents if os.stat(f"/proc/{pid}").st_uid == os.getuid()]
others = [pid for pid in parents if pid not in own]
print("SEEN" + json.dumps({
    "uid": words("Uid"), "gid": words("Gid"), "groups": sorted(map(int, words("Groups"))), "caps": words("CapEff")[0],
    "bounding": words("NoNewPrivs")[0], "tty": os.ttyname(0), "owner": os.stat(os.ttyname(0)).st_uid,
    "controls": os.tcgetpgrp(0) > 0, "files": sorted(set(files)), "home": os.environ["HOME"], "user": os.environ["USER"],
    "env": sorted(os.environ), "secret": [name for name, value in os.environ.items() if "join-secret" in value],
    "agent": [readable(path) for path in PATHS],
    "holder": [readable(f"/proc/{pid}/{name}") for pid in others for name in ("environ", "fd", "mem")],
}) + "END", flush=True)
"""


class Place(Cluster):
    """A cluster with logins, whose agent is root and runs tasks as the users of their tenants."""

    def __init__(self, folder: Path) -> None:
        users = [
            {"username": name, "password": f"password of {name}", "role": role, **({"tenant_id": it} if it else {})}
            for name, role, it in USERS
        ]
        super().__init__(folder, scheduler={"auth": {"enabled": True, "join_token": "join-secret"}, "users": users})
        self.join_token = "join-secret"

    def token_of(self, name: str) -> str:
        def logged_in() -> str | None:
            with suppress(ClusterError):
                return self.client().login(name, f"password of {name}").token
            return None

        return until(logged_in, what=f"{name} logs in")

    def login(self, name: str) -> Client:
        return connect(f"http://127.0.0.1:{self.http}", token=self.token_of(name))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("users"))
    try:
        made.start_server()
        made.start_agent("node-1", users=ACCOUNTS)
        root = made.login("root")
        until(lambda: any(node.status == "online" for node in root.nodes().nodes), what="the node joins")
        yield made
    finally:
        made.end()


def submitted(client: Client, command: str | list[str], **more: Any) -> Task:
    task = client.submit(command, gpus=1, work_dir="/", **more)
    until(lambda: client.task(task).started_at, what="it runs")
    return task


def told(one: Person) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(one.sees_like(r"SEEN(\{.*?\})END").group(1).replace("\r\n", ""))
    return found


def check_rights(place: Place, found: dict[str, Any], account: pwd.struct_passwd) -> None:
    uid, gid = str(account.pw_uid), str(account.pw_gid)
    assert (set(found["uid"]), set(found["gid"])) == ({uid}, {gid})
    assert found["groups"] == sorted(set(os.getgrouplist(account.pw_name, account.pw_gid)))
    assert int(found["caps"], 16) == 0
    assert (found["home"], found["user"]) == (account.pw_dir, account.pw_name)
    assert found["owner"] == account.pw_uid, "the terminal belongs to the user"
    assert found["controls"]
    assert found["files"] == [found["tty"]], "nothing but its terminal is open"
    assert found["secret"] == []
    assert not any(name.startswith("GPUYARD_") for name in found["env"] if name not in OURS), found["env"]
    assert found["agent"] == [False] * len(_closed_paths(place)), "files of agent and scheduler are closed"
    assert found["holder"]
    assert not any(found["holder"]), "the processes above it are closed"


OURS = {
    "GPUYARD_TASK_ID", "GPUYARD_ATTEMPT", "GPUYARD_NODE_ID", "GPUYARD_MARK", "GPUYARD_RESTART_COUNT",
    "GPUYARD_GRACE_SECONDS", "GPUYARD_CHECKPOINT_DIR", "GPUYARD_SERVER",
}  # fmt: skip


def _closed_paths(place: Place) -> list[str]:
    return [str(place.folder / name) for name in ("node-1", "node-1.yaml", "data")]


def _program(place: Place) -> str:
    return SEEN.replace("PATHS", json.dumps(_closed_paths(place)))


def test_a_terminal_and_a_shell_have_the_rights_of_the_user_and_no_others(place: Place) -> None:
    for path in _closed_paths(place):
        Path(path).chmod(Path(path).stat().st_mode & 0o700)
    account = pwd.getpwnam(ACCOUNTS["blue"])
    ann = place.login("ann")
    token = place.token_of("ann")
    line = f"/usr/bin/python3 -c {shlex.quote(_program(place))}; exec cat"
    task = submitted(ann, ["sh", "-c", line], console={"columns": 2000, "rows": 50})
    try:
        with person(place, "attach", task.id, size=(50, 2000), GPUYARD_TOKEN=token) as one:
            check_rights(place, told(one), account)
        with person(place, "shell", task.id, "sh", "-c", line, size=(50, 2000), GPUYARD_TOKEN=token) as one:
            check_rights(place, told(one), account)
        with person(place, "shell", task.id, "sh", "-c", "id -un; cat > /etc/gpuyard-test", GPUYARD_TOKEN=token) as one:
            one.sees(account.pw_name)
            assert one.ends() != 0
        assert not Path("/etc/gpuyard-test").exists()
    finally:
        ann.cancel(task)


def test_the_user_of_another_tenant_gets_neither_in_nor_near(place: Place) -> None:
    ann, bob, eve = map(place.login, ("ann", "bob", "eve"))
    task = submitted(ann, "exec cat", console={"terminal": True})
    own = submitted(eve, "exec sleep 600")
    try:
        for call in (eve.console(task).connect, eve.console(task, read_only=True).connect, eve.shell(task).connect):
            with pytest.raises(Refused) as refused:
                call()
            assert refused.value.status == 404
        for client, status in ((eve, 404), (bob, 403)):
            with pytest.raises(Refused) as refused:
                client.forward(task, 80)
            assert refused.value.status == status
            with pytest.raises(Refused) as refused:
                client.ports(task)
            assert refused.value.status == status
        with person(place, "shell", task.id, GPUYARD_TOKEN=place.token_of("eve")) as one:
            assert one.ends() == 1
            assert "404" not in one.rest
            assert task.id in one.rest
        # a process of eve on the node finds neither the socket of ann's terminal nor ann's terminal itself
        tty = _terminal_of("cat")
        pid = _pid_of("cat")
        closed = (str(place.folder / "node-1"), f"/proc/{pid}/fd", f"/proc/{pid}/environ", f"/proc/{pid}/mem", tty)
        inside = (
            f"for it in {' '.join(closed)} /proc/self/environ; do "
            "if (exec < $it && ls $it/) > /dev/null 2>&1 || (exec < $it && test -f $it) 2> /dev/null; "
            f"then echo open $it; fi; done; (echo intruder > {tty}) 2> /dev/null || echo not-written; echo over"
        )
        with person(place, "shell", own.id, "sh", "-c", inside, GPUYARD_TOKEN=place.token_of("eve")) as one:
            shown = one.sees("over\r\n")
            assert [word for word in shown.split() if word.startswith("/")] == ["/proc/self/environ"], "only its own"
            assert "not-written" in shown
    finally:
        for client, it in ((ann, task), (eve, own)):
            client.cancel(it)


def _pid_of(name: str) -> int:
    """The process of this name that runs as the user of ann's tenant."""
    uid = pwd.getpwnam(ACCOUNTS["blue"]).pw_uid
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid and (entry / "comm").read_text().strip() == name:
                return int(entry.name)
    raise AssertionError(f"no {name} runs")


def _terminal_of(name: str) -> str:
    return str((Path("/proc") / str(_pid_of(name)) / "fd" / "0").readlink())
