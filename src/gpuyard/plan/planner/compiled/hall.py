"""The hall in which a list of sessions is played through in time: which GPU holds which model when, and calls what.

A *session* is a stretch of time in which a group of GPUs holds one model and runs calls of it. A list of

    (model, first GPU of the group, how many calls at most)        in the order in which they begin

is enough to make a plan. A group in a session takes, of the calls of its model that are ready, the one with the longest
way still to go; when there is none it waits; when it has had its calls it goes on to its next session, loading while
others work. Three rules make any list a plan:

    who has waited long enough leaves, if calls of its next session are ready; what it leaves goes into a pool
    a group at the end of a session goes on while calls of the model are ready and in the pool
    GPUs that are through with their list open sessions for what is left in the pool

and if nobody can go on, the one that waits longest leaves.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from gpuyard.plan.planner.compiled.jit import borrowing, compiled
from gpuyard.plan.planner.problem import Floats, Ints, Problem

NOBODY: Final = -1
# Columns of a list of sessions.
MODEL, GPU, QUOTA = range(3)
# Columns of `now`, a row a session, while the hall is played through.
LEFT, HERE, STATE, CALL, NEXT = range(5)
# States of a session.
COMING, OPEN, RUNNING, WAITING, OVER = range(5)
# Columns of `line`, a row a model.
READY, UNSTARTED, POOL, WAITS = range(4)
# Columns of `card`, a row a GPU: where its list begins and ends, where it is in it.
BEGIN, END, TURN = range(3)
# Columns of `when`, a row a session: when its first call began, until when it waits.
BEGUN, UNTIL = range(2)


class Hall(NamedTuple):
    """What is played, and the room to play it in."""

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
    event_at: Floats
    event_who: Ints
    stack: Ints
    start: Floats
    gpu: Ints


def laid_out(problem: Problem, rank: Floats, most: int) -> Hall:
    """Room for lists of at most so many sessions; calls with a higher rank go first."""
    calls = problem.calls
    count, models, gpus = len(calls), len(problem.models), len(problem.gpus)
    sizes = np.concatenate(([0], np.cumsum([len(w.nodes) for w in problem.workflows])))
    kind = sizes[problem.requests.workflow[calls.request]] + calls.position
    total = np.bincount(calls.model, minlength=models)
    cards = most + gpus + 8

    def ints(*shape: int) -> Any:
        return np.zeros(shape, dtype=np.int32)

    return Hall(
        calls.model, calls.seconds, calls.earliest_s, calls.before_at, calls.after_at, calls.after,
        problem.width, problem.switch, problem.may_begin, problem.group_speed, problem.held_first, problem.free_first,
        rank, kind.astype(np.int32), np.concatenate(([0], np.cumsum(total))).astype(np.int32),
        ints(count), np.zeros(count), ints(count), ints(models, 4), ints(cards, 5), np.zeros((cards, 2)),
        ints(gpus, 3), ints(most * int(problem.width.max())), np.zeros(gpus), ints(gpus),
        np.zeros(4 * cards + 2 * count), ints(4 * cards + 2 * count), ints(4 * cards + count), np.zeros(count), ints(count),
    )  # fmt: skip


def room(hall: Hall) -> Any:
    """Room for a list of sessions, and for those that are opened at the end."""
    return np.zeros((len(hall.now), 3), dtype=np.int32)


# --- the clock, and who is ready -------------------------------------------------------------------------------------


@borrowing
def _push_event(event_at: Floats, event_who: Ints, many: int, at: float, who: int) -> int:
    i = many
    while i > 0:
        up = (i - 1) >> 1
        if event_at[up] < at or (event_at[up] == at and event_who[up] <= who):
            break
        event_at[i] = event_at[up]
        event_who[i] = event_who[up]
        i = up
    event_at[i] = at
    event_who[i] = who
    return many + 1


@borrowing
def _pop_event(event_at: Floats, event_who: Ints, many: int) -> int:
    many -= 1
    at, who = event_at[many], event_who[many]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= many:
            break
        if down + 1 < many and (
            event_at[down + 1] < event_at[down]
            or (event_at[down + 1] == event_at[down] and event_who[down + 1] < event_who[down])
        ):
            down += 1
        if at < event_at[down] or (at == event_at[down] and who <= event_who[down]):
            break
        event_at[i] = event_at[down]
        event_who[i] = event_who[down]
        i = down
    event_at[i] = at
    event_who[i] = who
    return many


@borrowing
def _push_ready(heap: Ints, key: Floats, base: int, many: int, call: int) -> None:
    i = many
    while i > 0:
        up = (i - 1) >> 1
        if key[heap[base + up]] >= key[call]:
            break
        heap[base + i] = heap[base + up]
        i = up
    heap[base + i] = call


@borrowing
def _pop_ready(heap: Ints, key: Floats, base: int, many: int) -> Any:
    top = heap[base]
    many -= 1
    call = heap[base + many]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= many:
            break
        if down + 1 < many and key[heap[base + down + 1]] > key[heap[base + down]]:
            down += 1
        if key[call] >= key[heap[base + down]]:
            break
        heap[base + i] = heap[base + down]
        i = down
    heap[base + i] = call
    return top


# --- playing a list through ------------------------------------------------------------------------------------------


@borrowing
def _lay_out(hall: Hall, sessions: Any, count: int) -> int:
    """Everybody before the first call, and the list of every GPU. How many calls are in no session."""
    card, line, now, lists, width, line_at = hall.list_at, hall.line, hall.now, hall.lists, hall.width, hall.line_at
    for g in range(len(hall.free)):
        hall.free[g] = hall.free_first[g]
        hall.held[g] = hall.held_first[g]
        card[g, BEGIN] = 0
        card[g, END] = 0
        card[g, TURN] = -1
    for m in range(len(width)):
        line[m, READY] = 0
        line[m, UNSTARTED] = line_at[m + 1] - line_at[m]
        line[m, POOL] = line[m, UNSTARTED]
        line[m, WAITS] = NOBODY
    for s in range(count):
        m = sessions[s, MODEL]
        now[s, LEFT] = min(sessions[s, QUOTA], line[m, POOL])
        line[m, POOL] -= now[s, LEFT]
        now[s, HERE] = 0
        now[s, STATE] = COMING
        hall.when[s, BEGUN] = np.inf
        for g in range(sessions[s, GPU], sessions[s, GPU] + width[m]):
            card[g, END] += 1
    total = 0
    for g in range(len(hall.free)):
        card[g, BEGIN] = total
        total += card[g, END]
        card[g, END] = card[g, BEGIN]
    for s in range(count):
        for g in range(sessions[s, GPU], sessions[s, GPU] + width[sessions[s, MODEL]]):
            lists[card[g, END]] = s
            card[g, END] += 1
    pool = 0
    for m in range(len(width)):
        pool += line[m, POOL]
    return pool


@borrowing
def _loaded_at(free: Floats, held: Ints, switch: Floats, m: int, first: int, width: int, at: float) -> float:
    """When a group has a model on all its GPUs, at the soonest."""
    for g in range(first, first + width):
        at = max(at, free[g] + switch[held[g], m])
    return at


@borrowing
def _into_the_pool(now: Any, line: Any, s: int, m: int) -> Any:
    """A session leaves its calls to others; how many."""
    left = now[s, LEFT]
    line[m, POOL] += left
    now[s, LEFT] = 0
    return left


@borrowing
def _first_waiting(now: Any, line: Any, m: int) -> Any:
    """A session that waits for calls of a model, which waits no longer; NOBODY if there is none."""
    s = line[m, WAITS]
    while s != NOBODY and now[s, STATE] != WAITING:
        s = now[s, NEXT]
    line[m, WAITS] = NOBODY
    if s != NOBODY:
        line[m, WAITS] = now[s, NEXT]
        now[s, STATE] = OPEN
    return s


@borrowing
def _is_through(card: Any, g: int) -> Any:
    """Whether a GPU has come to the end of its list."""
    return card[g, BEGIN] + card[g, TURN] == card[g, END]


@borrowing
def _idle_group(
    card: Any, free: Floats, held: Ints, switch: Floats, may_begin: Any, m: int, width: int, at: float
) -> int:
    """Of the groups that are through with their lists, the one that has a model soonest; NOBODY if there is none."""
    where, soonest = NOBODY, 0.0
    for g in range(len(free)):
        if not may_begin[m, g]:
            continue
        through = True
        for x in range(g, g + width):
            through = through and _is_through(card, x)
        if through:
            ready = _loaded_at(free, held, switch, m, g, width, at)
            if where == NOBODY or ready < soonest:
                where, soonest = g, ready
    return where


@borrowing
def _who_leaves(sessions: Any, count: int, now: Any, when: Any, card: Any) -> int:
    """Of the sessions that wait, the one that waits longest and whose GPU has somewhere to go; NOBODY if none has."""
    who = NOBODY
    for s in range(count):
        if now[s, STATE] == WAITING and (who == NOBODY or when[s, UNTIL] < when[who, UNTIL]):
            g = sessions[s, GPU]
            if card[g, BEGIN] + card[g, TURN] + 1 < card[g, END]:
                who = s
    return who


@compiled
def play(hall: Hall, sessions: Any, count: int, taste: Floats) -> float:
    """Play a list through; starts and GPUs of all calls are left in the hall. Returns the makespan.

    Who has something to do stands on the `stack`: a session by its number, a GPU g that goes on to its next session as
    -1 - g, a call that is ready as -1 - gpus - call. When nobody has, time goes on to the next event: a call comes
    (-1 - call), a session has loaded or its call ends (its number), it has waited long enough (`cards` + its number).
    `active` counts the events after which somebody can go on for sure, which are all but the last.
    It is one function because it is the inner loop: divided along its comments it takes five to ten percent longer.
    """
    model, seconds, earliest, before_at, after_at, after = (
        hall.model, hall.seconds, hall.earliest, hall.before_at, hall.after_at, hall.after,
    )  # fmt: skip
    width, switch, may_begin, group_speed, line_at = (
        hall.width, hall.switch, hall.may_begin, hall.group_speed, hall.line_at,
    )  # fmt: skip
    waits_for, key, heap, line, now, when, card, lists = (
        hall.waits_for, hall.key, hall.heap, hall.line, hall.now, hall.when, hall.list_at, hall.lists,
    )  # fmt: skip
    free, held, event_at, event_who, stack = hall.free, hall.held, hall.event_at, hall.event_who, hall.stack
    start, gpu = hall.start, hall.gpu
    calls, gpus, models, cards = len(model), len(free), len(width), len(now)
    wait, least = taste[-1], max(1e-3, seconds.mean())
    pool = _lay_out(hall, sessions, count)
    events, active, unstarted, at, span = 0, 0, calls, 0.0, 0.0
    for call in range(calls):
        key[call] = hall.rank[call] + taste[hall.kind[call]]
        waits_for[call] = before_at[call + 1] - before_at[call]
        if waits_for[call] == 0:
            events = _push_event(event_at, event_who, events, earliest[call], -1 - call)
            active += 1
    through, extra = 0, count
    pending = 0
    for g in range(gpus):  # everybody goes to the first session of its list
        stack[pending] = -1 - g
        pending += 1
    while True:
        while pending > 0:
            pending -= 1
            s = stack[pending]
            if s < -gpus:  # a call is ready
                call = -1 - gpus - s
                m = model[call]
                _push_ready(heap, key, line_at[m], line[m, READY], call)
                line[m, READY] += 1
                other = _first_waiting(now, line, m)
                if other != NOBODY:
                    stack[pending] = other
                    pending += 1
                continue
            if s < 0:  # a GPU goes on to its next session
                g = -1 - s
                card[g, TURN] += 1
                if _is_through(card, g):
                    through += 1
                    continue
                s = lists[card[g, BEGIN] + card[g, TURN]]
                m = sessions[s, MODEL]
                if now[s, STATE] == OVER or line[m, UNSTARTED] == 0:
                    stack[pending] = -1 - g
                    pending += 1
                    continue
                now[s, HERE] += 1
                if now[s, HERE] == width[m]:
                    now[s, STATE] = OPEN
                    now[s, CALL] = NOBODY
                    ready = _loaded_at(free, held, switch, m, sessions[s, GPU], width[m], at)
                    events = _push_event(event_at, event_who, events, ready, s)
                    active += 1
                continue
            m = sessions[s, MODEL]  # a session is open and idle
            first = sessions[s, GPU]
            if line[m, READY] > 0 and (now[s, LEFT] > 0 or line[m, POOL] > 0):
                call = _pop_ready(heap, key, line_at[m], line[m, READY])
                line[m, READY] -= 1
                if now[s, LEFT] > 0:
                    now[s, LEFT] -= 1
                else:
                    line[m, POOL] -= 1
                    pool -= 1
                begin = at
                for x in range(first, first + width[m]):
                    begin = max(begin, free[x] + switch[held[x], m])
                end = begin + seconds[call] / group_speed[m, first]
                for x in range(first, first + width[m]):
                    free[x] = end
                    held[x] = m
                start[call] = begin
                gpu[call] = first
                when[s, BEGUN] = min(when[s, BEGUN], begin)
                now[s, STATE] = RUNNING
                now[s, CALL] = call
                events = _push_event(event_at, event_who, events, end, s)
                active += 1
                span = max(span, end)
                line[m, UNSTARTED] -= 1
                unstarted -= 1
                while line[m, UNSTARTED] == 0:  # whoever waits for this model waits no longer
                    other = _first_waiting(now, line, m)
                    if other == NOBODY:
                        break
                    stack[pending] = other
                    pending += 1
            elif now[s, LEFT] > 0 and line[m, UNSTARTED] > 0:
                now[s, STATE] = WAITING
                now[s, NEXT] = line[m, WAITS]
                line[m, WAITS] = s
                when[s, UNTIL] = at + max(least, wait * switch[-1, m])
                events = _push_event(event_at, event_who, events, when[s, UNTIL], cards + s)
            else:
                pool += _into_the_pool(now, line, s, m)
                now[s, STATE] = OVER
                for x in range(first, first + width[m]):
                    stack[pending] = -1 - x
                    pending += 1
        if pool > 0 and through > 0:  # GPUs that are through with their list help out
            for m in range(models):
                if line[m, POOL] == 0 or line[m, READY] == 0 or extra == cards:
                    continue
                where = _idle_group(card, free, held, switch, may_begin, m, width[m], at)
                if where == NOBODY:
                    continue
                s = extra
                extra += 1
                sessions[s, MODEL] = m
                sessions[s, GPU] = where
                sessions[s, QUOTA] = 1
                now[s, LEFT] = 0
                now[s, STATE] = OPEN
                now[s, CALL] = NOBODY
                when[s, BEGUN] = np.inf
                for x in range(where, where + width[m]):
                    card[x, TURN] -= 1
                    through -= 1
                # its call is taken at once: the line may be empty before the model is loaded
                stack[pending] = s
                pending += 1
                break
            if pending > 0:
                continue
        if unstarted == 0:
            return span
        if active == 0:  # nobody can go on: who waits longest and has somewhere to go leaves; if nobody has, all do
            who = _who_leaves(sessions, count, now, when, card)
            for s in range(count):
                if now[s, STATE] == WAITING and (who == NOBODY or who == s):  # noqa: PLR1714, SIM109 (numba knows no such in)
                    now[s, STATE] = OPEN
                    pool += _into_the_pool(now, line, s, sessions[s, MODEL])
                    stack[pending] = s
                    pending += 1
            if pending == 0:
                return np.inf
            continue
        at = event_at[0]
        who = event_who[0]
        events = _pop_event(event_at, event_who, events)
        if who < 0:
            active -= 1
            stack[pending] = who - gpus
            pending += 1
        elif who < cards:
            active -= 1
            stack[pending] = who
            pending += 1
            if now[who, STATE] == RUNNING:
                call = now[who, CALL]
                for edge in range(after_at[call], after_at[call + 1]):
                    other = after[edge]
                    waits_for[other] -= 1
                    if waits_for[other] == 0:
                        if earliest[other] > at:
                            events = _push_event(event_at, event_who, events, earliest[other], -1 - other)
                            active += 1
                        else:
                            stack[pending] = -1 - gpus - other
                            pending += 1
            now[who, STATE] = OPEN
        elif now[who - cards, STATE] == WAITING and when[who - cards, UNTIL] == at:
            s = who - cards
            g, m = sessions[s, GPU], sessions[s, MODEL]
            place = card[g, BEGIN] + card[g, TURN] + 1
            if place < card[g, END] and line[sessions[lists[place], MODEL], READY] > 0:
                now[s, STATE] = OPEN
                pool += _into_the_pool(now, line, s, m)
                stack[pending] = s
                pending += 1
            else:
                when[s, UNTIL] = at + max(least, wait * switch[-1, m])
                events = _push_event(event_at, event_who, events, when[s, UNTIL], who)
