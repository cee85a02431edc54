"""The promises of each policy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.remaining_time import AGES, UNKNOWN_LEVELS, RemainingTimeLevels
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, Resources, Share, TaskSpec
from gpuyard.core.domain.tenant import Tenant
from gpuyard.core.domain.values import NodeId, Preemption, TaskClass, TaskId, TenantId
from gpuyard.core.engine.phases import Running, Suspended, Waiting
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.task import UNKNOWN, OpenTask
from gpuyard.testing import ClusterStory, share, task

SETTINGS = Settings()
TEAM = TenantId("team")


def about(seconds: float) -> Estimate:
    return Estimate(seconds, seconds / 2, seconds * 2)


def waiting(
    since: float = 0.0,
    *,
    priority: int = 50,
    online: bool = False,
    estimate: Estimate | None = None,
    served_seconds: float = 0.0,
    gpu_seconds: float = 0.0,
    timeout_seconds: float | None = None,
    remaining_time_levels: RemainingTimeLevels = (),
    run_level: int | None = None,
    preemption: Preemption = Preemption.CHECKPOINT,
    unpredictable: bool = False,
    name: str = "",
    user: str = "ada",
    command: str | None = None,
    kind_varies: bool = False,
) -> OpenTask:
    spec = TaskSpec(
        TEAM,
        Resources(gpus=2),
        name=name,
        user=user,
        task_class=TaskClass.ONLINE if online else TaskClass.BATCH,
        priority=priority,
        estimate=estimate,
        timeout_seconds=timeout_seconds,
        remaining_time_levels=remaining_time_levels,
        run_level=run_level,
        preemption=preemption,
        unpredictable=unpredictable,
        command=command,
        kind_varies=kind_varies,
    )
    made = OpenTask(TaskId(1), spec, TenantUsage(Tenant(TEAM), 0.0), since)
    made.served_seconds, made.gpu_seconds = served_seconds, gpu_seconds
    return made


def running(since: float, **more: object) -> OpenTask:
    made = waiting(since, **more)  # type: ignore[arg-type]
    made.phase = Running(1, Placement((Slice(NodeId("n"), (0, 1)),)), since)
    return made


tasks = st.builds(
    waiting,
    st.floats(0, 1e6),
    priority=st.integers(0, 100),
    online=st.booleans(),
    estimate=st.one_of(st.none(), st.floats(1, 1e5).map(about)),
    served_seconds=st.floats(0, 1e5),
    gpu_seconds=st.floats(0, 1e5),
    timeout_seconds=st.one_of(st.none(), st.floats(1, 1e5)),
    preemption=st.sampled_from((Preemption.CHECKPOINT, Preemption.REQUEUE)),
    unpredictable=st.booleans(),
    name=st.sampled_from(("", "sweep", "sweep-2")),
    kind_varies=st.booleans(),
    remaining_time_levels=st.sampled_from(((), (2, 1), (0, 1, 2))),
)


def key(policy: str, one: OpenTask, now: float = 0.0) -> float:
    return POLICIES[policy].key(one, now, SETTINGS)


def outranks(policy: str, one: OpenTask, other: OpenTask, now: float) -> bool:
    rank, margin = POLICIES[policy].rank, POLICIES[policy].margin
    assert rank is not None
    return rank(other, now, SETTINGS) > rank(one, now, SETTINGS) + margin


def tenant_key(book: TenantUsage, now: float) -> float:
    ask = POLICIES["fair_share"].tenant_key
    assert ask is not None
    return ask(book, now, SETTINGS)


# --- what all of them promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(one=tasks, suspended=st.booleans(), times=st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)))
def test_a_sort_key_does_not_depend_on_the_current_time_while_the_task_waits(
    policy: str, one: OpenTask, suspended: bool, times: tuple[float, float]
) -> None:
    if suspended:
        one.phase = Suspended(1, Placement((Slice(NodeId("n"), (0, 1)),)), 5.0, by_user=False)
    assert key(policy, one, times[0]) == key(policy, one, times[1])


@pytest.mark.parametrize("policy", sorted(name for name, policy in POLICIES.items() if policy.rank))
@given(one=tasks, other=tasks, now=st.floats(0, 1e7))
def test_no_two_tasks_may_preempt_each_other(policy: str, one: OpenTask, other: OpenTask, now: float) -> None:
    assert not (outranks(policy, one, other, now) and outranks(policy, other, one, now))


@pytest.mark.parametrize("policy", sorted(name for name, policy in POLICIES.items() if policy.rank))
@given(one=tasks, other=tasks, now=st.floats(0, 1e7))
def test_a_victim_may_not_stop_the_task_that_it_was_stopped_for(
    policy: str, one: OpenTask, other: OpenTask, now: float
) -> None:
    place, asked = Running(1, Placement((Slice(NodeId("n"), (0, 1)),)), now), one.phase
    other.phase = place
    if outranks(policy, one, other, now):
        one.phase, other.phase = place, asked
        assert not outranks(policy, other, one, now)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_name_in_the_table_is_the_name_of_the_policy(policy: str) -> None:
    assert POLICIES[policy].name == policy


# --- fifo, priority ---------------------------------------------------------------------------------------------------


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_fifo_is_the_order_of_submission_regardless_of_priority(early: float, late: float) -> None:
    assert (key("fifo", waiting(early, priority=0)) < key("fifo", waiting(late, priority=100, online=True))) == (
        early < late
    )


def test_priority_orders_by_class_then_priority_then_submission() -> None:
    order = [waiting(9.0, priority=0, online=True), waiting(9.0, priority=90), waiting(8.0), waiting(9.0)]
    keys = [key("priority", one) for one in order]
    assert keys == sorted(keys)
    assert len(set(keys)) == 4


def test_waiting_compensates_for_every_point_of_priority() -> None:
    humble = waiting(0.0, priority=0)
    wait = 200 * SETTINGS.aging_seconds
    assert key("priority", humble) > key("priority", waiting(wait - 1.0, priority=100, online=True))
    assert key("priority", humble) < key("priority", waiting(wait + 1.0, priority=100, online=True))


def test_aging_gives_no_right_to_preempt() -> None:
    assert not outranks("priority", waiting(0.0, priority=50), running(1e9, priority=50), 2e9)
    assert outranks("priority", waiting(1e9, priority=51), running(0.0, priority=50), 1e9)
    assert outranks("priority", waiting(0.0, priority=0, online=True), running(0.0, priority=99), 1e9)


# --- fair share -------------------------------------------------------------------------------------------------------


def book(used: int = 0, usage: float = 0.0, weight: float = 1.0) -> TenantUsage:
    made = TenantUsage(Tenant(TEAM, weight=weight), 0.0)
    made.used, made.decayed_gpu_seconds = used, usage
    return made


def test_the_tenant_with_the_least_usage_for_its_weight_goes_first() -> None:
    assert tenant_key(book(usage=100.0), 0.0) < tenant_key(book(usage=200.0), 0.0)
    assert tenant_key(book(usage=200.0, weight=4.0), 0.0) < tenant_key(book(usage=100.0), 0.0)


def test_gpus_held_now_count_as_an_hour_of_usage() -> None:
    assert tenant_key(book(used=1000), 0.0) == tenant_key(book(usage=3600.0), 0.0)
    assert tenant_key(book(used=1000), 60.0) > tenant_key(book(used=1000), 0.0)


def test_usage_decays_by_half_in_a_half_life() -> None:
    of_today = book(usage=50.0)
    of_today.since = SETTINGS.fair_share_half_life_seconds
    assert tenant_key(book(usage=100.0), 0.0) == pytest.approx(tenant_key(of_today, 0.0))


@given(usage=st.floats(0, 1e12), weight=st.floats(0.001, 1000), times=st.tuples(st.floats(0, 1e10), st.floats(0, 1e10)))
def test_time_alone_never_moves_an_idle_tenant(usage: float, weight: float, times: tuple[float, float]) -> None:
    idle = book(usage=usage, weight=weight)
    assert tenant_key(idle, times[0]) == tenant_key(idle, times[1])


@given(usage=st.floats(0, 1e12), used=st.integers(1, 10**6), times=st.tuples(st.floats(0, 1e10), st.floats(0, 1e10)))
def test_time_moves_a_tenant_that_uses_gpus_only_backwards(usage: float, used: int, times: tuple[float, float]) -> None:
    busy = book(used=used, usage=usage)
    earlier, later = sorted(times)
    assert tenant_key(busy, earlier) <= tenant_key(busy, later) + 1e-9


def test_an_empty_cluster_is_distributed_evenly_in_one_pass() -> None:
    cluster = ClusterStory(policy="fair_share")
    cluster.is_split(online=0.0)
    cluster.submits(*(task(f"{tenant}-{place}", tenant=tenant) for tenant in "abc" for place in range(6)))
    cluster.has_nodes(1, gpus_each=6)
    assert sorted(name[0] for name in cluster.running()) == ["a", "a", "b", "b", "c", "c"]


# --- by length --------------------------------------------------------------------------------------------------------


def test_qssf_puts_the_least_run_time_times_gpus_first_and_unknown_run_times_last() -> None:
    wide, narrow, shared = (waiting(0.0, estimate=about(seconds)) for seconds in (10.0, 25.0, 60.0))
    wide.spec = replace(wide.spec, resources=Resources(gpus=4, nodes=2))
    narrow.spec = replace(narrow.spec, resources=Resources(gpus=2))
    shared.spec = replace(shared.spec, resources=Resources(share=Share(500)))
    assert [key("qssf", one) for one in (shared, narrow, wide)] == [30.0, 50.0, 80.0]
    assert key("qssf", wide) < key("qssf", waiting(0.0)) == UNKNOWN


def test_sjf_puts_the_shortest_first_and_unknown_run_times_last() -> None:
    assert key("sjf", waiting(9.0, estimate=about(10.0))) < key("sjf", waiting(0.0, estimate=about(11.0)))
    assert key("sjf", waiting(0.0, estimate=about(1e9))) < key("sjf", waiting(0.0)) == UNKNOWN


def test_srtf_counts_the_remaining_time_and_not_the_past() -> None:
    nearly = waiting(0.0, estimate=about(1000.0), served_seconds=990.0)
    assert key("srtf", nearly) == 10.0
    assert key("srtf", nearly) < key("srtf", waiting(0.0, estimate=about(100.0)))


def test_srtf_preempts_only_tasks_with_more_than_twice_the_remaining_time() -> None:
    ours = waiting(0.0, estimate=about(100.0))
    assert outranks("srtf", ours, running(0.0, estimate=about(300.0)), 50.0)
    assert not outranks("srtf", ours, running(0.0, estimate=about(300.0)), 100.0)
    assert outranks("srtf", ours, running(0.0), 50.0)
    assert not outranks("srtf", waiting(0.0), running(0.0), 50.0)


# --- dqn --------------------------------------------------------------------------------------------------------------


def test_dqn_orders_the_queue_like_srtf() -> None:
    nearly = waiting(0.0, estimate=about(1000.0), served_seconds=990.0)
    assert key("dqn", nearly) == key("srtf", nearly) == 10.0
    assert key("dqn", waiting(0.0, estimate=about(100.0), timeout_seconds=50.0)) == 50.0
    assert key("dqn", waiting(0.0)) == UNKNOWN


def test_dqn_preempts_only_tasks_on_a_higher_step_of_sixteen_by_gpu_seconds() -> None:
    ours = waiting(0.0, estimate=about(100.0))
    assert outranks("dqn", ours, running(0.0, estimate=about(129.0)), 0.0), "two GPUs: 258 GPU-seconds"
    assert not outranks("dqn", ours, running(0.0, estimate=about(127.0)), 0.0)
    assert outranks("dqn", ours, running(0.0, estimate=about(129.0)), 120.0), "a step never falls"


def test_under_dqn_a_task_moves_back_by_its_past_run_time_even_without_an_estimate() -> None:
    ours = waiting(0.0, estimate=about(100.0))
    for long in (running(0.0), running(0.0, estimate=about(60.0))):
        assert not outranks("dqn", ours, long, 127.0)
        assert outranks("dqn", ours, long, 129.0)


@given(st.floats(0, 1e9), st.floats(0, 1e7), st.sampled_from([None, 5.0, 300.0, 1e6]))
def test_dqn_says_exactly_when_a_running_task_reaches_the_next_step(
    since: float, gpu_seconds: float, estimate: float | None
) -> None:
    policy = POLICIES["dqn"]
    one = running(since, gpu_seconds=gpu_seconds, estimate=about(estimate) if estimate else None)
    assert policy.rank is not None
    assert policy.changes_at is not None
    before, changes_at = policy.rank(one, since, SETTINGS), policy.changes_at(one, since, SETTINGS)
    assert changes_at is not None
    assert policy.rank(one, changes_at, SETTINGS) == before + 1
    if changes_at - 0.1 > since:
        assert policy.rank(one, changes_at - 0.1, SETTINGS) == before


def test_dqn_gives_no_instant_for_a_task_that_does_not_run() -> None:
    policy = POLICIES["dqn"]
    assert policy.changes_at is not None
    assert policy.changes_at(waiting(0.0), 0.0, SETTINGS) is None


def test_under_dqn_a_task_beyond_its_estimate_remains_as_long_as_it_has_run() -> None:
    late = running(0.0, estimate=about(100.0))
    assert key("dqn", late, 99.0) == 1.0
    assert key("dqn", late, 1000.0) == 1000.0
    assert key("dqn", running(0.0, estimate=about(100.0), timeout_seconds=1200.0), 1000.0) == 200.0


# --- tiresias ---------------------------------------------------------------------------------------------------------


def test_tiresias_preempts_the_second_queue_for_the_first_and_no_other() -> None:
    fresh, old = waiting(5.0), waiting(0.0, gpu_seconds=4000.0)
    young, fallen = running(0.0), running(0.0, gpu_seconds=4000.0)
    rights = [outranks("tiresias", one, other, 0.0) for one in (fresh, old) for other in (young, fallen)]
    assert rights == [False, True, False, False]
    assert key("tiresias", fresh) < key("tiresias", old)
    assert key("tiresias", waiting(1.0)) < key("tiresias", fresh)


@given(st.floats(0, 1e9), st.floats(0, 3599.0))
def test_tiresias_knows_exactly_when_a_running_task_is_demoted(since: float, gpu_seconds: float) -> None:
    policy, fresh = POLICIES["tiresias"], waiting(0.0)
    one = running(since, gpu_seconds=gpu_seconds)
    assert policy.changes_at is not None
    falls_at = policy.changes_at(one, since, SETTINGS)
    assert falls_at is not None
    assert outranks("tiresias", fresh, one, falls_at)
    assert not outranks("tiresias", fresh, one, falls_at - 0.1)
    assert policy.changes_at(one, falls_at, SETTINGS) is None


def test_tiresias_ignores_tasks_that_do_not_run() -> None:
    policy = POLICIES["tiresias"]
    assert policy.changes_at is not None
    one = waiting(0.0)
    assert isinstance(one.phase, Waiting)
    assert policy.changes_at(one, 0.0, SETTINGS) is None


# --- default ----------------------------------------------------------------------------------------------------------

WEEK = SETTINGS.level_seconds


def test_by_default_tasks_that_will_end_soon_go_first_and_preempt_the_rest() -> None:
    fresh, old = waiting(5.0), waiting(0.0, served_seconds=700.0)
    young, hour, day = (running(1.0, served_seconds=served) for served in (100.0, 3600.0, 86400.0))
    rights = [outranks("default", one, other, 1.0) for one in (fresh, old) for other in (young, hour, day)]
    assert rights == [False, True, True, False, True, True]
    assert key("default", waiting(9.0)) < key("default", old)
    assert key("default", fresh) < key("default", waiting(9.0))


def test_by_default_an_earlier_task_takes_its_gpus_back_from_a_later_one_of_its_level() -> None:
    early, late = waiting(5.0), running(7.0)
    assert outranks("default", early, late, 8.0)
    assert not outranks("default", waiting(9.0), late, 9.0)


def test_by_default_the_expected_remaining_time_decides_and_not_the_past_run_time() -> None:
    soon_over = waiting(9.0, remaining_time_levels=(3, 3, 0), served_seconds=40.0)
    assert key("default", soon_over) < key("default", waiting(9.0, remaining_time_levels=(3, 3, 0)))
    assert key("default", soon_over) == key("default", waiting(9.0))
    assert (
        key("default", waiting(9.0, remaining_time_levels=(3, 1), served_seconds=1e6))
        == key("default", waiting(9.0)) + WEEK
    )


def test_by_default_ten_points_count_as_a_level_and_a_level_as_a_week() -> None:
    base = key("default", waiting(9.0, priority=50))
    assert key("default", waiting(9.0, priority=60)) == base - WEEK
    assert key("default", waiting(9.0, priority=50, online=True)) == base - 10 * WEEK
    assert key("default", waiting(9.0, priority=50, served_seconds=700.0)) == base + WEEK


def test_by_default_a_task_that_would_start_over_is_preempted_only_for_a_level_more() -> None:
    loses_all = running(7.0, preemption=Preemption.REQUEUE, served_seconds=86400.0)
    assert not outranks("default", waiting(5.0), loses_all, 8.0)
    assert not outranks("default", waiting(9.0, priority=60), loses_all, 9.0)
    assert outranks("default", waiting(9.0, priority=61), loses_all, 9.0)


def test_by_default_a_task_of_unpredictable_length_is_not_stopped_for_the_order_within_a_level() -> None:
    late, other = running(7.0, unpredictable=True), running(7.0)
    assert not outranks("default", waiting(5.0), late, 8.0)
    assert outranks("default", waiting(5.0), other, 8.0)
    assert outranks("default", waiting(5.0, unpredictable=True), other, 8.0), "the victim decides, not the waiting task"


def test_by_default_a_task_of_unpredictable_length_is_stopped_for_one_that_is_more_than_a_level_ahead() -> None:
    minutes, hour = (running(7.0, unpredictable=True, served_seconds=served) for served in (700.0, 3600.0))
    assert not outranks("default", waiting(8.0), minutes, 8.0)
    assert outranks("default", waiting(8.0), hour, 8.0)
    assert outranks("default", waiting(8.0, priority=60), minutes, 8.0)
    assert outranks("default", waiting(6.0), running(6.1 + WEEK, unpredictable=True), 8.0 + WEEK), "waiting counts"


def test_by_default_a_task_of_which_nothing_is_known_is_stopped_only_for_one_that_is_known_to_end_soon() -> None:
    late = running(7.0, remaining_time_levels=UNKNOWN_LEVELS, served_seconds=40_000.0)
    assert not outranks("default", waiting(5.0, remaining_time_levels=UNKNOWN_LEVELS), late, 8.0), (
        "nor is it known of the other"
    )
    assert not outranks("default", waiting(8.0, remaining_time_levels=(1,)), late, 8.0)
    assert outranks("default", waiting(8.0, remaining_time_levels=(0,)), late, 8.0)


def test_by_default_a_named_task_that_comes_closer_to_its_end_is_stopped_only_for_one_more_than_a_level_ahead() -> None:
    falls, rises = (2, 2, 1), (2, 2, 3)
    sweep = running(7.0, name="sweep", remaining_time_levels=falls)
    assert not outranks("default", waiting(5.0, remaining_time_levels=(2,)), sweep, 8.0)
    assert not outranks("default", waiting(9.0, remaining_time_levels=(1,)), sweep, 9.0)
    assert outranks("default", waiting(9.0, remaining_time_levels=(0,)), sweep, 9.0)
    for other in (
        running(7.0, name="sweep", remaining_time_levels=rises),
        running(7.0, remaining_time_levels=falls),
        running(7.0, name="new"),
    ):
        assert outranks("default", waiting(5.0, remaining_time_levels=other.spec.remaining_time_levels), other, 8.0)


def test_by_default_a_task_is_spared_from_others_of_its_user_with_its_name() -> None:
    spares = POLICIES["default"].spares
    assert spares is not None
    sweep = running(7.0, name="sweep")
    assert spares(waiting(5.0, name="sweep"), sweep)
    assert spares(waiting(5.0, name="sweep", priority=40), sweep)
    assert not spares(waiting(5.0, name="sweep", priority=51), sweep), "its user wants it first"
    assert not spares(waiting(5.0, name="sweep", online=True), sweep)
    assert not spares(waiting(5.0, name="sweep", user="bob"), sweep)
    assert not spares(waiting(5.0, name="other"), sweep)
    assert not spares(waiting(5.0), running(7.0)), "tasks without a name are not known to be alike"
    assert not spares(waiting(5.0, name="sweep", user=""), running(7.0, name="sweep", user=""))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "train-lr0.1-seed3"}, {"name": "train-lr0.01-seed12"}),
        ({"command": "python train.py --seed 3"}, {"command": "python train.py --seed 4"}),
    ],
)
def test_by_default_tasks_of_one_kind_are_treated_as_if_they_had_one_name(
    one: dict[str, str], other: dict[str, str]
) -> None:
    spares, falls = POLICIES["default"].spares, (2, 2, 1)
    assert spares is not None
    assert spares(waiting(5.0, **one), running(7.0, **other))  # type: ignore[arg-type]
    assert not spares(waiting(5.0, user="bob", **one), running(7.0, **other))  # type: ignore[arg-type]
    holds = running(7.0, remaining_time_levels=falls, **other)
    assert not outranks("default", waiting(9.0, remaining_time_levels=(1,)), holds, 9.0)


def test_by_default_a_task_of_a_kind_that_is_known_to_vary_is_not_spared() -> None:
    spares = POLICIES["default"].spares
    assert spares is not None
    assert not spares(waiting(5.0, name="trial"), running(7.0, name="trial", kind_varies=True))
    assert not spares(waiting(5.0, name="trial", kind_varies=True), running(7.0, name="trial"))


outlooks = st.lists(st.integers(0, 4), max_size=AGES).map(tuple)


@given(st.floats(0, 1e9), st.floats(0, 1e7), outlooks)
def test_by_default_the_change_of_a_running_task_is_known_exactly(
    since: float, served: float, remaining_time_levels: RemainingTimeLevels
) -> None:
    policy = POLICIES["default"]
    one = running(since, served_seconds=served, remaining_time_levels=remaining_time_levels)
    assert policy.rank is not None
    assert policy.changes_at is not None
    before = policy.rank(one, since, SETTINGS)
    changes_at = policy.changes_at(one, since, SETTINGS)
    if changes_at is None:
        assert policy.rank(one, since + 1e8, SETTINGS) == before
        return
    assert policy.rank(one, changes_at, SETTINGS) != before
    if changes_at - 0.1 > since:
        assert policy.rank(one, changes_at - 0.1, SETTINGS) == before


# --- small_first ------------------------------------------------------------------------------------------------------


def test_small_first_puts_smaller_tasks_before_earlier_larger_ones() -> None:
    cluster = ClusterStory(policy="small_first")
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("now", gpus=4))
    cluster.submits(task("large", gpus=4))
    cluster.passes(60)
    cluster.submits(task("small", gpus=1), share("share", fraction=0.5))
    cluster.finishes("now")
    assert sorted(cluster.running()) == ["share", "small"]


def test_under_small_first_an_hour_of_waiting_compensates_for_each_gpu() -> None:
    cluster = ClusterStory(policy="small_first")
    cluster.is_split(online=0.0)
    cluster.has_nodes(1, gpus_each=4)
    cluster.submits(task("now", gpus=4))
    cluster.submits(task("large", gpus=4))
    cluster.passes(3 * 3600 + 1)
    cluster.submits(task("small", gpus=1))
    cluster.finishes("now")
    assert cluster.running() == ["large"]


def test_default_orders_tasks_that_run_to_their_end_by_the_level_of_their_run_time() -> None:
    policy, never = POLICIES["default"], Preemption.NEVER
    short = waiting(since=100.0, remaining_time_levels=(0, 4), run_level=0, preemption=never)
    long = waiting(since=0.0, remaining_time_levels=(0, 4), run_level=4, preemption=never)
    assert policy.key(short, 200.0, SETTINGS) < policy.key(long, 200.0, SETTINGS)
    assert policy.rank is not None
    assert policy.rank(long, 200.0, SETTINGS) == policy.key(long, 200.0, SETTINGS)
