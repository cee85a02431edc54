"""Who measured: a file for each source of profiles, known by the columns it has."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.learn.performance.dataset import Columns, Rows
from gpuyard.learn.performance.sources import aiconfigurator, gavel, neusight, own, schedtune, timm, vidur


@dataclass(frozen=True, slots=True)
class Source:
    """How a file of this source is known, and read."""

    columns: frozenset[str]
    rows: Callable[[Columns], list[Rows]]


def _source(columns: str, rows: Callable[[Columns], list[Rows]]) -> Source:
    return Source(frozenset(columns.split()), rows)


SOURCES = {
    "timm": _source(
        "gpu mode precision model img_size batch_size gmacs_per_sample mactivations_per_sample params_m compiled layout step_time_ms",
        timm.rows,
    ),
    "neusight_e2e": _source("gpu model mode seqlen batch option num_layer measured_ms", neusight.models),
    "neusight_conv": _source(
        "gpu B Input_Channel Output_Channel Kernel_Size Input_Size Stride Padding latency_ms", neusight.convolutions
    ),
    "neusight_matmul": _source("gpu op B M N K latency_ms", neusight.products),
    "neusight_vector": _source("gpu op B H latency_ms", neusight.vectors),
    "aiconfigurator_gemm": _source("gpu dtype m n k latency_ms", aiconfigurator.products),
    "aiconfigurator_attention": _source(
        "gpu phase batch_size isl step num_heads num_key_value_heads head_dim window_size latency_ms",
        aiconfigurator.attention,
    ),
    "vidur_llm_layers": _source(
        "gpu model op n_head n_kv_head n_embd n_expanded_embd vocab_size use_gated_mlp num_tokens num_tensor_parallel_workers latency_ms",
        vidur.rows,
    ),
    "schedtune_peak_memory": _source(
        "model batch_size activations_mb parameters_mb input_mb peak_mem_mib sm_count mem_bw_gbs", schedtune.rows
    ),
    "gavel_isolated_throughput": _source("gpu consolidated model batch_size n_gpus steps_per_sec", gavel.alone),
    "gavel_colocated_pairs": _source("gpu job_a n_gpus_a job_b n_gpus_b steps_per_sec_a steps_per_sec_b", gavel.pairs),
    "gpuyard": _source(
        "model family kind size mode batch precision compiled gpu torch step_ms memory_reserved_mib utilisation",
        own.rows,
    ),
}
"""In the order in which they are tried: one whose columns are among another's comes after it."""
