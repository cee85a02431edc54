"""The documents: examples run as pasted, links resolve, both READMEs show the same commands."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuyard.cli import main
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split
from gpuyard.core.domain.values import Link, Preemption, TenantId
from gpuyard.testing import ClusterStory, gang, node, share, task

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
RUNNABLE = (
    "docs/howto/write_a_story.md",
    "docs/manual/explain.md",
    "docs/manual/planning.md",
    "docs/manual/executing_plans.md",
    "docs/manual/simulation.md",
    "docs/manual/performance.md",
)
"""Documents whose Python blocks are whole programs. Those of first_steps.md need a cluster: tests/acceptance/test_readme.py."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:")
HIDDEN = {"build", "dist", "node_modules"}


def _pages() -> list[Path]:
    found = (page.relative_to(ROOT) for page in ROOT.rglob("*.md"))
    return sorted(page for page in found if not any(part.startswith(".") or part in HIDDEN for part in page.parts))


def _blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for named, body in FENCE.findall(text) if named == language]


def _anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", RUNNABLE)
def test_every_python_example_runs_as_pasted(page: str) -> None:
    examples = _blocks(page, "python")
    assert examples, f"{page} has no Python example any more"
    for example in examples:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"an example of {page} fails:\n{example}\n{done.stderr}"
        said = re.findall(r"^print\(.*\)(?:  |\n)# (.*)$", example, re.MULTILINE)
        assert done.stdout.splitlines()[: len(said)] == said, f"an example of {page} prints something else"


def test_the_life_of_a_task_is_what_its_story_tells() -> None:
    story, *told = _blocks("docs/life_of_a_task.md", "text")
    cluster = ClusterStory()
    exec(story, {"cluster": cluster, "task": task, "Preemption": Preemption})
    events = [
        f"{at:3g}  {msgspec.json.encode(event).decode()}" for at, event in cluster.events if hasattr(event, "task")
    ]
    assert "".join(told).splitlines() == events


@pytest.mark.parametrize("page", _pages(), ids=str)
def test_every_relative_link_resolves(page: Path) -> None:
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if link.startswith(ELSEWHERE):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}, which does not exist"
        if anchor:
            assert anchor in _anchors(target), f"{page} links to {link}, which has no such heading"


@pytest.mark.parametrize("language", ["sh", "python", "text"])
def test_both_readmes_show_the_same_code(language: str) -> None:
    english, chinese = (_blocks(page, language) for page in READMES)
    assert _without_comments(english) == _without_comments(chinese)


def _without_comments(blocks: list[str]) -> list[str]:
    """Code alone: comments are in the reader's language."""
    return [re.sub(r" *(?:^|  )# .*$", "", block, flags=re.MULTILINE) for block in blocks]


def test_both_readmes_link_to_the_same_pages_in_the_same_order() -> None:
    english, chinese = (LINK.findall((ROOT / page).read_text(encoding="utf-8")) for page in READMES)
    assert english[1:] == [link.replace(".zh-CN.", ".") for link in chinese[1:]]
    assert (english[0], chinese[0]) == (READMES[1], READMES[0])


def test_the_readme_is_one_screen() -> None:
    for page in READMES:
        assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("name", ["overview.svg", "overview.zh-CN.svg"])
def test_the_picture_of_the_readme_is_the_output_of_its_script(name: str) -> None:
    script = runpy.run_path(str(ROOT / "tools" / "overview_picture.py"))
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == script["picture"](script["PICTURES"][name])


def test_every_package_is_in_the_architecture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = sorted(file.parent.name for file in (ROOT / "src" / "gpuyard").glob("*/__init__.py"))
    assert [name for name in packages if f"| `{name}` |" not in page] == []


def test_every_page_of_the_manual_is_in_its_index() -> None:
    folder = ROOT / "docs" / "manual"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in folder.glob("*.md")} - {"README.md"} <= listed


def test_the_glossary_is_short_and_explains_each_word_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| **")]
    words = [word for row in rows for word in re.findall(r"\*\*([^*]+)\*\*", row)]
    assert len(rows) <= 50
    assert len(words) == len(set(words))


# --- what the command line says in the manual --------------------------------------------------------------------------

ALONE = ("simulate --colour", "nodes undrain", "submit --json -g two")
"""Examples of the page that need no cluster."""


def _shown() -> list[tuple[str, list[str]]]:
    """Each of these commands, with the lines that the page shows of what it says."""
    blocks = _blocks("docs/manual/command_line.md", "")
    examples = [(first, rest) for block in blocks for first, *rest in map(str.splitlines, block.split("$ ")[1:])]
    return [(first, rest) for first, rest in examples if first.removeprefix("gpuyard ").startswith(ALONE)]


@pytest.mark.parametrize(("line", "shown"), _shown())
def test_the_command_line_prints_what_the_manual_shows(
    line: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", line.removesuffix(" | cat").split())
    main()
    said = "".join(capsys.readouterr()).splitlines()
    if "…" in shown:
        rest = iter(said)
        assert [one for one in shown if one != "…" and one not in rest] == []
    else:
        assert said == shown


# --- the numbers in the manual ----------------------------------------------------------------------------------------


def _table_row(page: str, begins: str) -> list[str]:
    """The cells of the row of a table that begins so."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    row = next(line for line in lines if line.startswith(f"| {begins} |"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_shares_of_the_split_are_those_of_the_manual() -> None:
    sizes = [int(cell) for cell in _table_row("docs/manual/quota.md", "GPUs")]
    online = [Split().online_gpus(size) for size in sizes]
    assert [str(part) for part in online] == _table_row("docs/manual/quota.md", "online, 70 %")
    batch = [str(size - part) for size, part in zip(sizes, online, strict=True)]
    assert batch == _table_row("docs/manual/quota.md", "batch")


@pytest.mark.parametrize(("mode", "before", "after"), [(QuotaMode.STRICT, 3, 3), (QuotaMode.BORROW, 10, 7)])
def test_strict_and_borrow_match_the_manual(mode: QuotaMode, before: int, after: int) -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=10)
    cluster.is_split(online=0.7, mode=mode)
    cluster.submits_many(10, task("night", preemption=Preemption.REQUEUE))
    assert len(cluster.running()) == before
    cluster.passes(120)
    cluster.submits_many(3, task("web", online=True))
    running = cluster.running()
    assert (len([name for name in running if "night" in name]), len(running) - after) == (after, 3)


def test_queueing_at_a_quota_matches_the_manual() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=8)
    cluster.has_tenant("lab", max_gpus=4)
    cluster.submits(task("a", gpus=2, tenant="lab", runs_for=100), task("b", tenant="lab", runs_for=50))
    cluster.submits(task("big", gpus=4, tenant="lab", runs_for=60))
    cluster.submits(task("small", tenant="lab", runs_for=10))
    cluster.runs_out()
    starts = [f"{cluster.started_at(name):g}" for name in ("a", "b", "big", "small")]
    assert starts == _table_row("docs/manual/quota.md", "started at")


def test_a_spent_budget_matches_the_manual() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=4)
    cluster.has_tenant("lab", budget=Budget(gpu_hours=2.0, period_seconds=86400.0))
    cluster.submits(task("one", gpus=4, tenant="lab", runs_for=3600))
    cluster.passes(3600)
    cluster.submits(task("two", tenant="lab", runs_for=60))
    assert cluster.explains("two").sentence() in (ROOT / "docs/manual/quota.md").read_text(encoding="utf-8")
    cluster.runs_out()
    assert cluster.started_at("two") == 86400.0


def test_limits_by_model_match_the_manual() -> None:
    cluster = ClusterStory()
    cluster.has_node(node("n1", gpus=4, model="H100"))
    cluster.has_node(node("n2", gpus=4, model="A100"))
    cluster.has_tenant("lab", max_gpus_by_model=(("H100", 2),))
    cluster.submits(task("first", gpus=2, models=("H100",), tenant="lab"))
    cluster.submits(task("second", models=("H100",), tenant="lab"), task("third", gpus=4, tenant="lab"))
    assert cluster.running() == ["first", "third"]
    assert cluster.explains("second").sentence() in (ROOT / "docs/manual/quota.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("backfill", ["none", "greedy", "easy"])
def test_backfill_matches_the_manual(backfill: str) -> None:
    cluster = ClusterStory(backfill=backfill)
    cluster.is_split(online=0.0)
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits(task("a", gpus=2, estimate=100, runs_for=100))
    cluster.decides_by(score="spread")
    cluster.submits(task("b", estimate=300, runs_for=300))
    cluster.decides_by(score="best_fit")
    cluster.submits(task("large", gpus=4, estimate=60, runs_for=60))
    cluster.submits(task("short", estimate=90, runs_for=90))
    cluster.submits(task("long", gpus=2, estimate=600, runs_for=600))
    cluster.submits(task("long2", gpus=2, estimate=600, runs_for=600))
    cluster.runs_out()
    page = (ROOT / "docs/manual/backfill.md").read_text(encoding="utf-8").split("## An example")[1]
    row = next(line for line in page.splitlines() if line.startswith(f"| `{backfill}` |"))
    starts = [f"{cluster.started_at(name):g}" for name in ("large", "short", "long", "long2")]
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == starts


def test_the_choice_of_victims_matches_the_manual() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits(task("hour", gpus=4, priority=20, preemption=Preemption.REQUEUE))
    cluster.passes(3600)
    cluster.submits(task("minutes", gpus=4, priority=20, preemption=Preemption.REQUEUE))
    cluster.passes(300)
    cluster.submits(task("urgent", gpus=4, priority=80))
    assert cluster.running() == ["hour", "urgent"]


def test_preemption_at_a_quota_matches_the_manual() -> None:
    cluster = ClusterStory()
    cluster.is_split(online=0.5)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits_many(2, task("web", online=True, priority=20, preemption=Preemption.REQUEUE))
    cluster.submits_many(2, task("night", preemption=Preemption.REQUEUE))
    cluster.passes(120)
    cluster.submits(task("urgent", online=True, priority=80))
    running = cluster.running()
    assert (len(running), "urgent" in running, running.count("night-1") + running.count("night-2")) == (4, True, 2)


def test_borrowing_keeps_the_order_within_a_class_as_in_the_manual() -> None:
    cluster = ClusterStory(policy="fifo")
    cluster.is_split(online=0.5, mode=QuotaMode.BORROW)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("first"))
    cluster.submits(task("filler", gpus=3))
    cluster.submits(task("large", gpus=3), task("small"))
    cluster.finishes("filler")
    assert cluster.running() == ["first", "large"]


def test_the_start_of_a_budget_matches_the_manual() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("long", gpus=4, tenant="lab"))
    cluster.passes(7200)
    cluster.has_tenant("lab", budget=Budget(gpu_hours=8.0, period_seconds=86400.0))
    book = cluster.state.tenants[TenantId("lab")]
    assert (book.period_began, book.budget_left(7200.0)) == (7200.0, 8 * 3600.0)
    cluster.passes(3600)
    cluster.has_tenant("lab", budget=Budget(gpu_hours=6.0, period_seconds=86400.0))
    assert (book.period_began, book.budget_left(10800.0)) == (7200.0, 2 * 3600.0)
    cluster.has_tenant("lab", budget=Budget(gpu_hours=6.0, period_seconds=3600.0))
    assert (book.period_began, book.budget_left(10800.0)) == (10800.0, 6 * 3600.0)


def test_placement_refusals_match_the_manual() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(3, gpus_each=8)
    cluster.submits(task("busy", gpus=8))
    page = (ROOT / "docs/manual/placement.md").read_text(encoding="utf-8")
    cluster.submits(gang("three", members=3, gpus_each=8))
    assert cluster.explains("three").sentence() in page
    cluster.cordons("node-1")
    assert cluster.explains("three").sentence() in page
    cluster.submits(task("model", models=("H200",)), task("nine", gpus=9), task("memory", gpu_memory_mib=80_000))
    for name in ("model", "nine", "memory"):
        assert cluster.explains(name).sentence() in page


@pytest.mark.parametrize(("score", "large_runs"), [("best_fit", True), ("fragmentation", True), ("spread", False)])
def test_scores_match_the_manual(score: str, large_runs: bool) -> None:
    cluster = ClusterStory(score=score)
    cluster.has_nodes(3, gpus_each=8)
    for place, gpus in enumerate((6, 2, 2, 8)):
        cluster.submits(task(f"{place}", gpus=gpus))
    assert cluster.is_running("3") == large_runs


def test_gpus_and_shares_match_the_manual() -> None:
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(task("one"))
    cluster.submits(task("four", gpus=4, link=Link.NVLINK))
    cluster.submits(task("two", gpus=2))
    assert [cluster.gpus_of(name)[0][1] for name in ("one", "four", "two")] == [(0,), (4, 5, 6, 7), (1, 2)]
    cluster.has_nodes(1, gpus_each=2, model="T4", gpu_memory_mib=24_576)
    cluster.submits(share("half", fraction=0.5, models=("T4",)))
    cluster.submits(share("memory", memory_mib=10_000, models=("T4",)))
    cluster.submits(share("both", fraction=0.1, memory_mib=12_288, models=("T4",)))
    assert [cluster.gpus_of(name)[0][1] for name in ("half", "memory", "both")] == [(0,), (0,), (1,)]
    assert round(cluster.gpus_in_use() - 7, 3) == 0.5 + 0.407 + 0.5
