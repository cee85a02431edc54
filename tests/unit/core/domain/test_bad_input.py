"""Bad input gets one clear sentence with a code, and changes nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from math import inf, nan

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.instants import utc_text
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, NewTask, Resources, Share, TaskSpec
from gpuyard.core.domain.tenant import Budget, Split, Tenant
from gpuyard.core.domain.values import GpuHealth, NodeId, Outcome, TaskClass, TaskId, TenantId
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.placement.scores import SCORES
from gpuyard.testing import ClusterStory, cpu_task, gang, node, share, task

TEAM = TenantId("team")


def one(resources: Resources, **more: object) -> command.Command:
    spec = TaskSpec(TEAM, resources, **more)  # type: ignore[arg-type]
    return command.SubmitTasks((NewTask(TaskId(3), spec),))


WRONG: dict[str, tuple[command.Command, no.Refusal]] = {
    "negative GPUs": (one(Resources(gpus=-1)), no.NegativeCount("gpus", -1)),
    "more GPUs than any node has": (one(Resources(gpus=100_000_000)), no.TooLarge("gpus", 100_000_000, 4096)),
    "more nodes than any cluster": (one(Resources(gpus=1, nodes=1 << 40)), no.TooLarge("nodes", 1 << 40, 100_000)),
    "more CPUs than any node has": (one(Resources(cpus=1 << 40)), no.TooLarge("cpus", 1 << 40, 1_000_000)),
    "more memory than any node has": (
        one(Resources(gpus=1, memory_mib=1 << 70)),
        no.TooLarge("memory_mib", 1 << 70, 1 << 40),
    ),
    "a share of more memory than any GPU has": (
        one(Resources(share=Share(0, 1 << 70))),
        no.TooLarge("share.memory_mib", 1 << 70, 1 << 40),
    ),
    "endless retries": (one(Resources(gpus=1), retries=10**9), no.TooLarge("retries", 10**9, 1_000_000)),
    "a search without end": (
        command.ChangeSettings(Settings(search_depth=10**30)),
        no.TooLarge("search_depth", 10**30, 100_000),
    ),
    "a wait without end": (
        command.ChangeSettings(Settings(retry_delay_seconds=1e300)),
        no.TooLarge("retry_delay_seconds", 1e300, 10**12),
    ),
    "a limit beyond all GPUs": (
        command.SetTenant(Tenant(TEAM, max_gpus=10**30)),
        no.TooLarge("max_gpus", 10**30, 409_600_000),
    ),
    "a node with more memory than there is": (
        command.JoinNode(NodeSpec(NodeId("x"), memory_mib=1 << 70)),
        no.TooLarge("memory_mib", 1 << 70, 1 << 40),
    ),
    "negative memory": (one(Resources(gpus=1, memory_mib=-5)), no.NegativeCount("memory_mib", -5)),
    "no GPU and no CPU": (one(Resources()), no.NothingAsked()),
    "a share above one": (one(Resources(share=Share(1001))), no.ShareOutOfRange(1001)),
    "a negative share": (one(Resources(share=Share(-1))), no.ShareOutOfRange(-1)),
    "a share of nothing": (one(Resources(share=Share())), no.EmptyShare()),
    "a negative share of memory": (one(Resources(share=Share(0, -1))), no.NegativeCount("share.memory_mib", -1)),
    "a share and whole GPUs": (one(Resources(gpus=2, share=Share(500))), no.ShareWithGpus(2)),
    "a share over two nodes": (one(Resources(nodes=2, share=Share(500))), no.ShareOfGang(2)),
    "no nodes": (one(Resources(gpus=1, nodes=0)), no.NoNodes(0)),
    "whole nodes without GPUs": (one(Resources(whole_nodes=True, cpus=1)), no.WholeNodesWithoutGpus()),
    "an empty model": (one(Resources(gpus=1, models=("",))), no.EmptyName("models")),
    "a label twice": (one(Resources(gpus=1, labels=(("a", "1"), ("a", "2")))), no.DuplicateLabel("a")),
    "an empty label": (one(Resources(gpus=1, labels=(("", "1"),))), no.EmptyName("labels")),
    "priority 101": (one(Resources(gpus=1), priority=101), no.PriorityOutOfRange(101)),
    "a level beyond the last": (
        one(Resources(gpus=1), remaining_time_levels=(0, 5)),
        no.WrongRemainingTimeLevels(21, 4),
    ),
    "a run level beyond the last": (one(Resources(gpus=1), run_level=7), no.WrongRunLevel(6)),
    "an empty command": (one(Resources(gpus=1), command="  "), no.EmptyCommand()),
    "an empty argument list": (one(Resources(gpus=1), command=()), no.EmptyCommand()),
    "no grace at all": (one(Resources(gpus=1), grace_seconds=0.0), no.NotPositive("grace_seconds", 0.0)),
    "a grace without end": (one(Resources(gpus=1), grace_seconds=inf), no.NotFinite("grace_seconds")),
    "negative retries": (one(Resources(gpus=1), retries=-1), no.NegativeCount("retries", -1)),
    "a negative array index": (one(Resources(gpus=1), array_index=-2), no.NegativeCount("array_index", -2)),
    "no time": (one(Resources(gpus=1), timeout_seconds=0.0), no.NotPositive("timeout_seconds", 0.0)),
    "endless timeout": (one(Resources(gpus=1), timeout_seconds=inf), no.NotFinite("timeout_seconds")),
    "no number as deadline": (one(Resources(gpus=1), deadline=nan), no.NotFinite("deadline")),
    "an estimate upside down": (
        one(Resources(gpus=1), estimate=Estimate(5.0, 9.0, 7.0)),
        no.EstimateOutOfOrder(9.0, 5.0, 7.0),
    ),
    "an estimate of nothing": (
        one(Resources(gpus=1), estimate=Estimate(0.0, 0.0, 0.0)),
        no.NotPositive("estimate.seconds", 0.0),
    ),
    "an endless estimate": (one(Resources(gpus=1), estimate=Estimate(1.0, 1.0, inf)), no.NotFinite("estimate")),
    "no tenant": (
        command.SubmitTasks((NewTask(TaskId(3), TaskSpec(TenantId(""), Resources(gpus=1))),)),
        no.EmptyName("tenant"),
    ),
    "no task": (command.SubmitTasks(()), no.NoTasks()),
    "a number twice": (
        command.SubmitTasks((NewTask(TaskId(1), TaskSpec(TEAM, Resources(gpus=1))),)),
        no.TaskIdTaken(TaskId(1)),
    ),
    "an unknown dependency": (
        one(Resources(gpus=1), after_success=(TaskId(99),)),
        no.UnknownDependency(TaskId(3), TaskId(99)),
    ),
    "itself as dependency": (one(Resources(gpus=1), after_any=(TaskId(3),)), no.DependencyCycle((TaskId(3),))),
    "a split that does not sum": (command.SetSplit(Split(0.7, 0.7)), no.SplitDoesNotSum(0.7, 0.7)),
    "a negative part": (command.SetSplit(Split(-0.5, 1.5)), no.PercentOutOfRange("online_percent", -0.5)),
    "no number as part": (command.SetSplit(Split(nan, nan)), no.PercentOutOfRange("online_percent", nan)),
    "a negative limit": (command.SetTenant(Tenant(TEAM, max_gpus=-1)), no.NegativeCount("max_gpus", -1)),
    "a negative model limit": (
        command.SetTenant(Tenant(TEAM, max_gpus_by_model=(("A100", -1),))),
        no.NegativeCount("A100", -1),
    ),
    "a guarantee above the limit": (
        command.SetTenant(Tenant(TEAM, max_gpus=1, guaranteed_gpus=2)),
        no.GuaranteeAboveMaximum(TEAM, 2, 1),
    ),
    "no weight": (command.SetTenant(Tenant(TEAM, weight=0.0)), no.NotPositive("weight", 0.0)),
    "an endless budget": (command.SetTenant(Tenant(TEAM, budget=Budget(inf, 1.0))), no.NotFinite("budget.gpu_hours")),
    "no name": (command.SetTenant(Tenant(TenantId(""))), no.EmptyName("tenant")),
    "an unknown policy": (
        command.ChangeSettings(Settings(policy="astrology")),
        no.UnknownPolicy("astrology", tuple(POLICIES)),
    ),
    "an unknown score": (
        command.ChangeSettings(Settings(score="taste")),
        no.UnknownScore("taste", tuple(SCORES)),
    ),
    "a negative absence": (command.EndEpoch(-1.0), no.NegativeCount("absence_seconds", -1.0)),
    "an endless absence": (command.EndEpoch(inf), no.NotFinite("absence_seconds")),
    "no aging": (command.ChangeSettings(Settings(aging_seconds=0.0)), no.NotPositive("aging_seconds", 0.0)),
    "endless aging": (command.ChangeSettings(Settings(aging_seconds=inf)), no.NotFinite("aging_seconds")),
    "a negative memory of the past": (
        command.ChangeSettings(Settings(remember_ended=-1)),
        no.NegativeCount("remember_ended", -1),
    ),
    "an unknown task": (command.CancelTask(TaskId(99)), no.UnknownTask(TaskId(99))),
    "an ended task": (command.CancelTask(TaskId(1)), no.TaskIsOver(TaskId(1), "success")),
    "holding what runs": (command.HoldTask(TaskId(2)), no.WrongPhase(TaskId(2), "running", "hold", "waiting")),
    "releasing what is not held": (
        command.ReleaseTask(TaskId(2)),
        no.WrongPhase(TaskId(2), "running", "release", "on hold"),
    ),
    "resuming what runs": (
        command.ResumeTask(TaskId(2)),
        no.WrongPhase(TaskId(2), "running", "resume", "suspended on request"),
    ),
    "suspending what may not be": (command.SuspendTask(TaskId(2)), no.NotSuspendable(TaskId(2), "never")),
    "a priority out of range": (command.ChangePriority(TaskId(2), -1), no.PriorityOutOfRange(-1)),
    "extending by nothing": (command.ExtendTask(TaskId(2)), no.NothingToExtend()),
    "extending without end": (command.ExtendTask(TaskId(2), deadline=inf), no.NotFinite("deadline")),
    "extending what has no end": (
        command.ExtendTask(TaskId(2), timeout_seconds=60.0),
        no.NotLonger(TaskId(2), "timeout_seconds", 60.0),
    ),
    "a report of a node it is not on": (
        command.ReportEnded(TaskId(2), 1, Outcome.FAILED, node=NodeId("elsewhere")),
        no.NotOnNode(TaskId(2), 1, NodeId("elsewhere")),
    ),
    "a report of a suspension that was not requested": (
        command.ReportSuspended(TaskId(2), 1, 1),
        no.StaleReport(TaskId(2), 1),
    ),
    "removing a node that runs something": (
        command.RemoveNode(NodeId("node-1")),
        no.NodeInUse(NodeId("node-1"), (TaskId(2),)),
    ),
    "a report about an unknown task": (command.ReportStarted(TaskId(99), 1), no.StaleReport(TaskId(99), 1)),
    "a report about yesterday": (command.ReportEnded(TaskId(2), 7, Outcome.FAILED), no.StaleReport(TaskId(2), 7)),
    "an unknown node": (command.LoseNode(NodeId("nowhere")), no.UnknownNode(NodeId("nowhere"))),
    "an unknown GPU": (
        command.SetGpuHealth(NodeId("node-1"), 9, GpuHealth.OFFLINE),
        no.UnknownGpu(NodeId("node-1"), 9, 2),
    ),
    "a node without a name": (command.JoinNode(NodeSpec(NodeId(""))), no.EmptyName("node")),
    "a node with negative CPUs": (command.JoinNode(NodeSpec(NodeId("x"), cpus=-1)), no.NegativeCount("cpus", -1)),
    "a GPU without a model": (command.JoinNode(NodeSpec(NodeId("x"), (Gpu("", 1),))), no.EmptyName("gpus.model")),
    "a node that changed under its tasks": (
        command.JoinNode(node("node-1", gpus=7)),
        no.NodeChangedInUse(NodeId("node-1")),
    ),
    "a second founding": (command.CreateCluster("again"), no.ClusterAlreadyFounded("story")),
}


@pytest.fixture
def cluster() -> ClusterStory:
    """Task 1 is over, task 2 runs."""
    cluster = ClusterStory()
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("over"))
    cluster.finishes("over")
    cluster.submits(task("runs"))
    return cluster


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_refused_with_a_sentence_and_changes_nothing(what: str, cluster: ClusterStory) -> None:
    asked, expected = WRONG[what]
    before = snapshot.dump(cluster.state)
    answer = cluster.tells(asked)
    assert isinstance(answer, no.Refusal)
    assert type(answer) is type(expected)
    assert answer == expected or str(answer) == str(expected)  # not-a-number equals nothing
    assert answer.code == type(expected).__name__
    assert answer.sentence().endswith(".")
    assert "{" not in answer.sentence()
    assert snapshot.dump(cluster.state) == before


def test_tasks_that_depend_on_each_other_are_named(cluster: ClusterStory) -> None:
    answer = cluster.submits(task("a", after=("c",)), task("b", after=("a",)), task("c", after_any=("b",)))
    assert isinstance(answer, no.DependencyCycle)
    assert set(answer.tasks) == {3, 4, 5}


def test_a_batch_with_one_bad_task_is_refused_as_a_whole(cluster: ClusterStory) -> None:
    assert isinstance(cluster.submits(task("good"), task("bad", retries=-1)), no.NegativeCount)
    assert cluster.running() == ["runs"]


def test_requests_the_tenants_own_quota_forbids_forever_are_refused(cluster: ClusterStory) -> None:
    cluster.has_tenant("small", max_gpus=2, max_gpus_by_model=(("H100", 1),))
    assert cluster.submits(task("large", gpus=3, tenant="small")) == no.QuotaForbids(TenantId("small"), 3, 2)
    refusal = cluster.submits(task("model", gpus=2, models=("H100",), tenant="small"))
    assert isinstance(refusal, no.QuotaForbids)
    assert refusal.sentence() == (
        "The task needs 2 GPUs of model H100, but the limit of tenant small is 1. "
        "Request fewer GPUs or ask an administrator to raise the limit."
    )


NEVER: dict[str, tuple[Callable[[], object], no.Never]] = {
    "an unknown model": (lambda: task("x", models=("H900",)), no.UnknownGpuModel(("H900",), ("A100",))),
    "too much memory on a GPU": (lambda: task("x", gpu_memory_mib=99_999), no.GpuMemoryTooSmall(99_999, 40_960)),
    "too large a share": (lambda: share("x", memory_mib=99_999), no.GpuMemoryTooSmall(99_999, 40_960)),
    "too many GPUs on a node": (lambda: task("x", gpus=9), no.NodeTooSmall(9, 2)),
    "too many CPUs": (lambda: cpu_task("x", cpus=65), no.TooFewCpus(65, 64)),
    "too much host memory": (lambda: task("x", memory_mib=999_999), no.HostMemoryTooSmall(999_999, 512_000)),
    "labels that no node has": (lambda: task("x", labels=(("rack", "9"),)), no.NoNodeWithLabels(("rack=9",))),
    "a gang larger than the cluster ever was": (
        lambda: gang("x", members=2, gpus_each=1),
        no.GangLargerThanCluster(2, 1),
    ),
}


@pytest.mark.parametrize("what", NEVER)
def test_requests_no_node_could_ever_hold_wait_with_that_reason(what: str, cluster: ClusterStory) -> None:
    build, expected = NEVER[what]
    builder = build()
    cluster.submits(builder)  # type: ignore[arg-type]
    assert cluster.why("x") == expected


def test_such_requests_can_be_refused_at_once_on_demand() -> None:
    cluster = ClusterStory()
    assert cluster.submits(task("x", require_fit=True)) == no.NoNodesYet()


def test_every_refusal_has_a_code_and_a_sentence_that_can_be_filled_in() -> None:
    samples: dict[str, object] = {"tuple": ("a", "b"), "int": 1, "float": 1.5, "str": "x"}
    codes = [refusal.__name__ for refusal in no.REFUSALS]
    assert len(codes) == len(set(codes)) > 50
    for refusal in no.REFUSALS:
        assert refusal.__doc__
        values = {}
        for field, kind in refusal.__annotations__.items():
            name = str(getattr(kind, "__name__", kind))
            values[field] = next((value for key, value in samples.items() if key in str(kind)), name)
        sentence = refusal(**{field: values[field] for field in refusal.__struct_fields__}).sentence()
        assert sentence.endswith((".", "?")), sentence
        assert "{" not in sentence, sentence


def test_the_engine_refuses_before_it_changes_anything() -> None:
    engine = Engine()
    assert isinstance(engine.handle(command.CancelTask(TaskId(1)), 0.0), no.UnknownTask)
    assert engine.decide(0.0) == []


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (
            no.NoRoom(4, 1, 0),
            "The task needs 4 GPUs on one node; the only suitable node has 0 free. It starts when enough are free.",
        ),
        (
            no.NoRoom(1, 3, 0),
            "The task needs 1 GPU on one node; the emptiest of 3 suitable nodes has 0 free. It starts when enough are free.",
        ),
        (no.WaitingForTasks(TaskId(3), 1), "The task waits for task-3 to end (see gpuyard explain task-3)."),
        (
            no.WaitingForTasks(TaskId(3), 2),
            "The task waits for 2 other tasks to end; the first is task-3 (see gpuyard explain task-3).",
        ),
        (
            no.ClassQuotaFull(TaskClass.BATCH, 1, 1, 1),
            (
                "The quota of batch tasks is 1 GPU; 1 is in use and the task needs 1. "
                "It starts when batch tasks end or the quota is raised (gpuyard quota)."
            ),
        ),
        (
            no.NodesClosed(1, 1, 0),
            "The only suitable node cannot be used now: it is offline or cordoned, or its GPUs are out of use.",
        ),
        (
            no.NodesClosed(2, 3, 0),
            "None of 3 suitable nodes can be used now: they are offline or cordoned, or their GPUs are out of use.",
        ),
        (
            no.NodeInUse(NodeId("n1"), (TaskId(3), TaskId(4))),
            "Node n1 runs these tasks: task-3, task-4. Drain the node or stop its agent first.",
        ),
        (no.BackingOff(1_763_216_000.0), "The task waits for its retry delay before the next attempt."),
    ],
)
def test_a_reason_to_wait_reads_well(refusal: no.Refusal, sentence: str) -> None:
    assert refusal.sentence() == sentence


def test_no_reason_to_wait_shows_an_instant_as_a_number() -> None:
    """An instant in a sentence is a date with its time zone."""
    for kind in no.REFUSALS:
        assert "{until}" not in kind.text, kind
        if "_at}" in kind.text:
            values = {"node": NodeId("n"), "begins_at": 3600.0, "ends_at": 7200.0, "has_begun": False}
            filled = kind(**{name: values.get(name, 3) for name in kind.__struct_fields__})
            assert "1970-01-01 01:00 UTC" in filled.sentence(), kind
            assert "7200" not in filled.sentence(), kind


def test_a_date_is_the_one_of_the_calendar() -> None:
    for seconds in (0, 951_782_399, 951_782_400, 1_709_164_800, 1_782_864_059, 4_102_444_800, 13_574_563_200):
        expected = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
        assert utc_text(float(seconds)) == expected
