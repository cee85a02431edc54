"""Published tables of single operations: how they are read, and what a GPU needs for them at best."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import register
from benchmarks.published.rooflines import PUBLISHED_ROOFLINES, matmul
from benchmarks.published.sources import PUBLISHED_SOURCES
from gpuyard.learn.performance.dataset import ProfileRows, read
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.rooflines.chips import GpuColumns
from tests.unit.learn.performance.synthetic_rows import write

register()

EXAMPLES: dict[str, tuple[str, str, str]] = {
    "neusight_conv": (
        "neusight_conv",
        "gpu,op,source_split,B,Input_Channel,Output_Channel,Kernel_Size,Input_Size,Stride,Padding,latency_ms",
        "P4,conv,train,1,3,829,3,107,1,1,0.258101",
    ),
    "neusight_matmul": (
        "neusight_matmul",
        "gpu,op,source_split,B,M,N,K,latency_ms",
        "T4,bmm,test,12,64,196,196,0.0659",
    ),
    "neusight_vector": ("neusight_vector", "gpu,op,source_split,B,H,latency_ms", "T4,add,test,16384,768,0.125978"),
    "aiconfigurator_gemm": ("aiconfigurator_gemm", "gpu,dtype,m,n,k,latency_ms", "L40S,fp8,1,32,32,0.0024773"),
    "aiconfigurator_attention": (
        "aiconfigurator_attention",
        "gpu,phase,batch_size,isl,step,num_heads,num_key_value_heads,head_dim,window_size,latency_ms",
        "H100-SXM,generation,4,1,1024,96,8,128,0,0.2",
    ),
    "vidur_llm_layers": (
        "vidur_layers",
        "gpu,model,op,n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers,latency_ms",
        "A40,phi-2,mlp_up_proj,32,32,2560,10240,51200,False,4096,1,0.078",
    ),
    "gavel_isolated_throughput": (
        "gavel_jobs",
        "gpu,consolidated,model,batch_size,n_gpus,steps_per_sec",
        "K80,1,ResNet-18,16.0,1,4.90704",
    ),
    "gavel_colocated_pairs": (
        "gavel_jobs",
        "gpu,job_a,n_gpus_a,job_b,n_gpus_b,steps_per_sec_a,steps_per_sec_b",
        "K80,ResNet-18 (batch size 16),1,A3C,1,2.5,3.1",
    ),
}


def base(rows: ProfileRows) -> np.ndarray:
    return PUBLISHED_ROOFLINES[rows.kind].features(rows, GpuColumns.of(rows, shipped()))[0]


def test_every_published_table_has_an_example() -> None:
    assert EXAMPLES.keys() == PUBLISHED_SOURCES.keys()


@pytest.mark.parametrize("source", EXAMPLES)
def test_a_published_table_is_recognized_by_its_columns_and_its_rows_have_features(source: str, tmp_path: Path) -> None:
    kind, names, row = EXAMPLES[source]
    for rows in read(write(tmp_path / "rows.csv", names.split(","), [row.split(",")])):
        roofline = PUBLISHED_ROOFLINES[rows.kind]
        base, columns = roofline.features(rows, GpuColumns.of(rows, shipped()))
        assert rows.kind == kind
        assert (base > 0).all()
        assert (rows.measured > 0).all()
        assert all(len(values) == len(rows) and np.isfinite(values).all() for values in columns.values())
        assert roofline.gives_away <= columns.keys() | rows.words.keys()


def test_a_scalar_pass_is_limited_by_cycles_and_not_by_memory(tmp_path: Path) -> None:
    columns = "gpu model op n_head n_kv_head n_embd n_expanded_embd vocab_size use_gated_mlp num_tokens num_tensor_parallel_workers latency_ms"
    lines = [
        (gpu, "llama", op, 32, 32, 4096, 11008, 32000, "true", 16384, 1, 1.0)
        for op in ("add", "emb")
        for gpu in ("A40", "A100-80GB-SXM")
    ]
    add_a40, add_a100, emb_a40, emb_a100 = base(read(write(tmp_path / "ops.csv", columns.split(), lines))[0])
    assert add_a40 > 2.5 * add_a100  # by their bandwidth
    assert 0.85 < emb_a40 / emb_a100 < 1.2  # both have as many cycles


def test_the_remainders_of_the_last_tile_and_of_the_last_channel_pack_are_features(tmp_path: Path) -> None:
    columns = [
        "gpu",
        "B",
        "Input_Channel",
        "Output_Channel",
        "Kernel_Size",
        "Input_Size",
        "Stride",
        "Padding",
        "latency_ms",
    ]
    lines = [("T4", 8, 64, 128, 3, 12, 1, 1, 1.0), ("T4", 8, 65, 128, 3, 13, 1, 1, 1.0)]
    (rows,) = read(write(tmp_path / "conv.csv", columns, lines))
    told = PUBLISHED_ROOFLINES[rows.kind].features(rows, GpuColumns.of(rows, shipped()))[1]
    assert told["square_4"].tolist() == pytest.approx([1.0, 16**2 / 13**2])
    assert told["into_32"].tolist() == [1.0, 96 / 65]
    assert told["out_64"].tolist() == [1.0, 1.0]


def test_a_partial_wave_takes_as_long_as_a_full_one(tmp_path: Path) -> None:
    tiles = 2 * 108  # of 128 × 128, two rounds of an A100's processors
    columns = ("gpu", "op", "B", "M", "N", "K", "latency_ms")
    lines = [("A100-40GB-PCIe", "linear", 1, 128 * count, 128, 8192, 1.0) for count in (tiles, tiles + 1)]
    even, more = base(read(write(tmp_path / "products.csv", columns, lines))[0])
    assert more > 1.05 * even


def test_a_deep_product_with_a_small_result_is_shared_by_many_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ("gpu", "op", "B", "M", "N", "K", "latency_ms")
    lines = [("A100-40GB-PCIe", "linear", 1, m, 256, 65536, 1.0) for m in (256, 13_824)]
    rows = read(write(tmp_path / "products.csv", columns, lines))[0]
    small, large = base(rows)
    monkeypatch.setattr(matmul, "PARTS", (1,))
    small_alone, large_alone = base(rows)
    assert small_alone > 1.5 * small
    assert large_alone < 1.1 * large
