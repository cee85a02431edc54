"""Attempts on several nodes: their parts are prepared one by one and start together when all are ready."""

from gpuyard.core.domain.values import AttemptRef, NodeId, TaskId
from gpuyard.core.engine.phases import Placed
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.nodes import launches
from gpuyard.live.control_plane.nodes.sessions import AgentSessions
from gpuyard.live.wire import agents_pb2 as pb


class PendingGang:
    """The parts of an attempt on several nodes, until all are ready to start together."""

    def __init__(self, nodes: tuple[NodeId, ...]) -> None:
        self.nodes = nodes
        self.ports: dict[NodeId, int] = {}


class Gangs:
    """The gangs that have been launched and have not ended."""

    def __init__(self, sessions: AgentSessions) -> None:
        self._sessions = sessions
        self._pending: dict[AttemptRef, PendingGang] = {}

    def launched(self, ref: AttemptRef, nodes: tuple[NodeId, ...]) -> None:
        """Wait for the parts of a gang."""
        self._pending[ref] = PendingGang(nodes)

    def ended(self, ref: AttemptRef) -> None:
        """Forget an attempt that has ended."""
        self._pending.pop(ref, None)

    def restore(self, state: State, task_id: TaskId) -> None:
        """Restore a gang after a restart. Which parts are ready is not stored: they report it again when launched."""
        task = state.tasks[task_id]
        nodes = task.active.placement.nodes
        if len(nodes) < 2 or not isinstance(task.phase, Placed):
            return
        ref = launches.ref_of(task)
        gang = self._pending.setdefault(ref, PendingGang(nodes))
        begun = {*(task.ready or ()), *(task.members or ())}
        for node in nodes:  # a part that runs or has ended counts as ready
            session = self._sessions.get(node)
            if node in begun or (session is not None and session.there.get(ref) == pb.Attempt.RUNNING):
                gang.ports.setdefault(node, session.ports.get(ref, 0) if session is not None else 0)

    def part_prepared(self, ref: AttemptRef, node: NodeId, port: int) -> None:
        """Note that a part of a gang is ready; start the gang if it was the last one."""
        gang = self._pending.get(ref)
        if gang is not None and node in gang.nodes:
            gang.ports[node] = port
            self._start(ref, gang)

    def _start(self, ref: AttemptRef, gang: PendingGang) -> None:
        """Start all parts if all are ready and the address of the first one is known. Safe to repeat."""
        first = self._sessions.get(gang.nodes[0])
        if first is None or len(gang.ports) < len(gang.nodes):
            return  # started when the first node is back
        for rank, member in enumerate(gang.nodes):
            start = pb.Start(
                master_addr=first.address or "127.0.0.1",
                master_port=gang.ports[gang.nodes[0]],
                node_rank=rank,
                nodes=len(gang.nodes),
                rank=rank,
                world_size=len(gang.nodes),
            )
            self._sessions.send(member, launches.attempt_command(ref, start=start))

    def node_is_back(self, node: NodeId) -> None:
        """Start the gangs that waited only for the address of their first node."""
        for ref, gang in list(self._pending.items()):
            if gang.nodes[0] == node:
                self._start(ref, gang)
