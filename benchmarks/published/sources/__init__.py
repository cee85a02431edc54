"""Published tables of single operations and of jobs known by name only."""

from benchmarks.published.sources import aiconfigurator, gavel, neusight, vidur
from gpuyard.learn.performance.sources import source

PUBLISHED_SOURCES = {
    "neusight_conv": source(
        "gpu B Input_Channel Output_Channel Kernel_Size Input_Size Stride Padding latency_ms", neusight.convolutions
    ),
    "neusight_matmul": source("gpu op B M N K latency_ms", neusight.products),
    "neusight_vector": source("gpu op B H latency_ms", neusight.vectors),
    "aiconfigurator_gemm": source("gpu dtype m n k latency_ms", aiconfigurator.products),
    "aiconfigurator_attention": source(
        "gpu phase batch_size isl step num_heads num_key_value_heads head_dim window_size latency_ms",
        aiconfigurator.attention,
    ),
    "vidur_llm_layers": source(
        "gpu model op n_head n_kv_head n_embd n_expanded_embd vocab_size use_gated_mlp num_tokens num_tensor_parallel_workers latency_ms",
        vidur.rows,
    ),
    "gavel_isolated_throughput": source("gpu consolidated model batch_size n_gpus steps_per_sec", gavel.alone),
    "gavel_colocated_pairs": source("gpu job_a n_gpus_a job_b n_gpus_b steps_per_sec_a steps_per_sec_b", gavel.pairs),
}
