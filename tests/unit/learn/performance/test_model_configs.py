"""Transformers by their Hugging Face name or config.json: their parameters, and the operations of a step."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance import api, model_configs, operation_profile
from gpuyard.learn.performance.flops import count
from gpuyard.learn.performance.query import family_of, profile_of

PUBLISHED = {
    "bert-base-uncased": 110e6, "bert-large-uncased": 336e6, "roberta-base": 125e6, "distilbert-base-uncased": 66e6,
    "sentence-transformers/all-MiniLM-L6-v2": 22.7e6, "gpt2": 124e6, "gpt2-xl": 1.56e9, "facebook/opt-1.3b": 1.32e9,
    "t5-base": 223e6, "openai/whisper-small": 242e6, "openai/whisper-large-v3": 1.54e9, "llama-7b": 6.74e9,
    "meta-llama/Llama-2-13b-hf": 13.0e9, "meta-llama/Llama-3-8B": 8.03e9, "meta-llama/Llama-3-70B": 70.6e9,
    "meta-llama/Llama-3.2-1B": 1.24e9, "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.10e9, "mistralai/Mistral-7B-v0.1": 7.24e9,
    "mistralai/Mixtral-8x7B-v0.1": 46.7e9, "Qwen/Qwen2.5-7B": 7.62e9, "Qwen/Qwen2.5-0.5B": 494e6, "microsoft/phi-2": 2.78e9,
    "stabilityai/stablelm-3b-4e1t": 2.80e9, "01-ai/Yi-34B": 34.4e9, "google/gemma-2-9b": 9.24e9, "google/gemma-2-2b": 2.61e9,
    "google/flan-t5-base": 248e6, "google/flan-t5-xl": 2.85e9, "Qwen/Qwen3-8B": 8.19e9, "facebook/bart-base": 139e6,
    "facebook/bart-large": 406e6,
}  # fmt: skip
"""Parameters as the makers of the models state them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_model_has_the_parameters_that_its_maker_states(name: str) -> None:
    found = model_configs.find(name)
    assert found is not None
    assert found.parameters == pytest.approx(PUBLISHED[name], rel=0.02)


def decoder(width: int, layers: int, heads: int, feed: int, words: int, **more: Any) -> dict[str, Any]:
    """A configuration with the keys that most types use."""
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": feed,
            "vocab_size": words, **more}  # fmt: skip


CONFIGS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "Qwen3-30B-A3B": ("qwen3_moe", 30.5e9, decoder(2048, 48, 32, 6144, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[])),
    "Qwen1.5-MoE-A2.7B": ("qwen2_moe", 14.3e9, decoder(2048, 24, 16, 5632, 151936, num_key_value_heads=16, num_experts=60,
        num_experts_per_tok=4, moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1)),
    "deepseek-moe-16b": ("deepseek", 16.4e9, decoder(2048, 28, 16, 10944, 102400, num_key_value_heads=16, n_routed_experts=64,
        n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1, moe_layer_freq=1)),
    "Mixtral-8x7B": ("mixtral", 46.7e9, decoder(4096, 32, 32, 14336, 32000, num_key_value_heads=8, num_local_experts=8,
        num_experts_per_tok=2)),
    "gemma-2b": ("gemma", 2.51e9, decoder(2048, 18, 8, 16384, 256000, num_key_value_heads=1, head_dim=256)),
    "gemma-2-9b": ("gemma2", 9.24e9, decoder(3584, 42, 16, 14336, 256000, num_key_value_heads=8)),
    "phi-3-mini": ("phi3", 3.82e9, decoder(3072, 32, 32, 8192, 32064)),
    "phi-2": ("phi", 2.78e9, decoder(2560, 32, 32, 10240, 51200)),
    "falcon-7b": ("falcon", 6.92e9, decoder(4544, 32, 71, 18176, 65024, multi_query=True, num_kv_heads=71)),
    "falcon-40b": ("falcon", 41.3e9, decoder(8192, 60, 128, 32768, 65024, num_kv_heads=8, new_decoder_architecture=True)),
    "bloom-560m": ("bloom", 559e6, {"n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880}),
    "gpt-j-6b": ("gptj", 6.05e9, {"n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None, "vocab_size": 50400}),
    "starcoder": ("gpt_bigcode", 15.5e9, {"n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576, "vocab_size": 49152,
        "n_positions": 8192, "multi_query": True}),
    "starcoder2-3b": ("starcoder2", 3.03e9, decoder(3072, 30, 24, 12288, 49152, num_key_value_heads=2)),
    "gpt-neox-20b": ("gpt_neox", 20.55e9, decoder(6144, 44, 64, 24576, 50432)),
    "gpt-neo-1.3B": ("gpt_neo", 1.316e9, {"hidden_size": 2048, "num_layers": 24, "num_heads": 16, "vocab_size": 50257,
        "max_position_embeddings": 2048}),
    "command-r": ("cohere", 35e9, decoder(8192, 40, 64, 22528, 256000, num_key_value_heads=64)),
    "opt-350m": ("opt", 331e6, decoder(1024, 24, 16, 0, 50272, intermediate_size=None, ffn_dim=4096, word_embed_proj_dim=512,
        max_position_embeddings=2048)),
    "electra-small": ("electra", 13.5e6, decoder(256, 12, 4, 1024, 30522, embedding_size=128, max_position_embeddings=512)),
    "flan-t5-xl": ("t5", 2.85e9, {"d_model": 2048, "d_ff": 5120, "d_kv": 64, "num_heads": 32, "num_layers": 24,
        "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5-small": ("mt5", 300e6, {"d_model": 512, "d_ff": 1024, "d_kv": 64, "num_heads": 6, "num_layers": 8, "vocab_size": 250112}),
    "bart-large": ("bart", 406e6, {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16, "vocab_size": 50265, "max_position_embeddings": 1024}),
    "mbart-large-50": ("mbart", 611e6, {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16, "vocab_size": 250054, "max_position_embeddings": 1024}),
    "camembert-base": ("camembert", 110.6e6, decoder(768, 12, 12, 3072, 32005, max_position_embeddings=514)),
    "mpnet-base": ("mpnet", 109.5e6, decoder(768, 12, 12, 3072, 30527, max_position_embeddings=514)),
    "internlm2-7b": ("internlm2", 7.74e9, decoder(4096, 32, 32, 14336, 92544, num_key_value_heads=8)),
    "granite-3.0-8b": ("granite", 8.17e9, decoder(4096, 40, 32, 12800, 49155, num_key_value_heads=8, tie_word_embeddings=True)),
    "SmolLM3-3B": ("smollm3", 3.08e9, decoder(2048, 36, 16, 11008, 128256, num_key_value_heads=4)),
    "OLMo-1B": ("olmo", 1.18e9, decoder(2048, 16, 16, 8192, 50304, tie_word_embeddings=True)),
    "Qwen3-8B": ("qwen3", 8.19e9, decoder(4096, 36, 32, 12288, 151936, num_key_value_heads=8)),
}  # fmt: skip
"""Type, parameters as the maker states them, and the configuration, mostly without what is the default of the type."""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_has_the_parameters_that_its_maker_states(name: str, tmp_path: Path) -> None:
    kind, parameters, said = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **said}))
    assert model_configs.read_config(tmp_path).parameters == pytest.approx(parameters, rel=0.03)


def test_every_supported_type_was_compared_with_a_published_model() -> None:
    known = {one.family for one in model_configs.shipped().values()} | {"xlm-roberta", "mistral"}
    assert set(model_configs._STYLE_OF) <= known | {kind for kind, _, _ in CONFIGS.values()}


def test_a_token_uses_its_experts_and_the_shared_ones_only(tmp_path: Path) -> None:
    kind, _, said = CONFIGS["deepseek-moe-16b"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **said}))
    read = model_configs.read_config(tmp_path)
    assert (read.shared, read.dense_layers, read.dense_feed_forward) == (2 * 1408, 1, 10944)
    flops = read.profile("infer", 1).groups[:, 2].sum()
    assert flops == pytest.approx(2 * (2.8e9 - 102400 * 2048), rel=0.1)  # its maker: 2.8e9 activated parameters


def test_the_number_of_experts_must_be_there(tmp_path: Path) -> None:
    said = {"model_type": "mixtral", "num_experts_per_tok": 2, **decoder(64, 2, 2, 128, 1000)}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(WrongInput, match="has num_experts_per_tok and none of the keys num_local_experts"):
        model_configs.read_config(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["google/vit-base-patch16-224", "microsoft/resnet-50", "facebook/convnext-tiny-224", "timm/resnet50.a1_in1k", "google/efficientnet-b0",
     "facebook/deit-base-patch16-224", "microsoft/swin-tiny-patch4-window7-224"],
)  # fmt: skip
def test_an_image_model_is_found_by_its_hugging_face_name(name: str) -> None:
    assert profile_of(WorkloadSpec(model=name, mode="infer")).parameter_bytes > 0


def test_names_are_found_in_small_letters_and_without_their_owner() -> None:
    names = ("meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3-8B", "llama-3-8b", "LLAMA-3-8B")
    assert {model_configs.find(name) for name in names} == {model_configs.find("Meta-Llama-3-8B")}


def test_an_unknown_name_is_answered_with_similar_ones() -> None:
    with pytest.raises(WrongInput, match="Unknown model 'berd-base-uncased'; similar names: bert-base-uncased"):
        profile_of(WorkloadSpec(model="berd-base-uncased"))


@pytest.mark.parametrize(("name", "counted"), [("bert-base-uncased", "bert-base"), ("gpt2", "gpt2"), ("facebook/opt-1.3b", "opt-1.3b"), ("bert-large-uncased", "bert-large")])  # fmt: skip
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_operations_of_a_config_agree_with_those_that_pytorch_dispatches(name: str, counted: str, mode: str) -> None:
    """The same models were counted on the meta device; they are in the shipped library."""
    config = model_configs.find(name)
    assert config is not None
    ((tokens, known),) = operation_profile.shipped()[f"transformers/{counted}", mode].items()
    ours = config.profile(mode, tokens)
    assert ours.parameter_bytes == pytest.approx(known.parameter_bytes, rel=0.01)
    assert ours.groups[:, 2].sum() == pytest.approx(known.groups[:, 2].sum(), rel=0.05)
    assert ours.groups[:, 3].sum() == pytest.approx(known.groups[:, 3].sum(), rel=0.2)
    assert ours.groups[:, 1].sum() == pytest.approx(known.groups[:, 1].sum(), rel=0.3)
    assert ours.kept_bytes == pytest.approx(known.kept_bytes, rel=0.05)


class Encoder(nn.Module):
    """An encoder with the layers of PyTorch, of another size than every shipped model."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 3 * width, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.out(self.layers(self.table(tokens)))


def test_arithmetic_of_a_config_json_is_that_of_the_module_on_the_meta_device(tmp_path: Path) -> None:
    said = {"model_type": "bert", "hidden_size": 320, "num_hidden_layers": 5, "num_attention_heads": 5, "intermediate_size": 960,
            "vocab_size": 7_000, "max_position_embeddings": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    made = api.workload_of_model(tmp_path, mode="infer", size=96)
    seen = count(lambda: Encoder(320, 5, 7_000), lambda: (torch.zeros(1, 96, dtype=torch.long),), training=False)
    assert made.profile.groups[:, 2].sum() == pytest.approx(seen.flops, rel=0.03)
    assert made.spec.family == "bert"


def test_a_config_json_is_predicted_like_the_name_of_its_model(tmp_path: Path) -> None:
    said = {"model_type": "llama", "_name_or_path": "mine", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
            "tie_word_embeddings": False}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    for model in (tmp_path, tmp_path / "config.json"):
        assert api.config_of(model).parameters == pytest.approx(8.03e9, rel=0.01)
    (by_file,) = api.predict_serving(tmp_path, "H100", batches=(8,))
    (by_name,) = api.predict_serving("meta-llama/Meta-Llama-3-8B", "H100", batches=(8,))
    assert by_file == by_name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "does not contain one JSON object"),
        ("{}", "model_type is missing"),
        ('{"model_type": "resnet"}', "model_type 'resnet' is not supported"),
        ('{"model_type": "bert"}', "has none of the keys num_hidden_layers"),
        ('{"model_type": "bert", "num_hidden_layers": -1}', "num_hidden_layers must be an integer from 1"),
        ('{"model_type": "bert", "num_hidden_layers": true}', "num_hidden_layers must be an integer from 1"),
    ],
)
def test_an_invalid_config_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WrongInput, match=sentence):
        api.workload_of_model(tmp_path / "config.json")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"is a folder without config.json"):
        api.predict(tmp_path, "H200")


def test_an_input_longer_than_the_model_takes_is_refused() -> None:
    with pytest.raises(WrongInput, match="bert-base-uncased takes at most 512 tokens; size is 600"):
        profile_of(WorkloadSpec(model="bert-base-uncased", size=600))


def test_a_model_of_a_measured_family_belongs_to_it() -> None:
    assert family_of(WorkloadSpec(model="mistralai/Mistral-7B-v0.1")) == "llama"
    assert family_of(WorkloadSpec(model="mistralai/Mistral-7B-v0.1", family="mine")) == "mine"


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_predict_takes_the_name_of_a_model(mode: str) -> None:
    work = api.workload_of_model("bert-base-uncased", mode=mode, size=128).changed(batch=16, precision="amp")
    (said,) = api.predict(work, "H200")
    assert said.from_ == "gpu_and_family"
    assert 0.5 < said.step_ms < 200.0
