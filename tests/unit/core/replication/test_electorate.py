"""Which voters a cluster should have."""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.replication.electorate import MOST_VOTERS, PATIENCE_SECONDS, CandidateVoter, choose_voters
from gpuyard.core.replication.membership import FEWEST_VOTERS

LONG, SHORT = PATIENCE_SECONDS, PATIENCE_SECONDS - 1


def agents(*numbers: int) -> dict[str, CandidateVoter]:
    return {f"n{number}#1": CandidateVoter("agent", f"n{number}") for number in numbers}


def schedulers(*names: str) -> dict[str, CandidateVoter]:
    return {f"scheduler-{name}#1": CandidateVoter("scheduler", f"scheduler-{name}") for name in names}


def chosen(
    current: Collection[str],
    connected: Mapping[str, CandidateVoter],
    away: Mapping[str, float] | None = None,
    registered: Collection[str] | None = None,
) -> set[str] | None:
    nodes = {voter.node for voter in connected.values() if voter.kind == "agent"} if registered is None else registered
    voters = choose_voters(frozenset(current), connected, nodes, away or {})
    return None if voters is None else set(voters)


# --- growing ---


def test_a_scheduler_that_is_alone_keeps_its_voter_until_there_are_three() -> None:
    alone = set(schedulers("a"))
    assert chosen(alone, schedulers("a")) is None
    assert chosen(alone, schedulers("a", "b")) is None
    assert chosen(alone, schedulers("a") | agents(1)) is None


def test_voters_of_schedulers_fill_up_to_three() -> None:
    assert chosen(schedulers("a"), schedulers("a", "b") | agents(1)) == set(schedulers("a", "b") | agents(1))
    assert chosen(schedulers("a"), schedulers("a", "b") | agents(1, 2)) == set(schedulers("a") | agents(1, 2))


def test_agents_take_the_seats_of_schedulers() -> None:
    current = schedulers("a", "b") | agents(1)
    assert chosen(current, current | agents(2, 3)) == set(agents(1, 2, 3))


def test_witnesses_come_before_agents() -> None:
    witness = {"w#1": CandidateVoter("witness", "w")}
    assert chosen(schedulers("a"), schedulers("a") | agents(1, 2, 3) | witness) == set(witness | agents(1, 2))


def test_witnesses_are_fewer_than_agents_so_that_they_cannot_end_elections_by_leaving() -> None:
    witnesses = {f"w{number}#1": CandidateVoter("witness", f"w{number}") for number in range(7)}
    voters = chosen(schedulers("a"), schedulers("a") | agents(1, 2, 3) | witnesses)
    assert voters is not None
    assert (len(voters), len(voters & witnesses.keys())) == (5, 2)
    without_agents = chosen(schedulers("a"), schedulers("a", "b") | witnesses)
    assert without_agents is not None
    assert (len(without_agents), len(without_agents & witnesses.keys())) == (3, 3)


def test_the_number_is_odd_and_at_most_seven() -> None:
    three = agents(1, 2, 3)
    assert chosen(three, agents(1, 2, 3, 4)) is None
    assert chosen(three, agents(1, 2, 3, 4, 5)) == set(agents(1, 2, 3, 4, 5))
    assert chosen(agents(*range(1, 8)), agents(*range(20))) is None


def test_an_agent_of_a_node_that_is_not_registered_is_not_chosen() -> None:
    assert chosen(schedulers("a"), schedulers("a") | agents(1, 2, 3), registered={"n1", "n2"}) == set(
        schedulers("a") | agents(1, 2)
    )


# --- replacing ---


def test_a_voter_is_replaced_when_it_is_away_for_a_minute() -> None:
    three = set(agents(1, 2, 3))
    assert chosen(three, agents(1, 2, 4), {"n3#1": SHORT}) is None
    assert chosen(three, agents(1, 2, 4), {"n3#1": LONG}) == set(agents(1, 2, 4))


def test_a_voter_that_was_never_connected_with_this_leader_counts_as_away_for_a_moment() -> None:
    assert chosen(agents(1, 2, 3), agents(1, 2, 4)) is None


def test_a_voter_stays_if_there_is_no_substitute() -> None:
    assert chosen(agents(1, 2, 3), agents(1, 2), {"n3#1": LONG}) is None
    assert chosen(agents(1, 2, 3, 4, 5), agents(1, 2, 3, 4), {"n5#1": LONG}) is None
    assert chosen(agents(1, 2, 3), agents(1, 2) | schedulers("a"), {"n3#1": LONG}) == set(
        agents(1, 2) | schedulers("a")
    )


def test_if_two_voters_have_failed_the_number_becomes_smaller() -> None:
    assert chosen(agents(1, 2, 3, 4, 5), agents(1, 2, 3), {"n4#1": LONG, "n5#1": LONG}) == set(agents(1, 2, 3))


def test_a_new_memory_takes_the_seat_at_once() -> None:
    renewed = {"n3#2": CandidateVoter("agent", "n3")}
    connected = agents(0, 1, 2) | renewed
    assert chosen(agents(1, 2, 3), connected, {"n3#1": 0.5}) == {"n1#1", "n2#1", "n3#2"}


def test_a_node_has_one_seat_even_if_two_agents_run_there() -> None:
    second = {"n3#2": CandidateVoter("agent", "n3")}
    assert chosen(agents(1, 2, 3), agents(1, 2, 3) | second) is None


def test_the_agent_of_a_removed_node_goes_when_there_is_a_substitute() -> None:
    three = set(agents(1, 2, 3))
    assert chosen(three, agents(1, 2, 3), registered={"n1", "n2"}) is None
    assert chosen(three, agents(1, 2, 3, 4), registered={"n1", "n2", "n4"}) == set(agents(1, 2, 4))


# --- whatever happens ---


class Situation(NamedTuple):
    current: frozenset[str]
    connected: dict[str, CandidateVoter]
    registered: frozenset[str]
    away: dict[str, float]

    def chosen(self) -> frozenset[str] | None:
        return choose_voters(*self)


KINDS: tuple[Literal["agent", "witness", "scheduler"], ...] = ("agent", "agent", "agent", "witness", "scheduler")


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    places = [(f"n{number}", draw(st.sampled_from(KINDS))) for number in range(draw(st.integers(0, 10)))]
    kinds = dict(places)
    memories = draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=len(places), max_size=len(places)))
    connected = {
        f"{node}#{memory}": CandidateVoter(kind, node)
        for (node, kind), memory in zip(places, memories, strict=True)
        if draw(st.booleans())
    }
    seats = draw(st.sets(st.sampled_from(sorted(kinds)), max_size=MOST_VOTERS)) if kinds else set[str]()
    if seats and len(seats) % 2 == 0:
        seats.discard(min(seats))
    current = frozenset(f"{node}#0" for node in seats)
    registered = frozenset(node for node, kind in places if kind == "agent" and draw(st.integers(0, 4)))
    away = {name: draw(st.sampled_from([0.0, SHORT, LONG])) for name in sorted(current - connected.keys())}
    return Situation(current, connected, registered, away)


def is_preferred(situation: Situation, name: str) -> bool:
    voter = situation.connected.get(name)
    return voter is not None and (
        voter.kind == "witness" or (voter.kind == "agent" and voter.node in situation.registered)
    )


@given(situations())
@settings(max_examples=150, deadline=None)
def test_safety_an_odd_number_of_known_voters_one_of_each_node(situation: Situation) -> None:
    voters = situation.chosen()
    if voters is None:
        return
    assert len(voters) in {3, 5, 7}
    assert voters <= situation.current | situation.connected.keys()
    assert len({name.partition("#")[0] for name in voters}) == len(voters)
    new = voters - situation.current
    assert all(is_preferred(situation, name) or situation.connected[name].kind == "scheduler" for name in new)


@given(situations())
@settings(max_examples=150, deadline=None)
def test_safety_the_voter_of_a_scheduler_is_added_only_to_make_three(situation: Situation) -> None:
    voters = situation.chosen() or frozenset()
    if any(situation.connected[name].kind == "scheduler" for name in voters - situation.current):
        assert len(voters) == FEWEST_VOTERS


@given(situations())
@settings(max_examples=150, deadline=None)
def test_stability_voters_that_are_here_or_away_for_a_moment_stay(situation: Situation) -> None:
    voters = situation.chosen()
    here = {name for name in situation.current if is_preferred(situation, name)}
    nodes = {voter.node for voter in situation.connected.values()}
    away = {
        name
        for name, seconds in situation.away.items()
        if seconds < PATIENCE_SECONDS and name.partition("#")[0] not in nodes
    }
    assert voters is None or here | away <= voters


@given(situations())
@settings(max_examples=150, deadline=None)
def test_stability_what_was_chosen_is_kept(situation: Situation) -> None:
    voters = situation.chosen()
    if voters is not None:
        assert situation._replace(current=voters).chosen() is None


@given(situations())
@settings(max_examples=150, deadline=None)
def test_liveness_no_voter_that_has_failed_remains_if_there_is_a_substitute(situation: Situation) -> None:
    """At most one remains, to make the number odd or three."""
    voters = situation.chosen() or situation.current
    preferred = {situation.connected[name].node for name in situation.connected if is_preferred(situation, name)}
    if len(preferred.intersection(situation.registered)) >= FEWEST_VOTERS:
        assert sum(situation.away.get(name, 0.0) >= PATIENCE_SECONDS for name in voters) <= 1
        agents = {node for node in preferred if node in situation.registered}
        idle = len(agents - {name.partition("#")[0] for name in voters})
        assert idle <= 1 or len(voters) == MOST_VOTERS


@given(situations())
@settings(max_examples=150, deadline=None)
def test_liveness_a_change_does_not_reduce_the_failures_that_are_survived(situation: Situation) -> None:
    def spare(voters: frozenset[str]) -> int:
        return len(voters & situation.connected.keys()) - (len(voters) // 2 + 1)

    voters = situation.chosen()
    removed = {name for name in situation.current if name in situation.connected and not is_preferred(situation, name)}
    if voters is not None and len(situation.current) >= FEWEST_VOTERS and not removed and not situation.away:
        assert spare(voters) >= spare(situation.current)
