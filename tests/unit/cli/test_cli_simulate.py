"""`gpuyard simulate`, from its options to its page."""

import json
from pathlib import Path

import pytest

from gpuyard import cli

JOBS = "submit_s,duration_s,gpu_num,user,vc\n0,100,6,ann,left\n1,10,8,bob,left\n2,10,1,cem,left\n3,5,64,dan,left\n4,5,0,eve,left\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def simulated(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["gpuyard", "simulate", *map(str, words)])
    return cli.main()


def test_policies_are_compared_and_what_was_left_out_is_said(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        simulated(monkeypatch, "--trace", trace, "--cluster", "1x8", "--policy", "fifo, fifo+backfill", "--json") == 0
    )
    said = capsys.readouterr()
    found = json.loads(said.out)["policies"]
    assert [found[name]["avg_jct_s"] for name in ("fifo", "fifo+backfill")] == [109.0, 73.0]
    assert {
        "jobs",
        "p50_jct_s",
        "p99_jct_s",
        "avg_queue_s",
        "p999_queue_s",
        "makespan_s",
        "preemptions",
        "utilisation",
        "wall_s",
    } <= found["fifo"].keys()
    assert said.err.splitlines() == [
        "1 jobs without GPUs were left out.",
        "1 jobs that this cluster could never run were left out.",
    ]


def test_a_table_for_people(trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "1x8", "--policy", "fifo") == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["POLICY", "JOBS"]
    assert row.split()[:3] == ["fifo", "3", "109"]


def test_pools_are_kept_apart(trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = trace.with_name("nodes.csv")
    nodes.write_text("vc,nodes\nleft,1\nright,9\n")
    assert simulated(monkeypatch, "--trace", trace, "--nodes", nodes, "--pool", "vc", "--policy", "fifo", "--json") == 0
    assert json.loads(capsys.readouterr().out)["policies"]["fifo"]["avg_jct_s"] == 109.0


def test_the_page_holds_the_table_and_all_pictures(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = trace.with_name("page.html")
    words = ("--trace", trace, "--cluster", "1x8", "--policy", "fifo,levels", "--report", page)
    assert simulated(monkeypatch, *words) == 0
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 5
    assert "http" not in text
    assert ">levels<" in text
    assert sorted(path.name for path in page.parent.glob("*.png")) == [
        f"page-{name}.png" for name in ("fairness", "in_use", "jct", "queueing", "waiting")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in page.parent.glob("*.png"))
    assert "Written: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--policy", "fifo"),
            "Say which nodes there are: with --nodes FILE or with --cluster NxG, and not with both.",
        ),
        (("--policy", "lifo", "--cluster", "1x8"), "There is no policy 'lifo' to simulate; there are: fifo"),
        (("--policy", ",", "--cluster", "1x8"), "--policy names no policy."),
        (("--policy", "fifo", "--cluster", "1x8", "--pool", "vc"), "--pool needs a file of nodes"),
        (("--policy", "fifo", "--cluster", "8"), "--cluster is '8'; it must be NODESxGPUS"),
        (
            ("--policy", "fifo", "--cluster", "1x8", "--report", "/none/such/page.html"),
            "can not be written; name a file in a folder that exists.",
        ),
        (("--policy", "fifo", "--nodes", "none.csv"), "none.csv can not be read: No such file or directory."),
    ],
)
def test_wrong_use_gets_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(monkeypatch, "--trace", trace, *words) != 0
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1
