"""No bound is above the makespan of any plan: checked on tiny problems by enumerating all plans."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.plan.planner.bounds import bounds
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.instance import (
    FORMAT,
    Instance,
    WrittenGpu,
    WrittenModel,
    WrittenNode,
    WrittenRequest,
    WrittenWorkflow,
)
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import EMPTY, Problem
from gpuyard.plan.planner.problem_file import problem_of

MODELS = ("A", "B", "C")


@st.composite
def tiny_problems(draw: st.DrawFn) -> Problem:
    """Up to five calls on up to three GPUs, with everything that a problem can say."""
    gpus = draw(st.integers(1, 3))
    times = st.sampled_from([0.5, 1.0, 2.5, 4.0, 7.0])
    models = {
        name: WrittenModel(draw(st.sampled_from([5.0, 10.0, 20.0])), draw(st.integers(1, gpus)), draw(times))
        for name in MODELS[: draw(st.integers(1, 3))]
    }
    size = draw(st.integers(1, 4))
    nodes = tuple(
        WrittenNode(
            str(i),
            draw(st.sampled_from(sorted(models))),
            draw(times),
            tuple(str(d) for d in range(i) if draw(st.booleans())),
        )
        for i in range(size)
    )
    requests = draw(st.integers(1, 5 // size))
    plain = draw(st.booleans())
    instance = Instance(
        FORMAT,
        models,
        [
            WrittenGpu(
                g,
                memory_gb=20.0 if plain or g == 0 else draw(st.sampled_from([20.0, 30.0])),
                speed=1.0 if plain else draw(st.sampled_from([1.0, 0.5, 2.0])),
            )
            for g in range(gpus)
        ],
        {"w": WrittenWorkflow(nodes)},
        [
            WrittenRequest(f"r{i}", "w", arrival_s=0.0 if plain else draw(st.sampled_from([0.0, 3.0])))
            for i in range(requests)
        ],
        pcie_gb_s=10.0,
        multi_model=draw(st.booleans()),
        preload=draw(st.booleans()),
    )
    problem = problem_of(instance)
    if draw(st.booleans()):
        busy = [draw(st.sampled_from([0.0, 2.0, 5.0, 50.0])) for _ in range(gpus)]
        problem = replace(problem, busy_until_s=np.array(busy))
    if draw(st.booleans()):
        holding = [draw(st.integers(EMPTY, len(models) - 1)) for _ in range(gpus)]
        problem = replace(problem, holding=np.array(holding, dtype=np.int32))
    return problem


Gpu = tuple[float, float, tuple[int, ...]]
"""When it is free, when it can load beside calls, and what it holds, the one that was used last at the end."""
Gpus = tuple[Gpu, ...]


class EveryPlan:
    """Looks at all orders and all groups, each call as early as it goes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.best = Plan(np.zeros(0, dtype=np.int32), np.zeros(0), np.array([np.inf]))
        free, held = problem.free_first.tolist(), problem.held_first.tolist()
        gpus = tuple((at, at, () if m == EMPTY else (m,)) for at, m in zip(free, held, strict=True))
        self._place(gpus, {})

    def _place(self, gpus: Gpus, done: dict[int, tuple[int, float, float]]) -> None:
        calls = self.problem.calls
        if len(done) == len(calls):
            columns = zip(*(done[call] for call in range(len(calls))), strict=True)
            gpus_of, starts, ends = map(np.array, columns)
            self.best = Plan(gpus_of.astype(np.int32), starts, ends)
            return
        for call in range(len(calls)):
            before = calls.before[calls.before_at[call] : calls.before_at[call + 1]].tolist()
            if call in done or not all(b in done for b in before):
                continue
            model = int(calls.model[call])
            for first in np.flatnonzero(self.problem.may_begin[model]).tolist():
                group = range(first, first + int(self.problem.width[model]))
                on = [self._with(gpus[g], g, model) for g in group]
                ready = [float(calls.earliest_s[call]), *(done[b][2] for b in before), *(at for at, _, _ in on)]
                end = max(ready) + float(calls.seconds[call] / self.problem.group_speed[model, first])
                if end < self.best.makespan_s:
                    then = tuple((end, *on[g - first][1:]) if g in group else gpus[g] for g in range(len(gpus)))
                    self._place(then, done | {call: (first, max(ready), end)})

    def _with(self, gpu: Gpu, number: int, model: int) -> Gpu:
        """When the model is on the GPU, when the next one may be loaded, and what it then holds."""
        free, copied, held = gpu
        if held and held[-1] == model:
            return gpu
        if model in held:
            return free, free, (*(m for m in held if m != model), model)
        size = [m.memory_gb for m in self.problem.models]
        unload = [m.unload_s for m in self.problem.models]
        room = self.problem.gpus[number].memory_gb
        preload, many = self.problem.preload, self.problem.multi_model
        at, rest = copied if preload and held else max(free, copied), held
        if not preload and not many:
            room = 0.0
        while rest and sum(size[m] for m in rest) + size[model] > room:
            if rest[0] == held[-1]:
                at = max(at, free)
            at, rest = at + unload[rest[0]], rest[1:]
        if not preload:
            at = max(at, free) if rest == held else at
        at = max(free, at + self.problem.models[model].load_s)
        if preload and not many and rest:
            return at, at + unload[rest[0]], (model,)
        return at, at, (*rest, model)


@settings(max_examples=150, deadline=None)
@given(tiny_problems())
def test_no_bound_is_above_the_shortest_of_all_plans(problem: Problem) -> None:
    shortest = EveryPlan(problem).best
    assert check(problem, shortest) == []
    for reason, seconds in bounds(problem).items():
        assert seconds <= shortest.makespan_s + 1e-9, reason
