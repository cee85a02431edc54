"""Prefill, decode and memory of a served language model: the sum of the operations of its layers.

A forward pass over T tokens has four matrix products in each layer, attention, and a few passes over activations; at the
end the logits of one token for each request. Prefill processes all tokens of a prompt at once, decode one token of every
request of the batch. The time is that of the GPU: an engine that replays CUDA graphs comes close to it, one that
launches kernels from Python needs more. With tensor parallelism each GPU has a part of every weight, and two sums over
the GPUs follow in each layer; their time is computed from the link of the data sheet, not measured.
"""

from collections.abc import Iterable

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.gpu_specs import GpuSpec, GpuSpecs
from gpuyard.learn.performance.model_configs import TransformerConfig
from gpuyard.learn.performance.serving.model import ServingModel, TimeRange
from gpuyard.learn.performance.serving.operations import NUMBER_BYTES

USABLE = 0.9
"""Share of a GPU's memory that engines use for weights, cache and activations."""
MIB_OF_GB = 1_000.0
"""Usable MiB per nominal GB of a GPU's memory."""
ACTIVATION_TOKENS = 2_048
"""Tokens of one forward pass for which engines reserve memory."""
LINK_MS = 0.02
"""Least time of a sum over GPUs."""
BATCHES = (1, 4, 16, 64, 256)
LARGEST_BATCH = 100_000


class ServingPrediction(msgspec.Struct, frozen=True):
    """One model on one GPU, or on several with tensor parallelism, at one batch size."""

    gpu: str
    gpus: int
    """Number of GPUs that share the model."""
    batch: int
    """Requests that are decoded together."""
    prefill_ms: float
    """Time to process the prompt of one request."""
    prefill_low_ms: float
    prefill_high_ms: float
    decode_ms: float
    """Time of one token of every request of the batch, in the middle of the output."""
    decode_low_ms: float
    decode_high_ms: float
    tokens_per_second: float
    """Output tokens of the whole batch, with the prefill of each request counted."""
    weights_mib: float
    """On each GPU, likewise the next two."""
    cache_mib: float
    """Keys and values of the batch at the end of its output."""
    gpu_memory_mib: float
    fits: bool
    max_batch: int
    """Requests of this length that fit; 0 if the weights do not."""
    from_: str = msgspec.field(name="from")
    """gpu, same_chip or data_sheet: the least certain basis among the operations."""


def predict_serving(
    model: ServingModel,
    config: TransformerConfig,
    chips: Iterable[GpuSpec],
    specs: GpuSpecs,
    *,
    prompt: int = 1024,
    output: int = 256,
    batches: Iterable[int] = BATCHES,
    precision: str = "bf16",
    gpus: int = 1,
) -> list[ServingPrediction]:
    """Predict a decoder on each GPU and at each batch size. Raises `WrongInput` if it cannot be served so."""
    _check(config, prompt, output, precision, gpus)
    return [
        _Served(model, config, chip, specs, precision, gpus).at(prompt, output, batch)
        for chip in chips
        for batch in batches
    ]


def _check(config: TransformerConfig, prompt: int, output: int, precision: str, gpus: int) -> None:
    if not config.is_decoder:
        raise WrongInput(
            f"{config.name} does not generate token by token from one stack of layers; serving is predicted for decoders only."
        )
    if precision not in NUMBER_BYTES:
        raise WrongInput(f"Serving is predicted in {', '.join(NUMBER_BYTES)}, not in {precision!r}.")
    if config.quantized and (config.quantized, precision) != ("fp8", "fp8"):
        instead = (
            "use --precision fp8" if config.quantized == "fp8" else "remove quantization_config to predict it without"
        )
        raise WrongInput(
            f"The weights of {config.name} are quantized ({config.quantized}). Serving is predicted with weights of 16 bits "
            f"or in fp8: {instead}."
        )
    for name, value in (("prompt", prompt), ("output", output), ("tensor_parallel", gpus)):
        if value < 1:
            raise WrongInput(f"{name} must be at least 1")
    if prompt + output > config.positions:
        raise WrongInput(
            f"{config.name} takes at most {config.positions:,} tokens; prompt and output have {prompt + output:,}."
        )
    if config.heads % gpus:
        raise WrongInput(f"The {config.heads} heads of {config.name} cannot be divided among {gpus} GPUs.")


class _Served(msgspec.Struct, frozen=True):
    """One model on one kind of GPU."""

    model: ServingModel
    config: TransformerConfig
    chip: GpuSpec
    specs: GpuSpecs
    precision: str
    gpus: int

    def at(self, prompt: int, output: int, batch: int) -> ServingPrediction:
        if not 1 <= batch <= LARGEST_BATCH:
            raise WrongInput(f"batch must be from 1 to {LARGEST_BATCH:,}")
        if self.precision == "fp8" and not self.chip.fp8_dense_tflops:
            raise WrongInput(f"{self.chip.gpu} does not compute in fp8.")
        prefill = self._forward(float(prompt), 1.0) + self._attention("prefill_attention", 1.0, float(prompt), 0.0)
        decode = self._forward(float(batch), float(batch))
        decode += self._attention("decode_attention", float(batch), 1.0, prompt + output / 2.0)
        weights, room = self._weights_mib(), self.chip.memory_gb * MIB_OF_GB
        request = self._cache_mib(prompt + output)
        free = USABLE * room - weights - self._activations_mib()
        most = max(int(free / request), 0)
        total_ms = batch * prefill.middle + output * decode.middle
        return ServingPrediction(
            self.chip.gpu, self.gpus, batch,
            prefill.middle, prefill.low, prefill.high, decode.middle, decode.low, decode.high,
            1e3 * batch * output / total_ms, weights, request * batch, room, batch <= most, most, self._basis(),
        )  # fmt: skip

    def _basis(self) -> str:
        used = {
            self.model.basis(kind, self.chip, self.specs)[1]
            for kind in (self._product, "prefill_attention", "decode_attention")
        }
        return next(basis for basis in ("data_sheet", "same_chip", "gpu") if basis in used)

    @property
    def _product(self) -> str:
        return "product_fp8" if self.precision == "fp8" else "product_bf16"

    def _forward(self, tokens: float, requests: float) -> TimeRange:
        """Return a forward pass without attention; the logits are computed for one token of each request."""
        config, parts = self.config, float(self.gpus)
        width, wide = float(config.width), config.feed_forward / parts
        inner = config.heads * config.head_width / parts
        kv = max(config.kv_heads / parts, 1.0) * config.head_width
        gated = 2.0 if config.is_gated else 1.0
        layer = self._products([(tokens, inner + 2 * kv, width), (tokens, width, inner)])
        used, each = self._experts(tokens)
        layer += self._products([(each, gated * wide, width), (each, width, wide)]).times(used)
        if config.shared:
            part = config.shared / parts
            layer += self._products([(tokens, gated * part, width), (tokens, width, part)])
        passed = [
            2 * width,
            2 * width,
            2 * (inner + kv),
            (gated + 1) * (wide * config.experts_used + config.shared / parts),
            3 * width,
            3 * width,
        ]
        layer += self._passes([2.0 * tokens * one for one in passed])
        whole = layer.times(float(config.layers)) + self._reductions(tokens)
        logits = self.model.estimate(
            "product_bf16", _shape([(requests, config.vocabulary / parts, width)]), self.chip, self.specs
        )
        return whole + logits + self._passes([2.0 * tokens * 2 * width, 2.0 * requests * 2 * config.vocabulary / parts])

    def _experts(self, tokens: float) -> tuple[float, float]:
        """Return how many experts a pass uses if tokens choose them evenly, and the tokens of each."""
        config = self.config
        if config.experts == 1:
            return 1.0, tokens
        used = config.experts * (1.0 - (1.0 - config.experts_used / config.experts) ** tokens)
        return used, tokens * config.experts_used / used

    def _products(self, sizes: list[tuple[float, float, float]]) -> TimeRange:
        return self.model.estimate(self._product, _shape(sizes), self.chip, self.specs)

    def _passes(self, moved: list[float]) -> TimeRange:
        return self.model.estimate("passes", {"bytes": moved}, self.chip, self.specs)

    def _attention(self, kind: str, batch: float, tokens: float, past: float) -> TimeRange:
        config = self.config
        shape = {
            "batch": [batch], "tokens": [tokens], "past": [past], "heads": [config.heads / self.gpus],
            "kv_heads": [max(config.kv_heads / self.gpus, 1.0)], "width": [float(config.head_width)],
        }  # fmt: skip
        return self.model.estimate(kind, shape, self.chip, self.specs).times(float(config.layers))

    def _reductions(self, tokens: float) -> TimeRange:
        """Return two sums over all GPUs in each layer: most of the activations cross the link twice."""
        if self.gpus == 1:
            return TimeRange(0.0, 0.0, 0.0)
        moved = 2.0 * (self.gpus - 1) / self.gpus * 2.0 * tokens * self.config.width
        once = moved / (self.chip.link_gbs * 1e6) + LINK_MS
        return TimeRange(once, 0.5 * once, 2.0 * once).times(2.0 * self.config.layers)

    def _weights_mib(self) -> float:
        return self.config.parameters * NUMBER_BYTES[self.precision] / self.gpus / 2**20

    def _cache_mib(self, tokens: int) -> float:
        """Return keys and values of one request, in 16 bits, on one GPU."""
        config = self.config
        kept = 2.0 * config.layers * max(config.kv_heads / self.gpus, 1.0) * config.head_width * 2.0
        return kept * tokens / 2**20

    def _activations_mib(self) -> float:
        config = self.config
        return ACTIVATION_TOKENS * 2.0 * (6 * config.width + 3 * config.feed_forward / self.gpus) / 2**20


def _shape(sizes: list[tuple[float, float, float]]) -> dict[str, list[float]]:
    return {name: [size[place] for size in sizes] for place, name in enumerate("mnk")}
