"""Simulates a list of sessions: which GPU holds which model when, and which calls it runs.

A *session* is a time interval in which a group of GPUs holds one model and runs calls of it. A list of

    (model, first GPU of the group, the most calls it runs)        in the order in which they start

is enough to make a plan. A group in a session takes, of the ready calls of its model, the one with the longest
remaining path. If there is none it waits. When it has run its calls it goes on to its next session, loading while
others work, or with `Problem.preload` while it works itself (`preloading`). Three rules make any list a plan:

    a session that has waited long enough ends if calls of the next one are ready; its remaining calls go into a pool
    a group at the end of a session continues while calls of the model are ready and in the pool
    GPUs at the end of their list open sessions for the calls left in the pool

and if no session can proceed, the one that has waited longest ends.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from gpuyard.plan.planner.compiled.heaps import EVENT, pop_call, pop_event, push_call, push_event
from gpuyard.plan.planner.compiled.jit import compiled, njit_noref, records
from gpuyard.plan.planner.compiled.preloading import switched
from gpuyard.plan.planner.compiled.timing import switching
from gpuyard.plan.planner.problem import Floats, Ints, Problem

NONE: Final = -1
# Columns of a list of sessions.
MODEL, GPU, QUOTA = range(3)
# Columns of `now`, the state of the simulation: one row per session.
LEFT, HERE, STATE, CALL, NEXT = range(5)
# States of a session.
COMING, OPEN, RUNNING, WAITING, OVER = range(5)
# Columns of `line`: one row per model.
READY, UNSTARTED, POOL, WAITS = range(4)
# Columns of `list_at`: one row per GPU; where its list begins and ends, and its position in it.
BEGIN, END, TURN = range(3)
# Columns of `when`: one row per session; when its first call started, and until when it waits.
BEGUN, UNTIL = range(2)


class SessionSim(NamedTuple):
    """The input of a simulation, and its working memory."""

    model: Ints
    seconds: Floats
    earliest: Floats
    before_at: Ints
    after_at: Ints
    after: Ints
    width: Ints
    switch: Floats
    may_begin: Any
    group_speed: Floats
    held_first: Ints
    free_first: Floats
    rank: Floats
    kind: Ints
    line_at: Ints
    waits_for: Ints
    key: Floats
    heap: Ints
    line: Any
    now: Any
    when: Any
    list_at: Any
    lists: Ints
    free: Floats
    held: Ints
    copied: Floats
    """From when on each GPU can load its next model beside its calls; empty if GPUs do not preload."""
    copying: tuple[Floats, Floats, Floats, Floats]
    """For that: load and unload times and sizes of models, memory of GPUs."""
    events: Any
    stack: Ints
    start: Floats
    gpu: Ints


def allocate_sim(problem: Problem, rank: Floats, most: int) -> SessionSim:
    """Allocate a simulation for lists of at most `most` sessions; calls with a higher rank go first."""
    calls = problem.calls
    count, models, gpus = len(calls), len(problem.models), len(problem.gpus)
    sizes = np.concatenate(([0], np.cumsum([len(w.nodes) for w in problem.workflows])))
    kind = sizes[problem.requests.workflow[calls.request]] + calls.position
    total = np.bincount(calls.model, minlength=models)
    capacity = most + gpus + 8

    def ints(*shape: int) -> Any:
        return np.zeros(shape, dtype=np.int32)

    return SessionSim(
        calls.model, calls.seconds, calls.earliest_s, calls.before_at, calls.after_at, calls.after,
        problem.width, problem.switch, problem.may_begin, problem.group_speed, problem.held_first, problem.free_first,
        rank, kind.astype(np.int32), np.concatenate(([0], np.cumsum(total))).astype(np.int32),
        ints(count), np.zeros(count), ints(count), ints(models, 4), ints(capacity, 5), np.zeros((capacity, 2)),
        ints(gpus, 3), ints(most * int(problem.width.max())), np.zeros(gpus), ints(gpus),
        np.zeros(gpus if problem.preload else 0), switching(problem)[1:5],
        records(np.zeros(4 * capacity + 2 * count, dtype=EVENT)), ints(4 * capacity + count), np.zeros(count), ints(count),
    )  # fmt: skip


def allocate_sessions(sim: SessionSim) -> Any:
    """Allocate a list of sessions, with room for those that are opened at the end."""
    return np.zeros((len(sim.now), 3), dtype=np.int32)


# --- encoding of numbers ----------------------------------------------------------------------------------------------
#
# An entry of the stack is a session (its number), a GPU (below 0) or a call (below all GPUs). An event is a session
# (its number), a call (below 0) or the end of the wait of a session (from `capacity` on).


@njit_noref
def _next_session_of(gpu: int) -> int:
    """Stack entry: a GPU goes on to its next session. Its own inverse."""
    return -1 - gpu


@njit_noref
def _ready(gpus: int, call: int) -> int:
    """Stack entry: a call is ready. Its own inverse."""
    return -1 - gpus - call


@njit_noref
def _is_ready_call(gpus: int, entry: int) -> Any:
    return entry < -gpus


@njit_noref
def _arrival(call: int) -> int:
    """Event: the request of a call arrives. Its own inverse."""
    return -1 - call


@njit_noref
def _end_of_wait(capacity: int, session: int) -> int:
    """Event: a session has waited long enough."""
    return capacity + session


@njit_noref
def _session_that_waited(capacity: int, event: int) -> int:
    return event - capacity


# --- simulation -------------------------------------------------------------------------------------------------------


@njit_noref
def _lay_out(sim: SessionSim, sessions: Any, count: int) -> int:
    """Reset the state and build the list of every GPU; return the number of calls that are in no session."""
    list_at, line, now, lists, width, line_at = sim.list_at, sim.line, sim.now, sim.lists, sim.width, sim.line_at
    for g in range(len(sim.free)):
        sim.free[g] = sim.free_first[g]
        sim.held[g] = sim.held_first[g]
        if len(sim.copied) > 0:
            sim.copied[g] = sim.free_first[g]
        list_at[g, BEGIN] = 0
        list_at[g, END] = 0
        list_at[g, TURN] = -1
    for m in range(len(width)):
        line[m, READY] = 0
        line[m, UNSTARTED] = line_at[m + 1] - line_at[m]
        line[m, POOL] = line[m, UNSTARTED]
        line[m, WAITS] = NONE
    for s in range(count):
        m = sessions[s, MODEL]
        now[s, LEFT] = min(sessions[s, QUOTA], line[m, POOL])
        line[m, POOL] -= now[s, LEFT]
        now[s, HERE] = 0
        now[s, STATE] = COMING
        sim.when[s, BEGUN] = np.inf
        for g in range(sessions[s, GPU], sessions[s, GPU] + width[m]):
            list_at[g, END] += 1
    total = 0
    for g in range(len(sim.free)):
        list_at[g, BEGIN] = total
        total += list_at[g, END]
        list_at[g, END] = list_at[g, BEGIN]
    for s in range(count):
        for g in range(sessions[s, GPU], sessions[s, GPU] + width[sessions[s, MODEL]]):
            lists[list_at[g, END]] = s
            list_at[g, END] += 1
    pool = 0
    for m in range(len(width)):
        pool += line[m, POOL]
    return pool


@njit_noref
def _loaded_at(sim: SessionSim, m: int, first: int, at: float) -> float:
    """Return the earliest time at which a group has a model on all its GPUs."""
    for g in range(first, first + sim.width[m]):
        if len(sim.copied) == 0:
            at = max(at, sim.free[g] + sim.switch[sim.held[g], m])
        else:
            at = max(at, _switched(sim, m, g)[0])
    return at


@njit_noref
def _switched(sim: SessionSim, m: int, g: int) -> tuple[float, float]:
    """Return when a GPU that preloads can run a model, and when it can load again."""
    load, unload, size, room = sim.copying
    return switched(sim.held[g], m, sim.free[g], sim.copied[g], load, unload, size, room[g])


@njit_noref
def _into_the_pool(now: Any, line: Any, s: int, m: int) -> Any:
    """Move the remaining calls of a session into the pool; return their number."""
    left = now[s, LEFT]
    line[m, POOL] += left
    now[s, LEFT] = 0
    return left


@njit_noref
def _first_waiting(now: Any, line: Any, m: int) -> Any:
    """Take a session that waits for calls of a model off the waiting list; NONE if there is none."""
    s = line[m, WAITS]
    while s != NONE and now[s, STATE] != WAITING:
        s = now[s, NEXT]
    line[m, WAITS] = NONE
    if s != NONE:
        line[m, WAITS] = now[s, NEXT]
        now[s, STATE] = OPEN
    return s


@njit_noref
def _is_through(list_at: Any, g: int) -> Any:
    """Whether a GPU has reached the end of its list."""
    return list_at[g, BEGIN] + list_at[g, TURN] == list_at[g, END]


@njit_noref
def _idle_group(sim: SessionSim, m: int, at: float) -> int:
    """Return the group at the end of its lists that has a model soonest; NONE if there is none."""
    where, soonest = NONE, 0.0
    for g in range(len(sim.free)):
        if not sim.may_begin[m, g]:
            continue
        through = True
        for x in range(g, g + sim.width[m]):
            through = through and _is_through(sim.list_at, x)
        if through:
            ready = _loaded_at(sim, m, g, at)
            if where == NONE or ready < soonest:
                where, soonest = g, ready
    return where


@njit_noref
def _who_leaves(sessions: Any, count: int, now: Any, when: Any, list_at: Any) -> int:
    """Return the session that has waited longest and whose GPU has a next session; NONE if there is none."""
    who = NONE
    for s in range(count):
        if now[s, STATE] == WAITING and (who == NONE or when[s, UNTIL] < when[who, UNTIL]):
            g = sessions[s, GPU]
            if list_at[g, BEGIN] + list_at[g, TURN] + 1 < list_at[g, END]:
                who = s
    return who


@njit_noref
def _first_arrivals(sim: SessionSim, tie_break: Floats) -> int:
    """Set the keys of all calls, and schedule the arrival of those that wait for none; return the number of events."""
    many = 0
    for call in range(len(sim.model)):
        sim.key[call] = -(sim.rank[call] + tie_break[sim.kind[call]])
        sim.waits_for[call] = sim.before_at[call + 1] - sim.before_at[call]
        if sim.waits_for[call] == 0:
            push_event(sim.events, many, sim.earliest[call], _arrival(call))
            many += 1
    return many


@njit_noref
def _run(sim: SessionSim, s: int, m: int, first: int, call: int, at: float) -> tuple[float, float]:
    """Let a session run a call as soon as its GPUs hold the model; return when it ends, and how long they did not run."""
    begin = _loaded_at(sim, m, first, at)
    end: float = begin + sim.seconds[call] / sim.group_speed[m, first]
    idle = 0.0
    for x in range(first, first + sim.width[m]):
        if len(sim.copied) > 0:
            sim.copied[x] = _switched(sim, m, x)[1]
        idle += begin - sim.free[x]
        sim.free[x] = end
        sim.held[x] = m
    sim.start[call] = begin
    sim.gpu[call] = first
    sim.when[s, BEGUN] = min(sim.when[s, BEGUN], begin)
    sim.now[s, STATE] = RUNNING
    sim.now[s, CALL] = call
    return end, idle


@njit_noref
def _release_followers(sim: SessionSim, call: int, at: float, pending: int, many: int) -> tuple[int, int]:
    """Release the calls that waited only for this one, when their request has arrived.

    Return the new numbers of entries of the stack and of events.
    """
    for edge in range(sim.after_at[call], sim.after_at[call + 1]):
        other = sim.after[edge]
        sim.waits_for[other] -= 1
        if sim.waits_for[other] == 0:
            if sim.earliest[other] > at:
                push_event(sim.events, many, sim.earliest[other], _arrival(other))
                many += 1
            else:
                sim.stack[pending] = _ready(len(sim.free), other)
                pending += 1
    return pending, many


@njit_noref
def _help_out(sim: SessionSim, sessions: Any, s: int, at: float) -> int:
    """Open session `s` for calls in the pool, on GPUs at the end of their list; return its model, or NONE."""
    for m in range(len(sim.width)):
        if sim.line[m, POOL] == 0 or sim.line[m, READY] == 0:
            continue
        width = sim.width[m]
        where = _idle_group(sim, m, at)
        if where == NONE:
            continue
        sessions[s, MODEL] = m
        sessions[s, GPU] = where
        sessions[s, QUOTA] = 1
        sim.now[s, LEFT] = 0
        sim.now[s, STATE] = OPEN
        sim.now[s, CALL] = NONE
        sim.when[s, BEGUN] = np.inf
        for x in range(where, where + width):
            sim.list_at[x, TURN] -= 1
        return m
    return NONE


@njit_noref
def _end_a_wait(sim: SessionSim, sessions: Any, count: int) -> tuple[int, int]:
    """End the session that has waited longest and has a next one; if there is none, all that wait.

    Return the numbers of sessions on the stack and of calls that go into the pool.
    """
    pending, pool = 0, 0
    who = _who_leaves(sessions, count, sim.now, sim.when, sim.list_at)
    for s in range(count):
        if sim.now[s, STATE] == WAITING and (who == NONE or who == s):  # noqa: PLR1714, SIM109 (numba does not support `in` here)
            sim.now[s, STATE] = OPEN
            pool += _into_the_pool(sim.now, sim.line, s, sessions[s, MODEL])
            sim.stack[pending] = s
            pending += 1
    return pending, pool


@compiled
def simulate_sessions(
    sim: SessionSim, sessions: Any, count: int, tie_break: Floats, most_idle: float = np.inf
) -> float:
    """Simulate a list and return the makespan; starts and GPUs of all calls are left in the simulation.

    Infinite if the GPUs load, unload and wait for more than `most_idle` GPU-seconds before their last calls: then the
    simulation ends there.

    The `stack` holds everything that can proceed: a session, a GPU that goes on to its next session, a call that is
    ready. When it is empty, time advances to the next event: a request arrives, a session has loaded or its call ends,
    a session has waited long enough. `active` counts the pending events that certainly let something proceed: all kinds
    but the last. The inner loop is one function because its counters are local variables.
    """
    model, width, switch, line_at = sim.model, sim.width, sim.switch, sim.line_at
    key, heap, line, now, when, list_at, lists = (
        sim.key, sim.heap, sim.line, sim.now, sim.when, sim.list_at, sim.lists,
    )  # fmt: skip
    free, events, stack = sim.free, sim.events, sim.stack
    gpus, capacity = len(free), len(now)
    wait, least = tie_break[-1], max(1e-3, sim.seconds.mean())
    pool = _lay_out(sim, sessions, count)
    many = active = _first_arrivals(sim, tie_break)
    unstarted, at, span, idle = len(model), 0.0, 0.0, 0.0
    through, extra = 0, count
    pending = 0
    for g in range(gpus):  # every GPU goes to the first session of its list
        stack[pending] = _next_session_of(g)
        pending += 1
    while True:
        while pending > 0:
            pending -= 1
            s = stack[pending]
            if _is_ready_call(gpus, s):
                call = _ready(gpus, s)
                m = model[call]
                push_call(heap, line_at[m], line[m, READY], key, call, False)
                line[m, READY] += 1
                other = _first_waiting(now, line, m)
                if other != NONE:
                    stack[pending] = other
                    pending += 1
                continue
            if s < 0:  # a GPU goes on to its next session
                g = _next_session_of(s)
                list_at[g, TURN] += 1
                if _is_through(list_at, g):
                    through += 1
                    continue
                s = lists[list_at[g, BEGIN] + list_at[g, TURN]]
                m = sessions[s, MODEL]
                if now[s, STATE] == OVER or line[m, UNSTARTED] == 0:
                    stack[pending] = _next_session_of(g)
                    pending += 1
                    continue
                now[s, HERE] += 1
                if now[s, HERE] == width[m]:
                    now[s, STATE] = OPEN
                    now[s, CALL] = NONE
                    ready = _loaded_at(sim, m, sessions[s, GPU], at)
                    push_event(events, many, ready, s)
                    many += 1
                    active += 1
                continue
            m = sessions[s, MODEL]  # a session is open and idle
            first = sessions[s, GPU]
            if line[m, READY] > 0 and (now[s, LEFT] > 0 or line[m, POOL] > 0):
                call = pop_call(heap, line_at[m], line[m, READY], key, False)
                line[m, READY] -= 1
                if now[s, LEFT] > 0:
                    now[s, LEFT] -= 1
                else:
                    line[m, POOL] -= 1
                    pool -= 1
                end, waited = _run(sim, s, m, first, call, at)
                idle += waited
                push_event(events, many, end, s)
                many += 1
                active += 1
                span = max(span, end)
                line[m, UNSTARTED] -= 1
                unstarted -= 1
                if idle > most_idle:
                    return np.inf
                while line[m, UNSTARTED] == 0:  # sessions that wait for this model need not wait any more
                    other = _first_waiting(now, line, m)
                    if other == NONE:
                        break
                    stack[pending] = other
                    pending += 1
            elif now[s, LEFT] > 0 and line[m, UNSTARTED] > 0:
                now[s, STATE] = WAITING
                now[s, NEXT] = line[m, WAITS]
                line[m, WAITS] = s
                when[s, UNTIL] = at + max(least, wait * switch[-1, m])
                push_event(events, many, when[s, UNTIL], _end_of_wait(capacity, s))
                many += 1
            else:
                pool += _into_the_pool(now, line, s, m)
                now[s, STATE] = OVER
                for x in range(first, first + width[m]):
                    stack[pending] = _next_session_of(x)
                    pending += 1
        if pool > 0 and through > 0 and extra < capacity:
            m = _help_out(sim, sessions, extra, at)
            if m != NONE:
                through -= width[m]
                # its call is taken at once: the queue may be empty before the model is loaded
                stack[pending] = extra
                pending += 1
                extra += 1
                continue
        if unstarted == 0:
            return span
        if active == 0:  # deadlock
            pending, left = _end_a_wait(sim, sessions, count)
            pool += left
            if pending == 0:
                return np.inf
            continue
        at, who = pop_event(events, many)
        many -= 1
        if who < 0:
            active -= 1
            stack[pending] = _ready(gpus, _arrival(who))
            pending += 1
        elif who < capacity:
            active -= 1
            stack[pending] = who
            pending += 1
            if now[who, STATE] == RUNNING:
                call = now[who, CALL]
                before = many
                pending, many = _release_followers(sim, call, at, pending, many)
                active += many - before
            now[who, STATE] = OPEN
        elif now[who - capacity, STATE] == WAITING and when[who - capacity, UNTIL] == at:
            s = _session_that_waited(capacity, who)
            g, m = sessions[s, GPU], sessions[s, MODEL]
            place = list_at[g, BEGIN] + list_at[g, TURN] + 1
            # Leaving pays only if the next session has calls to run; otherwise wait for another period.
            if place < list_at[g, END] and line[sessions[lists[place], MODEL], READY] > 0:
                now[s, STATE] = OPEN
                pool += _into_the_pool(now, line, s, m)
                stack[pending] = s
                pending += 1
            else:
                when[s, UNTIL] = at + max(least, wait * switch[-1, m])
                push_event(events, many, when[s, UNTIL], who)
                many += 1
