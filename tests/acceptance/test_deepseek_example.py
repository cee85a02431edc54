"""The example deepseek_7b: the model is the published architecture, and it is served and called through a lease."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.acceptance.cli_cluster import CliCluster, running_cluster

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "deepseek_7b"


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield import_module("model")
    finally:
        sys.path.remove(str(EXAMPLE))


def test_the_large_shape_has_the_published_number_of_parameters(model: Any) -> None:
    import torch

    with torch.device("meta"):
        made = model.DeepSeek(model.SHAPES["7b"])
    assert sum(weight.numel() for weight in made.parameters()) == 6_910_365_696
    names = dict(made.named_parameters())
    assert names["model.layers.29.self_attn.q_proj.weight"].shape == (4096, 4096)
    assert names["model.layers.0.mlp.down_proj.weight"].shape == (4096, 11008)


def test_its_scores_are_those_of_the_formulas_of_the_architecture(model: Any) -> None:
    import torch

    made, _ = model.load("small", device="cpu", seed=3)
    tokens = [5, 17, 300, 2, 2, 99]
    found = made(torch.tensor([tokens]))[0].detach().numpy()
    weights = {name: weight.detach().double().numpy() for name, weight in made.named_parameters()}
    assert np.allclose(found, reference(weights, model.SHAPES["small"], tokens), atol=1e-4)


def reference(weights: dict[str, Any], shape: Any, tokens: list[int]) -> Any:
    """The scores of the next tokens, computed one word and one head after the other, without PyTorch."""

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + shape.epsilon) * weights[name]

    size = shape.width // shape.heads
    speeds = 1.0 / shape.theta ** (np.arange(0, size, 2) / size)

    def turned(vector: Any, place: int) -> Any:
        angles = np.concatenate([place * speeds, place * speeds])
        swapped = np.concatenate([-vector[size // 2 :], vector[: size // 2]])
        return vector * np.cos(angles) + swapped * np.sin(angles)

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        before = norm(x, f"{at}.input_layernorm.weight")
        query, key, value = (before @ weights[f"{at}.self_attn.{part}_proj.weight"].T for part in "qkv")
        seen = np.zeros_like(query)
        for head in range(shape.heads):
            mine = slice(head * size, (head + 1) * size)
            shared = head // (shape.heads // shape.key_heads)
            theirs = slice(shared * size, (shared + 1) * size)
            for place in range(len(tokens)):
                asked = turned(query[place, mine], place)
                scores = np.array([asked @ turned(key[one, theirs], one) for one in range(place + 1)]) / np.sqrt(size)
                shares = np.exp(scores - scores.max())
                seen[place, mine] = (shares / shares.sum()) @ value[: place + 1, theirs]
        x = x + seen @ weights[f"{at}.self_attn.o_proj.weight"].T
        between = norm(x, f"{at}.post_attention_layernorm.weight")
        gate = between @ weights[f"{at}.mlp.gate_proj.weight"].T
        up = between @ weights[f"{at}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}.mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ weights["lm_head.weight"].T


def test_a_cache_changes_no_score(model: Any) -> None:
    import torch

    made, _ = model.load("small", device="cpu", seed=1)
    tokens = torch.randint(512, (2, 20))
    whole, cache = made(tokens), made.new_cache(2, 20)
    parts = [made(tokens[:, begin:end], cache, begin) for begin, end in ((0, 7), (7, 8), (8, 15), (15, 20))]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    made_tokens = [int(one[0]) for one in made.generate(tokens[:1], 4)]
    longer = torch.cat([tokens[:1], torch.tensor([made_tokens[:3]])], 1)
    assert made_tokens == made(longer)[0, -4:].argmax(-1).tolist()
    with pytest.raises(ValueError, match="more than the 256"):
        list(made.generate(tokens, 250))


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_published_weights_are_loaded_from_a_folder(model: Any, tmp_path: Path, kind: str) -> None:
    import torch

    made, said = model.load("small", device="cpu", seed=7)
    assert said == "random weights"
    shape = model.SHAPES["small"]
    told = {
        "vocab_size": shape.vocabulary, "hidden_size": shape.width, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.key_heads,
        "max_position_embeddings": shape.longest, "rms_norm_eps": shape.epsilon,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(told))
    weights = {name: weight.detach().clone() for name, weight in made.named_parameters()}
    if kind == "bin":
        torch.save(weights, tmp_path / "pytorch_model-00001-of-00001.bin")
    else:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        content = b""
        for name, weight in weights.items():
            raw = weight.numpy().tobytes()
            offsets = [len(content), len(content) + len(raw)]
            header[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": offsets}
            content += raw
        text = json.dumps(header).encode()
        (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    again, said = model.load("small", folder=str(tmp_path), device="cpu")
    assert said == f"weights of {tmp_path}"
    tokens = torch.randint(512, (1, 9))
    assert torch.equal(again(tokens), made(tokens))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def example(cluster: CliCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLE / words[0], *words[1:]], env=cluster.env, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


def test_the_model_answers_through_a_lease_that_is_given_back(cluster: CliCluster) -> None:
    done = example(cluster, "run.py", "--size", "small", "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("lease task-1: ")
    assert "158,016 parameters on cpu" in lines[1]
    assert lines[2].startswith("The weights are random")
    assert "5 tokens in" in lines[4]
    assert lines[-1] == "the GPU is free again"
    assert cluster.client().task("task-1").status != "running"
    assert cluster.client().gpus().idle == 4


def test_it_is_measured_as_a_task(cluster: CliCluster) -> None:
    words = ("--size", "small", "--batch", "2", "--prompt-tokens", "16", "--new-tokens", "4", "--repeats", "1")
    done = cluster.call("run", "-q", "-g", "1", "--", sys.executable, str(EXAMPLE / "measure.py"), *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["weights"], told["parameters"], told["peak_gpu_memory_mib"]) == ("random weights", 158_016, None)
    assert told["load_seconds"] > 0
    (row,) = told["runs"]
    assert row["batch"] == 2
    assert row["new_tokens_per_second"] > 0


def test_wrong_requests_are_answered_with_a_reason(cluster: CliCluster) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    server = subprocess.Popen(
        [sys.executable, EXAMPLE / "serve.py", "--size", "small"], env=cluster.env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        for body in (b"no json", b"{}", b'{"prompt": "a", "max_tokens": "x"}', b'{"prompt": "%s"}' % (b"a" * 300)):
            with pytest.raises(HTTPError) as failed:
                urlopen(Request(f"{url}/generate", body), timeout=60)
            assert failed.value.code == 400
            failed.value.close()
        with urlopen(f"{url}/health", timeout=60) as answer:
            assert json.load(answer)["model"] == "deepseek-llm-small"
    finally:
        server.terminate()
        server.wait(60)
        assert server.stdout is not None
        server.stdout.close()
