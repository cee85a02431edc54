"""Stages and replicas for a counted model: every way to use some GPUs, and the time of a step.

**Time** of a part of a model, for some samples, comes from a `Cost`: the shipped performance model. It was trained on
whole steps, so the optimizer's part is subtracted and counted once for any number of micro-batches. A sample is never
assumed to take less time in a small batch than in the whole batch.

**A pipeline** cuts the model into stages and the batch into micro-batches. A stage processes one micro-batch after the
other, forward and backward. Micro-batches are equal, so the step takes the time of one through all stages, plus the
time of the slowest stage for each other one:

    step = Σ stage + (micro-batches − 1) × slowest stage            bubble = 1 − micro-batches × Σ stage / (stages × step)

A stage's time includes its operations and the transfer of its inputs, forward and (as gradients) back. Cuts are chosen
to minimize the slowest stage, by dynamic programming over the possible cuts, which is exact if times are additive.
Predicted times nearly are (a unit's time is that of a model of copies of it, divided by their number). So the stages
found are predicted as a whole, their units are scaled by the difference, and the search is repeated.

**Replicas** each process a part of the batch and all-reduce gradients in a ring, 2 (n − 1) / n of their bytes, during
the last backward pass; the step waits for what takes longer than that.

**Memory** of a stage in training is four times its parameters (weights, gradients, both moments of Adam) plus the bytes
kept for the backward pass of each micro-batch in flight there: as many as there are stages from this one on.

A backward pass takes twice as long as the forward pass: two products for each one. One step is predicted, without data
loading.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from gpuyard.learn.performance.gpu_specs import GpuSpec
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.performance.partition.counts import ModelPart, together
from gpuyard.learn.performance.query import CUDA_CONTEXT_MIB, MIB_OF_GB

Cost = Callable[[Sequence[tuple[OperationProfile, int]]], Sequence[float]]
"""Returns the seconds of a step for each profile with its number of samples."""
BACKWARD = 2.0
COPIES = 4.0
"""Copies of the weights in training: weights, gradients and two moments."""
UPDATE_ACCESSES, LEAST_ACCESSES = 7.0, 3.0
"""Multiples of the weights' bytes: Adam reads 4 and writes 3; forward and backward read 2 and write gradients."""
OF_LINK = 0.8
LINK_SECONDS = 1e-5
"""Latency of a message."""
ROUNDS = 4
"""How often the times of stages are corrected."""
MIB = 2.0**20
HALF = {"bf16", "fp16", "amp", "amp_bf16", "amp_fp16"}
"""Precisions with 16-bit activations; without `amp` weights are 16-bit, too."""


class Stage(Struct, frozen=True):
    """A part of the model on one GPU."""

    first: str
    last: str
    seconds: float
    """Time of one micro-batch, forward and backward, with transfers."""
    parameter_bytes: float
    memory_bytes: float
    crossing_bytes: float
    """Bytes that come in from the previous stage for one micro-batch."""


class PartitionPlan(Struct, frozen=True, kw_only=True):
    """A way to run one step."""

    stages: tuple[Stage, ...]
    replicas: int
    micro_batches: int
    seconds: float
    speedup: float
    """Relative to one GPU with the whole batch."""
    bubble: float
    communication: float
    """Share of the step in which GPUs wait for transfers."""
    memory_bytes: float
    """Memory of the fullest GPU."""
    fits: bool

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return len(self.stages) * self.replicas


class Setting(Struct, frozen=True):
    """The GPUs and options a model is divided for."""

    gpu: GpuSpec
    gpus: int
    training: bool = True
    precision: str = "amp"
    micro_batches: int | None = None
    """None means the best number."""
    link_gbs: float | None = None


def plans(parts: Sequence[ModelPart], batch: int, cost: Cost, setting: Setting) -> list[PartitionPlan]:
    """Return every way to use the GPUs, the fastest that fits first."""
    model = _Model(parts, batch, cost, setting)
    alone = model.step_alone()
    found = []
    for stages in range(1, setting.gpus + 1):
        if setting.gpus % stages or stages > len(parts):
            continue
        replicas = setting.gpus // stages
        if batch % replicas:
            continue
        each = batch // replicas
        options = [model.plan(stages, replicas, micro, each // micro, alone) for micro in _micro(each, stages, setting)]
        if options:
            found.append(min(options, key=lambda plan: (not plan.fits, plan.seconds)))
    return sorted(found, key=lambda plan: (not plan.fits, plan.seconds))


def omitted_ways(parts: int, batch: int, setting: Setting) -> list[str]:
    """Return the ways to use the GPUs that `plans` leaves out, each with the reason."""
    found = []
    for stages in (one for one in range(1, setting.gpus + 1) if setting.gpus % one == 0):
        replicas = setting.gpus // stages
        if stages > parts:
            why = f"the model has {parts} parts"
        elif batch % replicas:
            why = f"{replicas} replicas do not divide a batch of {batch}"
        elif not any(_micro(batch // replicas, stages, setting)):
            why = f"{setting.micro_batches} micro-batches do not divide the {batch // replicas} samples of a replica"
        else:
            continue
        found.append(f"{replicas} × {stages} {'stage' if stages == 1 else 'stages'}: {why}")
    return found


def _micro(batch: int, stages: int, setting: Setting) -> Iterator[int]:
    """Yield numbers of micro-batches that divide the batch."""
    if setting.micro_batches is not None:
        if batch % setting.micro_batches == 0:
            yield setting.micro_batches
        return
    for number in range(1, min(batch, 16 * stages) + 1):
        if batch % number == 0:
            yield number


class _Model:
    """A counted model on GPUs of one model, with sums over its parts."""

    def __init__(self, parts: Sequence[ModelPart], batch: int, cost: Cost, setting: Setting) -> None:
        self.parts, self.batch, self.cost, self.setting = parts, batch, cost, setting
        narrow = 0.5 if setting.precision in HALF else 1.0
        stored = narrow if setting.precision in {"bf16", "fp16"} else 1.0
        self.narrow = narrow
        self.owned = _sums([part.profile.parameter_bytes * stored for part in parts])
        self.kept = _sums([part.profile.kept_bytes * narrow for part in parts])
        self.link = (setting.link_gbs or setting.gpu.link_gbs) * 1e9 * OF_LINK
        self._weights: dict[int, list[float]] = {}
        self._spans: dict[tuple[int, int, int], float] = {}
        self._cuts: dict[tuple[int, int], list[int]] = {}

    def passes(self, spans: Sequence[tuple[int, int]], samples: int) -> list[float]:
        """Return the predicted seconds of each of these stages for this number of samples, forward and backward."""
        new = [span for span in spans if (*span, samples) not in self._spans]
        if new:
            stages = [together(self.parts[first:last]) for first, last in new]
            said = self.cost([(stage, many) for many in (samples, self.batch) for stage in stages])
            for span, few, all_ in zip(new, said[: len(new)], said[len(new) :], strict=True):
                least = self._without_update(all_, span) * samples / self.batch
                self._spans[*span, samples] = max(self._without_update(few, span), least)
        return [self._spans[*span, samples] for span in spans]

    def _without_update(self, step: float, span: tuple[int, int]) -> float:
        if not self.setting.training:
            return step
        # The computed update may exceed the predicted step: keep at least the share of the other weight accesses.
        return max(step - self.update(*span), step * LEAST_ACCESSES / (LEAST_ACCESSES + UPDATE_ACCESSES))

    def update(self, first: int, last: int) -> float:
        """Return the seconds of the optimizer for the parameters of these parts."""
        if not self.setting.training:
            return 0.0
        return (self.owned[last] - self.owned[first]) * UPDATE_ACCESSES / (self.setting.gpu.mem_bw_gbs * 1e9)

    def step_alone(self) -> float:
        """Return the seconds of a step on one GPU, whether it fits or not."""
        return self.passes([(0, len(self.parts))], self.batch)[0] + self.update(0, len(self.parts))

    def crossing(self, place: int, samples: int) -> float:
        """Return the bytes that cross into the part that begins here."""
        return self.parts[place].crossing(samples) * self.narrow if 0 < place < len(self.parts) else 0.0

    def sends(self, place: int, samples: int) -> float:
        """Return the seconds to transfer what crosses here, forward and back."""
        if place in {0, len(self.parts)}:
            return 0.0
        ways = 2 if self.setting.training else 1
        return ways * (self.crossing(place, samples) / self.link + LINK_SECONDS)

    def plan(self, stages: int, replicas: int, micro: int, samples: int, alone: float) -> PartitionPlan:
        """Return the plan for this number of stages, replicas and micro-batches."""
        spans = list(pairwise(self.cuts(stages, samples)))
        work = self.passes(spans, samples)
        each = [seconds + self.sends(first, samples) for seconds, (first, _) in zip(work, spans, strict=True)]
        line = sum(each) + (micro - 1) * max(each)
        waits = max(
            self._exposed(first, last, replicas, seconds) for seconds, (first, last) in zip(work, spans, strict=True)
        )
        seconds = line + waits + max(self.update(first, last) for first, last in spans)
        made = tuple(
            self._stage(first, last, each[number], samples, min(micro, stages - number))
            for number, (first, last) in enumerate(spans)
        )
        memory = max(stage.memory_bytes for stage in made)
        sending = sum(self.sends(first, samples) for first, _ in spans)
        return PartitionPlan(
            stages=made,
            replicas=replicas,
            micro_batches=micro,
            seconds=seconds,
            speedup=alone / seconds,
            bubble=1 - micro * sum(each) / (stages * line),
            communication=(micro * sending / stages + waits) / seconds,
            memory_bytes=memory,
            fits=memory <= self.setting.gpu.memory_gb * MIB_OF_GB * MIB,
        )

    def _exposed(self, first: int, last: int, replicas: int, work: float) -> float:
        """Return the seconds of the all-reduce that the last backward pass does not hide."""
        if replicas == 1 or not self.setting.training:
            return 0.0
        behind = work * BACKWARD / (1 + BACKWARD)
        size = self.owned[last] - self.owned[first]
        ring = 2 * (replicas - 1) / replicas * size / self.link + 2 * (replicas - 1) * LINK_SECONDS
        return max(0.0, ring - behind)

    def _stage(self, first: int, last: int, seconds: float, samples: int, under_way: int) -> Stage:
        owned = self.owned[last] - self.owned[first]
        kept = (self.kept[last] - self.kept[first]) * samples
        largest = max(part.profile.largest_bytes for part in self.parts[first:last]) * samples * self.narrow
        memory = (
            CUDA_CONTEXT_MIB * MIB + largest + (owned * COPIES + kept * under_way if self.setting.training else owned)
        )
        crossing = self.crossing(first, samples)
        return Stage(self.parts[first].block, self.parts[last - 1].block, seconds, owned, memory, crossing)

    def cuts(self, stages: int, samples: int) -> list[int]:
        """Return the cuts, from 0 to the end, that minimize the slowest stage."""
        if (stages, samples) not in self._cuts:
            self._cuts[stages, samples] = self._balanced(stages, samples)
        return self._cuts[stages, samples]

    def _balanced(self, stages: int, samples: int) -> list[int]:
        sends = [self.sends(place, samples) for place in range(len(self.parts) + 1)]
        weights, found, slowest = list(self.weights(samples)), [0, len(self.parts)], float("inf")
        for _ in range(ROUNDS if stages > 1 else 0):
            cuts = best_cuts(_sums(weights), sends, stages)
            spans = list(pairwise(cuts))
            times = self.passes(spans, samples)
            now = max(seconds + sends[first] for seconds, (first, _) in zip(times, spans, strict=True))
            if now < slowest:
                found, slowest = cuts, now
            for seconds, (first, last) in zip(times, spans, strict=True):
                # Scale the units so that their sum is the predicted time of the stage as a whole.
                right = seconds / sum(weights[first:last])
                weights[first:last] = [weight * right for weight in weights[first:last]]
        return found

    def weights(self, samples: int) -> list[float]:
        """Return the seconds of each part, from the prediction for a model that consists of copies of it."""
        if samples not in self._weights:
            count = len(self.parts)
            asked = [(part.profile.times(count), samples) for part in self.parts]
            self._weights[samples] = [seconds / count for seconds in self.cost(asked)]
        return self._weights[samples]


def best_cuts(times: Sequence[float], sends: Sequence[float], stages: int) -> list[int]:
    """Return the cuts that minimize the slowest stage. `times`: prefix sums; `sends`: transfer time of a stage's input.

    `best[j]` is the slowest stage when the first j units are divided into the current number of stages; a stage that
    begins at i adds `times[j] - times[i] + sends[i]`. Going back from j, a stage only grows: the search ends at the
    first stage slower than the best so far.
    """
    places = len(times)
    best = [times[place] + sends[0] for place in range(places)]
    chosen: list[list[int]] = []
    for count in range(2, stages + 1):
        now, origin = [float("inf")] * places, [0] * places
        for last in range(count, places):
            for first in range(last - 1, count - 2, -1):
                alone = times[last] - times[first]
                if alone >= now[last]:
                    break
                slowest = max(best[first], alone + sends[first])
                if slowest < now[last]:
                    now[last], origin[last] = slowest, first
        best = now
        chosen.append(origin)
    cuts = [places - 1]
    for origin in reversed(chosen):
        cuts.append(origin[cuts[-1]])
    return [0, *reversed(cuts)]


def _sums(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))
