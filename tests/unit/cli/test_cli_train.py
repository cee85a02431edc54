"""`gpuyard train` and `gpuyard predict`, from their options to what they print."""

import json
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.learn.performance.ended_tasks import ended_runs, mean_error
from gpuyard.learn.performance.model import SHIPPED, load
from gpuyard.live.control_plane.stores.archiver import archive_row
from tests.unit.learn.performance.synthetic_rows import COLUMNS, FAST, MIDDLE, SLOW, products, write, write_specs
from tests.unit.live.control_plane.learning_tasks import archive_of, ended

Said = pytest.CaptureFixture[str]


@pytest.fixture
def gpuyard(monkeypatch: pytest.MonkeyPatch) -> "Gpuyard":
    return Gpuyard(monkeypatch)


class Gpuyard:
    """The command line, called with words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        self._monkeypatch.setattr("sys.argv", ["gpuyard", *map(str, words)])
        return cli.main()


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return write_specs(tmp_path / "gpus.csv")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return write(tmp_path / "slow.csv", COLUMNS, products([SLOW], 120))


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    return write(tmp_path / "fast.csv", COLUMNS, products([FAST], 120, seed=2))


@pytest.mark.slow
def test_training_files_may_follow_one_option_or_have_one_each(
    gpuyard: Gpuyard, slow: Path, fast: Path, specs: Path, tmp_path: Path, capsys: Said
) -> None:
    test = write(tmp_path / "test.csv", COLUMNS, products([SLOW, MIDDLE], 30, seed=3))
    options = ("--test", test, "--specs", specs, "--threads", 1, "--json")
    assert gpuyard("train", "evaluate", "--train", slow, fast, *options) == 0
    together = json.loads(capsys.readouterr().out)
    assert gpuyard("train", "evaluate", "--train", slow, "--train", fast, *options) == 0
    assert json.loads(capsys.readouterr().out) == together
    assert together["rows"] == 60
    assert {"mape", "median_ape", "within_20", "band_coverage"} <= together.keys()
    assert set(together["by_gpu"]) == {"slow-1", "middle-1"}
    assert {name: one["rows"] for name, one in together["by_head"].items()} == {"gpu": 30, "data_sheet": 30}


def test_a_split_of_one_set_is_shown_as_a_table(
    gpuyard: Gpuyard, slow: Path, fast: Path, specs: Path, capsys: Said
) -> None:
    assert (
        gpuyard("train", "evaluate", "--train", slow, fast, "--hold-out", "gpu", "--specs", specs, "--threads", 1) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["ROWS", "OF", "ROWS"]
    assert [line.split()[0] for line in lines[1:]] == ["all", "fast-1", "slow-1", "neusight_matmul", "data_sheet"]


def test_a_model_is_written(gpuyard: Gpuyard, slow: Path, specs: Path, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "yard.model"
    assert (
        gpuyard("train", "predictor", "--profiles", slow, "--specs", specs, "--out", out, "--threads", 1, "--json") == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] == {"neusight_matmul": 120}
    assert said["gpus"] == ["slow-1"]
    assert said["bytes"] == out.stat().st_size


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("evaluate", "--train", "SLOW"), "Choose either --test FILE or --hold-out random|family|gpu"),
        (("evaluate", "--train", "SLOW", "--hold-out", "odd"), "--hold-out must be random, family, gpu, not 'odd'"),
        (("evaluate", "--train", "SLOW", "--hold-out", "gpu"), "holding out a GPU needs at least two"),
        (("evaluate", "--train", "none.csv", "--hold-out", "gpu"), "File none.csv does not exist"),
        (("evaluate", "--train", "SLOW", "--hold-out", "family", "--target", "memory"), "contain no memory"),
        (
            ("evaluate", "--train", "SLOW", "--hold-out", "family", "--samples", "5"),
            "--samples requires --hold-out gpu",
        ),
        (("predictor", "--profiles", "SLOW", "--out", "nowhere/x"), "Folder nowhere does not exist"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence(
    words: tuple[str, ...], sentence: str, gpuyard: Gpuyard, slow: Path, specs: Path, capsys: Said
) -> None:
    assert gpuyard("train", *(slow if word == "SLOW" else word for word in words), "--specs", specs) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_rows_of_an_unknown_gpu_are_answered_with_the_few_that_are_known(
    gpuyard: Gpuyard, slow: Path, tmp_path: Path, capsys: Said
) -> None:
    specs = write_specs(tmp_path / "others.csv", [MIDDLE, FAST])
    assert gpuyard("train", "evaluate", "--train", slow, "--hold-out", "random", "--specs", specs) == 2
    assert (
        f"Unknown GPU 'slow-1'; known names: {MIDDLE.gpu}, {FAST.gpu}. Describe other GPUs" in capsys.readouterr().err
    )


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "task.yaml"
    file.write_text("model: resnet50\nmode: train\nbatch: 64\nprecision: amp\nsteps: 1000\n")
    return file


def test_a_task_is_predicted_on_each_gpu_with_the_shipped_model(gpuyard: Gpuyard, task: Path, capsys: Said) -> None:
    assert gpuyard("predict", "--task", task, "--gpu", "H200,A100,RTX 3090", "--json") == 0
    said = json.loads(capsys.readouterr().out)["gpus"]
    assert [one["gpu"] for one in said] == ["H200-SXM", "A100-40GB-PCIe", "RTX3090"]
    assert all(one["step_low_ms"] < one["step_ms"] < one["step_high_ms"] for one in said)
    assert said[0]["step_ms"] < said[1]["step_ms"]
    assert said[0]["seconds"] == pytest.approx(said[0]["step_ms"])
    assert said[0]["fits"] is True


def test_a_task_that_does_not_fit_is_marked(gpuyard: Gpuyard, task: Path, capsys: Said) -> None:
    assert gpuyard("predict", "--task", task, "--gpu", "RTX3070,H200", "--batch", 512, "--precision", "fp32") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "resnet50 (taken as torchvision/resnet50): training, batch 512, size 224, fp32."
    assert lines[1].split() == ["GPU", "STEP", "RANGE", "MEMORY", "RANGE", "FITS", "BUSY", "FROM"]
    assert " no " in lines[2]
    assert " yes " in lines[3]


@pytest.mark.parametrize(
    ("text", "gpu", "sentence"),
    [
        ("model: resnet5O", "H200", "Unknown model 'resnet5O'; similar names: resnet50"),
        (
            "model: resnet50\nbatches: 3",
            "H200",
            'task.yaml, line 2: Unknown name "batches" in the file; did you mean "batch"?',
        ),
        ("model: resnet50\nbatch: 0", "H200", "task.yaml, line 2: batch is 0; it must be a whole number from 1"),
        ("model: resnet50\nmode: dream", "H200", 'task.yaml, line 2: mode is "dream"; it must be "infer" or "train"'),
        ("batch: 3", "H200", "task.yaml: model is missing"),
        ("model: resnet50", "H2000", "Unknown GPU 'H2000'; similar names: H200-SXM"),
        ("model: [", "H200", "task.yaml, line 1: the file ends too early"),
        ("model: a: b", "H200", "task.yaml, line 1: this is not YAML"),
    ],
)
def test_an_invalid_task_is_reported_in_one_sentence(
    text: str, gpu: str, sentence: str, gpuyard: Gpuyard, tmp_path: Path, capsys: Said
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(text)
    assert gpuyard("predict", "--task", file, "--gpu", gpu) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(100, width), nn.ReLU(), nn.Linear(width, 10))
    def forward(self, x):
        return self.body(x)

def main():
    model = Net(512).to(device)
    batch_size = 48
    for step in range(10**9):
        loss = model(torch.randn(batch_size, 100)).sum()
        loss.backward()

open("was_run", "w")
main()
"""


@pytest.mark.slow
def test_a_script_is_loaded_without_running_it(gpuyard: Gpuyard, tmp_path: Path, capsys: Said) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert gpuyard("predict", "--script", script, "--gpu", "H200", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["work"]["model"], said["work"]["mode"], said["work"]["batch"]) == ("Net", "train", 48)
    assert said["gpus"][0]["memory_mib"] > 0
    assert not Path("was_run").exists()


def test_a_task_of_an_uncounted_model_accepts_totals_with_exponents(
    gpuyard: Gpuyard, tmp_path: Path, capsys: Said
) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("model: ours\nflops: 4e9\nactivations: 1e7\nparameters: 25e6\n")
    assert gpuyard("predict", "--task", task, "--gpu", "H200", "--json") == 0
    assert json.loads(capsys.readouterr().out)["work"]["flops"] == 4e9


def test_specs_that_are_not_text_are_reported_in_one_sentence(
    gpuyard: Gpuyard, task: Path, tmp_path: Path, capsys: Said
) -> None:
    specs = tmp_path / "specs.csv"
    specs.write_bytes(b"\xff\xfe\x00")
    assert gpuyard("predict", "--task", task, "--gpu", "H200", "--specs", specs) == 2
    assert "specs.csv is not text in UTF-8" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("required", [False, True])
def test_a_script_sees_its_name_and_no_arguments(
    required: bool, gpuyard: Gpuyard, tmp_path: Path, capsys: Said
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import argparse
import torch

def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64, required={required})
    return parser.parse_args()

def main():
    args = arguments()
    model = torch.nn.Linear(8, 8)
""")
    assert gpuyard("predict", "--script", script, "--gpu", "H200", "--json") == 0
    assert json.loads(capsys.readouterr().out)["work"]["model"] == "Linear"


def test_an_empty_list_of_gpus_is_reported_in_one_sentence(gpuyard: Gpuyard, tmp_path: Path, capsys: Said) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("model: resnet50\n")
    assert gpuyard("predict", "--task", task, "--gpu", ",") == 2
    assert "No GPU is given" in capsys.readouterr().err


@pytest.mark.slow
def test_the_image_size_defaults_to_one_the_model_accepts(gpuyard: Gpuyard, capsys: Said) -> None:
    assert gpuyard("predict", "--script", "examples/digits/train.py", "--gpu", "H200", "--json") == 0
    assert json.loads(capsys.readouterr().out)["work"]["size"] == 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def broken(:\n", "line 1: invalid syntax"),
        ("print('hello')\n", "No PyTorch model was found in"),
        (
            "import no_such_package\nmodel = no_such_package.Net()\n",
            "line 1 needs no_such_package, which is not installed",
        ),
    ],
)
def test_a_script_without_a_model_is_reported_in_one_sentence(
    text: str, sentence: str, gpuyard: Gpuyard, tmp_path: Path, capsys: Said
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert gpuyard("predict", "--script", script, "--gpu", "H200") == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_ended_tasks_of_a_cluster_are_used_for_training_except_the_newest(
    gpuyard: Gpuyard, tmp_path: Path, capsys: Said
) -> None:
    views = ended(140, 2.0)
    archive = archive_of(tmp_path, views)
    out = tmp_path / "yard.model"
    assert gpuyard("train", "predictor", "--journal", tmp_path, "--out", out, "--threads", 1, "--json") == 0
    archive.close()
    said = json.loads(capsys.readouterr().out)
    assert (said["tasks"], said["kept_back"]) == (112, 28)
    assert said["rows"] == {"network": 112, "memory": 112, "utilization": 112}
    trained = load(out)
    assert trained.seen_until == views[111].finished_at
    newest = ended_runs([(row.finished_at, row.answer) for row in map(archive_row, views[112:])])
    before, after = mean_error(load(SHIPPED), newest), mean_error(trained, newest)
    assert before is not None
    assert after is not None
    assert before > 0.4
    assert after < 0.2


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [(None, "does not exist"), (0, "contains 0 successful tasks"), (50, "contains 40 successful tasks")],
)
def test_a_cluster_with_too_few_tasks_is_wrong_use(
    gpuyard: Gpuyard, tmp_path: Path, capsys: Said, tasks: int | None, sentence: str
) -> None:
    if tasks is not None:
        archive_of(tmp_path, ended(tasks, 2.0)).close()
    out = tmp_path / "yard.model"
    assert gpuyard("train", "predictor", "--journal", tmp_path, "--out", out) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()
    assert gpuyard("train", "predictor", "--out", out) == 2
    assert "--journal DIR" in capsys.readouterr().err


def test_a_model_is_predicted_by_its_name(gpuyard: Gpuyard, capsys: Said) -> None:
    words = ("predict", "bert-base-uncased", "--gpu", "H200", "--mode", "infer", "--size", 128, "--batch", 8)
    assert gpuyard(*words, "--precision", "bf16", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["work"]["mode"], said["work"]["size"], said["work"]["batch"]) == ("infer", 128, 8)
    assert said["gpus"][0]["from"] == "gpu_and_family"


def test_a_model_is_predicted_by_its_config_json(gpuyard: Gpuyard, capsys: Said, tmp_path: Path) -> None:
    said = {"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 1000, "n_positions": 256}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert gpuyard("predict", tmp_path, "--gpu", "H200", "--json") == 0
    assert json.loads(capsys.readouterr().out)["work"]["family"] == "gpt2"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Choose exactly one workload: MODEL, --task FILE or --script FILE.py"),
        (("gpt2", "--task", "x.yaml"), "Choose exactly one workload"),
        (("--task", "x.yaml", "--size", 12), "--mode and --size apply to a named model"),
        (("gpt2", "--mode", "fly"), "mode"),
        (("gpt3-ada",), "Unknown model 'gpt3-ada'"),
        (("./nowhere",), "No such file or directory"),
        (("gpt2", "--serve", "--mode", "infer"), "--serve takes MODEL, --gpu, --prompt"),
        (("bert-base-uncased", "--serve"), "serving is predicted for decoders only"),
    ],
)
def test_a_workload_that_cannot_be_meant_is_refused(
    words: tuple[object, ...], sentence: str, gpuyard: Gpuyard, capsys: Said
) -> None:
    assert gpuyard("predict", *words, "--gpu", "H200") == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")


def test_serving_is_predicted_at_one_or_several_batch_sizes(gpuyard: Gpuyard, capsys: Said) -> None:
    words = ("predict", "meta-llama/Llama-3-8B", "--serve", "--gpu", "H100,L4", "--prompt", 512, "--output", 64)
    assert gpuyard(*words, "--json") == 0
    many = json.loads(capsys.readouterr().out)["serving"]
    assert [one["batch"] for one in many] == [1, 4, 16, 64, 256] * 2
    assert gpuyard(*words, "--batch", 2, "--precision", "fp8", "--tensor-parallel", 2) == 0
    table = capsys.readouterr().out
    assert "2 x H100-SXM" in table
    assert "TOKENS/S" in table


def test_a_serving_model_is_trained_on_tables_of_operations(gpuyard: Gpuyard, capsys: Said, tmp_path: Path) -> None:
    gemm = [[gpu, dtype, 2**i, 8192, 512 * n, 0.1 * n + 0.0001 * 2**i] for gpu in ("L40S", "H100-SXM") for dtype in ("bfloat16", "fp8") for i in range(13) for n in range(24, 34)]  # fmt: skip
    attention = [["H100-SXM", phase, batch, 1 if phase == "generation" else 1024, 8192 * n if phase == "generation" else 0, 32, 32, 128, 0, 0.002 * n * batch + 0.01]
                 for phase in ("context", "generation") for batch in (64, 128, 256) for n in range(1, 30)]  # fmt: skip
    layers = [
        ["A40", "m", "add", 32, 8, 4096, 14336, 32000, "True", tokens, 1, 0.004 + tokens * 4e-5]
        for tokens in range(8, 800, 8)
    ]
    files = (
        write(tmp_path / "g.csv", ("gpu", "dtype", "m", "n", "k", "latency_ms"), gemm),
        write(tmp_path / "a.csv", ("gpu", "phase", "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "latency_ms"), attention),
        write(tmp_path / "l.csv", ("gpu", "model", "op", "n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "use_gated_mlp", "num_tokens", "num_tensor_parallel_workers", "latency_ms"), layers),
    )  # fmt: skip
    out = tmp_path / "serving.json"
    assert gpuyard("train", "serving", "--out", out, "--profiles", *files, "--json") == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == ["A40", "H100-SXM", "L40S"]
    first = out.read_bytes()
    assert gpuyard("train", "serving", "--out", out, "--profiles", *files) == 0
    assert out.read_bytes() == first
    assert gpuyard("train", "serving", "--out", out, "--profiles", files[0]) == 2
    assert gpuyard("train", "serving", "--out", tmp_path / "no" / "x", "--profiles", *files) == 2
    assert out.read_bytes() == first
