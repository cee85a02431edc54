"""Which voters a cluster should have: agents of registered nodes, witnesses, and the schedulers' own voters if these are few.

    a voter that has a seat                                its seat
    connected                                              stays
    connected, but its node is not registered any more     goes to a substitute
    not connected, its node is, with a new memory          goes to the new memory at once
    not connected for less than `PATIENCE_SECONDS`         stays
    not connected for longer                               goes to a substitute

**The number is odd**: of four voters as many may fail as of three. Agents and witnesses come first, one for each node. The
voter of a scheduler fails together with a journal, so it is added only to make three. Without a substitute a voter keeps
its seat; if two have failed, the number becomes smaller, because three voters of five that answer may lose none, and three
of three may lose one.

**A new memory takes the seat at once.** A voter reads its name and its promises from one file, so a new name means that
the promises are lost and that the old name does not answer again. Waiting would keep a seat empty for nothing. It is
safe at any time: a majority of the old voters has to accept the change, as every change.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from gpuyard.core.replication.membership import FEWEST_VOTERS

MOST_VOTERS = 7
"""Three of seven may fail."""
PATIENCE_SECONDS = 60.0
"""The restart of an agent or of its machine should not change the membership."""


class CandidateVoter(NamedTuple):
    """A voter that is connected with the leader."""

    kind: Literal["agent", "witness", "scheduler"]
    node: str
    """Where it runs; for a scheduler or witness, its name without the random part."""


def choose_voters(
    current: frozenset[str],
    connected: Mapping[str, CandidateVoter],
    registered: Collection[str],
    away: Mapping[str, float],
) -> frozenset[str] | None:
    """Return the voters that there should be; None: no change is needed, or there are too few.

    Voters are named by their memory ("node#abcd"), nodes without it. `away`: for how many seconds voters have not been
    connected. One that is neither there nor connected counts as away for a moment.
    """
    nodes = {name: _node(name) for name in current} | {name: voter.node for name, voter in connected.items()}
    present = {voter.node for voter in connected.values()}
    eligible = [name for name, voter in connected.items() if voter.kind == "agent" and voter.node in registered]
    eligible += _few_witnesses(current, connected, len({nodes[name] for name in eligible}))
    returning = [
        name
        for name in sorted(current - connected.keys())
        if nodes[name] not in present and away.get(name, 0.0) < PATIENCE_SECONDS
    ]
    staying = _one_of_each_node([*sorted(current.intersection(eligible)), *returning], nodes)
    had_a_seat = {nodes[name] for name in current}
    others = sorted(eligible, key=lambda name: (nodes[name] not in had_a_seat, connected[name].kind != "witness", name))
    seats = _one_of_each_node([*staying, *others], nodes)
    schedulers = [name for name, voter in connected.items() if voter.kind == "scheduler"]
    if len(seats) < FEWEST_VOTERS:
        seats += sorted(schedulers, key=lambda name: (name not in current, name))[: FEWEST_VOTERS - len(seats)]
    if len(seats) < FEWEST_VOTERS or _odd(len(seats)) < len(staying):
        without_substitute = sorted(current, key=lambda name: (name not in connected, name))
        seats = _one_of_each_node([*seats, *without_substitute], nodes)[: max(FEWEST_VOTERS, len(seats) + 1)]
    chosen = frozenset(seats[: min(MOST_VOTERS, _odd(len(seats)))])
    return chosen if len(chosen) >= FEWEST_VOTERS and chosen != current else None


def _few_witnesses(current: frozenset[str], connected: Mapping[str, CandidateVoter], agents: int) -> list[str]:
    """Return the witnesses that may vote: those that do, and more while they are fewer than the agents or less than three.

    Whoever knows the join token can start any number of witnesses. They must not be able to end elections by leaving.
    """
    witnesses = [name for name, voter in connected.items() if voter.kind == "witness"]
    most = max(FEWEST_VOTERS - agents, agents - 1, len(current.intersection(witnesses)))
    return sorted(witnesses, key=lambda name: (name not in current, name))[:most]


def _node(voter: str) -> str:
    """The node of a voter that is not connected."""
    return voter.rpartition("#")[0] or voter


def _one_of_each_node(voters: Iterable[str], nodes: Mapping[str, str]) -> list[str]:
    """The first voter of each node."""
    first = dict[str, str]()
    for name in voters:
        first.setdefault(nodes[name], name)
    return list(first.values())


def _odd(count: int) -> int:
    """The largest odd number up to this one."""
    return count - (count + 1) % 2
