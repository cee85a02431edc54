"""`gpuyard gpus`: a list of few GPUs, a map of many, and what `gpuyard nodes` says about closed nodes."""

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.cli.gpus import NAMES
from gpuyard.cli.output.gpu_map import map_lines, mark_of, total_lines, user_lines
from gpuyard.cli.output.screen import Screen, cells
from gpuyard.live.wire.answers import GpuAnswer, GpusAnswer, NodeAnswer, NodeList
from tests.unit.live.sdk.fake_server import Answering, fake_server


def gpu(node: str, index: int, **changed: Any) -> GpuAnswer:
    fields: dict[str, Any] = {
        "id": f"{node}/{index}", "node_id": node, "device_index": index, "model": "H100", "memory": 81920, "status": "idle",
        "current_task": None, "tasks": [], "updated_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return GpuAnswer(**{**fields, **changed})


def node(name: str, status: Any = "online", reason: str | None = None) -> NodeAnswer:
    return NodeAnswer(
        id=name, status=status, reason=reason, gpus=8, gpus_idle=0, gpu_models={}, cpus=8, memory_mb=1024, labels={},
        tasks=[], last_seen=None, version=None, address=None, cpu_percent=None, memory_used_mb=None, load=None,
        disk_free_mb=None, supervisor_silent_seconds=None, devices=[], unknown_attempts=[],
    )  # fmt: skip


def cluster_of(nodes: int) -> list[GpuAnswer]:
    """Eight GPUs on each node: the first six busy, one idle, the last offline on every tenth node."""
    found = []
    for number in range(nodes):
        name = f"n{number:03}"
        for index in range(8):
            busy = {"status": "busy", "current_task": f"task-{number}", "tasks": [f"task-{number}"]}
            more: dict[str, Any] = (
                {**busy, "user": f"u{number % 30}", "utilization": 100.0 * index / 5} if index < 6 else {}
            )
            if index == 7 and number % 10 == 0:
                more = {"status": "offline"}
            found.append(gpu(name, index, model="H100" if number % 4 else "A100", **more))
    return found


def of(gpus: list[GpuAnswer]) -> GpusAnswer:
    return GpusAnswer(total=len(gpus), idle=0, busy=0, external=0, offline=0, gpus=gpus)


def serving(gpus: list[GpuAnswer], *nodes: NodeAnswer) -> Callable[[Answering], None]:
    def answer(line: Answering) -> None:
        line.say(of(gpus) if line.asked.path == "/api/v1/gpus" else NodeList(list(nodes), len(nodes)))

    return answer


def screen(width: int | None, height: int = 50) -> Screen:
    return Screen(width, height, colors=False, moves=False)


@pytest.mark.parametrize(("status", "used", "mark"), [
    ("busy", 0.0, "▁"), ("busy", 50.0, "▅"), ("busy", 100.0, "█"), ("busy", 250.0, "█"), ("busy", None, "█"),
    ("idle", 0.0, "·"), ("external", None, "x"), ("offline", None, "!"),
])  # fmt: skip
def test_every_state_has_its_mark(status: str, used: float | None, mark: str) -> None:
    assert mark_of(status, used) == mark


@pytest.mark.parametrize("width", [200, 120, 80, 40])
def test_a_map_of_1600_gpus_fits_and_shows_every_gpu_once(width: int) -> None:
    gpus = cluster_of(200)
    began = time.process_time()
    lines = map_lines(gpus, [node("n007", "draining", "fan is loud"), node("n008")], screen(width))
    assert time.process_time() - began < 0.3
    assert max(map(cells, lines)) <= width
    drawn = "".join(lines)
    assert drawn.count("!") == 20
    assert sum(drawn.count(mark) for mark in "▁▂▃▄▅▆▇█") == 1200
    assert lines[-1] == "n007: draining (fan is loud)"
    assert len(lines) <= 1 + -(-200 // ((width + 2) // 15))
    assert lines[0].startswith("n000 ▁")


def test_a_few_nodes_are_one_line_each_with_who_holds_what() -> None:
    gpus = [gpu("n1", 0, status="busy", current_task="task-3", user="ann"), gpu("n1", 1, status="busy", current_task="task-3", user="ann"), gpu("n2", 0)]  # fmt: skip
    lines = map_lines(gpus, [node("n1"), node("n2", "cordoned", "fan")], screen(80))
    assert lines == ["n1 ██  ann task-3 ×2", "n2 ·   cordoned (fan)"]
    assert max(map(len, map_lines(gpus, [], screen(20)))) <= 20


def test_totals_are_by_model_with_the_utilization_of_busy_gpus() -> None:
    lines = [line.split() for line in total_lines(cluster_of(200), screen(120))]
    assert lines[0] == ["MODEL", "TOTAL", "BUSY", "IDLE", "EXTERNAL", "OFFLINE", "USED"]
    assert lines[1] == ["H100", "1,200", "900", "290", "0", "10", "50%"]
    assert lines[2] == ["A100", "400", "300", "90", "0", "10", "50%"]
    assert lines[3] == ["all", "1,600", "1,200", "380", "0", "20", "50%"]
    assert user_lines(cluster_of(200), screen(60))[0].startswith("held by: u0 42, u1 42,")
    assert len(user_lines(cluster_of(200), screen(60))[0]) == 60
    assert "18 more" in user_lines(cluster_of(200), screen(None))[0]


def call(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    gpus: list[GpuAnswer] | None = None,
) -> tuple[int, list[str], str]:
    with fake_server(serving(cluster_of(5) if gpus is None else gpus, node("n001", "draining", "fan"))) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", *words, "--server", server.url])
        code = cli.main()
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ((), 40),
        (("--node", "n001"), 8),
        (("--node", "n001", "--node", "n002"), 16),
        (("-m", "A100"), 16),
        (("-s", "offline"), 1),
        (("--status", "idle,offline"), 10),
        (("-u", "u3"), 6),
        (("-u", "nobody"), 0),
    ],
)
def test_a_pipe_gets_every_gpu_that_was_asked_for(
    words: tuple[str, ...], count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = call(monkeypatch, capsys, "gpus", *words)
    assert (code, len(lines)) == (0, count + 1)
    assert tuple(lines[0].replace("MEM USED", "MEM_USED").split()) == tuple(name.replace(" ", "_") for name in NAMES)


def test_the_map_can_be_had_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = call(monkeypatch, capsys, "gpus", "--map")
    assert any(line.startswith("n001 ▁▂▄▅▇█··  draining (fan)  u1 task-1 ×6") for line in lines), lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--node", "n01"), "there is no node n01; did you mean n001?"),
        (("-m", "H10"), "did you mean H100?"),
        (("-s", "ilde"), "did you mean idle?"),
        (("--list", "--map"), "choose one of"),
        (("--watch", "--json"), "choose one of"),
        (("--json", "-u", "ann"), "it prints all GPUs"),
        (("--interval", "0"), "0.5"),
    ],
)
def test_wrong_options_are_refused(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = call(monkeypatch, capsys, "gpus", *words)
    assert code == 2
    assert said in errors


def test_nodes_say_why_they_are_closed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, (head, line), _ = call(monkeypatch, capsys, "nodes")
    assert head.split()[-1] == "REASON"
    assert line.split()[-1] == "fan"
