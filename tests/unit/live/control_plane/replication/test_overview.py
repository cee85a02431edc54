"""What people are told about two schedulers that replicate."""

from msgspec.structs import replace

from gpuyard.core.replication.electorate import CandidateVoter
from gpuyard.core.replication.replica import ReplicaStatus
from gpuyard.live.control_plane.replication.overview import answer_of, why_not_leading
from gpuyard.live.control_plane.replication.service import ReplicationView

VOTERS = frozenset({"scheduler-a#1", "scheduler-b#2", "n1#3"})
STATUS = ReplicaStatus(
    name="b#1",
    peer="a#1",
    role="follows",
    epoch=3,
    length=9,
    committed=9,
    in_sync=frozenset({"a#1", "b#1"}),
    voters=VOTERS,
    previous_voters=VOTERS,
    answering=frozenset(),
    standby_held=None,
    standby_silent_seconds=None,
    is_proposing=False,
    lease_left=0.0,
)


def view(status: ReplicaStatus, *connected: str, peer: bool = True) -> ReplicationView:
    voters = {name: CandidateVoter("agent", name.partition("#")[0]) for name in connected}
    return ReplicationView(status, voters, peer, "" if peer else "It refuses.", "http://a", "")


def test_a_standby_that_a_majority_of_the_voters_reaches_has_no_problem() -> None:
    told = answer_of(view(STATUS, "scheduler-b#2", "n1#3"))
    assert told.problems == []
    assert why_not_leading(view(STATUS, "scheduler-b#2", "n1#3")) == ""


def test_a_standby_that_too_few_voters_reach_says_that_it_cannot_lead() -> None:
    (problem,) = answer_of(view(STATUS, "scheduler-b#2", "stranger#9")).problems
    assert problem.startswith("Only 1 of 3 voters are connected to this standby, so it cannot lead.")
    assert problem.endswith(": n1, scheduler-a.")


def test_a_standby_without_the_newest_events_says_so_also_when_the_leader_is_gone() -> None:
    behind = replace(STATUS, in_sync=frozenset({"a#1"}))
    problems = answer_of(view(behind, *VOTERS, peer=False)).problems
    assert problems[0] == "The other scheduler is not connected: It refuses."
    assert problems[1].startswith("This standby does not have every event yet, so it cannot lead.")


def test_a_leader_says_how_many_voters_answer() -> None:
    leading = replace(STATUS, role="leads", peer="a#1", standby_held=9, standby_silent_seconds=0.1)
    for answering, says in (
        (VOTERS, []),
        (VOTERS - {"n1#3"}, ["These voters do not answer: n1. If one more fails, no scheduler can lead;"]),
        (
            {"n1#3"},
            ["Only 1 of 3 voters answer, so no scheduler can lead. Start these again: scheduler-a, scheduler-b."],
        ),
    ):
        problems = answer_of(view(replace(leading, answering=frozenset(answering)), *VOTERS)).problems
        assert [told.startswith(said) for told, said in zip(problems, says, strict=True)] == [True] * len(says)
    silent = replace(leading, answering=VOTERS, standby_silent_seconds=12.3)
    assert answer_of(view(silent, *VOTERS)).problems == [
        "The other scheduler is connected, but has not answered for 12 s."
    ]
