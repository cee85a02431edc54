"""`gpuyard analyze`, from its options to what it prints."""

import json
from pathlib import Path

import pytest

from gpuyard import cli

Said = pytest.CaptureFixture[str]
SOURCE = "def load(): return 1\ndef train(x): x.backward()\na = load()\ntrain(a)\n"


@pytest.fixture
def analyze(monkeypatch: pytest.MonkeyPatch) -> "Analyze":
    return Analyze(monkeypatch)


class Analyze:
    """The command, called with arguments."""

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


def test_tasks_are_listed_by_level_with_their_dependencies(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--evidence") == 0
    out = capsys.readouterr().out
    assert "train*  training  compute      1  –       a.py:4  load" in out
    assert "a.py: 2 tasks in 2 levels; critical path 2 of 2; at most 1 at once; speed-up at most 1.00." in out
    assert "a.py:2  x.backward()  (computes gradients, training, compute-bound)" in out
    assert "  needs load: value a" in out


def test_json_has_tasks_dependencies_levels_and_requests(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tasks"][1]["needs"] == [{"task": "load", "why": "value a"}]
    assert (told["levels"], told["critical_path"], told["width"]) == ([["load"], ["train"]], ["load", "train"], 1)
    assert [(task["id"], task["level"], task["class"]) for task in told["tasks"]] == [
        ("load", 0, "other"),
        ("train", 1, "training"),
    ]
    assert told["requests"][0]["tasks"] == ["load", "train"]


def test_with_all_durations_the_critical_path_counts_them(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--duration", "load=10", "--duration", "train=90.5", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["in_seconds"], told["critical_length"]) == (True, 100.5)
    assert told["requests"][0]["seconds"] == 100.5


def test_the_graph_is_written_as_a_diagram(analyze: Analyze, source: Path, tmp_path: Path) -> None:
    assert analyze(source, "--out", tmp_path / "a.mmd") == 0
    assert (tmp_path / "a.mmd").read_text().startswith("flowchart LR\n")


def test_a_script_is_analyzed_with_its_arguments(analyze: Analyze, source: Path, capsys: Said) -> None:
    source.write_text("import sys\ndef write(path): open(path, 'w')\nwrite(sys.argv[1])\nwrite('b')\n")
    assert analyze(source, "--json", "--", "out.txt") == 0
    told = json.loads(capsys.readouterr().out)
    assert [task["writes"] for task in told["tasks"]] == [["out.txt"], ["b"]]
    assert told["requests"][0]["command"][-1] == "out.txt"


def test_a_dry_run_shows_what_would_be_submitted_and_contacts_no_scheduler(
    analyze: Analyze, source: Path, capsys: Said
) -> None:
    assert analyze(source, "--submit", "--dry-run", "--python", "python3", "--server", "http://127.0.0.1:9") == 0
    out = capsys.readouterr().out
    assert "To be submitted, as one process:" in out
    assert "a         1     1  –      python3 a.py" in out


def test_a_sweep_of_trainings_is_kept_as_one_process_and_the_output_says_so(
    analyze: Analyze, source: Path, capsys: Said
) -> None:
    source.write_text(SOURCE.partition("a = ")[0] + "for i in range(3):\n    train(load())\n")
    assert analyze(source) == 0
    out = capsys.readouterr().out
    assert "a.py: 1 task in 1 level; critical path 1 of 1;" in out
    assert "Rounds of train are not independent: contains training.\nKept as one process: contains training.\n" in out
    assert analyze(source, "--evidence") == 0
    assert "  rounds are not independent: contains training\n" in capsys.readouterr().out
    nothing = "Nothing was divided, so nothing was tried: contains training."
    assert analyze(source, "--submit", "--dry-run", "--trial") == 0
    assert nothing in capsys.readouterr().out
    assert analyze(source, "--submit", "--dry-run", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["trial"], said["submitted"]) == ({"outcome": "not divided", "says": nothing}, None)
    assert (said["undivided"], said["tasks"][0]["dependent"]) == ("contains training", "contains training")
    assert analyze(source, "--json") == 0
    assert not {"trial", "submitted"} & json.loads(capsys.readouterr().out).keys()


DIVISIBLE = (
    "import sys\nfrom pathlib import Path\nn = sys.argv[1]\ndef a(): Path('a').write_text(n)\n"
    "def b(): Path('b').write_text(n)\na()\nb()\n"
)


def test_a_division_that_was_not_tried_is_submitted_as_one_process(
    analyze: Analyze, source: Path, capsys: Said
) -> None:
    source.write_text(DIVISIBLE)
    assert analyze(source, "--submit", "--dry-run", "--", "1") == 0
    out = capsys.readouterr().out
    assert "The division was not tried: --trial-args or --trial-env try it with small data, --trial as it is." in out
    assert "To be submitted, as one process:" in out
    assert analyze(source, "--submit", "--dry-run", "--json", "--", "1") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["trial"]["outcome"] == "not tried"
    assert [request["name"] for request in said["requests"]] == ["a"] == [said["whole"]["name"]]


@pytest.mark.slow
def test_a_division_is_tried_with_the_arguments_variables_and_time_of_the_trial(
    analyze: Analyze, source: Path, capsys: Said
) -> None:
    source.write_text("import os\n" + DIVISIBLE.replace("sys.argv[1]", "sys.argv[1] * int(os.environ['N'])"))
    trial = ("--submit", "--dry-run", "--json", "--trial-args", "tiny", "--trial-env", "N=2")
    assert analyze(source, *trial, "--", "large") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["trial"]["outcome"] == "equal"
    assert [request["name"] for request in said["requests"]] == ["a", "b"]
    assert [request["command"][-1] for request in said["requests"]] == ["large", "large"]
    assert analyze(source, "--submit", "--dry-run", "--trial", "--", "large") == 0
    out = capsys.readouterr().out
    assert "The division could not be tried: the script ended with exit status 1 (KeyError: 'N')." in out
    source.write_text(source.read_text() + "while True: pass\n")
    assert analyze(source, *trial, "--trial-seconds", "1", "--", "large") == 0
    assert "longer than the trial may take" in json.loads(capsys.readouterr().out)["trial"]["says"]


@pytest.mark.parametrize(
    ("content", "words", "sentence"),
    [
        ("def f(:\n", (), "a.py:1: this is not valid Python: invalid syntax."),
        ("x = 1\n  y = 2\n", (), "a.py:2: this is not valid Python: unexpected indent."),
        ("x\0y", (), "a.py: this is not valid Python: source code string cannot contain null bytes."),
        ("x = " + "(" * 500 + ")" * 500, (), "a.py:1: this is not valid Python: too many nested parentheses."),
        (
            SOURCE,
            ("--out", "a.svg"),
            "a.svg: the diagram is written in Mermaid format; use a file name that ends in .mmd.",
        ),
        (SOURCE, ("--out", "/nowhere/a.mmd"), "Cannot write /nowhere/a.mmd: No such file or directory."),
        (SOURCE, ("--duration", "trian=3"), "Unknown task 'trian' in a.py. Did you mean 'train'?"),
        (SOURCE, ("--duration", "train"), "'train' does not have the form TASK=SECONDS"),
        (SOURCE, ("--dry-run",), "--dry-run requires --submit."),
        (SOURCE, ("--trial",), "--trial requires --submit."),
        (SOURCE, ("--submit", "--trial-env", "X"), "'X' does not have the form NAME=VALUE"),
        (SOURCE, ("--submit", "--trial-args", "'a"), "No closing quotation"),
        (SOURCE, ("--submit", "--trial", "--trial-seconds", "0"), "0.0 is not between 1 and 86400"),
    ],
)
def test_unreadable_or_invalid_input_is_reported_in_one_sentence(
    analyze: Analyze, source: Path, capsys: Said, content: str, words: tuple[str, ...], sentence: str
) -> None:
    source.write_text(content)
    assert analyze(source, *words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no.py", "no.py: no such file."),
        ("", ": this is a folder; give one Python script in it."),
        ("run.sh", "run.sh: this is not a Python script."),
        ("Makefile", "Makefile: this is not a Python script."),
    ],
)
def test_only_a_python_script_is_analyzed(
    analyze: Analyze, tmp_path: Path, capsys: Said, name: str, sentence: str
) -> None:
    (tmp_path / "run.sh").write_text("echo\n")
    (tmp_path / "Makefile").write_text("all:\n")
    assert analyze(tmp_path / name, "--json") == 2
    assert json.loads(capsys.readouterr().err)["error"]["message"].endswith(sentence)


@pytest.mark.slow
def test_a_very_deeply_nested_file_is_read_or_refused_in_one_sentence(
    analyze: Analyze, source: Path, capsys: Said
) -> None:
    source.write_text("x = " + "f(" * 90 + "1" + ")" * 90 + "\n")
    assert analyze(source, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["tasks"]) == 1
    source.write_text("x = " + "+".join(["1"] * 20_000) + "\n")
    assert analyze(source) in {0, 2}
    assert "Traceback" not in capsys.readouterr().err


def test_tasks_without_a_duration_are_named_if_others_have_one(analyze: Analyze, source: Path, capsys: Said) -> None:
    assert analyze(source, "--duration", "load=10") == 0
    assert "Durations are not used: add --duration for train." in capsys.readouterr().out
    assert analyze(source, "--duration", "load=10", "--duration", "train=5") == 0
    assert "Durations are not used" not in capsys.readouterr().out
    assert analyze(source) == 0
    assert "Durations are not used" not in capsys.readouterr().out


def test_the_later_line_that_uses_files_of_rounds_is_named(analyze: Analyze, source: Path, capsys: Said) -> None:
    source.write_text(
        'def make(n): open(f"a{n}", "w").write("1")\nfor n in range(3):\n    make(n)\n'
        'lines = [open(f"a{n}") for n in range(3)]\nprint(lines)\n'
    )
    assert analyze(source) == 0
    assert "Rounds of make are not independent: file a*, which line 4 uses." in capsys.readouterr().out
