"""Background jobs of /api/v1: plans of workflows, and simulations of policies; requests, answers and results."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from gpuyard.core.domain.node import NodeSpec
from gpuyard.input.strict import Strict
from gpuyard.live.wire.limits import Instant

JobStatus: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
PlanStrategy: TypeAlias = Literal["batch", "dynamic", "exact", "pareto", "heft_affinity", "search", "auto"]
SimulatedPolicy: TypeAlias = Literal[
    "same",
    "fifo",
    "sjf",
    "qssf",
    "srtf",
    "default",
    "levels",
    "tiresias",
    "small_first",
    "dqn",
    "priority",
    "fair_share",
]
"""`same`: the policy and settings of the journal. Policies of one's own are code and are not accepted here."""


# --- requests ---------------------------------------------------------------------------------------------------------


class PlanRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Plan the calls of workflows with several strategies."""

    problem: dict[str, Any] | str
    """The problem as an object, or the text of a problem file (YAML or JSON)."""
    strategies: Annotated[list[PlanStrategy], Meta(min_length=1, max_length=8)] = field(
        default_factory=lambda: ["heft_affinity", "search"]
    )
    seconds: Annotated[float, Meta(ge=0.1, le=60)] = 5.0
    """Time limit of each search."""
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0


class GenerateJobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Random jobs that request a share of all GPUs while they arrive."""

    generate: Annotated[int, Meta(ge=1, le=100_000)]
    """Number of jobs."""
    load: Annotated[float, Meta(ge=0.01, le=10)] = 0.9
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 0
    preemptible: Annotated[float, Meta(ge=0, le=1)] = 0.0


class SimulationRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Compare policies on the past of this cluster, or on generated jobs."""

    source: Literal["journal"] | GenerateJobs
    policies: Annotated[list[SimulatedPolicy], Meta(min_length=1, max_length=12)]
    since: float | str | None = None
    """With `journal`: only tasks submitted at this time or later (RFC 3339, or seconds since 1970)."""
    until: float | str | None = None
    """With `journal`: only tasks submitted before this time."""
    quota: Annotated[str, Meta(min_length=1, max_length=40)] | None = None
    """With `journal`: another part of the GPUs for online tasks, optionally with a mode: `0.6:borrow`."""
    nodes: Annotated[str, Meta(min_length=3, max_length=200)] | None = None
    """Other nodes, such as `4x8:A100`: four nodes of eight GPUs. Needed for generated jobs."""


# --- answers ----------------------------------------------------------------------------------------------------------


class JobRow(Struct, frozen=True, kw_only=True):
    """A background job."""

    id: str
    kind: Literal["plan", "simulation"]
    status: JobStatus
    error: str | None
    """Why it failed, in one sentence."""
    username: str
    tenant_id: str | None
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None


class PlanList(Struct, frozen=True):
    """Recent plans, newest first."""

    plans: list[JobRow]


class SimulationList(Struct, frozen=True):
    """Recent simulations, newest first."""

    simulations: list[JobRow]


class PlanBar(Struct, frozen=True):
    """What a GPU does for a time in a plan, in seconds from its beginning."""

    gpu: int
    start: float
    end: float
    kind: Literal["call", "load"]
    model: str
    call: str | None
    """The first call in it; null for a load."""
    request: str | None
    calls: int = 1
    """Number of calls in it: short neighbors of one model are drawn together."""


class PlanResult(Struct, frozen=True):
    """The plan of one strategy. Times are in seconds."""

    strategy: str
    makespan: float
    lower_bound: float
    """No plan has a shorter makespan."""
    gap: float
    """How far the makespan is above the lower bound: 0.02 is 2 %."""
    switches: int
    switch_seconds: float
    utilization: float
    planning_seconds: float
    assignments: list[PlanBar]


class ParetoPoint(Struct, frozen=True):
    """A plan that no other plan beats in all objectives."""

    makespan: float
    energy: float | None
    """In kWh; null: the power draw of the GPUs is unknown."""
    switches: int
    balance: float
    """Utilization of the busiest GPU minus that of the least busy one."""
    chosen: bool


class PlanOutcome(Struct, frozen=True):
    """The result of a planning job."""

    results: list[PlanResult]
    pareto: list[ParetoPoint] | None
    """Null unless the strategy `pareto` was among the strategies."""
    notes: list[str] = []


class PlanAnswer(JobRow, frozen=True, kw_only=True):
    """A planning job with its results, as soon as it is done."""

    results: list[PlanResult] = []
    pareto: list[ParetoPoint] | None = None
    notes: list[str] = []


class PolicyFigures(Struct, frozen=True):
    """The figures of one policy. Times are in seconds."""

    policy: str
    """`recorded`: what really happened."""
    tasks: int
    mean_wait: float
    p50_wait: float
    p95_wait: float
    p99_wait: float
    waits: list[tuple[float, float]]
    """The distribution of waits: pairs of seconds and the part of the tasks that waited at most that long."""
    mean_completion: float
    """From submission to end."""
    fairness: float
    """Jain's index over the mean slowdowns of users: 1 means equal ones."""
    gpu_hours: float
    makespan: float
    preemptions: int


class SimulationOutcome(Struct, frozen=True):
    """The result of a simulation."""

    policies: list[PolicyFigures]
    notes: list[str]


class SimulationAnswer(JobRow, frozen=True, kw_only=True):
    """A simulation with its results, as soon as it is done."""

    policies: list[PolicyFigures] = []
    notes: list[str] = []


# --- between the scheduler and the process of a job -------------------------------------------------------------------


class JobOrder(Struct, frozen=True):
    """What the process of a job is to do."""

    plan: PlanRequest | None = None
    simulation: SimulationRequest | None = None
    journal: str = ""
    """The folder of the journal, or the URL of its database."""
    archive: str = ""
    """The file of ended tasks, for a journal that no longer has its first events."""
    nodes: list[NodeSpec] = []
    """The nodes of today."""
    since: float | None = None
    until: float | None = None


class JobReport(Struct, frozen=True):
    """How the process of a job ended."""

    plan: PlanOutcome | None = None
    simulation: SimulationOutcome | None = None
    error: str = ""


read_plan_request = Strict(PlanRequest).json
read_simulation_request = Strict(SimulationRequest).json
