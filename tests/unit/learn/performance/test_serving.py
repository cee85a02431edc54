"""Serving of language models: fitted operations, and predictions made of them."""

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

import gpuyard
from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.serving import load
from gpuyard.learn.performance.serving.model import fit, trained
from gpuyard.learn.performance.serving.operations import KINDS, milliseconds
from gpuyard.learn.performance.serving.rows import OperationRows, read

SPECS = shipped()
LLAMA = "meta-llama/Meta-Llama-3-8B"


def shape_of(kind: str, count: int, seed: int) -> dict[str, np.ndarray]:
    luck = np.random.default_rng(seed)
    sizes = {name: 2.0 ** luck.uniform(9, 13, count) for name in "nk"}
    if kind.startswith("product"):
        return {"m": 2.0 ** luck.uniform(0, 12, count), **sizes}
    if kind == "passes":
        return {"bytes": 2.0 ** luck.uniform(10, 28, count)}
    decode = kind == "decode_attention"
    heads = 2.0 ** luck.integers(2, 6, count)
    return {
        "batch": 2.0 ** luck.integers(0, 8, count), "tokens": np.ones(count) if decode else 2.0 ** luck.integers(5, 13, count),
        "past": 2.0 ** luck.uniform(5, 14, count) if decode else np.zeros(count), "heads": heads, "kv_heads": heads / 2, "width": np.full(count, 128.0),
    }  # fmt: skip


def rows_of(kind: str, gpus: Sequence[str], factor: float = 1.0, noise: float = 0.03) -> OperationRows:
    """Rows of GPUs that follow the formula with the coefficients from which fitting starts, times a factor."""
    parts = []
    for seed, gpu in enumerate(gpus):
        shape = shape_of(kind, 300, seed)
        exact = milliseconds(kind, np.array(KINDS[kind].start), shape, SPECS.find(gpu))
        luck = np.exp(np.random.default_rng(seed).normal(0.0, noise, 300))
        parts.append((np.full(300, SPECS.find(gpu).gpu), shape, exact * luck * factor))
    return OperationRows(
        kind, np.concatenate([gpu for gpu, _, _ in parts]), np.full(300 * len(gpus), ""),
        {name: np.concatenate([shape[name] for _, shape, _ in parts]) for name in parts[0][1]},
        np.concatenate([ms for _, _, ms in parts]),
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_are_found_again_from_rows_that_follow_them(kind: str) -> None:
    rows = rows_of(kind, ["L40S"], factor=1.3)
    found = fit(kind, rows.shape, rows.measured, SPECS.find("L40S"))
    said = milliseconds(kind, found, rows.shape, SPECS.find("L40S"))
    assert np.median(np.abs(said / rows.measured - 1.0)) < 0.05


def test_a_gpu_without_rows_has_a_wider_range_than_one_with_rows() -> None:
    model = trained([rows_of(kind, ["A100-80GB-SXM", "L40S", "H100-SXM"]) for kind in KINDS], SPECS)
    shape = {"m": [64.0], "n": [4096.0], "k": [4096.0]}
    known, unseen = (model.estimate("product_bf16", shape, SPECS.find(gpu), SPECS) for gpu in ("L40S", "L4"))
    assert known.high / known.low <= unseen.high / unseen.low
    assert model.basis("product_bf16", SPECS.find("H200"), SPECS) == ("H100-SXM", "same_chip")


def test_a_kind_without_rows_is_named() -> None:
    with pytest.raises(WrongInput, match="The files contain no rows of product fp8"):
        trained([rows_of("product_bf16", ["L40S"])], SPECS)


def write(path: Path, head: str, lines: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *lines])
    return path


def test_tables_are_recognized_by_their_columns(tmp_path: Path) -> None:
    layers = write(
        tmp_path / "layers.csv",
        "gpu,model,op,n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers,latency_ms",
        [["A40", "m", "mlp_up_proj", 32, 8, 4096, 14336, 32000, "True", 8, 2, 0.2], ["A40", "m", "add", 32, 8, 4096, 14336, 32000, "True", 8, 2, 0.01]],
    )  # fmt: skip
    products, passes = read(layers, SPECS)
    assert products.shape["n"].tolist() == [14336.0]
    assert products.shape["k"].tolist() == [4096.0]
    assert passes.shape["bytes"].tolist() == [2.0 * 8 * 3 * 4096]
    gemm = write(
        tmp_path / "gemm.csv",
        "gpu,dtype,m,n,k,latency_ms",
        [["L40S", "fp8", 1, 32768, 8192, 0.4], ["L40S", "fp8", 1, 64, 64, 0.01]],
    )
    assert [len(rows) for rows in read(gemm, SPECS)] == [0, 1]
    with pytest.raises(WrongInput, match="has the columns of no known table of operations"):
        read(write(tmp_path / "other.csv", "a,b", [[1, 2]]), SPECS)


def test_rows_that_run_from_the_cache_are_left_out(tmp_path: Path) -> None:
    """A weight of 32 MB stays in the 96 MB of an L40S when one product is repeated; in a model it does not."""
    file = write(
        tmp_path / "gemm.csv",
        "gpu,dtype,m,n,k,latency_ms",
        [["L40S", "bfloat16", 1, 4096, 4096, 0.02], ["L40S", "bfloat16", 1, 16384, 8192, 0.4]],
    )
    products, _ = read(file, SPECS)
    assert products.shape["n"].tolist() == [16384.0]


def test_the_shipped_model_predicts_a_model_on_a_gpu() -> None:
    one, many = gpuyard.predict_serving(LLAMA, "H100", batches=(1, 64))
    assert one.decode_ms > 15_316 * 2**20 / 3.352e9 * 0.9, "every weight is read once for a token"
    assert one.decode_low_ms < one.decode_ms < one.decode_high_ms
    assert one.prefill_low_ms < one.prefill_ms < one.prefill_high_ms
    assert one.prefill_ms == many.prefill_ms
    assert many.tokens_per_second > 10 * one.tokens_per_second
    assert (one.from_, one.fits) == ("gpu", True)


def test_the_cache_of_keys_and_values_limits_the_batch() -> None:
    (said,) = gpuyard.predict_serving(LLAMA, "H100", prompt=1024, output=256, batches=(8,))
    assert said.cache_mib == pytest.approx(8 * 1280 * 2 * 32 * 8 * 128 * 2 / 2**20)
    (most,) = gpuyard.predict_serving(LLAMA, "H100", batches=(said.max_batch,))
    (more,) = gpuyard.predict_serving(LLAMA, "H100", batches=(said.max_batch + 1,))
    assert (most.fits, more.fits) == (True, False)
    (longer,) = gpuyard.predict_serving(LLAMA, "H100", prompt=4096, output=1024, batches=(8,))
    assert longer.max_batch < said.max_batch
    assert longer.prefill_ms > 3 * said.prefill_ms
    assert longer.decode_ms > said.decode_ms


def test_a_model_is_divided_among_gpus() -> None:
    (alone,) = gpuyard.predict_serving("Llama-2-70b", "H100", batches=(8,))
    (shared,) = gpuyard.predict_serving("Llama-2-70b", "H100", batches=(8,), tensor_parallel=4)
    assert (alone.fits, alone.max_batch, shared.fits) == (False, 0, True)
    assert shared.weights_mib == pytest.approx(alone.weights_mib / 4)
    assert alone.decode_ms / 4 < shared.decode_ms < alone.decode_ms


def test_eight_bits_halve_the_weights_and_shorten_decoding() -> None:
    wide, narrow = (gpuyard.predict_serving(LLAMA, "H100", batches=(1,), precision=name)[0] for name in ("bf16", "fp8"))
    assert narrow.weights_mib == pytest.approx(wide.weights_mib / 2)
    assert narrow.decode_ms < 0.8 * wide.decode_ms


def test_only_the_experts_that_tokens_choose_are_read() -> None:
    one, many = gpuyard.predict_serving("mistralai/Mixtral-8x7B-v0.1", "H200", batches=(1, 64))
    assert 2.0 < many.decode_ms / one.decode_ms < 6.0


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("bert-base-uncased", {}, "does not generate token by token"),
        ("lama-3-8b", {}, "Unknown language model 'lama-3-8b'; similar names: meta-llama/Meta-Llama-3-8B"),
        (LLAMA, {"precision": "fp32"}, "Serving is predicted in bf16, fp16, fp8, not in 'fp32'"),
        (LLAMA, {"prompt": 8000, "output": 1000}, "takes at most 8,192 tokens; prompt and output have 9,000"),
        (LLAMA, {"tensor_parallel": 3}, "The 32 heads of meta-llama/Meta-Llama-3-8B cannot be divided among 3 GPUs"),
        (LLAMA, {"prompt": 0}, "prompt must be at least 1"),
        (LLAMA, {"batches": (0,)}, "batch must be from 1 to 100,000"),
        (LLAMA, {"gpus": "A100", "precision": "fp8"}, "A100-40GB-PCIe does not compute in fp8"),
        (LLAMA, {"gpus": ""}, "No GPU is given"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(model: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(WrongInput, match=sentence):
        gpuyard.predict_serving(model, **{"gpus": "H100", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}'])
def test_a_file_that_is_no_serving_model_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(WrongInput, match="is not a serving model"):
        load(tmp_path / "x.json")


def decode_shape(batch: float, kv_heads: float) -> dict[str, np.ndarray]:
    said = {"batch": batch, "tokens": 1.0, "past": 15.0, "heads": 32.0, "kv_heads": kv_heads, "width": 128.0}
    return {name: np.array([value]) for name, value in said.items()}


def test_many_requests_take_longer_to_attend_even_if_their_contexts_are_short() -> None:
    chip, coefficients = SPECS.find("H100"), np.array(load().coefficients["decode_attention"]["H100-SXM"])
    few, many = (milliseconds("decode_attention", coefficients, decode_shape(n, 32.0), chip)[0] for n in (1.0, 1024.0))
    bytes_ms = 1024 * 32 * 128 * 4 * 17 / (chip.mem_bw_gbs * 1e6)
    assert many - few > 2.0 * bytes_ms


def test_latencies_are_shorter_on_a_gpu_with_a_faster_clock() -> None:
    slow, fast = (msgspec.structs.replace(SPECS.find("H100"), boost_clock_mhz=mhz) for mhz in (1000.0, 2000.0))
    coefficients = np.array([1.0, 0.01])
    tiny = {"bytes": np.array([1.0])}
    assert milliseconds("passes", coefficients, tiny, slow)[0] == pytest.approx(0.02, rel=1e-3)
    assert milliseconds("passes", coefficients, tiny, fast)[0] == pytest.approx(0.01, rel=1e-3)


def test_the_range_of_a_gpu_of_another_maker_is_wider() -> None:
    model = load()
    widths = {}
    for name in ("MI300X", "B200"):
        said = model.estimate("passes", {"bytes": [1e9]}, SPECS.find(name), SPECS)
        widths[name] = np.log(said.high / said.low)
    assert widths["MI300X"] == pytest.approx(2.0 * widths["B200"])


def test_one_gpu_with_immature_kernels_does_not_count_for_others() -> None:
    gpus = ["A100-80GB-SXM", "L40S", "H100"]
    parts = [rows_of(kind, gpus) for kind in KINDS if kind != "passes"]
    usual = trained([*parts, rows_of("passes", gpus)], SPECS)
    slow = rows_of("passes", gpus)
    slow = OperationRows(
        slow.kind, slow.gpu, slow.group, slow.shape, slow.measured * np.where(slow.gpu == "L40S", 3.0, 1.0)
    )
    with_slow = trained([*parts, slow], SPECS)
    assert with_slow.coefficients["passes"][""] == pytest.approx(usual.coefficients["passes"][""], rel=0.05)
