"""Validate requests without looking at the state of the cluster: one place for all interfaces."""

from collections.abc import Container, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from math import isfinite

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.remaining_time import AGES, LAST_LEVEL, LAST_RUN_LEVEL
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, NewTask, Resources, TaskRange, TaskSpec
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import MILLI, TaskId

MOST_GPUS = 4096
"""The maximum in one node."""
MOST_NODES = 100_000
MOST_CPUS = 1_000_000
MOST_MIB = 1 << 40
MOST_RETRIES = 1_000_000
MOST_TASKS = 1 << 53
LEAST_SPEED, MOST_SPEED = 1e-6, 1e6
MOST_SEARCHED = 100_000
"""The maximum number of nodes or tasks that one decision may examine."""
MOST_REMEMBERED = 10_000_000
MOST_SECONDS = 10**12
"""About thirty thousand years. A value beyond these limits is a mistake, and would cost memory or lose precision."""
MOST_OF = {"reservations": MOST_SEARCHED, "search_depth": MOST_SEARCHED}
ABOVE_ZERO = (
    "reservations",
    "search_depth",
    "aging_seconds",
    "level_seconds",
    "fair_share_half_life_seconds",
    "longest_booking_seconds",
    "book_ahead_seconds",
)
"""Settings that cannot be zero."""


def check_spec(spec: TaskSpec) -> no.Invalid | None:
    """Return the first error in a task, or None."""
    return next(_wrong_with_spec(spec), None)


def _wrong_with_spec(spec: TaskSpec) -> Iterator[no.Invalid]:
    if not spec.tenant:
        yield no.EmptyName("tenant")
    if wrong := check_resources(spec.resources):
        yield wrong
    if not 0 <= spec.priority <= 100:
        yield no.PriorityOutOfRange(spec.priority)
    if spec.command is not None and not (spec.command.strip() if isinstance(spec.command, str) else any(spec.command)):
        yield no.EmptyCommand()
    if wrong := check_count("retries", spec.retries, MOST_RETRIES):
        yield wrong
    if spec.array_index is not None and (wrong := check_count("array_index", spec.array_index, MOST_TASKS)):
        yield wrong
    for field, seconds in (("timeout_seconds", spec.timeout_seconds), ("grace_seconds", spec.grace_seconds)):
        if seconds is not None:
            if not isfinite(seconds):
                yield no.NotFinite(field)
            elif seconds <= 0:
                yield no.NotPositive(field, seconds)
    if spec.deadline is not None and not isfinite(spec.deadline):
        yield no.NotFinite("deadline")
    if spec.remaining_time_levels and (
        len(spec.remaining_time_levels) > AGES
        or not all(0 <= level <= LAST_LEVEL for level in spec.remaining_time_levels)
    ):
        yield no.WrongRemainingTimeLevels(AGES, LAST_LEVEL)
    if spec.run_level is not None and not 0 <= spec.run_level <= LAST_RUN_LEVEL:
        yield no.WrongRunLevel(LAST_RUN_LEVEL)
    if spec.estimate and (wrong := check_estimate(spec.estimate)):
        yield wrong


def check_count(field: str, value: float, most: int) -> no.Invalid | None:
    """Check that a count is between 0 and `most`; return the error, or None."""
    if value < 0:
        return no.NegativeCount(field, value)
    return no.TooLarge(field, value, most) if value > most else None


def check_resources(ask: Resources) -> no.Invalid | None:
    """Return the first error in the resources that a task requests, or None."""
    if ask.nodes < 1:
        return no.NoNodes(ask.nodes)
    for field, value, most in (
        ("gpus", ask.gpus, MOST_GPUS),
        ("cpus", ask.cpus, MOST_CPUS),
        ("memory_mib", ask.memory_mib, MOST_MIB),
        ("gpu_memory_mib", ask.gpu_memory_mib, MOST_MIB),
        ("nodes", ask.nodes, MOST_NODES),
    ):
        if not 0 <= value <= most:
            return check_count(field, value, most)
    if ask.share is not None:
        return _check_share(ask)
    if ask.gpus == 0:
        if ask.whole_nodes:
            return no.WholeNodesWithoutGpus()
        if ask.cpus == 0:
            return no.NothingAsked()
    return _check_names(ask)


def _check_share(ask: Resources) -> no.Invalid | None:
    share = ask.share
    assert share is not None
    if ask.gpus:
        return no.ShareWithGpus(ask.gpus)
    if ask.nodes > 1 or ask.whole_nodes:
        return no.ShareOfGang(ask.nodes)
    if wrong := check_count("share.memory_mib", share.memory_mib, MOST_MIB):
        return wrong
    if not 0 <= share.fraction_milli <= MILLI:
        return no.ShareOutOfRange(share.fraction_milli)
    if not share.fraction_milli and not share.memory_mib:
        return no.EmptyShare()
    return _check_names(ask)


def _check_names(ask: Resources) -> no.Invalid | None:
    if ask.models and not all(ask.models):
        return no.EmptyName("models")
    if ask.labels:
        seen = set()
        for key, _ in ask.labels:
            if not key:
                return no.EmptyName("labels")
            if key in seen:
                return no.DuplicateLabel(key)
            seen.add(key)
    return _check_speeds(ask.speeds) if ask.speeds else None


def _check_speeds(speeds: tuple[tuple[str, float], ...]) -> no.Invalid | None:
    for place, (model, speed) in enumerate(speeds):
        if not model:
            return no.EmptyName("speeds")
        if not LEAST_SPEED <= speed <= MOST_SPEED:  # the comparison is false for NaN, too
            return no.SpeedOutOfRange(model, speed)
        if any(model == other for other, _ in speeds[:place]):
            return no.DuplicateSpeed(model)
    return None


def check_estimate(estimate: Estimate) -> no.Invalid | None:
    """Check that an estimate is finite and positive, and that its interval contains it; return the error, or None."""
    low, likely, high = estimate.low_seconds, estimate.seconds, estimate.high_seconds
    if not isfinite(low + likely + high):
        return no.NotFinite("estimate")
    if likely <= 0:
        return no.NotPositive("estimate.seconds", likely)
    return None if 0 <= low <= likely <= high else no.EstimateOutOfOrder(low, likely, high)


def check_tenant(tenant: Tenant) -> no.Invalid | None:
    """Return the first error in the limits of a tenant, or None."""
    if not tenant.id:
        return no.EmptyName("tenant")
    for field, value in (
        ("max_gpus", tenant.max_gpus),
        ("guaranteed_gpus", tenant.guaranteed_gpus),
        ("max_open_tasks", tenant.max_open_tasks),
        *tenant.max_gpus_by_model,
    ):
        if value is not None and (wrong := check_count(field, value, MOST_GPUS * MOST_NODES)):
            return wrong
    if tenant.max_gpus is not None and tenant.guaranteed_gpus is not None and tenant.guaranteed_gpus > tenant.max_gpus:
        return no.GuaranteeAboveMaximum(tenant.id, tenant.guaranteed_gpus, tenant.max_gpus)
    above_zero = [("weight", tenant.weight)]
    if tenant.budget:
        above_zero += [
            ("budget.gpu_hours", tenant.budget.gpu_hours),
            ("budget.period_seconds", tenant.budget.period_seconds),
        ]
    for field, number in above_zero:
        if not isfinite(number):
            return no.NotFinite(field)
        if number <= 0:
            return no.NotPositive(field, number)
    return None


def check_node(node: NodeSpec) -> no.Invalid | None:
    """Return the first error in the description of a node, or None."""
    if not node.id:
        return no.EmptyName("node")
    if wrong := (
        check_count("gpus", len(node.gpus), MOST_GPUS)
        or check_count("cpus", node.cpus, MOST_CPUS)
        or check_count("memory_mib", node.memory_mib, MOST_MIB)
    ):
        return wrong
    for gpu in node.gpus:
        if not gpu.model:
            return no.EmptyName("gpus.model")
        if wrong := check_count(gpu.model, gpu.memory_mib, MOST_MIB):
            return wrong
    return None


def check_settings(settings: Settings) -> no.Invalid | None:
    """Check that every number is finite, not negative, above zero if it must be, and below its limit."""
    for field in Settings.__struct_fields__:
        value = getattr(settings, field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not isfinite(value):
                return no.NotFinite(field)
            most = MOST_SECONDS if field.endswith("seconds") else MOST_OF.get(field, MOST_REMEMBERED)
            if wrong := check_count(field, value, most):
                return wrong
            if value == 0 and field in ABOVE_ZERO:
                return no.NotPositive(field, value)
    return None


def check_split(split: Split) -> no.Invalid | None:
    """Check that both parts are between 0 and 1 and that their sum is 1; return the error, or None."""
    for field, value in (("online_percent", split.online_percent), ("batch_percent", split.batch_percent)):
        if not 0 <= value <= 1:  # the comparison is false for NaN, too
            return no.PercentOutOfRange(field, value)
    if abs(split.online_percent + split.batch_percent - 1) > 1e-9:
        return no.SplitDoesNotSum(split.online_percent, split.batch_percent)
    return None


def check_dependencies(batch: Sequence[NewTask], known: Container[TaskId]) -> no.Invalid | None:
    """Check that every dependency is in the batch or already known, and that there is no cycle.

    A cycle can only be within one batch, because accepted tasks never depend on later ones. So cycles are searched for
    only if a task of the batch depends on its own or a higher number.
    """
    numbers = {new.id for new in batch}
    checked: set[TaskRange] = set()
    forward = False
    for new in batch:
        for first, last, _ in new.spec.prerequisites():
            if (first, last) not in checked:  # the tasks of a batch often share a range
                checked.add((first, last))
                for number in range(first, last + 1):
                    if number not in numbers and number not in known:
                        return no.UnknownDependency(new.id, TaskId(number))
            forward = forward or last >= new.id
    return _check_cycles(batch, checked) if forward else None


def _check_cycles(batch: Sequence[NewTask], ranges: Iterable[TaskRange]) -> no.Invalid | None:
    """Search for a cycle. A range of tasks is one graph node, so the graph grows linearly, not quadratically."""
    graph: dict[TaskId | TaskRange, Iterable[TaskId | TaskRange]] = {
        (first, last): [TaskId(number) for number in range(first, last + 1)] for first, last in ranges if first != last
    }
    for new in batch:
        graph[new.id] = {first if first == last else (first, last) for first, last, _ in new.spec.prerequisites()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[TaskId | TaskRange] = error.args[1]
        return no.DependencyCycle(tuple(dict.fromkeys(node for node in cycle if not isinstance(node, tuple))))
    return None
