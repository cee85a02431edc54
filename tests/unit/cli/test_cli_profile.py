"""`gpuyard profile`, from its options to what it prints, on a machine without a GPU."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.learn.performance.calibration import PEAKS, read_peaks

Said = pytest.CaptureFixture[str]
torch = pytest.importorskip("torch")
SMALL = ("--models", "own/mlp-512x4", "--device", "cpu", "--batches", "1", "--modes", "infer", "--seconds", "0")


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> "Profile":
    return Profile(monkeypatch)


class Profile:
    """`gpuyard profile`, called with words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        self._monkeypatch.setattr("sys.argv", ["gpuyard", "profile", *map(str, words)])
        return cli.main()


def test_peaks_are_written_in_the_format_predictions_read(profile: Profile, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "peaks.json"
    assert profile("calibrate", "--device", "cpu", "--seconds", "0", "--out", out, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert read_peaks(out) == {"cpu": {name: said[name] for name in PEAKS if said.get(name)}}
    assert {"fp32_tflops", "copy_gb_s", "launch_us"} <= read_peaks(out)["cpu"].keys()


@pytest.mark.slow
def test_a_run_adds_rows_and_does_not_measure_them_again(profile: Profile, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "rows.csv"
    assert profile("run", *SMALL, "--out", out, "--json") == 0
    first = capsys.readouterr()
    assert "gpuyard: 1/1 own/mlp-512x4 infer 1 fp32:" in first.err
    assert json.loads(first.out)["measured"] == 1
    assert profile("run", *SMALL, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out) | {"file": ""} == {"measured": 0, "wanted": 0, "had": 1, "gpu": "cpu", "file": ""}  # fmt: skip


def test_a_command_without_a_gpu_has_a_row_without_one(profile: Profile, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "rows.jsonl"
    assert profile("command", "--out", out, "--json", "--", "sh", "-c", "exit 3") == 3
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    assert json.loads(out.read_text())["exit_code"] == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("calibrate", "--device", "tpu"), "--device must be cuda or cpu, not 'tpu'"),
        (("calibrate", "--device", "cpu", "--out", "nowhere/x.json"), "Folder nowhere does not exist"),
        (("run", *SMALL, "--out", "nowhere/x.csv"), "Folder nowhere does not exist"),
        (("run", *SMALL, "--out", "."), "--out . is a folder"),
        (("run", "--models", "own/nothing"), "Unknown model own/nothing"),
        (("run", *SMALL, "--precisions", "fp7"), "--precisions must be one of fp32, tf32, bf16, amp, not 'fp7'"),
        (("run", *SMALL, "--clocks", "own,fast"), "--clocks must be MHz, or own, separated by commas, not 'own,fast'"),
        (("run", *SMALL, "--clocks", "0"), "--clocks must be MHz, or own, separated by commas, not '0'"),
        (("run", *SMALL, "--clocks", "own,1200"), "--clocks needs a GPU, and --device is cpu"),
        (("command", "--out", "nowhere/x.jsonl", "--", "true"), "Folder nowhere does not exist"),
        (("command", "--", "no-such-program"), "no-such-program is not an executable program"),
    ],
)
def test_impossible_measurements_are_reported_before_anything_is_measured(
    words: tuple[str, ...], sentence: str, profile: Profile, capsys: Said
) -> None:
    assert profile(*words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("verb", ["run", "calibrate"])
def test_a_missing_gpu_is_reported(verb: str, profile: Profile, capsys: Said) -> None:
    assert profile(verb, "--device", "cuda") == 2
    assert "PyTorch finds no GPU on this machine" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="it is installed")
def test_a_model_of_a_package_that_is_missing_names_it(profile: Profile, capsys: Said) -> None:
    assert profile("run", "--models", "torchvision/resnet*") == 2
    assert "needs the package torchvision, which is not installed" in capsys.readouterr().err


def test_a_file_with_other_columns_is_not_changed(profile: Profile, tmp_path: Path, capsys: Said) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert profile("run", *SMALL, "--out", other) == 2
    assert "is not a file of profiles: it has no column model" in capsys.readouterr().err
    assert other.read_text() == "a,b\n1,2\n"
