"""The command line as people meet it: the real console script, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard import __version__
from gpuyard.cli.docs.pages import pages

GPUYARD = Path(sys.executable).with_name("gpuyard")


def gpuyard(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GPUYARD, *words], capture_output=True, text=True, timeout=120, check=False)


def test_help_names_every_verb() -> None:
    done = gpuyard("--help")

    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("demo", "docs", "bench"))
    assert done.stderr == ""


def test_help_loads_nothing_heavy() -> None:
    look = "import sys; import gpuyard.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()

    assert not {"rich", "msgspec", "gpuyard.core.engine", "gpuyard.simulator", "pydantic"} & set(loaded)


def test_version() -> None:
    assert gpuyard("--version").stdout == f"gpuyard {__version__}\n"


def test_the_demo_without_a_terminal_tells_facts_and_ends_by_itself() -> None:
    done = gpuyard("demo", "--seed", "1", "--seconds", "5", "--nodes", "3")

    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "00:00:00  The yard demo was founded."
    assert any("was placed on node-1" in line for line in lines)
    assert any("Node node-3 is lost." in line for line in lines)
    assert lines[-1].endswith("nothing real ran.")
    assert "\x1b" not in done.stdout


def test_the_demo_as_json_parses_line_by_line_and_its_summary_adds_up() -> None:
    done = gpuyard("demo", "--seed", "1", "--seconds", "5", "--nodes", "3", "--json")

    assert done.returncode == 0
    *facts, last = [json.loads(line) for line in done.stdout.splitlines()]
    summary = last["summary"]
    ended = [fact["status"] for fact in facts if fact["type"] == "TaskEnded"]
    assert [fact["at"] for fact in facts] == sorted(fact["at"] for fact in facts)
    assert summary["submitted"] == sum(fact["type"] == "TaskSubmitted" for fact in facts)
    assert summary["succeeded"] == ended.count("success")
    assert summary["failed"] == ended.count("failed")
    assert summary["cancelled"] == ended.count("cancelled")
    assert summary["submitted"] == len(ended) + summary["open"]


def test_a_reader_that_goes_away_ends_the_demo_without_a_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{GPUYARD}' demo --seconds 5 | head -n 1"], capture_output=True, text=True, check=False
    )

    assert done.stdout == "00:00:00  The yard demo was founded.\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("demo", "--colour"), ("demo", "--nodes", "1"), ("bench", "engine", "--gpus", "x")])
def test_wrong_use_is_one_sentence_and_code_2(words: tuple[str, ...]) -> None:
    done = gpuyard(*words)

    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_docs_writes_every_generated_page(tmp_path: Path) -> None:
    done = gpuyard("docs", "--out", str(tmp_path / "manual"))

    assert done.returncode == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "manual").iterdir()} == pages()


def test_docs_into_a_file_is_one_sentence_and_code_1(tmp_path: Path) -> None:
    (tmp_path / "manual").write_text("a file")

    done = gpuyard("docs", "--out", str(tmp_path / "manual"))

    assert done.returncode == 1
    assert done.stderr == f"gpuyard: {tmp_path / 'manual'}: File exists.\n"


def test_bench_journal_prints_its_figures_and_keeps_them(tmp_path: Path) -> None:
    done = gpuyard("bench", "journal", "--facts", "2000", "--json", "--out", str(tmp_path / "figures.json"))

    assert done.returncode == 0
    figures = json.loads(done.stdout)
    assert figures["facts"] == 2000
    assert figures["facts_per_s_grouped_100"] > 0
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    assert "recovering from the journal" in done.stderr
