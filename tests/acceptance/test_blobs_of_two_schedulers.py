"""Blobs of two schedulers: refused without a common folder, and still there after one of them is lost."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from gpuyard.live.sdk import Refused
from tests.acceptance.pair import Pair
from tests.acceptance.test_replication import started

pytestmark = pytest.mark.slow
CONTENT = b"shared"
NAME = sha256(CONTENT).hexdigest()


class BlobPair(Pair):
    """Two schedulers with a common folder of blobs."""

    def environment(self, name: str) -> dict[str, str]:
        return {**super().environment(name), "GPUYARD_BLOBS__DIR": str(self.folder / "blobs")}


@pytest.fixture(params=[Pair, BlobPair])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = request.param(tmp_path)
    yield started(made)
    made.end()


def upload(url: str) -> int:
    asked = urllib.request.Request(f"{url}/api/v1/blobs/{NAME}", data=CONTENT, method="PUT")
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_blobs_need_a_common_folder_and_survive_the_loss_of_a_scheduler_there(pair: Pair) -> None:
    cluster = pair.client()
    if not isinstance(pair, BlobPair):
        assert upload(pair.a.url) == 409
        with pytest.raises(Refused, match=r"blobs\.dir") as caught:
            cluster.connection.ask("POST", "/api/v1/tasks", dict, body={"command": "true", "store_result": True})
        assert caught.value.code == "BlobsNotShared"
        return
    assert upload(pair.a.url) == 200
    pair.kill(pair.a.process)
    pair.until(pair.b.leads, "the standby takes over")
    pair.ready(1)
    asked = {
        "command": 'cat "$GPUYARD_FILES_DIR/in" > "$GPUYARD_RESULT_FILE"',
        "files": {"in": NAME},
        "store_result": True,
    }
    task = cluster.connection.ask("POST", "/api/v1/tasks", dict, body=asked, key="once")
    assert cluster.wait(task["id"], timeout=60).result == NAME
