"""What a node that comes back is told."""

from gpuyard.control_plane.reconcile import reconcile
from gpuyard.domain import commands as command
from gpuyard.domain.node import Gpu, NodeSpec
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.task import NewTask, Resources, TaskSpec
from gpuyard.domain.tenant import QuotaMode, Split
from gpuyard.domain.values import NodeId, Outcome, TaskId, TenantId
from gpuyard.engine.engine import Engine
from gpuyard.engine.state import State

ONE, TWO = NodeId("node-1"), NodeId("node-2")
TASK = TaskId(1)


def gang_on_two_nodes() -> Engine:
    engine = Engine(State())
    spec = TaskSpec(TenantId("lab"), Resources(gpus=1, nodes=2), command="train")
    for asked in (
        command.FoundYard("yard"),
        command.SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)),
        *(command.JoinNode(NodeSpec(node, (Gpu("RTX4090", 24_576),), 8, 65_536)) for node in (ONE, TWO)),
        command.SubmitTasks((NewTask(TASK, spec),)),
    ):
        assert not isinstance(engine.handle(asked, 0.0), Refusal)
    engine.decide(0.0)
    return engine


def test_a_part_of_a_gang_that_is_over_is_not_launched_again() -> None:
    engine = gang_on_two_nodes()
    engine.handle(command.ReportStarted(TASK, 1, ONE), 1.0)
    engine.handle(command.ReportEnded(TASK, 1, Outcome.SUCCEEDED, 0, ONE), 2.0)
    assert reconcile(engine.state, ONE, {}).say == []  # the other part has not started yet
