"""The search for better lists of sessions.

A plan of thousands of calls has dozens or hundreds of sessions (`session_sim`), and they determine most of its quality.
The search changes the list (a few calls go from one session to another; a session moves, splits, swaps with another;
two GPUs exchange all later sessions) or the tie-break for the calls of one node of one workflow, simulates the list,
and keeps good results, as in `moves`.
"""

from typing import Any

import numpy as np

from gpuyard.plan.planner.compiled.draws import below, threshold_draw
from gpuyard.plan.planner.compiled.jit import compiled, njit_noref
from gpuyard.plan.planner.compiled.session_sim import (
    BEGUN,
    GPU,
    MODEL,
    NONE,
    QUOTA,
    UNSTARTED,
    SessionSim,
    simulate_sessions,
)
from gpuyard.plan.planner.problem import Floats, Ints, Problem

# The figures of a search.
SCALE, CURRENT, BEST, TEMPERATURE, SIMULATED = range(5)


def count_of(problem: Problem, gpu: Ints, order: Ints) -> int:
    """Return an upper bound on the number of sessions of a plan; `order` has its calls by start."""
    width = problem.width[problem.calls.model[order]]
    lane = np.repeat(gpu[order] - np.cumsum(width) + width, width) + np.arange(int(width.sum()))
    model = np.repeat(problem.calls.model[order], width)
    by_gpu = np.argsort(lane, kind="stable")
    changes = (lane[by_gpu][1:] != lane[by_gpu][:-1]) | (model[by_gpu][1:] != model[by_gpu][:-1])
    return int(changes.sum()) + 1


def first_figures(sim: SessionSim, sessions: Any, count: int, tie_break: Floats, makespan_s: float) -> Floats:
    """Simulate the first list; return the scale, the cost, the best makespan, and places for the other figures."""
    span = simulate_sessions(sim, sessions, count, tie_break)
    return np.array([makespan_s, _value(sim.free, makespan_s), span, 0.0, 0.0])


@compiled
def sessions_from_plan(sim: SessionSim, order: Ints, gpu: Ints, sessions: Any) -> int:
    """Write the sessions of a plan, whose calls are given by start; return their number, at most as many as fit."""
    last = np.full(len(sim.free), NONE, dtype=np.int32)
    count = 0
    for i in range(len(order)):
        call = order[i]
        m, first = sim.model[call], gpu[order[i]]
        s = last[first]
        same = s != NONE and sessions[s, MODEL] == m and sessions[s, GPU] == first
        for g in range(first, first + sim.width[m]):
            same = same and last[g] == s
        if not same:
            s = count
            if s == len(sessions):
                return count
            count += 1
            sessions[s, MODEL] = m
            sessions[s, GPU] = first
            sessions[s, QUOTA] = 0
            for g in range(first, first + sim.width[m]):
                last[g] = s
        sessions[s, QUOTA] += 1
    return count


@compiled
def _value(free: Floats, scale: float) -> float:
    """The mean over GPUs of (end / scale)^32, as in `moves`."""
    total = 0.0
    for g in range(len(free)):
        part = free[g] / scale
        part *= part
        part *= part
        part *= part
        part *= part
        total += part * part
    return total / len(free)


@compiled
def _busy(sim: SessionSim) -> float:
    """Return the GPU-seconds that no plan avoids: before GPUs are first available, and calls at their best speed."""
    fastest = np.zeros(len(sim.width))
    for m in range(len(sim.width)):
        for g in range(len(sim.free)):
            if sim.may_begin[m, g]:
                fastest[m] = max(fastest[m], sim.group_speed[m, g])
    total = 0.0
    for g in range(len(sim.free)):
        total += sim.free_first[g]
    for call in range(len(sim.model)):
        m = sim.model[call]
        total += sim.width[m] * sim.seconds[call] / fastest[m]
    return total


@njit_noref
def _mean_end(value: float, scale: float) -> float:
    """Return the largest mean end of the GPUs in plans up to a value.

    The mean of 32nd powers is at least the 32nd power of the mean. Square roots are the same on any machine.
    """
    for _ in range(5):
        value = np.sqrt(value)
    return scale * value * (1.0 + 1e-9)


@njit_noref
def _put(sessions: Any, count: int, place: int, model: int, gpu: int, quota: int) -> None:
    for i in range(count, place, -1):
        sessions[i, MODEL] = sessions[i - 1, MODEL]
        sessions[i, GPU] = sessions[i - 1, GPU]
        sessions[i, QUOTA] = sessions[i - 1, QUOTA]
    sessions[place, MODEL] = model
    sessions[place, GPU] = gpu
    sessions[place, QUOTA] = quota


@njit_noref
def _drop(sessions: Any, count: int, place: int) -> None:
    for i in range(place, count - 1):
        sessions[i, MODEL] = sessions[i + 1, MODEL]
        sessions[i, GPU] = sessions[i + 1, GPU]
        sessions[i, QUOTA] = sessions[i + 1, QUOTA]


@njit_noref
def _group(may_begin: Any, model: int, source: Any) -> int:
    for _ in range(16):
        g = below(source, may_begin.shape[1])
        if may_begin[model, g]:
            return g
    return NONE


@njit_noref
def _other(sessions: Any, count: int, s: int, source: Any) -> int:
    """Return another session of the same model, or NONE."""
    place = below(source, count)
    for _ in range(count):
        if place != s and sessions[place, MODEL] == sessions[s, MODEL]:
            return place
        place += 1
        if place == count:
            place = 0
    return NONE


@njit_noref
def _hand_over(sessions: Any, count: int, s: int, source: Any) -> int:
    """Move all calls, some, or a few from a session to another one; return the new number of sessions."""
    other = _other(sessions, count, s, source)
    if other == NONE:
        return count
    quota = sessions[s, QUOTA]
    how = below(source, 3)
    many = quota
    if how == 0:
        many = 1 + below(source, quota)
    elif how == 1:
        many = 1 + below(source, min(quota, 4))
    sessions[other, QUOTA] += many
    sessions[s, QUOTA] -= many
    if many == quota:
        _drop(sessions, count, s)
        return count - 1
    return count


@njit_noref
def _exchange(sessions: Any, count: int, s: int, width: Ints, may_begin: Any, other: int) -> None:
    """Exchange all later sessions between the GPUs of a session and as many others, if no session crosses an edge."""
    first, wide = sessions[s, GPU], width[sessions[s, MODEL]]
    apart = other >= first + wide or first >= other + wide
    for i in range(s, count):
        a = sessions[i, GPU]
        b = a + width[sessions[i, MODEL]]
        if a < first + wide and first < b:
            apart = apart and a >= first and b <= first + wide and may_begin[sessions[i, MODEL], a + other - first]
        if a < other + wide and other < b:
            apart = apart and a >= other and b <= other + wide and may_begin[sessions[i, MODEL], a + first - other]
    if not apart:
        return
    for i in range(s, count):
        a = sessions[i, GPU]
        if a >= first and a < first + wide:
            sessions[i, GPU] = a + other - first
        elif a >= other and a < other + wide:
            sessions[i, GPU] = a + first - other


@compiled
def _change(
    sessions: Any, count: int, most: int, width: Ints, may_begin: Any, tie_break: Floats, reach_s: float, weights: Any,
    source: Any,
) -> int:  # fmt: skip
    """Change the list or the tie-breaks; return the new number of sessions."""
    gpus = may_begin.shape[1]
    chosen = below(source, weights[-1])
    kind = 0
    while chosen >= weights[kind]:
        kind += 1
    s = below(source, count)
    m, first, quota = sessions[s, MODEL], sessions[s, GPU], sessions[s, QUOTA]
    reach = min(count, 2 * gpus + 4)
    near = max(0, min(count - 1, s + below(source, 2 * reach + 1) - reach))
    if kind == 0:  # calls go from one session to another
        return _hand_over(sessions, count, s, source)
    if kind == 1:  # to another group at the same time
        g = _group(may_begin, m, source)
        if g != NONE:
            sessions[s, GPU] = g
    elif kind == 2:  # to another time, possibly to another group
        g = first
        if below(source, 2) == 0:
            g = _group(may_begin, m, source)
        if g != NONE:
            _drop(sessions, count, s)
            _put(sessions, count - 1, near, m, g, quota)
    elif kind == 3:  # split in two
        g = _group(may_begin, m, source)
        if g != NONE and quota > 1 and count < most:
            many = 1 + below(source, quota - 1)
            sessions[s, QUOTA] -= many
            _put(sessions, count, near, m, g, many)
            return count + 1
    elif kind == 4:  # swap two sessions
        other = near
        n = sessions[other, MODEL]
        if width[n] == width[m] and may_begin[m, sessions[other, GPU]] and may_begin[n, first]:
            sessions[s, MODEL] = n
            sessions[s, QUOTA] = sessions[other, QUOTA]
            sessions[other, MODEL] = m
            sessions[other, QUOTA] = quota
    elif kind == 5:  # two blocks of GPUs exchange all later sessions
        _exchange(sessions, count, s, width, may_begin, below(source, gpus - width[m] + 1))
    elif below(source, 8) > 0:
        tie_break[below(source, len(tie_break) - 1)] += (below(source, 2001) - 1000) / 1000.0 * reach_s
    else:
        tie_break[-1] = 0.25 * (1 << below(source, 7))
    return count


@compiled
def _sort(sessions: Any, count: int, when: Any) -> None:
    """Sort sessions by the start of their first call; those that never started come last."""
    for place in range(1, count):
        m, g, quota, begun = sessions[place, MODEL], sessions[place, GPU], sessions[place, QUOTA], when[place, BEGUN]
        i = place - 1
        while i >= 0 and when[i, BEGUN] > begun:
            sessions[i + 1, MODEL] = sessions[i, MODEL]
            sessions[i + 1, GPU] = sessions[i, GPU]
            sessions[i + 1, QUOTA] = sessions[i, QUOTA]
            when[i + 1, BEGUN] = when[i, BEGUN]
            i -= 1
        sessions[i + 1, MODEL] = m
        sessions[i + 1, GPU] = g
        sessions[i + 1, QUOTA] = quota
        when[i + 1, BEGUN] = begun


@compiled
def rearrange(
    sim: SessionSim, sessions: Any, trial: Any, count: int, most: int, tie_break: Floats, reach_s: float, rounds: int,
    weights: Any, figures: Floats, best_start: Floats, best_gpu: Ints, source: Any,
) -> int:  # fmt: skip
    """Change and simulate the list `rounds` times, keeping good changes; return the new number of sessions.

    A simulation ends as soon as its list cannot be accepted any more; the calls simulated are counted.
    """
    trial_tie_break = tie_break.copy()
    busy_s = _busy(sim)
    for _ in range(rounds):
        for s in range(count):
            trial[s, MODEL] = sessions[s, MODEL]
            trial[s, GPU] = sessions[s, GPU]
            trial[s, QUOTA] = sessions[s, QUOTA]
        trial_tie_break[:] = tie_break
        many = count
        for _ in range(1 + (below(source, 3) == 0)):
            many = _change(trial, many, most, sim.width, sim.may_begin, trial_tie_break, reach_s, weights, source)
        allowed = figures[CURRENT] + figures[TEMPERATURE] * threshold_draw(source) * 32.0 / len(sim.free)
        most_idle = len(sim.free) * _mean_end(allowed, figures[SCALE]) - busy_s
        span = simulate_sessions(sim, trial, many, trial_tie_break, most_idle)
        for m in range(len(sim.width)):
            figures[SIMULATED] += sim.line_at[m + 1] - sim.line_at[m] - sim.line[m, UNSTARTED]
        cost = _value(sim.free, figures[SCALE])
        if span < np.inf and cost <= allowed:
            figures[CURRENT] = cost
            count = many
            _sort(trial, count, sim.when)
            for s in range(count):
                sessions[s, MODEL] = trial[s, MODEL]
                sessions[s, GPU] = trial[s, GPU]
                sessions[s, QUOTA] = trial[s, QUOTA]
            tie_break[:] = trial_tie_break
            if span < figures[BEST]:
                figures[BEST] = span
                best_start[:] = sim.start
                best_gpu[:] = sim.gpu
    return count
