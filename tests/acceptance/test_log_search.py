"""Searching the output of a task over the API, on a real node."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.acceptance.cli_cluster import CliCluster, running_cluster

SCRIPT = """
import sys
out = sys.stdout.buffer
for number in range(1, 1001):
    out.write(b"step %d loss 0.5\\n" % number)
out.write(b"x" * (10 << 20) + b" NaN in layer 7 " + b"y" * 1000 + b"\\n")
out.write(b"\\xff\\xfe\\x00\\x1b[31m Error: \\xe8\\xae\\xad\\xe7\\xbb\\x83 <script>alert(1)</script>\\n")
out.write(b"no end of line: Error")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("search")) as cluster:
        script = Path(cluster.folder) / "write.py"
        script.write_text(SCRIPT)
        client = cluster.client()
        task = client.submit(["python3", str(script)], gpu_count=1)
        assert client.wait(task).status == "success"
        yield cluster


def ask(cluster: CliCluster, query: str) -> Any:
    with urllib.request.urlopen(f"{cluster.url}/api/v1/tasks/1/logs?{query}", timeout=60) as response:
        assert response.headers["content-type"] == "application/json"
        return json.loads(response.read())


def refused(cluster: CliCluster, query: str) -> tuple[int, Any]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(cluster, query)
    return refused.value.code, json.loads(refused.value.read())["error"]["field"]


def test_lines_are_found_with_number_offset_and_context(cluster: CliCluster) -> None:
    told = ask(cluster, "search=STEP%20500&context=1")
    (match,) = told["matches"]
    assert (match["text"], match["line"]) == ("step 500 loss 0.5", 500)
    assert (match["before"], match["after"]) == (["step 499 loss 0.5"], ["step 501 loss 0.5"])
    assert (told["next_offset"], told["truncated"]) == (None, False)
    assert ask(cluster, "search=STEP&case=true")["matches"] == []
    with urllib.request.urlopen(f"{cluster.url}/api/v1/tasks/1/logs?offset={match['offset']}&limit=8") as response:
        assert response.read() == b"step 500"


def test_an_answer_of_many_long_lines_is_continued_and_complete(cluster: CliCluster) -> None:
    client = cluster.client()
    code = "for number in range(1000): print('ERROR', number, 'x' * 900)"
    task = client.submit(["python3", "-c", code], gpu_count=1)
    assert client.wait(task).status == "success"
    found, answers = list[int](), 0
    offset: int | None = 0
    while offset is not None:
        path = f"{cluster.url}/api/v1/tasks/{task.id}/logs?search=ERROR&limit=1000&context=10&offset={offset}"
        with urllib.request.urlopen(path, timeout=60) as response:
            told = json.loads(response.read())
        found += [match["line"] for match in told["matches"]]
        assert told["truncated"] == (told["next_offset"] is not None)
        offset, answers = told["next_offset"], answers + 1
    assert found == list(range(1, 1001))
    assert answers > 1


def test_a_long_list_of_matches_is_continued(cluster: CliCluster) -> None:
    seen, offset = [], 0
    while True:
        told = ask(cluster, f"search=step&limit=400&offset={offset}")
        seen += [match["line"] for match in told["matches"]]
        if told["next_offset"] is None:
            break
        assert told["truncated"]
        offset = told["next_offset"]
    assert seen == list(range(1, 1001))


def test_long_lines_and_hostile_bytes_are_text(cluster: CliCluster) -> None:
    (nan,) = ask(cluster, "search=nan%20in")["matches"]
    assert " NaN in layer 7 " in nan["text"]
    assert len(nan["text"]) <= 1000
    first, last = ask(cluster, f"search={quote('Error')}")["matches"]
    assert first["text"] == "��\x00\x1b[31m Error: 训练 <script>alert(1)</script>"
    assert (first["line"], last["text"]) == (1002, "no end of line: Error")
    assert len(ask(cluster, f"search={quote('训练')}")["matches"]) == 1


def test_a_wrong_search_gets_one_sentence(cluster: CliCluster) -> None:
    assert refused(cluster, "search=") == (400, "search")
    assert refused(cluster, "search=a%0Ab") == (400, "search")
    assert refused(cluster, f"search={'x' * 501}") == (400, "search")
    assert refused(cluster, "search=x&follow=true") == (400, "follow")
    assert refused(cluster, "search=x&tail=5") == (400, "tail")
    assert refused(cluster, "search=x&limit=1001") == (400, "limit")
    assert refused(cluster, "search=x&context=11") == (400, "context")
    assert refused(cluster, "case=true") == (400, "case")
    assert refused(cluster, "search=x&attempt=2") == (404, "attempt")
    assert refused(cluster, "search=x&node=nowhere") == (404, "node")
    assert refused(cluster, "search=x&member=1") == (404, "member")
    assert refused(cluster, "search=x&member=0&node=a") == (400, "member")


def test_a_member_is_named_by_its_number(cluster: CliCluster) -> None:
    assert len(ask(cluster, "search=step%201000&member=0")["matches"]) == 1


def test_the_python_client_searches(cluster: CliCluster) -> None:
    found = cluster.client().search_logs("task-1", "STEP 77 ", context=1)
    assert [(match.line, match.before) for match in found.matches] == [(77, ["step 76 loss 0.5"])]
    assert cluster.client().search_logs("task-1", "STEP 77 ", match_case=True).matches == []
