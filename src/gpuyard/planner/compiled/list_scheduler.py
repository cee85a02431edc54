"""The list scheduler: a clock, GPUs that become free, and calls that wait in a line for their model.

Time goes from event to event: a call ends, a model is loaded, a request comes. Between them nothing has to be decided.

    a call may begin    on an idle GPU that holds its model, else it waits in the line of its model, the most urgent first
    a GPU is free       it goes on with the line of the model it holds; if nobody waits there it rests
    GPUs rest           each asks whether another model wants it more than its own will; if so it changes the model

So a GPU keeps its model while that has work (affinity), and what is left to decide is who changes, when, and to what.
For a model let `ready` be the seconds of work in its line, `soon` those of calls whose dependencies all run, `later` all
the others, and `groups` how many hold or load it. Both sides are measured in seconds of work a group:

    going to b      (ready + soon × `soon` + later × `later`) / (groups + 1)  −  `cost` × the change
    waiting for a   `wait` × (soon × `soon` + later × `later`) / groups

A model on no GPU counts `first` times. Nobody goes where the groups that are there will be done before the change is
(`least`). Near the end of the plan what remains after a call counts, not the work of its line: where the way behind the
most urgent call is longer than `calm` × what is left to do on each GPU, the excess counts `urgent` times.

Settings with `later` near 1 give every model its share of the GPUs for the whole plan, which is right where loading is
slow; with `later` 0 GPUs follow the work. Nothing grows with the backlog but the two sides together, so that the same
settings serve a hundred calls and a million.

Calls go by their due time less the longest way from them to the end of their request (upward rank), in which loads count
`loads` times. Requests are due together at the end of the plan, sooner with priority, at the latest at their deadline;
`flow` lets them come in one after another instead of all at once, `level` puts calls at the same depth together.

`backwards` plans from the end to the beginning: what depends on a call is before it, a change from b to a costs what one
from a to b does, and the first model of a GPU, its last, costs nothing. Then only the order is kept, and timed from the
beginning on. What GPUs do at the beginning is easy, since everything waits; what they do at the end is hard, since nothing
does. Backwards it is the other way round, which is often better by more than all other settings together.

A model that spans GPUs takes neighbours at multiples of its width. Its group is *claimed* when it is chosen: members that
rest begin to load, the others when their call ends, and nobody else gets them meanwhile. A group that loses a member
falls apart.

Cost: log N for the lines and the clock and one look at every model, for each call; GPUs are kept in lists by what they
hold. Everybody makes progress: a model that was loaded for nobody is only given up for one that somebody waits for, and a
GPU that loads is never claimed, so that after finitely many loads a call begins.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from gpuyard.planner.compiled.jit import borrowing, compiled
from gpuyard.planner.compiled.timing import order_of, timed
from gpuyard.planner.plan import Plan
from gpuyard.planner.problem import Floats, Ints, Problem

NOBODY: Final = -1


class Settings(NamedTuple):
    """What the decisions weigh; see the head of the file."""

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


class ListScheduler:
    """Makes plans of one problem, as many as there are settings to try."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        kinds: dict[tuple[float, float], int] = {}
        self._kind = np.array([kinds.setdefault((g.speed, g.memory_gb), len(kinds)) for g in problem.gpus])
        self._ranks: dict[tuple[float, bool], Floats] = {}

    def plan(self, settings: Settings, nudge: Floats | None = None) -> Plan:
        """The plan by these settings; `nudge`: calls are due so much later each."""
        made = self._backwards(settings, nudge) if settings.backwards else self._forwards(settings, nudge)
        again = settings.backwards or self.problem.many_residents
        return timed(self.problem, made.gpu, order_of(self.problem, made)) if again else made

    def _forwards(self, settings: Settings, nudge: Floats | None) -> Plan:
        problem, calls = self.problem, self.problem.calls
        rank = self.rank(settings.loads)
        key = self._due(settings, rank) - rank
        gpu, start = _decode(
            calls.model,
            calls.seconds,
            calls.earliest_s,
            calls.before_at,
            calls.after_at,
            calls.after,
            problem.width,
            problem.switch,
            problem.may_begin,
            problem.group_speed,
            self._kind,
            problem.held_first,
            problem.free_first,
            rank,
            key if nudge is None else key + nudge,
            settings,
        )
        return Plan(gpu, start, start + calls.seconds / problem.group_speed[calls.model, gpu])

    def _backwards(self, settings: Settings, nudge: Floats | None) -> Plan:
        """In time that goes back from the last end; when anything comes, and what GPUs hold at first, is not looked at."""
        problem, calls = self.problem, self.problem.calls
        models, gpus = len(problem.models), len(problem.gpus)
        switch = np.zeros((models + 1, models))
        switch[:models] = problem.switch[:models].T
        rank = self.rank(settings.loads, backwards=True)
        key = self._due(settings, rank) - rank
        gpu, start = _decode(
            calls.model,
            calls.seconds,
            np.zeros(len(calls)),
            calls.after_at,
            calls.before_at,
            calls.before,
            problem.width,
            switch,
            problem.may_begin,
            problem.group_speed,
            self._kind,
            np.full(gpus, NOBODY, dtype=np.int32),
            np.zeros(gpus),
            rank,
            key if nudge is None else key - nudge,
            settings,
        )
        end = start + calls.seconds / problem.group_speed[calls.model, gpu]
        last = end.max(initial=0.0)
        return Plan(gpu, last - end, last - start)

    def rank(self, loads: float, *, backwards: bool = False) -> Floats:
        """The longest way from each call to the end of its request, itself and `loads` × the loads on it included.

        Backwards: to the beginning.
        """
        if (loads, backwards) not in self._ranks:
            calls, load = self.problem.calls, self.problem.load
            before, after = (calls.before_at, calls.before), (calls.after_at, calls.after)
            (behind_at, _), ahead = (before, after) if backwards else (after, before)
            self._ranks[loads, backwards] = _upward_rank(calls.model, calls.seconds, *ahead, behind_at, load, loads)
        return self._ranks[loads, backwards]

    def _due(self, settings: Settings, rank: Floats) -> Floats:
        """When the request of each call should have ended, where only differences matter."""
        problem, of = self.problem, self.problem.requests
        if not len(rank):
            return rank
        length = max(problem.work_s / len(problem.gpus), float(rank.max()))
        due = np.minimum(length * (1.5 - of.priority / 100), of.deadline_s)
        if settings.backwards:
            due = -due
        if settings.flow:
            due += settings.flow * length * np.arange(len(due)) / len(due)
        if settings.level:
            longest = np.zeros(len(due))
            np.maximum.at(longest, problem.calls.request, rank)
            due += settings.level * longest
        return due[problem.calls.request]


# --- what the compiled functions share -------------------------------------------------------------------------------

_i, _f, _s = np.int64, np.float64, np.int32

JOB: Final = np.dtype([
    ("key", _f), ("seconds", _f), ("rank", _f), ("earliest", _f),
    ("model", _s), ("unstarted", _s), ("unended", _s), ("unused", _s),
])  # fmt: skip
"""A call; how many of those before it have not begun, and have not ended."""

CARD: Final = np.dtype([
    ("hold", _i), ("kind", _i), ("free_at", _f), ("running", _i), ("idle", _i), ("next", _i), ("prev", _i),
    ("fresh", _i), ("session", _i), ("claim", _i), ("formed", _i), ("waiting", _i), ("loaded_at", _f),
])  # fmt: skip
"""A GPU. `fresh`: what it holds or loads has not been called yet. `session`: the first GPU of the wide group it is in;
`claim`: of the one it will be in. A first GPU speaks for its group: what it is `formed` for, how many members do not load
yet, and when the last will have loaded."""

LINE: Final = np.dtype([
    ("width", _i), ("groups", _i), ("many", _i), ("at", _i), ("ready", _f), ("soon", _f), ("later", _f),
])  # fmt: skip
"""A model: the calls that wait for it are a heap of `many` from `at` on."""

CELL: Final = np.dtype([("first", _i), ("many", _i)])
"""GPUs that rest. First come the single ones, by what they hold (nothing: the last) and by kind; then, a cell for each
model, the wide groups, by their first GPU."""

EVENT: Final = np.dtype([("at", _f), ("who", _i)])
"""A GPU, or −1 − a call whose request comes."""

TALLY: Final = np.dtype(
    [("events", _i), ("idle", _i), ("models", _i), ("kinds", _i), ("must", _i), ("left", _f), ("a_gpu", _f)]
)
"""`must`: nothing happens unless a GPU changes. `left`: GPU-seconds of calls that have not begun; `a_gpu`: so much for each GPU."""


class World(NamedTuple):
    """Everything there is while a plan is made."""

    after_at: Any
    after: Any
    switch: Any
    may_begin: Any
    group_speed: Any
    jobs: Any
    cards: Any
    lines: Any
    cells: Any
    heap: Any
    events: Any
    tally: Any
    gpu: Any
    start: Any


# Numbers of calls, GPUs and models are made int64 wherever they come from (`np.int64(…)`): every other type that a function
# is called with, and a constant is one, would be compiled once more.


# --- the clock -------------------------------------------------------------------------------------------------------


@borrowing
def _push_event(w: Any, at: float, who: Any) -> None:
    events = w.events
    i = w.tally[0].events
    w.tally[0].events = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if events[up].at < at or (events[up].at == at and events[up].who <= who):
            break
        events[i].at = events[up].at
        events[i].who = events[up].who
        i = up
    events[i].at = at
    events[i].who = who


@borrowing
def _pop_event(w: Any) -> tuple[float, Any]:
    events = w.events
    first_at, first_who = events[0].at, events[0].who
    n = w.tally[0].events - 1
    w.tally[0].events = n
    at, who = events[n].at, events[n].who
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        if c + 1 < n and (
            events[c + 1].at < events[c].at or (events[c + 1].at == events[c].at and events[c + 1].who < events[c].who)
        ):
            c += 1
        if at < events[c].at or (at == events[c].at and who <= events[c].who):
            break
        events[i].at = events[c].at
        events[i].who = events[c].who
        i = c
    events[i].at = at
    events[i].who = who
    return first_at, first_who


# --- who waits -------------------------------------------------------------------------------------------------------


@borrowing
def _push_ready(w: Any, m: Any, call: Any) -> None:
    heap, jobs, line = w.heap, w.jobs, w.lines[m]
    i = line.many
    line.many = i + 1
    line.ready += jobs[call].seconds
    key = jobs[call].key
    while i > 0:
        up = (i - 1) >> 1
        other = heap[line.at + up]
        if jobs[other].key < key or (jobs[other].key == key and other < call):
            break
        heap[line.at + i] = other
        i = up
    heap[line.at + i] = call


@borrowing
def _pop_ready(w: Any, m: Any) -> Any:
    heap, jobs, line = w.heap, w.jobs, w.lines[m]
    n = line.many - 1
    line.many = n
    first = np.int64(heap[line.at])
    line.ready -= jobs[first].seconds
    call = heap[line.at + n]
    key = jobs[call].key
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        a = heap[line.at + c]
        if c + 1 < n:
            b = heap[line.at + c + 1]
            if jobs[b].key < jobs[a].key or (jobs[b].key == jobs[a].key and b < a):
                c += 1
                a = b
        if key < jobs[a].key or (key == jobs[a].key and call < a):
            break
        heap[line.at + i] = a
        i = c
    heap[line.at + i] = call
    return first


# --- who rests -------------------------------------------------------------------------------------------------------


@borrowing
def _cell(w: Any, g: Any) -> Any:
    hold = w.cards[g].hold
    models, kinds = w.tally[0].models, w.tally[0].kinds
    if w.cards[g].session != NOBODY:
        return w.cells[(models + 1) * kinds + hold]
    if hold == NOBODY:
        hold = models
    return w.cells[hold * kinds + w.cards[g].kind]


@borrowing
def _rest(w: Any, g: Any) -> None:
    cards, cell = w.cards, _cell(w, g)
    cards[g].idle = 1
    cards[g].next = cell.first
    cards[g].prev = NOBODY
    if cell.first != NOBODY:
        cards[cell.first].prev = g
    cell.first = g
    cell.many += 1
    w.tally[0].idle += 1


@borrowing
def _rouse(w: Any, g: Any) -> None:
    cards, cell = w.cards, _cell(w, g)
    after, before = cards[g].next, cards[g].prev
    if before == NOBODY:
        cell.first = after
    else:
        cards[before].next = after
    if after != NOBODY:
        cards[after].prev = before
    cards[g].idle = 0
    cell.many -= 1
    w.tally[0].idle -= 1


# --- calls -----------------------------------------------------------------------------------------------------------


@borrowing
def _begin(w: Any, call: Any, g: Any, now: float) -> None:
    """Run a call on a free group that holds its model."""
    jobs = w.jobs
    m = jobs[call].model
    width = w.lines[m].width
    end = now + jobs[call].seconds / w.group_speed[m, g]
    w.gpu[call] = g
    w.start[call] = now
    w.cards[g].running = call
    w.cards[g].fresh = 0
    for j in range(g, g + width):
        w.cards[j].free_at = end
    w.tally[0].left -= jobs[call].seconds * width
    w.tally[0].a_gpu = w.tally[0].left / len(w.cards)
    _push_event(w, end, g)
    for e in range(w.after_at[call], w.after_at[call + 1]):
        n = w.after[e]
        jobs[n].unstarted -= 1
        if jobs[n].unstarted == 0:
            line = w.lines[jobs[n].model]
            line.later -= jobs[n].seconds
            line.soon += jobs[n].seconds


@borrowing
def _end(w: Any, call: Any, now: float) -> None:
    """Whoever waited for nothing else may begin."""
    for e in range(w.after_at[call], w.after_at[call + 1]):
        n = np.int64(w.after[e])
        w.jobs[n].unended -= 1
        if w.jobs[n].unended == 0:
            _come(w, n, now)


@borrowing
def _come(w: Any, call: Any, now: float) -> None:
    """All that a call depends on has ended: it begins on the fastest that rests and holds its model, or waits."""
    if w.jobs[call].earliest > now:
        _push_event(w, w.jobs[call].earliest, -1 - call)
        return
    m = np.int64(w.jobs[call].model)
    line = w.lines[m]
    line.soon -= w.jobs[call].seconds
    models, kinds = w.tally[0].models, w.tally[0].kinds
    best = np.int64(NOBODY)
    if line.width > 1:
        best = w.cells[(models + 1) * kinds + m].first
    else:
        speed = 0.0
        for cell in range(m * kinds, m * kinds + kinds):
            g = w.cells[cell].first
            if g != NOBODY and w.group_speed[m, g] > speed:
                best = g
                speed = w.group_speed[m, g]
    if best == NOBODY:
        _push_ready(w, m, call)
    else:
        _rouse(w, best)
        _begin(w, call, best, now)


# --- changes of models -----------------------------------------------------------------------------------------------


@borrowing
def _leave(w: Any, g: Any) -> None:
    """A single GPU no longer counts for the model it holds."""
    a = w.cards[g].hold
    if a != NOBODY and w.lines[a].width == 1:
        w.lines[a].groups -= 1


@borrowing
def _send(w: Any, g: Any, b: Any, now: float) -> None:
    """A single GPU changes to a model of its own size."""
    _leave(w, g)
    card = w.cards[g]
    w.lines[b].groups += 1
    card.free_at = now + w.switch[card.hold, b]
    card.hold = b
    card.fresh = 1
    _push_event(w, card.free_at, g)


@borrowing
def _load_for_group(w: Any, g: Any, now: float) -> None:
    """A claimed GPU is free and begins to load; with the last of them the group is made."""
    card = w.cards[g]
    lead = w.cards[card.claim]
    m = lead.formed
    first = card.claim
    card.free_at = now + w.switch[card.hold, m]
    card.hold = m
    card.fresh = 1
    lead.loaded_at = max(lead.loaded_at, card.free_at)
    lead.waiting -= 1
    if lead.waiting == 0:
        for j in range(first, first + w.lines[m].width):
            w.cards[j].claim = NOBODY
            w.cards[j].session = first
            w.cards[j].free_at = lead.loaded_at
        _push_event(w, lead.loaded_at, first)


@borrowing
def _fall_apart(w: Any, first: Any, now: float) -> None:
    """The members of a wide group that is free load for those who claim them, or rest."""
    m = w.cards[first].hold
    fresh = w.cards[first].fresh
    w.lines[m].groups -= 1
    for j in range(first, first + w.lines[m].width):
        w.cards[j].session = NOBODY
        w.cards[j].fresh = fresh
        if w.cards[j].claim == NOBODY:
            _rest(w, j)
        else:
            _load_for_group(w, j, now)


@borrowing
def _best_group(w: Any, b: Any, now: float) -> Any:
    """The group that could hold a wide model soonest, counted over its members; NOBODY where all are spoken for."""
    width = w.lines[b].width
    step = 1 if len(w.cards) < 2 * width else width
    best = np.inf
    first = NOBODY
    g = 0
    while g + width <= len(w.cards):
        if not w.may_begin[b, g]:
            g += 1
            continue
        cost = 0.0
        for j in range(g, g + width):
            card = w.cards[j]
            speaks = w.cards[card.session] if card.session != NOBODY else w.cards[j]
            spoken_for = card.claim != NOBODY or (card.session != NOBODY and card.hold == b)
            if spoken_for or (speaks.fresh == 1 and (speaks.idle == 0 or w.lines[b].many == 0)):
                cost = np.inf
                break
            cost += max(0.0, card.free_at - now) + w.switch[card.hold, b]
        if cost < best:
            best = cost
            first = g
        g += step
    return first


@borrowing
def _form(w: Any, b: Any, first: Any, now: float) -> None:
    """Claim a group for a wide model: members that rest load at once, the others when their call ends."""
    beyond = first + w.lines[b].width
    w.lines[b].groups += 1
    for j in range(first, beyond):
        other = w.cards[j].session
        if other != NOBODY and w.cards[other].idle == 1:
            _rouse(w, other)
            _fall_apart(w, other, now)
    w.cards[first].formed = b
    w.cards[first].waiting = w.lines[b].width
    w.cards[first].loaded_at = now
    for j in range(first, beyond):
        w.cards[j].claim = first
    for j in range(first, beyond):
        if w.cards[j].session != NOBODY:
            continue  # it runs a call of another wide group, which falls apart with the end of that
        if w.cards[j].idle == 1:
            _rouse(w, j)
            _leave(w, j)
            _load_for_group(w, j, now)
        else:
            _leave(w, j)


# --- decisions -------------------------------------------------------------------------------------------------------


@borrowing
def _worth_going(w: Any, of: Settings, a: Any, b: Any) -> Any:
    """Seconds of work a group for one more that changes from a to b."""
    line = w.lines[b]
    change = w.switch[a, b]
    near = line.ready + of.soon * line.soon
    worth = near + of.later * line.later
    if line.groups == 0:
        worth *= of.first
    elif near <= of.least * change * line.groups:
        return -np.inf
    else:
        worth /= line.groups + 1
    if line.many > 0:
        late = w.jobs[w.heap[line.at]].rank + change - of.calm * w.tally[0].a_gpu
        if late > 0.0:
            worth += of.urgent * late
    return worth - of.cost * change


@borrowing
def _worth_waiting(w: Any, of: Settings, a: Any, single: bool) -> Any:
    """Seconds of work a group for those that hold a and rest."""
    if a == NOBODY or w.lines[a].groups == 0 or (single and w.lines[a].width > 1):
        return 0.0
    line = w.lines[a]
    return of.wait * (of.soon * line.soon + of.later * line.later) / line.groups


@borrowing
def _could_go(w: Any, of: Settings, g: Any, b: Any) -> Any:
    """Whether somebody waits or may come for b, and g, alone or as first of a group, could hold it or help to."""
    line = w.lines[b]
    if b == w.cards[g].hold and (line.width == 1 or w.cards[g].session != NOBODY):
        return False
    if line.many == 0:
        coming = line.soon > 1e-9 or (of.later > 0.0 and line.later > 1e-9)
        if w.tally[0].must == 1 or not coming or w.cards[g].fresh == 1:
            return False
    return line.width > 1 or w.may_begin[b, g]


@borrowing
def _change(w: Any, of: Settings, now: float) -> None:
    """GPUs that rest change to models that want them more, whoever gains most first; if one must, one does in any case."""
    must = w.tally[0].must == 1
    models, kinds = w.tally[0].models, w.tally[0].kinds
    singles = (models + 1) * kinds
    while w.tally[0].idle > 0:
        best = -np.inf if must else 0.0
        nobody: Any = np.int64(NOBODY)
        goes = to = group = nobody
        for cell in range(len(w.cells)):
            if w.cells[cell].many == 0:
                continue
            g = w.cells[cell].first
            waiting = _worth_waiting(w, of, w.cards[g].hold, cell < singles)
            for b in range(models):
                if not _could_go(w, of, g, b):
                    continue
                gain = _worth_going(w, of, w.cards[g].hold, b) - waiting
                if gain > best or (must and to == NOBODY):
                    first = _best_group(w, b, now) if w.lines[b].width > 1 else g
                    if first != NOBODY:
                        best, goes, to, group = gain, g, b, first
        if to == NOBODY:
            return
        if w.lines[to].width > 1:
            _form(w, to, group, now)
        else:
            _rouse(w, goes)
            if w.cards[goes].session != NOBODY:
                _fall_apart(w, goes, now)
                _rouse(w, goes)
            _send(w, goes, to, now)
        if must:
            return


@borrowing
def _free(w: Any, g: Any, now: float) -> None:
    """A GPU, or the wide group that it is the first of, has ended a call or a load."""
    cards = w.cards
    if cards[g].session != NOBODY:
        for j in range(g, g + w.lines[cards[g].hold].width):
            if cards[j].claim != NOBODY:
                _fall_apart(w, g, now)
                return
    elif cards[g].claim != NOBODY:
        _load_for_group(w, g, now)
        return
    elif cards[g].hold == NOBODY or w.lines[cards[g].hold].width > 1:
        _rest(w, g)
        return
    if w.lines[cards[g].hold].many > 0:
        _begin(w, _pop_ready(w, cards[g].hold), g, now)
    else:
        _rest(w, g)


@borrowing
def _run(w: Any, of: Settings) -> None:
    """From the first event to the last."""
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
        if w.tally[0].events == 0:
            w.tally[0].must = 1
            _change(w, of, now)
            w.tally[0].must = 0
        now, who = _pop_event(w)
        if who < 0:
            _come(w, -1 - who, now)
        else:
            call = w.cards[who].running
            if call != NOBODY:
                w.cards[who].running = NOBODY
                ended += 1
                _end(w, call, now)
            _free(w, who, now)
        if w.tally[0].idle > 0:
            _change(w, of, now)


@compiled
def _decode(
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
    kind: Any,
    held_first: Ints,
    free_first: Floats,
    rank: Floats,
    key: Floats,
    of: Settings,
) -> tuple[Ints, Floats]:
    """GPU and start of every call."""
    calls, gpus, models, kinds = len(model), len(kind), len(width), kind.max() + 1
    jobs = np.zeros(calls, dtype=JOB)
    cards = np.zeros(gpus, dtype=CARD)
    lines = np.zeros(models, dtype=LINE)
    cells = np.zeros((models + 1) * kinds + models, dtype=CELL)
    heap = np.zeros(calls, dtype=np.int32)
    events = np.zeros(calls + gpus, dtype=EVENT)
    tally = np.zeros(1, dtype=TALLY)
    gpu = np.zeros(calls, dtype=np.int32)
    start = np.zeros(calls)
    w = World(
        after_at, after, switch, may_begin, group_speed, jobs, cards, lines, cells, heap, events, tally, gpu, start
    )
    tally[0].models = models
    tally[0].kinds = kinds
    for cell in range(len(cells)):
        cells[cell].first = NOBODY
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
        tally[0].left += seconds[call] * line.width
    tally[0].a_gpu = tally[0].left / gpus
    beyond = 0
    for m in range(models):
        beyond += lines[m].at
        lines[m].at = beyond - lines[m].at
    for g in range(gpus - 1, -1, -1):
        card = cards[g]
        card.hold, card.kind, card.free_at = held_first[g], kind[g], free_first[g]
        card.session, card.claim, card.running = NOBODY, NOBODY, NOBODY
        if card.hold != NOBODY and lines[card.hold].width == 1:
            lines[card.hold].groups += 1
        if card.free_at > 0.0:
            _push_event(w, card.free_at, g)
        else:
            _rest(w, g)
    _run(w, of)
    return gpu, start


@compiled
def _upward_rank(
    model: Ints, seconds: Floats, before_at: Ints, before: Ints, after_at: Ints, load: Floats, loads: float
) -> Floats:
    """From the ends of the requests back: whoever has all that follow behind him is next."""
    calls = len(model)
    rank = np.zeros(calls)
    follow = after_at[1:] - after_at[:-1]
    queue = np.zeros(calls, dtype=np.int32)
    many = 0
    for call in range(calls - 1, -1, -1):
        if follow[call] == 0:
            queue[many] = call
            many += 1
    for turn in range(calls):
        call = queue[turn]
        rank[call] += seconds[call]
        for e in range(before_at[call], before_at[call + 1]):
            earlier = before[e]
            way = rank[call]
            if model[earlier] != model[call]:
                way += loads * load[model[call]]
            rank[earlier] = max(rank[earlier], way)
            follow[earlier] -= 1
            if follow[earlier] == 0:
                queue[many] = earlier
                many += 1
    return rank
