"""`gpuyard analyze`, from its options to what it prints."""

import json
import sys
from pathlib import Path

import pytest

from gpuyard import cli

Said = pytest.CaptureFixture[str]
SOURCE = "def load(): return 1\ndef train(x): x.backward()\na = load()\ntrain(a)\n"


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch) -> "Analyze":
    return Analyze(monkeypatch)


class Analyze:
    """The verb, called with words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        self._monkeypatch.setattr("sys.argv", ["gpuyard", "analyze", *map(str, words)])
        return cli.main()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.write_text(SOURCE)
    return path


def test_tasks_are_listed_by_level_with_what_follows_from_them(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--evidence") == 0
    out = capsys.readouterr().out
    assert "train*  training  compute      1  –       a.py:4  load" in out
    assert "a.py: 2 tasks in 2 levels; critical path 2 of 2; up to 1 at once; 1.00 times as fast at the most." in out
    assert "a.py:2  x.backward()  (computes gradients, training, compute-bound)" in out


def test_json_has_tasks_edges_levels_and_requests(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["edges"] == [{"from": "load", "to": "train", "why": "value a"}]
    assert (told["levels"], told["critical_path"], told["width"]) == ([["load"], ["train"]], ["load", "train"], 1)
    assert [(task["id"], task["level"], task["class"]) for task in told["tasks"]] == [
        ("load", 0, "other"),
        ("train", 1, "training"),
    ]
    assert told["requests"][0]["tasks"] == ["load", "train"]


def test_with_all_seconds_the_critical_path_counts_them(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--takes", "load=10", "--takes", "train=90.5", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["in_seconds"], told["critical_length"]) == (True, 100.5)
    assert told["requests"][0]["seconds"] == 100.5


@pytest.mark.parametrize("name", ["a.svg", "a.html", "a.png"])
def test_it_is_drawn_where_one_likes(analyze: Analyze, source: Path, tmp_path: Path, name: str) -> None:
    assert analyze(source, "--out", tmp_path / name) == 0
    assert (tmp_path / name).stat().st_size > 1000


def test_a_dry_run_shows_what_would_be_submitted_and_asks_nobody(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--submit", "--dry-run", "--python", "python3", "--server", "http://127.0.0.1:9") == 0
    out = capsys.readouterr().out
    assert "Would be submitted, as one process:" in out
    assert "a         1     1  –      python3 a.py" in out


@pytest.mark.parametrize(
    ("content", "words", "sentence"),
    [
        ("def f(:\n", (), "a.py:1: this is not valid Python: invalid syntax."),
        ("x = 1\n  y = 2\n", (), "a.py:2: this is not valid Python: unexpected indent."),
        ("x\0y", (), "a.py: this is not valid Python: source code string cannot contain null bytes."),
        ("x = " + "(" * 500 + ")" * 500, (), "a.py:1: this is not valid Python: too many nested parentheses."),
        (SOURCE, ("--out", "a.jpg"), "a.jpg: the picture is drawn as .svg, .html or .png; name the file so."),
        (SOURCE, ("--out", "/nowhere/a.svg"), "/nowhere/a.svg can not be written: No such file or directory."),
        (SOURCE, ("--takes", "trian=3"), "There is no task 'trian' in a.py. Did you mean 'train'?"),
        (SOURCE, ("--takes", "train"), "'train' is not of the form TASK=SECONDS"),
        (SOURCE, ("--dry-run",), "--dry-run goes with --submit."),
    ],
)
def test_what_can_not_be_read_or_meant_gets_a_sentence(
    analyze: Analyze, source: Path, capsys: Said, content: str, words: tuple[str, ...], sentence: str
) -> None:
    source.write_text(content)
    assert analyze(source, *words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_path_that_is_not_there_or_holds_nothing_gets_a_sentence(
    analyze: Analyze, tmp_path: Path, capsys: Said
) -> None:
    assert analyze(tmp_path / "no.py", "--json") == 2
    assert json.loads(capsys.readouterr().err)["error"]["message"].endswith("no.py: there is no such file or folder.")
    assert analyze(tmp_path) == 2
    assert "there is no Python file, shell script or Makefile in it." in capsys.readouterr().err


def test_a_file_that_is_nested_very_deeply_is_read_or_refused_in_a_sentence(
    analyze: Analyze, source: Path, capsys: Said
) -> None:
    source.write_text("x = " + "f(" * 90 + "1" + ")" * 90 + "\n")
    assert analyze(source, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["tasks"]) == 90
    source.write_text("x = " + "+".join(["1"] * 20_000) + "\n")
    assert analyze(source) in {0, 2}
    assert "Traceback" not in capsys.readouterr().err


def test_a_model_is_divided_and_the_fastest_way_that_fits_comes_first(
    analyze: Analyze, source: Path, capsys: Said
) -> None:
    source.write_text(
        "from torch import nn\ndef deep():\n    return nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(8)])\n"
    )
    options = ("--model", "deep", "--input", "8192x8192", "--gpus", 4, "--gpu", "a100", "--micro-batches", 1)
    assert analyze(source, *options, "--link", 1e5, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["batch"], told["gpu"], told["gpus"]) == ("deep", 8192, "A100-40GB-PCIe", 4)
    assert told["flops"] == (3 * 8 - 1) * 2 * 8192**3  # the input needs no gradient
    assert sorted(len(plan["stages"]) * plan["replicas"] for plan in told["plans"]) == [4, 4, 4]
    four = next(plan for plan in told["plans"] if len(plan["stages"]) == 4)
    assert [(stage["first"], stage["last"]) for stage in four["stages"]] == [
        ("0", "1"),
        ("2", "3"),
        ("4", "5"),
        ("6", "7"),
    ]
    assert told["plans"] == sorted(told["plans"], key=lambda plan: (not plan["fits"], plan["seconds"]))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--model", "Net", "--gpu", "H1000"), "Unknown GPU 'H1000'; near to it: H100"),
        (("--model", "Net", "--specs", "nowhere.csv"), "There is no file nowhere.csv"),
        (("--model", "Net", "--precision", "int4"), "'int4' is no precision; known: fp32, tf32, bf16, amp,"),
        (("--model", "Net"), "Which inputs does the model get? Say --input SHAPE, such as --input 32x3x224x224."),
        (("--model", "a b", "--input", "1x1"), "'a b' does not name a model"),
        (
            ("--model", "Net", "--input", "1x1", "--submit"),
            "--model divides a model; --submit, --out, --takes and WORDS are about tasks.",
        ),
        (
            ("--input", "1x1"),
            "--input, --micro-batches, --inference, --link, --specs and --calibration go with --model.",
        ),
        (
            ("--model", "Net", "--input", "1x1", "--python", "/nowhere/python"),
            "/nowhere/python: No such file or directory.",
        ),
    ],
)
def test_a_model_that_can_not_be_meant_gets_a_sentence(
    analyze: Analyze, source: Path, capsys: Said, words: tuple[str, ...], sentence: str
) -> None:
    assert analyze(source, *words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_dividing_a_model_without_lightgbm_says_what_to_install(
    analyze: Analyze, source: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert analyze(source, "--model", "Net", "--input", "1x1") == 2
    assert capsys.readouterr().err.endswith("needs LightGBM: pip install 'gpuyard[learn]'.\n")
