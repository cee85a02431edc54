"""Blobs between clients, a real scheduler and a real agent."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gpuyard.live.sdk import Client
from gpuyard.live.wire.blobs import pack
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until

LIMITS = {"max_blob_mb": 1, "max_tenant_mb": 2, "retention": "1h"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("blobs"), blobs=LIMITS) as made:
        yield made


@pytest.fixture
def cluster(place: Cluster) -> Client:
    return place.client()


def send(place: Cluster, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Send a request; return the status, and the body as values if it is JSON."""
    asked = urllib.request.Request(f"http://127.0.0.1:{place.http}{path}", data=body, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if "json" in answer.headers["content-type"] else content
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]


def put(place: Cluster, content: bytes, **query: str) -> str:
    """Store a content; return its name."""
    name = sha256(content).hexdigest()
    more = "".join(f"?{key}={value}" for key, value in query.items())
    status, answer = send(place, "PUT", f"/api/v1/blobs/{name}{more}", content)
    assert (status, answer["size"]) == (200, len(content)), answer
    return name


def submit(place: Cluster, **fields: Any) -> tuple[int, Any]:
    return send(place, "POST", "/api/v1/tasks", json.dumps({"gpu_count": 1, **fields}).encode())


def snapshot_of(place: Cluster, *files: dict[str, Any]) -> str:
    return put(place, json.dumps({"files": list(files)}).encode())


def test_a_content_is_stored_under_its_digest_and_returned(place: Cluster) -> None:
    content = b"\0\xffsome bytes" * 50_000
    name = put(place, content)
    assert put(place, content) == name  # repeating it changes nothing
    assert send(place, "GET", f"/api/v1/blobs/{name}") == (200, content)
    empty = put(place, b"")
    assert send(place, "GET", f"/api/v1/blobs/{empty}") == (200, b"")
    unknown = "0" * 64
    asked = json.dumps({"blobs": [name, unknown, unknown]}).encode()
    assert send(place, "POST", "/api/v1/blobs:missing", asked) == (200, {"missing": [unknown]})


def test_many_small_contents_are_stored_with_one_request(place: Cluster) -> None:
    contents = [b"small %d" % number for number in range(50)] + [b""]
    assert send(place, "POST", "/api/v1/blobs:batch?tenant_id=many", pack(contents)) == (200, {"stored": 51})
    names = [sha256(content).hexdigest() for content in contents]
    asked = json.dumps({"blobs": names, "tenant_id": "many"}).encode()
    assert send(place, "POST", "/api/v1/blobs:missing", asked) == (200, {"missing": []})
    for wrong in (pack([b"cut"])[:-1], b"abc"):
        status, error = send(place, "POST", "/api/v1/blobs:batch", wrong)
        assert (status, error["code"]) == (400, "WrongBlob")


def test_bad_uploads_are_refused_with_one_sentence(place: Cluster) -> None:
    name = sha256(b"right").hexdigest()
    status, error = send(place, "PUT", f"/api/v1/blobs/{name}", b"wrong")
    assert (status, error["code"]) == (400, "WrongBlob")
    assert "send it again" in error["message"]
    assert send(place, "GET", f"/api/v1/blobs/{name}")[0] == 404
    status, error = send(place, "PUT", "/api/v1/blobs/nonsense", b"right")
    assert (status, error["code"]) == (400, "WrongBlob")
    large = b"x" * (1 << 20) + b"more"
    status, error = send(place, "PUT", f"/api/v1/blobs/{sha256(large).hexdigest()}", large)
    assert (status, error["code"]) == (413, "TooLarge")
    assert not list((place.folder / "data" / "blobs" / "uploads").iterdir())


def test_a_tenant_has_a_limit_and_does_not_see_the_blobs_of_another(place: Cluster) -> None:
    name = put(place, b"of one", tenant_id="one")
    assert send(place, "GET", f"/api/v1/blobs/{name}?tenant_id=one")[0] == 200
    assert send(place, "GET", f"/api/v1/blobs/{name}?tenant_id=two")[0] == 404
    for letter in "ab":
        put(place, letter.encode() * (900 * 1024), tenant_id="small")
    content = b"c" * (900 * 1024)
    status, error = send(place, "PUT", f"/api/v1/blobs/{sha256(content).hexdigest()}?tenant_id=small", content)
    assert (status, error["code"]) == (409, "TooManyBlobs")
    assert "2 MiB" in error["message"]


def test_a_task_finds_its_blobs_as_files_and_leaves_a_result(place: Cluster, cluster: Client) -> None:
    name = put(place, b"weights")
    status, task = submit(
        place,
        command='cp "$GPUYARD_FILES_DIR/input.bin" copy && tr a-z A-Z < copy > "$GPUYARD_RESULT_FILE"; rm copy',
        files={"input.bin": name},
        store_result=True,
        work_dir=str(place.folder),
    )
    assert status == 201, task
    assert (task["files"], task["store_result"], task["result"]) == ({"input.bin": name}, True, None)
    ended = cluster.wait(task["id"], timeout=60, check=True)
    assert ended.result == sha256(b"WEIGHTS").hexdigest()
    assert send(place, "GET", f"/api/v1/blobs/{ended.result}") == (200, b"WEIGHTS")


def test_a_task_runs_in_a_fresh_copy_of_its_snapshot(place: Cluster, cluster: Client) -> None:
    script = put(place, b"#!/bin/sh\necho ran in $PWD; touch made_here\n")
    data = put(place, b"data")
    manifest = snapshot_of(
        place,
        {"path": "bin/run.sh", "sha256": script, "size": 42, "executable": True},
        {"path": "deep/er/data", "sha256": data, "size": 4},
        {"path": "current", "link": "deep/er"},
    )
    about = {"manifest": manifest, "commit": "ab12", "dirty": True}
    status, task = submit(place, command=["sh", "-c", "bin/run.sh && cat current/data"], snapshot=about)
    assert (status, task["snapshot"]) == (201, about), task
    cluster.wait(task["id"], timeout=60, check=True)
    printed = b"".join(cluster.logs(task["id"])).decode()
    folder = printed.split("ran in ")[1].split("\n")[0]
    assert printed.endswith("data")
    assert (Path(folder) / "made_here").exists()  # what it wrote stays for a while
    assert send(place, "GET", f"/api/v1/tasks/{task['id']}")[1]["snapshot"] == about


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../outside", "sha256": "0" * 64},
        {"path": "/etc/passwd", "sha256": "0" * 64},
        {"path": "a//b", "sha256": "0" * 64},
        {"path": "both", "sha256": "0" * 64, "link": "x"},
        {"path": "neither"},
    ],
)
def test_a_manifest_that_leads_out_of_its_folder_is_refused(place: Cluster, entry: dict[str, Any]) -> None:
    status, error = submit(place, command="true", snapshot={"manifest": snapshot_of(place, entry)})
    assert (status, error["code"], error["field"]) == (400, "WrongSnapshot", "snapshot.manifest")


def test_a_task_with_a_blob_that_is_not_stored_is_refused(place: Cluster) -> None:
    status, error = submit(place, command="true", files={"input": "1" * 64})
    assert (status, error["code"], error["field"]) == (409, "UnknownBlob", "files")
    missing = snapshot_of(place, {"path": "code.py", "sha256": "2" * 64})
    status, error = submit(place, command="true", snapshot={"manifest": missing})
    assert (status, error["code"], error["field"]) == (409, "UnknownBlob", "snapshot.manifest")
    status, error = submit(place, command="true", store_result=True, nodes=2)
    assert (status, error["field"]) == (400, "store_result")


def test_a_result_that_is_too_large_fails_the_task_with_the_reason(place: Cluster, cluster: Client) -> None:
    _, task = submit(place, command='head -c 2000000 /dev/zero > "$GPUYARD_RESULT_FILE"', store_result=True)
    ended = cluster.wait(task["id"], timeout=60)
    assert (ended.status, ended.result) == ("failed", None)
    assert "larger than 1 MiB" in (ended.reason or "")


def test_a_result_that_leads_elsewhere_is_not_read(place: Cluster, cluster: Client) -> None:
    _, task = submit(place, command='ln -s /etc/passwd "$GPUYARD_RESULT_FILE"', store_result=True)
    ended = cluster.wait(task["id"], timeout=60)
    assert (ended.status, ended.result) == ("failed", None)
    assert "result of the task cannot be read" in (ended.reason or "")


def test_what_a_task_stored_survives_a_restart_of_scheduler_and_agent(place: Cluster) -> None:
    name = put(place, b"kept")
    place.stop_server()
    place.stop_agent("node-1")
    place.start_server()
    place.start_agent("node-1")
    cluster = place.ready(1)
    _, task = submit(
        place, command='cat "$GPUYARD_FILES_DIR/a" > "$GPUYARD_RESULT_FILE"', files={"a": name}, store_result=True
    )
    assert cluster.wait(task["id"], timeout=60).result == name


def test_a_result_is_stored_although_the_scheduler_is_away_when_the_task_ends(place: Cluster) -> None:
    before = place.client()
    flag = place.folder / "go"
    command = f'while [ ! -e {flag} ]; do sleep 0.1; done; echo late > "$GPUYARD_RESULT_FILE"; touch {flag}.done'
    _, task = submit(place, command=command, store_result=True)
    next(one for one in before.changes(task["id"]) if one.status == "running")
    place.kill_server()
    flag.touch()
    until((place.folder / "go.done").exists, what="the task ends")
    place.start_server()
    cluster = place.ready(1)
    assert cluster.wait(task["id"], timeout=60).result == sha256(b"late\n").hexdigest()
