"""Stages and replicas for a counted model: every way to use some GPUs, and how long a step takes.

**A pipeline** cuts the model into stages, the batch into micro-batches. A stage works on one micro-batch after the other,
forward and backward. Micro-batches are alike, so the line takes what one needs for all stages, and then, for each other one, what
the slowest stage needs:

    step = Σ stage + (micro-batches − 1) × slowest stage            bubble = 1 − micro-batches × Σ stage / (stages × step)

A stage's time is that of its operations, and of sending what crosses into it, forward and (as gradients) back. Cuts
are chosen so that the slowest stage is as fast as can be, by dynamic programming over the places where a model can be cut: exact.

**Replicas** each take a part of the batch and add up gradients in a ring, 2 (n − 1) / n of their bytes, while the last backward
pass runs; what takes longer than that is waited for.

**Memory** of a stage in training is 16 bytes for each parameter (weights, gradients, both moments of Adam, at four
bytes) and what the backward pass needs of each micro-batch that is under way there: as many as there are stages from here on.

A backward pass takes twice as long as the forward pass: two products for each one. Predicted is one step, without loading data.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from gpuyard.analysis.splitting.counts import Counts, Unit, units
from gpuyard.analysis.splitting.roofline import LINK_SECONDS, OF_LINK, Cost, Gpu

BACKWARD = 2.0
TRAINING_BYTES_A_PARAMETER = 4.0
"""For each byte of weights in fp32: weights, gradients and two moments."""
UPDATE_ACCESSES = 7.0
"""Of the bytes of the weights, by Adam: four read, three written."""
CONTEXT_BYTES = 1e9
OF_MEMORY = 0.92


class Stage(Struct, frozen=True):
    """A part of the model on one GPU."""

    first: str
    last: str
    seconds: float
    """Of one micro-batch, forward and backward, with sending."""
    parameter_bytes: float
    memory_bytes: float
    crossing_bytes: float
    """That come in from the stage before, for one micro-batch."""


class Plan(Struct, frozen=True, kw_only=True):
    """A way to run one step."""

    stages: tuple[Stage, ...]
    replicas: int
    micro_batches: int
    seconds: float
    speedup: float
    """Against one GPU with the whole batch."""
    bubble: float
    communication: float
    """Part of the step in which GPUs wait for bytes."""
    memory_bytes: float
    """Of the fullest GPU."""
    fits: bool

    @property
    def gpus(self) -> int:
        """All together."""
        return len(self.stages) * self.replicas


class Setting(Struct, frozen=True):
    """What a model is divided for."""

    gpu: Gpu
    gpus: int
    training: bool = True
    micro_batches: int | None = None
    """The best number unless it is said."""
    link_gbs: float | None = None


def plans(counts: Counts, cost: Cost, setting: Setting) -> list[Plan]:
    """Every way to use the GPUs, the fastest that fits first."""
    model = _Model(counts, cost, setting)
    alone = model.seconds_alone()
    found = []
    for stages in range(1, setting.gpus + 1):
        if setting.gpus % stages or stages > len(model.units):
            continue
        replicas = setting.gpus // stages
        if counts.batch % replicas:
            continue
        options = [
            model.plan(stages, replicas, micro, alone) for micro in _micro(counts.batch // replicas, stages, setting)
        ]
        if options:
            found.append(min(options, key=lambda plan: (not plan.fits, plan.seconds)))
    return sorted(found, key=lambda plan: (not plan.fits, plan.seconds))


def _micro(batch: int, stages: int, setting: Setting) -> Iterator[int]:
    """Numbers of micro-batches that divide the batch."""
    if setting.micro_batches is not None:
        if batch % setting.micro_batches == 0:
            yield setting.micro_batches
        return
    for number in range(1, min(batch, 16 * stages) + 1):
        if batch % number == 0:
            yield number


class _Model:
    """A counted model, with sums over its units."""

    def __init__(self, counts: Counts, cost: Cost, setting: Setting) -> None:
        self.counts, self.cost, self.setting = counts, cost, setting
        self.units: list[Unit] = units(counts)
        self.passes = 1 + BACKWARD if setting.training else 1.0
        self.owned = _sums([sum(counts.owned_bytes[u.first : u.last]) for u in self.units])
        self.kept = _sums([sum(counts.kept_bytes[u.first : u.last]) for u in self.units])
        self.crossing = [counts.crossing_bytes[u.first] for u in self.units]
        self.link = (setting.link_gbs or setting.gpu.link_gbs) * 1e9 * OF_LINK
        self._times: dict[float, list[float]] = {}
        self._cuts: dict[tuple[int, float], list[int]] = {}

    def times(self, part: float) -> list[float]:
        """Sums of seconds over units, for this part of the batch; forward and backward."""
        if part not in self._times:
            counts = self.counts
            columns = zip(counts.flops, counts.activation_bytes, counts.parameter_bytes, strict=True)
            each = [self.passes * self.cost(flops * part, active * part + fixed) for flops, active, fixed in columns]
            self._times[part] = _sums([sum(each[u.first : u.last]) for u in self.units])
        return self._times[part]

    def update(self, first: int, last: int) -> float:
        """Seconds the optimizer needs for the parameters of these units."""
        if not self.setting.training:
            return 0.0
        size = (self.owned[last] - self.owned[first]) * UPDATE_ACCESSES
        return size / (self.setting.gpu.bandwidth_gbs * 1e9)

    def seconds_alone(self) -> float:
        """One GPU, whether it fits or not."""
        return self.times(1.0)[-1] + self.update(0, len(self.units))

    def sends(self, place: int, part: float) -> float:
        """Seconds to send what crosses here, there and back."""
        if place in {0, len(self.units)}:
            return 0.0
        ways = 2 if self.setting.training else 1
        return ways * (self.crossing[place] * part / self.link + LINK_SECONDS)

    def plan(self, stages: int, replicas: int, micro: int, alone: float) -> Plan:
        """This one way."""
        part = 1.0 / (replicas * micro)
        times, cuts = self.times(part), self.cuts(stages, part)
        spans = list(pairwise(cuts))
        each = [times[last] - times[first] + self.sends(first, part) for first, last in spans]
        line = sum(each) + (micro - 1) * max(each)
        waits = max(self._exposed(first, last, replicas, part) for first, last in spans)
        seconds = line + waits + max(self.update(first, last) for first, last in spans)
        made = tuple(
            self._stage(first, last, each[number], part, min(micro, stages - number))
            for number, (first, last) in enumerate(spans)
        )
        memory = max(stage.memory_bytes for stage in made)
        sending = sum(self.sends(first, part) for first, _ in spans)
        return Plan(
            stages=made,
            replicas=replicas,
            micro_batches=micro,
            seconds=seconds,
            speedup=alone / seconds,
            bubble=1 - micro * sum(each) / (stages * line),
            communication=(micro * sending / stages + waits) / seconds,
            memory_bytes=memory,
            fits=memory <= self.setting.gpu.memory_gb * 1e9 * OF_MEMORY,
        )

    def _exposed(self, first: int, last: int, replicas: int, part: float) -> float:
        """Seconds of adding up gradients that the last backward pass does not hide."""
        if replicas == 1 or not self.setting.training:
            return 0.0
        times = self.times(part)
        behind = (times[last] - times[first]) * BACKWARD / (1 + BACKWARD)
        size = self.owned[last] - self.owned[first]
        ring = 2 * (replicas - 1) / replicas * size / self.link + 2 * (replicas - 1) * LINK_SECONDS
        return max(0.0, ring - behind)

    def _stage(self, first: int, last: int, seconds: float, part: float, under_way: int) -> Stage:
        owned = self.owned[last] - self.owned[first]
        kept = (self.kept[last] - self.kept[first]) * part
        crossing = self.crossing[first] * part if first else 0.0
        memory = CONTEXT_BYTES + (
            owned * TRAINING_BYTES_A_PARAMETER + kept * under_way if self.setting.training else owned + crossing
        )
        return Stage(self.units[first].block, self.units[last - 1].block, seconds, owned, memory, crossing)

    def cuts(self, stages: int, part: float) -> list[int]:
        """Where to cut, from 0 to the end, so that the slowest stage is as fast as can be."""
        key = (stages, part)
        if key not in self._cuts:
            times = self.times(part)
            sends = [self.sends(place, part) for place in range(len(self.units) + 1)]
            self._cuts[key] = best_cuts(times, sends, stages)
        return self._cuts[key]


def best_cuts(times: Sequence[float], sends: Sequence[float], stages: int) -> list[int]:
    """The places of the cuts. `times` are sums up to each place, `sends` what a stage that begins there pays for it.

    `best[j]` is the slowest stage when the first j units are divided into so many; a stage that begins at i adds
    `times[j] - times[i] + sends[i]`. Going back from j, a stage only grows: whoever is slower than the best so far ends the search.
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
    made = [0.0]
    for value in values:
        made.append(made[-1] + value)
    return made
