"""The replication as people see it: who has every event, who votes, and what is wrong or missing."""

from gpuyard.core.replication.membership import FEWEST_VOTERS
from gpuyard.live.control_plane.replication.service import ReplicationView
from gpuyard.live.wire.answers import ReplicationAnswer, VoterAnswer

SILENT_SECONDS = 3.0
_ADD_VOTERS = "add agents, or start `gpuyard witness` on a third machine"


def answer_of(view: ReplicationView) -> ReplicationAnswer:
    """Return the answer of REST."""
    replica = view.replica
    voters = sorted(replica.voters | set(view.connected_voters))
    return ReplicationAnswer(
        replica=replica.name,
        role=replica.role,
        epoch=replica.epoch,
        peer=replica.peer,
        peer_url=view.peer_url,
        peer_connected=view.peer_connected,
        in_sync=sorted(replica.in_sync),
        entries=replica.committed,
        standby_behind=None if replica.standby_held is None else max(0, replica.length - replica.standby_held),
        voters=[_voter(view, name) for name in voters],
        problems=_problems(view),
    )


def _voter(view: ReplicationView, name: str) -> VoterAnswer:
    connected = view.connected_voters.get(name)
    kind = connected.kind if connected is not None else "unknown"
    node = connected.node if connected is not None else name.partition("#")[0]
    return VoterAnswer(name, kind, node, connected is not None, name in view.replica.voters)


def _problems(view: ReplicationView) -> list[str]:
    replica = view.replica
    found = [view.problem] if view.problem else []
    if not view.peer_connected:
        reason = f": {view.peer_problem}" if view.peer_problem else "."
        found.append(f"The other scheduler is not connected{reason}")
    elif replica.role == "leads" and (replica.standby_silent_seconds or 0.0) > SILENT_SECONDS:
        found.append(
            f"The other scheduler is connected, but has not answered for {replica.standby_silent_seconds:.0f} s."
        )
    elif replica.role == "leads" and replica.peer not in replica.in_sync:
        found.append("The other scheduler is catching up; until then new events are on one disk, and it cannot lead.")
    if replica.role != "leads" and (why_not := why_not_leading(view)) and why_not not in found:
        found.append(why_not)
    if len(replica.voters) < FEWEST_VOTERS:
        found.append(
            f"Only {len(replica.voters)} of at least {FEWEST_VOTERS} voters: if the scheduler that leads fails, no other "
            f"one takes over. To change that, {_ADD_VOTERS}."
        )
    elif replica.role == "leads":
        answering = len(replica.answering & replica.voters)
        silent = ", ".join(sorted(name.partition("#")[0] for name in replica.voters - replica.answering))
        if 2 * answering <= len(replica.voters):
            found.append(
                f"Only {answering} of {len(replica.voters)} voters answer, so no scheduler can lead. Start these again: {silent}."
            )
        elif 2 * (answering - 1) <= len(replica.voters):
            found.append(
                f"These voters do not answer: {silent}. If one more fails, no scheduler can lead; {_ADD_VOTERS}."
            )
    return found


def why_not_leading(view: ReplicationView) -> str:
    """Return why this replica cannot lead at present, or nothing."""
    replica = view.replica
    if replica.role == "leads" or view.problem:
        return view.problem
    if replica.name not in replica.in_sync:
        return (
            "This standby does not have every event yet, so it cannot lead. It is included when it has caught up with the "
            "scheduler that leads."
        )
    connected = replica.voters & set(view.connected_voters)
    if 2 * len(connected) <= len(replica.voters):
        missing = ", ".join(sorted(name.partition("#")[0] for name in replica.voters - connected))
        return (
            f"Only {len(connected)} of {len(replica.voters)} voters are connected to this standby, so it cannot lead. Check "
            f"that these reach its port for replication, too: {missing}."
        )
    return ""
