"""Two schedulers that replicate their journal without a database: first start, copies, voters, and wrong set-ups."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuyard.core.journal.read import read_journal
from gpuyard.live.sdk import connect
from gpuyard.live.sdk.errors import Refused, TemporarilyRefused
from tests.acceptance.live import GPUYARD
from tests.acceptance.pair import SECONDS, Pair, Scheduler, ask

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two schedulers that are not started yet."""
    made = Pair(tmp_path)
    yield made
    made.end()


def started(pair: Pair, *, witness: bool = True) -> Pair:
    """Start both, and a voter beside them, and wait until either may be lost."""
    pair.start(pair.a, "master")
    pair.until(pair.a.leads, "the first scheduler leads")
    pair.start(pair.b)
    if witness:
        pair.start_witness()
    if not pair.agents:
        pair.start_agent("node-1")
    pair.until(pair.b.follows, "the second scheduler follows")
    pair.ready(1)
    pair.until_complete()
    return pair


def refused(pair: Pair, scheduler: Scheduler, sentence: str) -> None:
    """The process has ended with this sentence."""
    assert scheduler.process is not None
    assert scheduler.process.wait(60) == 1, pair.logs()
    said = (pair.folder / f"{scheduler.name}.err").read_text()
    assert sentence in said
    assert "Traceback" not in said


def test_a_scheduler_that_was_alone_becomes_the_first_of_two_and_keeps_everything(pair: Pair) -> None:
    pair.replication = {"enabled": False}
    pair.start(pair.a, "master")
    pair.start_agent("node-1")
    client = pair.ready(1)
    before = client.wait(client.submit("echo before", gpu_count=1))
    pair.kill(pair.a.process, signal.SIGTERM)
    assert pair.a.process is not None
    assert pair.a.process.wait(30) == 0
    pair.replication = {}
    started(pair)
    pair.kill(pair.a.process)
    pair.until(pair.b.leads, "the second scheduler leads")
    assert client.task(before.id).status == "success"
    assert client.wait(client.submit("echo after", gpu_count=1)).status == "success"
    one, other = (list(read_journal(str(pair.folder / name / "journal"))) for name in "ab")
    shorter = min(len(one), len(other))
    assert shorter > 5
    assert one[:shorter] == other[:shorter]


def test_users_tokens_and_secrets_are_at_the_other_scheduler_after_the_loss_of_the_first(pair: Pair) -> None:
    client = started(pair).client()
    client.connection.send(
        "POST", "/api/v1/users", body={"username": "ann", "password": "a long one", "role": "member"}
    )
    token = connect(f"{pair.a.url}").login("ann", "a long one").token
    first = client.submit("sleep 1000", gpu_count=4)
    waiting = client.submit(
        f"test $KEY,$GPUYARD_SERVER = hunter2,{pair.b.url},{pair.a.url}", gpu_count=4, secrets={"KEY": "hunter2"}
    )
    told = client.wait(client.submit("echo $GPUYARD_SERVER", cpu_count=1))
    assert b"".join(client.logs(told)).decode() == f"{pair.a.url},{pair.b.url}\n", "a task knows both"
    pair.kill(pair.a.process)
    shutil.rmtree(pair.folder / "a")
    pair.until(pair.b.leads, "the second scheduler leads")
    assert connect(pair.b.url, token=token).health().role == "master"
    client.cancel(first.id)
    assert client.wait(waiting.id).status == "success"


def test_a_scheduler_that_lost_its_disk_copies_the_other_one_and_can_lead_again(pair: Pair) -> None:
    client = started(pair).client()
    first = client.wait(client.submit("true", gpu_count=1))
    pair.kill(pair.b.process)
    shutil.rmtree(pair.folder / "b")
    second = client.wait(client.submit("true", gpu_count=1))
    pair.start(pair.b)
    pair.until_complete()
    pair.kill(pair.a.process)
    pair.until(pair.b.leads, "the copy leads")
    assert [client.task(task.id).status for task in (first, second)] == ["success", "success"]
    assert client.wait(client.submit("true", gpu_count=1)).status == "success"


def test_a_scheduler_goes_on_alone_and_the_other_one_catches_up_before_it_can_lead(pair: Pair) -> None:
    client = started(pair).client()
    pair.kill(pair.b.process)
    began = time.monotonic()
    task = client.wait(client.submit("true", gpu_count=1))
    assert (task.status, time.monotonic() - began < 30) == ("success", True)
    pair.until(lambda: len(pair.replication_of(pair.a)["in_sync"]) == 1, "it says that it is alone")
    told = pair.replication_of(pair.a)
    assert "The other scheduler is not connected" in " ".join(told["problems"])
    pair.kill(pair.a.process)
    pair.start(pair.b)
    pair.until(pair.b.follows, "the second scheduler answers")
    two_leases = time.monotonic() + 3
    while time.monotonic() < two_leases:
        assert not pair.b.leads(), "it lacks the last events, so it must not lead"
        time.sleep(0.1)
    status, content, _ = ask(pair.b.url, "/api/v1/promote", "POST")
    assert (status, "does not have every event yet" in content.decode()) == (503, True), content
    pair.start(pair.a)
    pair.until_complete()
    assert client.task(task.id).status == "success"


def test_without_single_writing_nothing_is_accepted_until_the_operator_detaches_the_standby(pair: Pair) -> None:
    pair.replication = {"single_copy_after": 0}
    client = started(pair).client()
    servers = f"{pair.a.url},{pair.b.url}"
    pair.kill(pair.b.process)
    with ThreadPoolExecutor(1) as pool:
        kept_waiting = pool.submit(client.submit, "true", gpu_count=1)
        pair.until(lambda: pair.a.has("master", "standby_unreachable"), "nothing is accepted")
        status, content, _ = ask(pair.a.url, "/api/v1/tasks", "POST", {"command": "true", "gpu_count": 1})
        assert (status, json.loads(content)["error"]["code"]) == (503, "StandbyUnreachable")
        _detach(pair, servers)
        assert client.wait(kept_waiting.result(SECONDS).id).status == "success"
    assert client.wait(client.submit("true", gpu_count=1)).status == "success"
    pair.start(pair.b)
    pair.until_complete()


def test_a_request_that_waits_for_the_standby_is_answered_and_counts_once_when_it_is_carried_out(pair: Pair) -> None:
    pair.replication = {"single_copy_after": 0}
    client = started(pair).client()
    pair.kill(pair.b.process)
    with pytest.raises(TemporarilyRefused, match="nothing is accepted without it") as refused:
        client.submit("true", gpu_count=1, idempotency_key="once")
    assert refused.value.may_have_arrived
    pair.start(pair.b)
    pair.until_complete()
    assert client.wait(client.submit("true", gpu_count=1, idempotency_key="once").id).status == "success"
    assert len(list(client.tasks())) == 1


def _detach(pair: Pair, servers: str) -> None:
    asked = [*GPUYARD, "detach-standby", "--yes", "--server", servers]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pair.until(pair.a.leads, "it goes on")
    again = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (again.returncode, "This scheduler already writes alone." in again.stderr) == (1, True), again.stderr


def test_status_shows_the_copies_the_voters_and_what_is_missing(pair: Pair) -> None:
    started(pair, witness=False)
    servers = f"{pair.a.url},{pair.b.url}"
    shown = subprocess.run([*GPUYARD, "status", "--server", servers], capture_output=True, text=True, check=True).stdout
    assert "Complete copies: " in shown
    assert "node-1" in shown
    told = json.loads(
        subprocess.run([*GPUYARD, "status", "--json", "--server", servers], capture_output=True, check=True).stdout
    )
    assert (len(told["replication"]["in_sync"]), told["replication"]["problems"]) == (2, [])
    metrics = ask(pair.a.url, "/metrics")[1].decode()
    assert "\ngpuyard_replication_copies 2.0\n" in metrics
    assert "\ngpuyard_replication_voters 3.0\n" in metrics
    pair.kill(pair.b.process)
    pair.until(
        lambda: "gpuyard_replication_copies 1.0" in ask(pair.a.url, "/metrics")[1].decode(), "one copy is complete"
    )


def test_a_folder_of_a_replica_is_refused_by_a_scheduler_that_is_alone(pair: Pair) -> None:
    pair.start(pair.a, "master")
    pair.until(pair.a.leads, "the first scheduler leads")
    pair.kill(pair.a.process, signal.SIGTERM)
    assert pair.a.process is not None
    assert pair.a.process.wait(30) == 0
    pair.replication = {"enabled": False}
    pair.start(pair.a, "master")
    refused(pair, pair.a, "belongs to a scheduler that replicates. Set replication.enabled")


def test_two_schedulers_with_one_data_folder_are_refused(pair: Pair) -> None:
    pair.start(pair.a, "master")
    pair.until(pair.a.leads, "the first scheduler leads")
    pair.b.folder = "a"
    pair.start(pair.b)
    refused(pair, pair.b, "Give each scheduler its own one.")
    assert pair.a.leads()


def test_a_standby_with_a_journal_of_its_own_is_refused_and_unchanged(pair: Pair) -> None:
    pair.replication = {"enabled": False}
    pair.start(pair.b, "master")
    pair.until(pair.b.leads, "it is a cluster of its own")
    pair.kill(pair.b.process, signal.SIGTERM)
    assert pair.b.process is not None
    assert pair.b.process.wait(30) == 0
    before = list(read_journal(str(pair.folder / "b" / "journal")))
    pair.replication = {}
    pair.start(pair.a, "master")
    pair.until(pair.a.leads, "the first scheduler leads")
    pair.start(pair.b)
    refused(pair, pair.b, "has a journal of its own, so it cannot become a copy")
    pair.start(pair.b, "master")
    refused(pair, pair.b, "Decide which one is the right one")
    assert list(read_journal(str(pair.folder / "b" / "journal"))) == before


def test_two_masters_without_data_are_refused(pair: Pair) -> None:
    pair.start(pair.a, "master")
    pair.start(pair.b, "master")
    refused_ones = [each.process for each in (pair.a, pair.b) if each.process is not None]
    pair.until(lambda: any(process.poll() == 1 for process in refused_ones), "one of them is refused")
    assert "Set scheduler.role to standby here" in pair.logs()


def test_schedulers_of_two_clusters_name_the_way_out(pair: Pair) -> None:
    for scheduler in (pair.a, pair.b):  # one after the other, so that neither finds the other one
        pair.start(scheduler, "master")
        pair.until(scheduler.leads, "it founds a cluster")
        pair.kill(scheduler.process)
    pair.start(pair.a)
    pair.start(pair.b)
    pair.until(
        lambda: "they cannot replicate" in " ".join(pair.replication_of(pair.a).get("problems", [])), "a says why"
    )
    pair.until(
        lambda: "they cannot replicate" in " ".join(pair.replication_of(pair.b).get("problems", [])), "b says why"
    )


def test_a_scheduler_with_another_key_is_refused_on_both_sides(pair: Pair) -> None:
    pair.start(pair.a, "master")
    pair.until(pair.a.leads, "the first scheduler leads")
    pair.secrets_key = "6b" * 32
    pair.start(pair.b)

    def says_why() -> bool:
        log = pair.folder / "b.log"
        return log.exists() and "GPUYARD_SECRETS_KEY" in log.read_text()

    pair.until(says_why, "the second scheduler names the key")
    assert pair.a.leads()
    assert not (pair.folder / "b" / "journal").exists()


def test_a_standby_without_the_key_names_the_way_out(pair: Pair) -> None:
    pair.secrets_key = ""
    pair.start(pair.b)
    refused(pair, pair.b, "Copy the file from the other scheduler, or set GPUYARD_SECRETS_KEY")


def test_both_killed_while_one_was_behind_lose_nothing(pair: Pair) -> None:
    client = started(pair).client()
    for _ in range(2):
        pair.kill(pair.b.process)
        task = client.wait(client.submit("true", gpu_count=1))
        pair.kill(pair.a.process)
        pair.start(pair.b)
        pair.start(pair.a, "master")
        pair.until_complete()
        assert client.task(task.id).status == "success"


def test_the_scheduler_that_is_left_counts_on_the_operators_word_if_the_only_complete_copy_is_lost(pair: Pair) -> None:
    client = started(pair).client()
    kept = client.wait(client.submit("true", gpu_count=1))
    pair.kill(pair.b.process)
    lost = client.wait(client.submit("true", gpu_count=1))
    pair.kill(pair.a.process)
    shutil.rmtree(pair.folder / "a")
    pair.start(pair.b, "standby", "--take-over")
    pair.until(pair.b.leads, "the second scheduler leads")
    assert client.task(kept.id).status == "success"
    with pytest.raises(Refused):
        client.task(lost.id)
    again = client.wait(client.submit("true", gpu_count=1))
    assert (again.status, again.number > lost.number) == ("success", True)
    pair.start(pair.a)
    pair.until_complete()


@pytest.mark.parametrize("lost", ["replication.sqlite", "access.sqlite", "secrets.sqlite", "documents.sqlite"])
def test_a_replica_with_a_missing_or_damaged_file_copies_the_other_one(pair: Pair, lost: str) -> None:
    client = started(pair).client()
    pair.kill(pair.a.process, signal.SIGTERM)
    assert pair.a.process is not None
    assert pair.a.process.wait(30) == 0
    pair.until(pair.b.leads, "the second scheduler leads")
    task = client.wait(client.submit("true", gpu_count=1))
    folder = pair.folder / "a"
    for content in (None, b"not a database" * 1000):
        for file in folder.glob(f"{lost}*"):
            file.unlink()
        if content is not None:
            (folder / lost).write_bytes(content)
        pair.start(pair.a, "master")
        refused(pair, pair.a, "start this scheduler again: it copies that of the other one")
    folder.rename(pair.folder / "away")
    pair.start(pair.a, "master")
    pair.until_complete()
    assert client.task(task.id).status == "success"


def test_an_old_copy_leads_on_the_operators_word_although_voters_know_later_epochs(pair: Pair) -> None:
    client = started(pair).client()
    kept = client.wait(client.submit("true", gpu_count=1))
    pair.until_complete()
    pair.kill(pair.b.process, signal.SIGTERM)
    assert pair.b.process is not None
    assert pair.b.process.wait(30) == 0
    shutil.copytree(pair.folder / "b", pair.folder / "old")
    pair.start(pair.b)
    for scheduler in (pair.b, pair.a, pair.b):
        pair.until_complete()
        connect(scheduler.url).promote()
    for scheduler in (pair.a, pair.b):
        pair.kill(scheduler.process)
        shutil.rmtree(pair.folder / scheduler.folder)
    shutil.move(pair.folder / "old", pair.folder / "b")
    pair.start(pair.b, "standby", "--take-over")
    pair.until(lambda: pair.b.leads() and pair.b.health()["epoch"] > 1000, "the old copy leads")
    assert client.task(kept.id).status == "success"
    pair.start(pair.a)
    pair.until_complete()


def test_a_scheduler_is_not_made_the_only_one_while_the_other_one_runs(pair: Pair) -> None:
    client = started(pair).client()
    pair.kill(pair.b.process)
    task = client.wait(client.submit("true", gpu_count=1))
    pair.start(pair.b, "standby", "--take-over")
    assert pair.b.process is not None
    assert pair.b.process.wait(60) == 1
    assert "--take-over makes this one count alone" in pair.logs()
    pair.start(pair.b)
    pair.until_complete()
    assert client.task(task.id).status == "success"


def test_secrets_of_ended_tasks_are_in_no_file_of_either_scheduler(pair: Pair) -> None:
    client = started(pair).client()
    secret = "hunter2 hunter2"
    keeping = client.submit("sleep 1000", gpu_count=1, secrets={"OTHER": "swordfish"})
    client.wait(client.submit("true", gpu_count=1, secrets={"KEY": secret}))

    def places(text: str) -> list[str]:
        logs = [file for name in "ab" for file in (pair.folder / name).glob("replication.sqlite*")]
        return [str(file) for file in logs if text.encode() in file.read_bytes()]

    assert places("swordfish")
    pair.until(lambda: not places(secret), "the secret of the ended task has left the log")
    pair.kill(pair.a.process)
    pair.until(pair.b.leads, "the second scheduler leads")
    pair.start(pair.a)
    pair.until_complete()
    assert client.task(keeping.id).status == "running"
    client.cancel(keeping.id)
    pair.until(lambda: not places("swordfish"), "the secret of the cancelled task has left the log")


def test_a_cluster_that_replicates_becomes_one_scheduler(pair: Pair) -> None:
    client = started(pair).client()
    task = client.wait(client.submit("true", gpu_count=1))
    copy = [*GPUYARD, "journal", "copy", "--to", str(pair.folder / "alone"), "--from"]
    for scheduler in (pair.b, pair.a):
        pair.kill(scheduler.process, signal.SIGTERM)
        assert scheduler.process is not None
        assert scheduler.process.wait(30) == 0
    done = subprocess.run([*copy, str(pair.folder / "a")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.copy(pair.folder / "a" / "archive.sqlite", pair.folder / "alone")
    pair.replication, pair.a.folder = {"enabled": False}, "alone"
    pair.start(pair.a, "master")
    pair.until(pair.a.leads, "it works alone")
    assert client.task(task.id).name == task.name
    assert client.wait(client.submit("true", gpu_count=1)).status == "success"


def test_a_replica_that_was_killed_is_not_copied_before_its_journal_is_complete(pair: Pair) -> None:
    client = started(pair).client()
    client.wait(client.submit("true", gpu_count=1))
    pair.kill(pair.a.process)
    copy = [*GPUYARD, "journal", "copy", "--to", str(pair.folder / "alone"), "--from", str(pair.folder / "a")]
    done = subprocess.run(copy, capture_output=True, text=True, check=False)
    assert (done.returncode, "was killed, or follows another one" in done.stderr) == (1, True), done.stderr
    assert not (pair.folder / "alone" / "journal" / "head").exists()
