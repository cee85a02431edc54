"""`gpuyard predict` with odd questions: each is answered, or refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.learn.performance.gpu_specs import shipped

Said = pytest.CaptureFixture[str]

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip


class Predict:
    """`gpuyard predict`, called with words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        self._monkeypatch.setattr("sys.argv", ["gpuyard", "predict", *map(str, words)])
        return cli.main()


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Predict:
    monkeypatch.chdir(tmp_path)
    return Predict(monkeypatch)


def refusal(predict: Predict, capsys: Said, *words: object) -> str:
    """Return the one line with which a question is refused; nothing else is printed."""
    assert predict(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


SERVED = ("meta-llama/Llama-3-8B", "--serve", "--gpu", "H100")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("resnet50", "--gpu", "B300X"), "Unknown GPU 'B300X'; similar names: MI300X, B200-SXM"),
        (("resnet50", "--gpu", "H2"), "Unknown GPU 'H2'; similar names: H200-SXM"),
        (("resnet50", "--gpu", "RTX"), "Unknown GPU 'RTX'; similar names: RTX"),
        (("resnet50", "--gpu", ""), "No GPU is given"),
        (("resnet50", "--gpu", "0"), "Unknown GPU '0'"),
        (("resnet50",), "Missing option '--gpu'"),
        (("--gpu", "H200"), "Choose exactly one workload"),
        (("resnet50", "bert", "--gpu", "H200"), "Too many words: bert"),
        (("", "--gpu", "H200"), "The name of the model is empty."),
        ((" ", "--serve", "--gpu", "H200"), "The name of the model is empty."),
        (("resnet50", "--gpu", "H200", "--batch", "0"), "batch is 0; it must be a whole number from 1 to"),
        (("resnet50", "--gpu", "H200", "--batch", "-3"), "batch is -3; it must be"),
        (("resnet50", "--gpu", "H200", "--batch", "nan"), "'nan' is not a whole number"),
        (("resnet50", "--gpu", "H200", "--batch", 10**21), "batch is a number with too many digits"),
        (("resnet50", "--gpu", "H200", "--size", 10**9), "size is 1000000000; it must be"),
        (("bert-base-uncased", "--gpu", "H200", "--size", 10**7), "takes at most 512 tokens; size is 10,000,000"),
        (("resnet50", "--gpu", "H200", "--precision", "int4"), 'precision is "int4"; it must be'),
        (("resnet50", "--gpu", "H200", "--precision", "fp8"), 'precision is "fp8"; it must be'),
        (("resnet50", "--gpu", "H200", "--mode", "inference"), 'mode is "inference"; it must be "infer" or "train"'),
        (("bert", "--gpu", "H200"), "Unknown model 'bert'; similar names: bert-base-uncased, bert-base-cased"),
        (("mixtral", "--gpu", "H200", "--serve"), "Unknown language model 'mixtral'; similar names: mistralai/Mixtral-8x7B-v0.1"),
        (("deepseek-ai/DeepSeek-V3", "--gpu", "H200", "--serve"), "Unknown language model 'deepseek-ai/DeepSeek-V3'"),
        (("resnet50", "--gpu", "H200", "--serve"), "Unknown language model 'resnet50'"),
        (("t5-base", "--gpu", "H200", "--serve"), "serving is predicted for decoders only"),
        (("openai/whisper-small", "--gpu", "H200", "--serve"), "serving is predicted for decoders only"),
        (("TheBloke/Llama-2-7B-GPTQ", "--gpu", "H200"), "names quantized weights, whose steps are not predicted. Without quantization it is meta-llama/Llama-2-7b-hf"),
        (("TheBloke/Llama-2-7B-Chat-AWQ", "--gpu", "H200", "--serve"), "names quantized weights. Serving is predicted with weights of 16 bits or in fp8: use meta-llama/Llama-2-7b-hf"),
        (("llama-2-7b.Q4_K_M.gguf", "--gpu", "H200", "--serve"), "use meta-llama/Llama-2-7b-hf"),
        (("neuralmagic/Meta-Llama-3-8B-Instruct-FP8", "--gpu", "H200", "--serve"), "use meta-llama/Meta-Llama-3-8B, with --precision fp8"),
        ((*SERVED, "--prompt", 100_000), "takes at most 8,192 tokens; prompt and output have 100,256"),
        ((*SERVED, "--prompt", 0), "0 is too small"),
        ((*SERVED, "--output", -1), "-1 is too small"),
        ((*SERVED, "--batch", 0), "batch must be from 1 to 100,000"),
        ((*SERVED, "--batch", 10**8), "batch must be from 1 to 100,000"),
        ((*SERVED, "--precision", "int4"), "Serving is predicted in bf16, fp16, fp8, not in 'int4'"),
        ((*SERVED, "--tensor-parallel", 3), "The 32 heads of meta-llama/Meta-Llama-3-8B cannot be divided among 3 GPUs"),
        ((*SERVED, "--mode", "infer"), "--serve takes MODEL"),
        (("meta-llama/Llama-3-8B", "--serve", "--gpu", "H100,A100", "--precision", "fp8"), "A100-40GB-PCIe does not compute in fp8"),
        (("gpt2", "--gpu", "H100", "--prompt", 100), "--prompt, --output and --tensor-parallel apply to serving; add --serve."),
        (("gpt2", "--gpu", "H100", "--tensor-parallel", 2), "apply to serving; add --serve."),
        (("/dev/zero", "--gpu", "H200"), "/dev/zero: this is a device, not a file"),
        (("nosuch/config.json", "--gpu", "H200"), "nosuch/config.json: No such file or directory"),
        (("~/nosuch", "--gpu", "H200"), "~/nosuch: No such file or directory"),
    ],
)  # fmt: skip
def test_an_odd_question_is_refused_in_one_sentence(
    words: tuple[object, ...], sentence: str, predict: Predict, capsys: Said
) -> None:
    assert sentence in refusal(predict, capsys, *words)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported types: bart, bert"),
        ({"model_type": None}, "model_type is missing; supported types"),
        ({"model_type": ["llama"]}, "is not supported; supported types"),
        ({"model_type": {"a": 1}}, "is not supported; supported types"),
        ({"num_hidden_layers": None}, "has none of the keys num_hidden_layers, n_layer"),
        ({"hidden_size": -5}, "hidden_size must be an integer from 1 to 1000000000, not -5"),
        ({"hidden_size": 512.5}, "hidden_size must be an integer from 1 to 1000000000, not 512.5"),
        ({"hidden_size": "x" * 500}, "hidden_size must be an integer"),
        ({"hidden_size": 10**9, "vocab_size": 10**9}, "parameters; at most 1e+14 are possible"),
        ({"num_key_value_heads": 64}, "num_key_value_heads is 64; it must divide the 8 heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide the 8 heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "the width 512 is not a multiple of the 7 heads, and head_dim is missing"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 8}, "num_experts_per_tok is 8, but there are 2 experts"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, not 'false'"),
        ({"quantization_config": 4}, "quantization_config must be an object"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "are quantized (gptq, 4 bits)"),
        ({"quantization_config": {"quant_method": "fp8"}}, "are quantized (fp8)"),
        ({"_name_or_path": "\x1b[31mred\n" + "x" * 500, "max_position_embeddings": 100}, "takes at most 100 tokens"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("serve", [(), ("--serve",)])
def test_a_configuration_that_no_model_has_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, serve: tuple[str, ...], predict: Predict, capsys: Said, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    line = refusal(predict, capsys, "config.json", "--gpu", "H200", *serve)
    assert sentence in line
    assert len(line) < 500


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not JSON: Input data was truncated"),
        (b'{"model_type": "llama", ', "is not JSON: Input data was truncated"),
        (b"[1, 2]", "does not contain one JSON object"),
        (b"null", "does not contain one JSON object"),
        (bytes(range(256)), "is not JSON"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (json.dumps(LLAMA).encode() + b" " * 5_000_000, "larger than 4 MiB"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_sentence(
    content: bytes, sentence: str, predict: Predict, capsys: Said, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert sentence in refusal(predict, capsys, "config.json", "--gpu", "H200")


def test_a_folder_without_a_configuration_is_refused_in_one_sentence(
    predict: Predict, capsys: Said, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty is a folder without config.json" in refusal(predict, capsys, "empty", "--gpu", "H200")


def test_a_model_with_weights_in_fp8_is_served_in_fp8(predict: Predict, capsys: Said, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": {"quant_method": "fp8"}}))
    assert "use --precision fp8" in refusal(predict, capsys, "config.json", "--serve", "--gpu", "H200")
    assert predict("config.json", "--serve", "--gpu", "H200", "--precision", "fp8", "--batch", 4, "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["serving"]
    assert one["weights_mib"] < 12


def test_experts_are_served_and_need_the_memory_of_all(predict: Predict, capsys: Said, tmp_path: Path) -> None:
    experts = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(experts))
    assert predict(tmp_path, "--serve", "--gpu", "H200", "--batch", 4, "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["serving"]
    assert one["weights_mib"] == pytest.approx(8 * 4 * 3 * 512 * 1024 * 2 / 2**20, rel=0.2)


@pytest.mark.parametrize("batch", [(), ("--batch", 4)])
def test_a_served_model_that_never_fits_is_one_sentence(
    batch: tuple[object, ...], predict: Predict, capsys: Said
) -> None:
    assert predict("meta-llama/Llama-2-70b-chat-hf", "--serve", "--gpu", "T4", *batch) == 0
    assumed, line = capsys.readouterr().out.splitlines()
    assert assumed == ("meta-llama/Llama-2-70b-chat-hf: serving, prompts of 1,024 tokens, 256 tokens of output, bf16.")
    assert line.startswith(
        "T4: the model does not fit, because weights take 131,562 MiB and a request 400 MiB of the 14,400"
    )
    assert "--tensor-parallel" in line


def test_a_served_batch_that_does_not_fit_is_predicted_and_marked(predict: Predict, capsys: Said) -> None:
    assert predict("meta-llama/Llama-2-70b-chat-hf", "--serve", "--gpu", "MI300X,L4", "--batch", 256) == 0
    _, head, line, other = capsys.readouterr().out.splitlines()
    assert "FITS" in head
    assert line.startswith("MI300X ")
    assert " no " in line
    assert other.startswith("L4: the model does not fit")


def test_a_model_that_fits_unless_it_needs_more_than_expected_maybe_fits(predict: Predict, capsys: Said) -> None:
    words = ("bert-base-uncased", "--gpu", "T4", "--size", 128, "--precision", "amp")
    assert predict(*words, "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["gpus"]
    assert one["memory_mib"] < one["gpu_memory_mib"] < one["memory_high_mib"]
    assert (one["fits"], one["fits_expected"]) == (False, True)
    assert predict(*words) == 0
    assumed, head, line = capsys.readouterr().out.splitlines()
    assert assumed == "bert-base-uncased: training, batch 32, size 128, amp."
    assert head.split().count("RANGE") == 2
    assert f" {one['memory_low_mib']:,.0f}–{one['memory_high_mib']:,.0f} " in line
    assert " maybe " in line


def test_a_short_name_of_several_boards_is_explained_below_the_table(predict: Predict, capsys: Said) -> None:
    assert predict("resnet50", "--gpu", "a100,A100-80GB-SXM,H200") == 0
    *_, last, note = capsys.readouterr().out.splitlines()
    assert last.startswith("H200-SXM ")
    assert note == "a100 means A100-40GB-PCIe here; other boards: A100-40GB-SXM, A100-80GB-PCIe, A100-80GB-SXM."


def test_a_name_with_control_characters_is_printed_without_them(predict: Predict, capsys: Said, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"_name_or_path": "\x1b[31mred\n"}))
    assert predict("config.json", "--gpu", "H200") == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert len(said.splitlines()) == 3


def test_names_of_gpus_and_models_are_found_in_any_case(predict: Predict, capsys: Said) -> None:
    answers = []
    for name, gpu in (("resnet50", "H200"), ("ResNet50", "nvidia h200"), ("RESNET50", "h200")):
        assert predict(name, "--gpu", gpu, "--json") == 0
        answers.append(json.loads(capsys.readouterr().out)["gpus"])
    assert answers[0] == answers[1] == answers[2]


def test_a_larger_image_needs_more_memory(predict: Predict, capsys: Said) -> None:
    memory = []
    for size in (112, 448):
        assert predict("resnet50", "--gpu", "H200", "--size", size, "--json") == 0
        memory.append(json.loads(capsys.readouterr().out)["gpus"][0]["memory_mib"])
    assert memory[1] > 5 * memory[0]


NAMES = (
    "bert-base-uncased", "FacebookAI/roberta-large", "sentence-transformers/all-MiniLM-L6-v2", "gpt2-xl", "facebook/opt-1.3b",
    "t5-base", "openai/whisper-small", "meta-llama/Llama-3-8B", "mistralai/Mistral-7B-Instruct-v0.2", "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-8B", "google/gemma-2-9b", "google/flan-t5-xl", "facebook/bart-large",
    "google/vit-base-patch16-224", "microsoft/resnet-50",
)  # fmt: skip
"""The names that the manual lists."""


@pytest.mark.parametrize("name", NAMES)
def test_a_hugging_face_name_is_predicted(name: str, predict: Predict, capsys: Said) -> None:
    assert predict(name, "--gpu", "H200,A100,L4", "--size", 224, "--mode", "infer", "--batch", 8, "--json") == 0
    for one in json.loads(capsys.readouterr().out)["gpus"]:
        assert 0 < one["step_low_ms"] < one["step_ms"] < one["step_high_ms"] < 1e5
        assert 0 < one["memory_low_mib"] <= one["memory_mib"] <= one["memory_high_mib"]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("meta", "mistral", "Qwen", "gpt2", "facebook/opt"))])  # fmt: skip
def test_a_decoder_of_the_list_is_served(name: str, predict: Predict, capsys: Said) -> None:
    assert predict(name, "--serve", "--gpu", "H100", "--prompt", 512, "--output", 128, "--batch", 8, "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["serving"]
    assert 0 < one["decode_low_ms"] < one["decode_ms"] < one["decode_high_ms"]
    assert one["tokens_per_second"] == pytest.approx(
        1e3 * 8 * 128 / (8 * one["prefill_ms"] + 128 * one["decode_ms"]), rel=1e-6
    )


def test_the_manual_lists_the_names_that_are_tested() -> None:
    page = (Path(__file__).parents[3] / "docs" / "manual" / "performance.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_the_manual_lists_the_gpus_that_ship() -> None:
    page = (Path(__file__).parents[3] / "docs" / "manual" / "performance.md").read_text(encoding="utf-8")
    assert [name for name in shipped().gpus if f"`{name}`" not in page] == []


def test_a_name_is_printed_with_the_model_it_was_taken_as(predict: Predict, capsys: Said) -> None:
    assert predict("google/vit-base-patch16-224", "--gpu", "H200") == 0
    assert "google/vit-base-patch16-224 (taken as vit_base_patch16_224): training" in capsys.readouterr().out
    assert predict("vit_base_patch16_224", "--gpu", "H200") == 0
    assert "taken as" not in capsys.readouterr().out
    assert predict("vit_b_16", "--gpu", "H200", "--json") == 0
    assert json.loads(capsys.readouterr().out)["taken_as"] == "torchvision/vit_b_16"


@pytest.mark.parametrize(
    ("name", "offered"),
    [("vit", "torchvision/vit_b_16"), ("clip", "patch16_clip_224"), ("deepseek-v3", "deepseek_vit")],
)
def test_models_that_begin_with_or_contain_an_unknown_name_are_offered(
    predict: Predict, capsys: Said, name: str, offered: str
) -> None:
    line = refusal(predict, capsys, name, "--gpu", "H200")
    assert f"Unknown model '{name}'; similar names: " in line
    assert offered in line


def test_serving_an_encoder_is_refused_as_such_by_a_short_name_too(predict: Predict, capsys: Said) -> None:
    line = refusal(predict, capsys, "bert-base", "--serve", "--gpu", "H200")
    assert "'bert-base' is not a decoder, as bert-base-uncased is not" in line


def test_the_time_of_all_steps_of_a_task_is_printed(predict: Predict, capsys: Said, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("model: resnet50\nsteps: 1000\n")
    assert predict("--task", task, "--gpu", "H200") == 0
    assert "H200-SXM: 1,000 steps take " in capsys.readouterr().out
    task.write_text("model: resnet50\n")
    assert predict("--task", task, "--gpu", "H200") == 0
    assert "steps take" not in capsys.readouterr().out


@pytest.mark.slow  # imports torch
def test_what_a_script_does_not_state_is_marked_as_a_default(predict: Predict, capsys: Said, tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("from torch import nn\nmodel = nn.Sequential(nn.Conv2d(3, 8, 3))\n")
    assert predict("--script", script, "--gpu", "H200") == 0
    assert "batch 32 (default), size 224 (default), fp32" in capsys.readouterr().out
    script.write_text(
        "from torch import nn\nbatch_size = 8\nimage_size = 64\nmodel = nn.Sequential(nn.Conv2d(3, 8, 3))\n"
    )
    assert predict("--script", script, "--gpu", "H200") == 0
    assert "batch 8, size 64, fp32" in capsys.readouterr().out
