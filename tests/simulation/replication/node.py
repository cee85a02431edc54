"""A node's agent, or a witness: it drives a `Voter` and starts attempts."""

from typing import TYPE_CHECKING, cast

from gpuyard.core.replication.membership import Membership
from gpuyard.core.replication.messages import MembershipAccepted, ToVoter, VoteGranted
from gpuyard.core.replication.outputs import FollowCommand, SaveVoter, SendMessage, VoterRecord
from gpuyard.core.replication.voter import Voter
from tests.simulation.replication.process import Output, Process

if TYPE_CHECKING:
    from tests.simulation.replication.world import World


NOTHING = Membership(0, 0, frozenset(), frozenset(), frozenset())
"""What a voter knows that no leader has added yet."""


class Started:
    """The report of a node that an attempt runs."""

    def __init__(self, body: bytes) -> None:
        self.body = body


class NodeProcess(Process):
    """Started attempts outlive the agent's process: a supervisor holds them and has written them down."""

    kind = "voter"

    def __init__(self, world: "World", name: str, host: str, first: Membership, *, runs_tasks: bool) -> None:
        super().__init__(world, f"{name}#0", host)
        self.name, self.runs_tasks, self.memory = name, runs_tasks, 0
        self.disk = VoterRecord(0, "", first if self.address in first.voters else NOTHING)
        self.started: set[bytes] = set()
        self.granted = 0
        self.start()

    def start(self) -> None:
        restarted = self.life > 0 and "restart_wait" not in self.world.without
        self.voter = Voter(self.address, self.world.timing, self.disk, self.clock(), restarted=restarted)

    def forget(self) -> None:
        """The disk was replaced. Another memory has another name, and no messages to the old one reach it."""
        self.disk, self.started = VoterRecord(0, "", NOTHING), set()
        if "new_memory" not in self.world.without:
            self.memory += 1
            self.granted = 0
            self.world.rename(self, f"{self.name}#{self.memory}")

    def receive(self, message: object) -> None:
        self.perform(cast(list[Output], self.voter.receive(self.clock(), cast(ToVoter, message))))

    def store(self, write: Output) -> None:
        assert isinstance(write, SaveVoter)
        self.disk = write.record

    def act(self, output: Output) -> None:
        if isinstance(output, SendMessage):
            if isinstance(output.message, VoteGranted):
                self.granted = max(self.granted, output.message.epoch)
            elif isinstance(output.message, MembershipAccepted):
                self.granted = max(self.granted, output.message.order[0])
            self.world.send(self, output.to, output.message)
        else:
            assert isinstance(output, FollowCommand)
            self.world.checks.obeyed(self, output.epoch)
            if output.body not in self.started:
                self.world.checks.launched(self, output.body)
                self.started.add(output.body)
            for scheduler in self.world.schedulers.values():
                self.world.send(self, scheduler.address, Started(output.body))
