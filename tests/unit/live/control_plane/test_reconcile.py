"""Commands to a node that reconnects."""

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import NewTask, Resources, TaskSpec
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import AttemptRef, NodeId, Outcome, TaskId, TenantId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.nodes.reconcile import reconcile
from gpuyard.live.wire import agents_pb2 as pb

ONE, TWO = NodeId("node-1"), NodeId("node-2")
TASK = TaskId(1)


def gang_on_two_nodes() -> Engine:
    engine = Engine(State())
    spec = TaskSpec(TenantId("lab"), Resources(gpus=1, nodes=2), command="train")
    for asked in (
        command.CreateCluster("yard"),
        command.SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)),
        *(command.JoinNode(NodeSpec(node, (Gpu("RTX4090", 24_576),), 8, 65_536)) for node in (ONE, TWO)),
        command.SubmitTasks((NewTask(TASK, spec),)),
    ):
        assert not isinstance(engine.handle(asked, 0.0), Refusal)
    engine.decide(0.0)
    return engine


def test_an_ended_part_of_a_gang_is_not_launched_again() -> None:
    engine = gang_on_two_nodes()
    engine.handle(command.ReportStarted(TASK, 1, ONE), 1.0)
    engine.handle(command.ReportEnded(TASK, 1, Outcome.SUCCEEDED, 0, ONE), 2.0)
    assert reconcile(engine.state, ONE, {}).say == []  # the other part has not started yet


def test_an_abandoned_part_of_a_gang_that_still_runs_is_stopped() -> None:
    """Otherwise a part that waits for a start that never comes holds its GPU forever."""
    engine = gang_on_two_nodes()
    engine.handle(command.LoseNode(TWO), 1.0)  # the part on the other node is being stopped
    ref = AttemptRef(TASK, 1)
    for phase in (pb.Attempt.PREPARED, pb.Attempt.RUNNING, pb.Attempt.SUSPENDED):
        assert reconcile(engine.state, TWO, {ref: phase}).stop == [ref]
    assert reconcile(engine.state, TWO, {ref: pb.Attempt.ENDED}).stop == []
    assert reconcile(engine.state, TWO, {}).stop == []
