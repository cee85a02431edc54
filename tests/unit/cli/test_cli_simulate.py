"""`gpuyard simulate`, from its options to its page."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.cli.simulate import DIFFERENT_TASKS
from gpuyard.core.journal.records import JournalEntry
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.simulator.run import NEVER_END, QUOTA_TOO_SMALL
from gpuyard.testing import ClusterStory, task

NAMES = ("fifo", "fifo+backfill")
JOBS = "submit_s,duration_s,gpu_num,user,vc\n0,100,6,ann,left\n1,10,8,bob,left\n2,10,1,cem,left\n3,5,64,dan,left\n4,5,0,eve,left\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def simulated(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["gpuyard", "simulate", *map(str, words)])
    return cli.main()


def test_policies_are_compared_and_omitted_jobs_are_reported(
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
        "utilization",
        "wall_s",
    } <= found["fifo"].keys()
    assert said.err.splitlines() == [
        "1 job without GPUs was omitted.",
        "1 job that cannot run on this cluster was omitted.",
    ]


def test_the_default_output_is_a_table(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "1x8", "--policy", "fifo") == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["POLICY", "JOBS"]
    assert row.split()[:3] == ["fifo", "3", "109"]


def test_the_legend_explains_the_columns_that_the_table_has(
    trace: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trace", trace, "--cluster", "1x8", "--policy", "srtf", "--oracle", "--preemptible", "1")
    assert simulated(monkeypatch, *words) == 0
    head, _, legend, *_ = capsys.readouterr().out.splitlines()
    assert "WORST FTF" in head
    assert "PREEMPTION LOSS" in head
    assert legend.startswith("Times in seconds; ")
    assert "over time with GPUs (which counts as at least 10 s), WORST the largest one" in legend
    assert "USED" not in legend
    assert "FTF time to end over the time with an even share" in legend
    assert legend.endswith(", PREEMPTION LOSS the GPU-hours of repeated work, stops and restarts.")
    assert simulated(monkeypatch, "--journal", cluster, "--policy", "fifo") == 0
    head, *_, legend = capsys.readouterr().out.splitlines()
    assert "FTF" not in head + legend
    assert "PREEMPTION LOSS" not in head + legend
    assert legend.endswith("FAIRNESS 1 if all users wait equally long.")


@pytest.mark.parametrize("more", [(), ("--repeat", "2")])
def test_the_recorded_policy_is_named_below_the_table(
    more: tuple[str, ...], cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, "--journal", cluster, "--policy", "same,priority", *more) == 0
    *_, said = capsys.readouterr().out.splitlines()
    assert said == "same: the policy and settings of the journal; at its end policy fifo, backfill none, preemption on."
    assert simulated(monkeypatch, "--journal", cluster, "--policy", "priority", *more) == 0
    assert "same:" not in capsys.readouterr().out


def test_the_jobs_of_a_journal_are_written_with_its_unix_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began = 1_790_000_000.0
    story = ClusterStory(policy="fifo", backfill="none")
    story.is_split(online=0.0)
    story.has_nodes(1, gpus_each=8)
    story.submits(task("six", gpus=6, runs_for=100))
    story.passes(30)
    story.submits(task("eight", gpus=8, runs_for=10))
    story.runs_out()
    journal = SqliteJournal.open(tmp_path / "journal")
    journal.append([JournalEntry(began + at, event) for at, event in story.events])
    journal.close()
    path = tmp_path / "jobs.csv"
    assert simulated(monkeypatch, "--journal", tmp_path, "--policy", "same", "--jobs-csv", path) == 0
    capsys.readouterr()
    with path.open() as file:
        rows = [(it["policy"], float(it["submit_s"]), float(it["end_s"])) for it in csv.DictReader(file)]
    expected = [("same", began, began + 100), ("same", began + 30, began + 110)]
    assert [row for row in rows if row[0] == "same"] == expected


@pytest.mark.parametrize(
    ("factor", "counts"), [("2", "2 jobs of recorded, 3 jobs of same"), ("0", "2 jobs of recorded, 1 job of same")]
)
def test_recorded_rows_are_those_of_the_journal_also_in_another_mix(
    factor: str, counts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = ClusterStory(policy="fifo", backfill="none")
    story.is_split(online=0.5)
    story.has_nodes(1, gpus_each=8)
    story.submits(task("serve", gpus=2, runs_for=30, online=True))
    story.passes(10)
    story.submits(task("train", gpus=4, runs_for=100))
    story.runs_out()
    path = written(story, tmp_path) / "jobs.csv"
    words = ("--journal", tmp_path, "--policy", "same", "--mix", f"class:online={factor}", "--jobs-csv", path)
    assert simulated(monkeypatch, *words) == 0
    assert f"Written: {path}, {counts}." in capsys.readouterr().err
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == "recorded"]
    assert [(row["name"], row["gpu_num"], float(row["duration_s"]), float(row["jct_s"])) for row in rows] == [
        ("serve", "2", 30.0, 30.0),
        ("train", "4", 100.0, 100.0),
    ]


def test_jobs_with_speeds_are_simulated_on_several_gpu_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, table = tmp_path / "jobs.csv", tmp_path / "table.csv"
    jobs.write_text("job_type,total_steps,scale_factor,arrival_s\nLM,1000,1,0\nLM,1000,1,0\nLM,1000,16,0\n")
    table.write_text("gpu_type,model,num_gpus,iters_per_s\nk80,LM,1,1\nv100,LM,1,10\nv100,LM,16,90\n")
    words = ("--trace", jobs, "--throughputs", table, "--cluster", "1x1:v100+1x1:k80", "--policy", "fifo", "--json")
    assert simulated(monkeypatch, *words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["policies"]["fifo"]["avg_jct_s"] == (100 + 1000) / 2
    assert said.err == "1 job that cannot run on this cluster was omitted.\n"


def test_pools_are_separate(trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = trace.with_name("nodes.csv")
    nodes.write_text("vc,nodes\nleft,1\nright,9\n")
    assert simulated(monkeypatch, "--trace", trace, "--nodes", nodes, "--pool", "vc", "--policy", "fifo", "--json") == 0
    assert json.loads(capsys.readouterr().out)["policies"]["fifo"]["avg_jct_s"] == 109.0


def test_jobs_that_share_a_gpu_have_the_speed_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, pairs = tmp_path / "jobs.csv", tmp_path / "pairs.csv"
    jobs.write_text("submit_s,duration_s,gpu_num,gpu_fraction,name\n0,100,1,0.5,a\n0,100,1,0.5,b\n")
    pairs.write_text("name,beside,speed\na,b,0.5\nb,a,0.5\n")
    words = ("--trace", jobs, "--cluster", "1x1", "--policy", "fifo", "--json")
    found = []
    for more in ((), ("--interference", pairs)):
        assert simulated(monkeypatch, *words, *more) == 0
        found.append(json.loads(capsys.readouterr().out)["policies"]["fifo"]["avg_jct_s"])
    assert found == [125.0, 200.0]


def test_rows_with_known_run_times_are_marked(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trace", trace, "--cluster", "1x8", "--oracle", "--policy")
    assert simulated(monkeypatch, *words, "fifo,sjf,default", "--json") == 0
    said = capsys.readouterr()
    assert list(json.loads(said.out)["policies"]) == ["fifo", "sjf+oracle", "default+oracle"]
    assert "--oracle" not in said.err
    assert simulated(monkeypatch, *words, "sjf") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "sjf+oracle"
    assert simulated(monkeypatch, *words, "fifo") == 0
    assert "--oracle has no effect: none of these policies uses run times." in capsys.readouterr().err


def test_jobs_of_every_policy_are_written_as_rows(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace.with_name("per_job.csv")
    words = ("--trace", trace, "--cluster", "1x8", "--policy", "fifo,fifo+backfill", "--jobs-csv", path)
    assert simulated(monkeypatch, *words) == 0
    assert f"Written: {path}, 3 jobs of each policy." in capsys.readouterr().err
    head, *rows = path.read_text().splitlines()
    assert head == "policy,job,name,user,gpu_num,submit_s,start_s,end_s,jct_s,queue_s,held_s,duration_s,preemptions"
    assert rows[:3] == [
        "fifo,1,,ann,6,0.0,0.0,100.0,100.0,0.0,100.0,100.0,0",
        "fifo,2,,bob,8,1.0,100.0,110.0,109.0,99.0,10.0,10.0,0",
        "fifo,3,,cem,1,2.0,110.0,120.0,118.0,108.0,10.0,10.0,0",
    ]
    assert rows[5] == "fifo+backfill,3,,cem,1,2.0,2.0,12.0,10.0,0.0,10.0,10.0,0"
    assert simulated(monkeypatch, *words[:-1], trace.with_name("none") / "jobs.csv") == 2
    assert "--jobs-csv: cannot write" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_has_the_table_and_all_charts(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = trace.with_name("page.html")
    words = ("--trace", trace, "--cluster", "1x8", "--policy", "fifo,levels", "--report", page)
    assert simulated(monkeypatch, *words) == 0
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 5
    assert "Predicted run times" not in text
    assert "http" not in text
    assert ">levels<" in text
    assert sorted(path.name for path in page.parent.glob("*.png")) == [
        f"page-{name}.png" for name in ("fairness", "in_use", "jct", "queueing", "waiting")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in page.parent.glob("*.png"))
    assert "Written: " in capsys.readouterr().err


@pytest.mark.slow
def test_the_accuracy_of_predictions_is_shown_if_there_were_any(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{100 * place},50,1,ann,left\n" for place in range(10))
    trace.write_text(f"submit_s,duration_s,gpu_num,user,vc\n{rows}")
    page = trace.with_name("page.html")
    words = ("--trace", trace, "--cluster", "1x8", "--policy", "fifo,qssf", "--report", page, "--json")
    assert simulated(monkeypatch, *words) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert found["fifo"]["prediction"] is None
    assert found["qssf"]["prediction"]["predicted"] == 7
    assert found["qssf"]["prediction"]["typical_factor"] == pytest.approx(1.0)
    assert page.with_name("page-accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "Predicted run times" in page.read_text()


def test_predictions_can_be_corrected_by_lightgbm_if_it_is_installed(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trace", trace, "--cluster", "1x8", "--policy", "qssf", "--estimator", "lightgbm", "--json")
    assert simulated(monkeypatch, *words) == 0
    assert json.loads(capsys.readouterr().out)["policies"]["qssf"]["jobs"] == 3
    monkeypatch.setattr("gpuyard.simulator.comparison.find_spec", lambda _: None)
    assert simulated(monkeypatch, *words) != 0
    assert "with LightGBM need it: pip install 'gpuyard[learn]'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--policy", "fifo"),
            "Choose the nodes: either --nodes FILE or --cluster NxG.",
        ),
        (("--policy", "lifo", "--cluster", "1x8"), "Unknown policy 'lifo'; available policies: fifo"),
        (("--policy", ",", "--cluster", "1x8"), "Name the policies to compare: --policy NAME,…"),
        (("--policy", "fifo", "--cluster", "1x8", "--pool", "vc"), "--pool needs a file with the pool of each node"),
        (
            ("--policy", "fifo", "--nodes", "n.csv", "--pool", "vc", "--throughputs", "t.csv"),
            "and cannot be used with --pool.",
        ),
        (("--policy", "fifo", "--cluster", "8"), "--cluster is '8'; it must be NODESxGPUS"),
        (
            ("--policy", "fifo", "--cluster", "1x8", "--report", "/none/such/page.html"),
            "use a file in a folder that exists.",
        ),
        (("--policy", "fifo", "--nodes", "none.csv"), "File none.csv does not exist."),
    ],
)
def test_wrong_use_is_reported_in_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(monkeypatch, "--trace", trace, *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


# --- generated jobs ------------------------------------------------------------------------------------------------------


def test_a_trace_the_cluster_cannot_run_at_all_is_reported_in_one_sentence(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text("submit_s,duration_s,gpu_num\n0,5,64\n")
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "1x8", "--policy", "fifo") == 2
    assert capsys.readouterr().err == f"gpuyard: {trace}: none of its 1 jobs can run on this cluster.\n"


def drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert simulated(monkeypatch, "--generate", "300", "--cluster", "4x8", "--json", *words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["policies"]
    for row in found.values():
        row.pop("wall_s")
    return found


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures_and_another_gives_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once, again, other = (
        drawn(monkeypatch, capsys, "--policy", "fifo,levels", "--seed", seed, "--fractional", 0.5) for seed in (7, 7, 8)
    )
    assert once == again
    assert once["fifo"]["jobs"] == other["fifo"]["jobs"] == 300
    assert once["fifo"] != other["fifo"]


def test_saved_jobs_are_simulated_like_generated_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.csv.gz"
    found = drawn(monkeypatch, capsys, "--policy", "srtf", "--fractional", 0.5, "--save", path)
    assert simulated(monkeypatch, "--trace", path, "--cluster", "4x8", "--policy", "srtf", "--json") == 0
    read = json.loads(capsys.readouterr().out)["policies"]
    read["srtf"].pop("wall_s")
    assert read == found


def test_jobs_can_be_saved_without_a_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.csv"
    assert simulated(monkeypatch, "--generate", "50:0.5", "--cluster", "4x8", "--save", path) == 0
    assert len(path.read_text().splitlines()) == 51
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"Written: {path}, 50 jobs generated from seed 0 for 0.5 of the 32 GPUs of 4 nodes.\n",
    )


def test_repeated_runs_are_shown_as_means_with_their_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [
        {name: drawn(monkeypatch, capsys, "--policy", name, "--seed", seed)[name]["avg_jct_s"] for name in NAMES}
        for seed in (5, 6, 7)
    ]
    found = drawn(monkeypatch, capsys, "--policy", ",".join(NAMES), "--seed", 5, "--repeat", 3)
    first, second = (found[name] for name in NAMES)
    assert first["avg_jct_s"] == pytest.approx(sum(run["fifo"] for run in alone) / 3, abs=0.01)
    assert first["ci95"]["avg_jct_s"] > 0
    assert "difference" not in first
    assert second["difference"]["avg_jct_s"] == pytest.approx(second["avg_jct_s"] - first["avg_jct_s"], abs=0.01)
    assert second["difference"]["ci95"].keys() >= {"avg_jct_s", "p999_queue_s"}


def test_means_are_shown_as_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--generate", "100", "--cluster", "4x8", "--repeat", 2, "--policy", "fifo,fifo+backfill")
    assert simulated(monkeypatch, *words) == 0
    head, row, *_, note, _ = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["POLICY", "AVG", "JCT", "−", "fifo"]
    assert row.split()[2] == "±"
    assert re.search(r" \d+\.\d% ± \d+\.\d%  ", row)  # USED
    assert "means over 2 workloads" in note


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--generate", "many"), "--generate is 'many'; it must be JOBS or JOBS:LOAD, such as 10000:0.8"),
        (("--generate", "10:"), "--generate is '10:'; it must be"),
        (("--generate", "10:nan"), "load is not a finite number; it must be a number from 0.001 to 100."),
        (("--generate", "0"), "count is 0; it must be a whole number from 1 to 100,000,000."),
        (("--generate", "10", "--pool", "vc"), "--pool needs --trace"),
        (("--generate", "10", "--repeat", "2", "--report", "page.html"), "need a single workload"),
        (("--generate", "10", "--trace", "jobs.csv"), "Choose exactly one workload"),
        (("--generate", "10", "--fractional", "2"), "fractional is 2.0; it must be a number from 0 to 1."),
        (
            ("--generate", "10", "--save", "none/such/jobs.csv"),
            "cannot write none/such/jobs.csv: No such file or directory.",
        ),
        (("--trace", "jobs.csv", "--repeat", "2"), "--repeat needs --generate or --journal."),
        (("--trace", "jobs.csv", "--mix", "all=2"), "--tenant and --mix need --journal."),
        (("--generate", "10", "--quota", "0.5"), "--tenant and --mix need --journal."),
    ],
)
def test_wrong_use_of_seeds_is_reported_in_one_sentence(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, *words, "--cluster", "1x8", "--policy", "fifo") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


# --- a journal ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The data folder of a cluster in which three tasks ended and one still runs."""
    story = ClusterStory(policy="fifo", backfill="none")
    story.is_split(online=0.0)
    story.has_nodes(1, gpus_each=8)
    story.submits(task("six", gpus=6, runs_for=100), task("eight", gpus=8, runs_for=10), task("one", runs_for=10))
    story.passes(200)
    story.submits(task("endless"))
    return written(story, tmp_path / "cluster")


def written(story: ClusterStory, folder: Path) -> Path:
    journal = SqliteJournal.open(folder / "journal")
    journal.append([JournalEntry(at, event) for at, event in story.events])
    journal.close()
    return folder


def test_a_journal_is_simulated_and_compared_with_what_really_happened(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, "--journal", cluster, "--policy", "same,fifo+backfill", "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)["policies"]
    assert list(found) == ["recorded", "same", "fifo+backfill"]
    assert [found[name]["avg_jct_s"] for name in found] == [110.0, 110.0, pytest.approx(220 / 3, abs=1e-3)]
    assert {name: value for name, value in found["same"].items() if name not in {"wall_s", "fragmentation"}} == {
        name: value for name, value in found["recorded"].items() if name != "wall_s"
    }
    assert said.err.splitlines() == ["1 task was still running at the end of the journal and was omitted."]


def test_tasks_that_arrive_after_their_node_left_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = ClusterStory(policy="fifo", backfill="greedy")
    story.is_split(online=0.0)
    story.has_nodes(1, gpus_each=8)
    story.submits(task("most", gpus=7, runs_for=100), task("all", gpus=8), task("one", runs_for=10))
    story.passes(99)
    story.cancels("all")
    story.passes(2)
    story.loses("node-1")
    written(story, tmp_path)
    assert simulated(monkeypatch, "--journal", tmp_path, "--policy", "same,fifo", "--json") == 0
    assert capsys.readouterr().err == f"Under fifo 1 task never ends: {NEVER_END}.\n{DIFFERENT_TASKS}\n"


@pytest.mark.parametrize(
    ("words", "avg_jct_s"),
    [
        (("--cluster", "2x8"), (100 + 10 + 10) / 3),
        (("--add-nodes", "1x8"), (100 + 10 + 10) / 3),
        (("--quota", "1.0:none"), 110.0),
        (("--quota", "0.5:borrow"), 110.0),
        (("--tenant", "team:max_gpus=16:weight=2"), 110.0),
        (("--mix", "all=1"), 110.0),
        (("--mix", "class:batch=1,tenant:team=1"), 110.0),
    ],
)
def test_a_journal_is_simulated_with_one_thing_changed(
    words: tuple[str, ...],
    avg_jct_s: float,
    cluster: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(monkeypatch, "--journal", cluster, "--policy", "same", *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert found["recorded"]["avg_jct_s"] == 110.0
    assert found["same"]["avg_jct_s"] == pytest.approx(avg_jct_s, abs=0.001)


def test_a_quota_that_leaves_a_class_no_gpus_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = ClusterStory(policy="fifo", backfill="none")
    story.is_split(online=0.5)
    story.has_nodes(1, gpus_each=4)
    story.submits(task("serve", runs_for=30, online=True), task("train", runs_for=100), task("test", runs_for=10))
    story.runs_out()
    written(story, tmp_path)
    monkeypatch.setattr("gpuyard.simulator.charts.charts_of", lambda _: {})
    words = ("--journal", tmp_path, "--policy", "same", "--quota", "0.9:strict", "--report", tmp_path / "page.html")
    assert simulated(monkeypatch, *words) == 0
    notes = (f"Under same 2 tasks never end: {QUOTA_TOO_SMALL}.", DIFFERENT_TASKS)
    assert capsys.readouterr().err.splitlines()[:2] == [*notes]
    page = (tmp_path / "page.html").read_text()
    assert all(f"<p>{note}</p>" in page for note in notes)


def test_the_legend_says_which_hours_are_those_of_sleeping_nodes(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trace", trace, "--cluster", "1x8", "--policy", "fifo", "--suspend-idle", "60")
    assert simulated(monkeypatch, *words) == 0
    assert (
        "USED the part of all GPU-hours in use, in rows with +elastic or +suspend of the GPU-hours up"
        in capsys.readouterr().out
    )


def test_tasks_of_a_journal_are_drawn_again_for_intervals(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--journal", cluster, "--policy", "same,fifo+backfill", "--repeat", "6", "--seed", "1", "--json")
    assert simulated(monkeypatch, *words) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert list(found) == ["same", "fifo+backfill"]
    assert found["same"]["ci95"]["avg_jct_s"] > 0
    assert found["fifo+backfill"]["difference"]["avg_jct_s"] <= 0


def test_refused_tasks_are_counted(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--journal", cluster, "--policy", "same", "--tenant", "team:max_gpus=6", "--json")
    assert simulated(monkeypatch, *words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["policies"]["same"]["jobs"] == 2
    assert "Under same 1 task is refused: no node or limit of this cluster allows it." in said.err


@pytest.mark.slow
def test_a_journal_can_be_reported_as_a_page(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = cluster / "page.html"
    assert simulated(monkeypatch, "--journal", cluster / "journal", "--policy", "priority", "--report", page) == 0
    assert ">recorded<" in page.read_text()
    assert f"3 tasks of the journal in {cluster / 'journal'}, on at most 8 GPUs" in page.read_text()
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["recorded", "3"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--journal", "YARD", "--policy", "lifo"), "Unknown policy 'lifo'; available policies: same, fifo"),
        (("--journal", "YARD", "--policy", "fifo", "--pool", "vc"), "a journal has its own nodes"),
        (("--journal", "YARD", "--policy", "fifo", "--elastic", "1:8"), "a journal has its own nodes"),
        (("--journal", "YARD", "--policy", "fifo", "--cluster", "1x8", "--nodes", "n.csv"), "Choose the nodes"),
        (("--journal", "YARD", "--policy", "fifo", "--cluster", "8"), "--cluster is '8'; it must be NODESxGPUS"),
        (("--journal", "YARD", "--policy", "fifo", "--add-nodes", "x"), "--add-nodes is 'x'; it must be NODESxGPUS"),
        (("--journal", "YARD", "--policy", "fifo", "--quota", "60"), "The quota is '60'; it must be the part"),
        (("--journal", "YARD", "--policy", "fifo", "--quota", "0.5:lend"), "(strict, borrow or none)"),
        (("--journal", "YARD", "--policy", "fifo", "--tenant", "research"), "it must be NAME:LIMIT=VALUE"),
        (("--journal", "YARD", "--policy", "fifo", "--tenant", "a:gpus=3"), "'gpus' is not a limit of a tenant"),
        (("--journal", "YARD", "--policy", "fifo", "--tenant", "a:weight=big"), "--tenant a: weight is 'big'"),
        (("--journal", "YARD", "--policy", "fifo", "--mix", "all"), "it must be TASKS=FACTOR"),
        (("--journal", "YARD", "--policy", "fifo", "--mix", "all=x"), "--mix all is 'x'; it must be a number."),
        (("--journal", "YARD", "--policy", "fifo", "--throughputs", "t.csv"), "--throughputs needs --trace"),
        (("--journal", "YARD", "--trace", "x.csv", "--policy", "fifo"), "Choose exactly one workload"),
        (("--policy", "fifo"), "Choose exactly one workload"),
        (("--journal", "none/such", "--policy", "fifo"), "There is no journal in none/such."),
    ],
)
def test_wrong_use_of_a_journal_is_reported_in_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    cluster: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(monkeypatch, *(str(cluster) if word == "YARD" else word for word in words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_with_json_wrong_use_is_one_object(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch, "--trace", trace, "--cluster", "8", "--policy", "fifo", "--json") == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "WrongTrace"
