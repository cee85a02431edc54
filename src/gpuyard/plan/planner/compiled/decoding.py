"""From an order of calls to a plan: an event simulation in which free GPUs take calls from a queue per model.

Time advances from event to event: a call ends, a model is loaded, a request arrives. No decision is needed in between.

    a call is ready     it starts on an idle GPU that holds its model, else it joins the queue, most urgent first
    a GPU is free       it takes the next call from the queue of the model it holds; if that is empty it becomes idle
    a GPU is idle       it compares going to each other model with waiting for calls of its own; it may switch

So a GPU keeps its model while there is work for it (affinity); the decisions are which GPU switches, when, and to which
model. For a model let `ready` be the seconds of work in its queue, `soon` those of calls whose dependencies all run,
`later` those of all other calls, and `groups` the number of groups that hold or load it. Both sides are measured in
seconds of work per group:

    going to b      (ready + soon × `soon` + later × `later`) / (groups + 1)  −  `cost` × switch time
    waiting for a   `wait` × (soon × `soon` + later × `later`) / groups

The work of a model on no GPU is multiplied by `first`. No GPU goes to a model whose present groups will finish its work
before the switch does (`least`). Near the end of the plan the remaining path after a call matters, not the work in its
queue: if the path after the most urgent call is longer than `calm` × the remaining work per GPU, the excess is added,
multiplied by `urgent`.

Settings with `later` near 1 give every model its share of the GPUs for the whole plan, which is right if loading is
slow; with `later` 0 GPUs follow the work. Both sides grow with the backlog together, so the same settings work for a
hundred calls and for a million.

A model that spans several GPUs takes adjacent ones at multiples of its width. Its group is *claimed* when it is chosen:
idle members start to load, the others when their call ends, and no other group gets them in the meantime. A group that
loses a member is dissolved.

With `Problem.preload` a GPU may load beside its calls (`preloading`). A GPU decides when it becomes idle, as without it,
but the load may have begun before, since the copy engine was free (`copied_at`): the plan is made before anything runs.
So a switch costs only what is left of the load then, and a GPU that has held its model for long switches for nothing.

Cost per call: log N for the queues and the event heap, and one look at every model. Progress is guaranteed: a model
that was loaded but not called yet is only replaced by one with waiting calls, and a GPU that loads is never claimed, so
after finitely many loads a call starts.
"""

from typing import Any, NamedTuple

import numpy as np

from gpuyard.plan.planner.compiled.decoding_state import (
    CELL,
    COUNTERS,
    GPU_STATE,
    JOB,
    LINE,
    NONE,
    DecodingState,
    mark_busy,
    mark_idle,
    pop_event,
    pop_ready,
    push_event,
    push_ready,
)
from gpuyard.plan.planner.compiled.heaps import EVENT
from gpuyard.plan.planner.compiled.jit import compiled, njit_noref, records
from gpuyard.plan.planner.compiled.preloading import TOLERANCE_GB
from gpuyard.plan.planner.problem import Floats, Ints


class ListSettings(NamedTuple):
    """The weights of the decisions; see the head of the file, and for the last four that of `list_scheduler`."""

    wait: float = 0.25
    cost: float = 1.0
    soon: float = 0.5
    later: float = 0.0
    first: float = 8.0
    urgent: float = 0.5
    calm: float = 0.8
    least: float = 0.5
    flow: float = 0.0
    level: float = 0.0
    loads: float = 0.0
    backwards: bool = False


# --- calls ------------------------------------------------------------------------------------------------------------


@njit_noref
def _begin(w: Any, call: Any, g: Any, now: float) -> None:
    """Run a call on a free group that holds its model."""
    jobs = w.jobs
    m = jobs[call].model
    width = w.lines[m].width
    end = now + jobs[call].seconds / w.group_speed[m, g]
    w.gpu[call] = g
    w.start[call] = now
    w.gpu_states[g].running = call
    w.gpu_states[g].fresh = 0
    for j in range(g, g + width):
        w.gpu_states[j].free_at = end
    w.counters[0].left -= jobs[call].seconds * width
    w.counters[0].a_gpu = w.counters[0].left / len(w.gpu_states)
    push_event(w, end, g)
    for e in range(w.after_at[call], w.after_at[call + 1]):
        n = w.after[e]
        jobs[n].unstarted -= 1
        if jobs[n].unstarted == 0:
            line = w.lines[jobs[n].model]
            line.later -= jobs[n].seconds
            line.soon += jobs[n].seconds


@njit_noref
def _end(w: Any, call: Any, now: float) -> None:
    """Release the calls that waited only for this one."""
    for e in range(w.after_at[call], w.after_at[call + 1]):
        n = np.int64(w.after[e])
        w.jobs[n].unended -= 1
        if w.jobs[n].unended == 0:
            _come(w, n, now)


@njit_noref
def _come(w: Any, call: Any, now: float) -> None:
    """Start a call whose dependencies have ended on the fastest idle group that holds its model, or queue it."""
    if w.jobs[call].earliest > now:
        push_event(w, w.jobs[call].earliest, -1 - call)
        return
    m = np.int64(w.jobs[call].model)
    line = w.lines[m]
    line.soon -= w.jobs[call].seconds
    models, kinds = w.counters[0].models, w.counters[0].kinds
    best = np.int64(NONE)
    if line.width > 1:
        best = w.cells[(models + 1) * kinds + m].first
    else:
        speed = 0.0
        for cell in range(m * kinds, m * kinds + kinds):
            g = w.cells[cell].first
            if g != NONE and w.group_speed[m, g] > speed:
                best = g
                speed = w.group_speed[m, g]
    if best == NONE:
        push_ready(w, m, call)
    else:
        mark_busy(w, best)
        _begin(w, call, best, now)


# --- model switches ---------------------------------------------------------------------------------------------------


@njit_noref
def _beside(w: Any, g: Any, b: Any) -> Any:
    """Whether a GPU may load a model beside the one it holds."""
    a = w.gpu_states[g].hold
    if len(w.copying[0]) == 0 or a == NONE:
        return False
    return a != b and w.copying[2][a] + w.copying[2][b] <= w.copying[3][g] + TOLERANCE_GB


@njit_noref
def _switch_s(w: Any, g: Any, b: Any, at: float) -> Any:
    """Seconds until a GPU that is free at an instant can run a model."""
    state = w.gpu_states[g]
    if _beside(w, g, b):
        return max(0.0, state.copied_at + w.copying[0][b] - at)
    change = w.switch[state.hold, b]
    if change > 0.0 and state.copied_at > at:
        change += state.copied_at - at
    return change


@njit_noref
def _hold(w: Any, g: Any, b: Any, at: float) -> None:
    """Let a GPU that is free hold another model, from the end of the switch on."""
    state = w.gpu_states[g]
    ready = at + _switch_s(w, g, b, at)
    if _beside(w, g, b):
        state.copied_at = max(state.free_at, state.copied_at + w.copying[0][b]) + w.copying[1][state.hold]
    elif state.hold != b:
        state.copied_at = ready
    state.free_at = ready
    state.hold = b
    state.fresh = 1


@njit_noref
def _leave(w: Any, g: Any) -> None:
    """Stop counting a single GPU for the model it holds."""
    a = w.gpu_states[g].hold
    if a != NONE and w.lines[a].width == 1:
        w.lines[a].groups -= 1


@njit_noref
def _send(w: Any, g: Any, b: Any, now: float) -> None:
    """Switch a single GPU to a model of width 1."""
    _leave(w, g)
    state = w.gpu_states[g]
    w.lines[b].groups += 1
    _hold(w, g, b, now)
    push_event(w, state.free_at, g)


@njit_noref
def _load_for_group(w: Any, g: Any, now: float) -> None:
    """Start loading on a claimed GPU that is free; the last member completes the group."""
    state = w.gpu_states[g]
    lead = w.gpu_states[state.claim]
    m = lead.formed
    first = state.claim
    _hold(w, g, m, now)
    lead.loaded_at = max(lead.loaded_at, state.free_at)
    lead.waiting -= 1
    if lead.waiting == 0:
        for j in range(first, first + w.lines[m].width):
            w.gpu_states[j].claim = NONE
            w.gpu_states[j].session = first
            w.gpu_states[j].free_at = lead.loaded_at
        push_event(w, lead.loaded_at, first)


@njit_noref
def _fall_apart(w: Any, first: Any, now: float) -> None:
    """Dissolve a free wide group: its members load for the group that claims them, or become idle."""
    m = w.gpu_states[first].hold
    fresh = w.gpu_states[first].fresh
    w.lines[m].groups -= 1
    for j in range(first, first + w.lines[m].width):
        w.gpu_states[j].session = NONE
        w.gpu_states[j].fresh = fresh
        if w.gpu_states[j].claim == NONE:
            mark_idle(w, j)
        else:
            _load_for_group(w, j, now)


@njit_noref
def _best_group(w: Any, b: Any, now: float) -> Any:
    """Return the group that could hold a wide model soonest, summed over its members; NONE if all are taken."""
    width = w.lines[b].width
    # Steps of the width keep groups from overlapping; with room for one group only, any position will do.
    step = 1 if len(w.gpu_states) < 2 * width else width
    best = np.inf
    first = NONE
    g = 0
    while g + width <= len(w.gpu_states):
        if not w.may_begin[b, g]:
            g += 1
            continue
        cost = 0.0
        for j in range(g, g + width):
            state = w.gpu_states[j]
            speaks = w.gpu_states[state.session] if state.session != NONE else w.gpu_states[j]
            spoken_for = state.claim != NONE or (state.session != NONE and state.hold == b)
            if spoken_for or (speaks.fresh == 1 and (speaks.idle == 0 or w.lines[b].many == 0)):
                cost = np.inf
                break
            cost += max(0.0, state.free_at - now) + _switch_s(w, j, b, max(now, state.free_at))
        if cost < best:
            best = cost
            first = g
        g += step
    return first


@njit_noref
def _form(w: Any, b: Any, first: Any, now: float) -> None:
    """Claim a group for a wide model: idle members load at once, the others when their call ends."""
    beyond = first + w.lines[b].width
    w.lines[b].groups += 1
    for j in range(first, beyond):
        other = w.gpu_states[j].session
        if other != NONE and w.gpu_states[other].idle == 1:
            mark_busy(w, other)
            _fall_apart(w, other, now)
    w.gpu_states[first].formed = b
    w.gpu_states[first].waiting = w.lines[b].width
    w.gpu_states[first].loaded_at = now
    for j in range(first, beyond):
        w.gpu_states[j].claim = first
    for j in range(first, beyond):
        if w.gpu_states[j].session != NONE:
            continue  # it runs a call of another wide group, which is dissolved when that ends
        if w.gpu_states[j].idle == 1:
            mark_busy(w, j)
            _leave(w, j)
            _load_for_group(w, j, now)
        else:
            _leave(w, j)


# --- decisions --------------------------------------------------------------------------------------------------------


@njit_noref
def _worth_going(w: Any, of: ListSettings, g: Any, b: Any, now: float) -> Any:
    """The value of one more group that switches to b, such as that of g, in seconds of work per group."""
    line = w.lines[b]
    change = _switch_s(w, g, b, now)
    near = line.ready + of.soon * line.soon
    worth = near + of.later * line.later
    if line.groups == 0:
        worth *= of.first
    elif near <= of.least * change * line.groups:
        return -np.inf
    else:
        worth /= line.groups + 1
    if line.many > 0:
        late = w.jobs[w.heap[line.at]].rank + change - of.calm * w.counters[0].a_gpu
        if late > 0.0:
            worth += of.urgent * late
    return worth - of.cost * change


@njit_noref
def _worth_waiting(w: Any, of: ListSettings, a: Any, single: bool) -> Any:
    """The value of waiting for the idle groups that hold a, in seconds of work per group."""
    if a == NONE or w.lines[a].groups == 0 or (single and w.lines[a].width > 1):
        return 0.0
    line = w.lines[a]
    return of.wait * (of.soon * line.soon + of.later * line.later) / line.groups


@njit_noref
def _could_go(w: Any, of: ListSettings, g: Any, b: Any) -> Any:
    """Whether b has or may get waiting calls, and g, alone or as the first of a group, could hold it or help to."""
    line = w.lines[b]
    if b == w.gpu_states[g].hold and (line.width == 1 or w.gpu_states[g].session != NONE):
        return False
    if line.many == 0:
        coming = line.soon > 1e-9 or (of.later > 0.0 and line.later > 1e-9)
        if w.counters[0].must == 1 or not coming or w.gpu_states[g].fresh == 1:
            return False
    return line.width > 1 or w.may_begin[b, g]


@njit_noref
def _change(w: Any, of: ListSettings, now: float) -> None:
    """Switch idle GPUs to models that need them more, largest gain first. With `must`, one switches in any case."""
    must = w.counters[0].must == 1
    models, kinds = w.counters[0].models, w.counters[0].kinds
    singles = (models + 1) * kinds
    while w.counters[0].idle > 0:
        best = -np.inf if must else 0.0
        nobody: Any = np.int64(NONE)
        goes = to = group = nobody
        for cell in range(len(w.cells)):
            if w.cells[cell].many == 0:
                continue
            g = w.cells[cell].first
            waiting = _worth_waiting(w, of, w.gpu_states[g].hold, cell < singles)
            for b in range(models):
                if not _could_go(w, of, g, b):
                    continue
                gain = _worth_going(w, of, g, b, now) - waiting
                if gain > best or (must and to == NONE):
                    first = _best_group(w, b, now) if w.lines[b].width > 1 else g
                    if first != NONE:
                        best, goes, to, group = gain, g, b, first
        if to == NONE:
            return
        if w.lines[to].width > 1:
            _form(w, to, group, now)
        else:
            mark_busy(w, goes)
            if w.gpu_states[goes].session != NONE:
                _fall_apart(w, goes, now)
                mark_busy(w, goes)
            _send(w, goes, to, now)
        if must:
            return


# --- main loop --------------------------------------------------------------------------------------------------------


@njit_noref
def _free(w: Any, g: Any, now: float) -> None:
    """Continue with a GPU, or the wide group that starts at it, that has ended a call or a load."""
    gpu_states = w.gpu_states
    if gpu_states[g].session != NONE:
        for j in range(g, g + w.lines[gpu_states[g].hold].width):
            if gpu_states[j].claim != NONE:
                _fall_apart(w, g, now)
                return
    elif gpu_states[g].claim != NONE:
        _load_for_group(w, g, now)
        return
    elif gpu_states[g].hold == NONE or w.lines[gpu_states[g].hold].width > 1:
        mark_idle(w, g)
        return
    if w.lines[gpu_states[g].hold].many > 0:
        _begin(w, pop_ready(w, gpu_states[g].hold), g, now)
    else:
        mark_idle(w, g)


@njit_noref
def _run(w: Any, of: ListSettings) -> None:
    """Process all events from the first to the last."""
    now = 0.0
    for call in range(len(w.jobs)):
        if w.jobs[call].unended == 0:
            line = w.lines[w.jobs[call].model]
            line.later -= w.jobs[call].seconds
            line.soon += w.jobs[call].seconds
            _come(w, call, now)
    ended = 0
    _change(w, of, now)
    while ended < len(w.jobs):
        # No event is pending although calls are left: no GPU wants to switch by itself, so one is made to.
        if w.counters[0].events == 0:
            w.counters[0].must = 1
            _change(w, of, now)
            w.counters[0].must = 0
        now, who = pop_event(w)
        if who < 0:
            _come(w, -1 - who, now)
        else:
            call = w.gpu_states[who].running
            if call != NONE:
                w.gpu_states[who].running = NONE
                ended += 1
                _end(w, call, now)
            _free(w, who, now)
        if w.counters[0].idle > 0:
            _change(w, of, now)


@compiled
def decode(
    model: Ints,
    seconds: Floats,
    earliest: Floats,
    before_at: Ints,
    after_at: Ints,
    after: Ints,
    width: Ints,
    switch: Floats,
    may_begin: Any,
    group_speed: Floats,
    copying: tuple[Floats, Floats, Floats, Floats],
    kind: Any,
    held_first: Ints,
    free_first: Floats,
    rank: Floats,
    key: Floats,
    of: ListSettings,
) -> tuple[Ints, Floats]:
    """Return the GPU and the start of every call."""
    calls, gpus, models, kinds = len(model), len(kind), len(width), kind.max() + 1
    jobs = records(np.zeros(calls, dtype=JOB))
    gpu_states = records(np.zeros(gpus, dtype=GPU_STATE))
    lines = records(np.zeros(models, dtype=LINE))
    cells = records(np.zeros((models + 1) * kinds + models, dtype=CELL))
    heap = np.zeros(calls, dtype=np.int32)
    events = records(np.zeros(calls + gpus, dtype=EVENT))
    counters = records(np.zeros(1, dtype=COUNTERS))
    gpu = np.zeros(calls, dtype=np.int32)
    start = np.zeros(calls)
    w = DecodingState(
        after_at,
        after,
        switch,
        may_begin,
        group_speed,
        copying,
        jobs,
        gpu_states,
        lines,
        cells,
        heap,
        events,
        counters,
        gpu,
        start,
    )
    counters[0].models = models
    counters[0].kinds = kinds
    for cell in range(len(cells)):
        cells[cell].first = NONE
    for m in range(models):
        lines[m].width = width[m]
    for call in range(calls):
        job, line = jobs[call], lines[model[call]]
        job.key, job.rank, job.seconds, job.earliest = key[call], rank[call], seconds[call], earliest[call]
        job.model = model[call]
        job.unstarted = before_at[call + 1] - before_at[call]
        job.unended = job.unstarted
        line.later += seconds[call]
        line.at += 1
        counters[0].left += seconds[call] * line.width
    counters[0].a_gpu = counters[0].left / gpus
    beyond = 0
    for m in range(models):
        beyond += lines[m].at
        lines[m].at = beyond - lines[m].at
    for g in range(gpus - 1, -1, -1):
        state = gpu_states[g]
        state.hold, state.kind, state.free_at = held_first[g], kind[g], free_first[g]
        state.session, state.claim, state.running = NONE, NONE, NONE
        state.copied_at = free_first[g]
        if state.hold != NONE and lines[state.hold].width == 1:
            lines[state.hold].groups += 1
        if state.free_at > 0.0:
            push_event(w, state.free_at, g)
        else:
            mark_idle(w, g)
    _run(w, of)
    return gpu, start
