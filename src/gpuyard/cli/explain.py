"""`gpuyard explain`: why a task waits, what is ahead of it, and when it is likely to start."""

from typing import TYPE_CHECKING

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_selection import TaskArgument, task_named
from gpuyard.cli.output.progress import NO_NODES
from gpuyard.cli.shell.messages import localized

if TYPE_CHECKING:
    from gpuyard.live.wire.answers import ExplainAnswer

SAYS_ALL = frozenset({"OnHold", "WaitingForTasks"})
"""Reasons that name what the task waits for, and whose end is unknown."""
IN_THE_WAY = frozenset({"NoRoom", "NoCpuRoom", "GangIncomplete", "ReservedFor", "RunLimitReached"})
"""Reasons that end when other tasks end."""
NOT_BY_ESTIMATES = frozenset({"BackingOff", "BudgetSpent", "WaitingForMoves", "WaitingForVictims"})
"""Reasons whose end is known and does not depend on other tasks."""
NOWHERE = (
    "No current node is large enough. The task starts when a suitable node joins; otherwise cancel it and request less."
)
NEXT_STEPS = {
    "UnknownGpuModel": "The task starts when a node with such a GPU joins; otherwise cancel it and request another model.",
    "NoNodeWithLabels": "The task starts when a node with these labels joins; otherwise cancel it and request other labels.",
    "GangLargerThanCluster": "The task starts when enough nodes have joined; otherwise cancel it and request fewer nodes.",
    "ClassQuotaTooSmall": "",
    "TenantQuotaTooSmall": "",
    "NoSystemUser": "",
    NO_NODES: "",
}
"""What to do about reasons other than size; empty if the reason says it."""
ENDED = {"success": "has succeeded", "failed": "has failed", "timeout": "has timed out", "cancelled": "was cancelled"}
CANCELLED = "It was cancelled."
"""A reason that only repeats the status."""
NEITHER = " has neither an estimate (--estimate) nor a timeout (--timeout)"
BACKFILL = "Smaller tasks may start earlier, on GPUs that are too few for it (backfill)."
CLOSED = ": no open node could hold it"
MOST_AHEAD = 200
"""With more tasks ahead of it than this, the start of a task is estimated from the throughput of its GPUs only."""
MOST_ESTIMATED = 10_000
"""The scheduler estimates no start for a task with more tasks ahead of it than this."""
LEAST_KIND_RUNS = 10
"""Fewer ended tasks of its user, size and kind say little about a task."""


def explain(
    task_id: TaskArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Explain why a task waits, how many tasks are ahead of it, and when it is likely to start; or why it has failed."""
    cluster = client(server, token)
    task_id = task_named(cluster, task_id)
    told = cluster.explain(task_id)
    if not as_json:
        lines = [localized(line) for line in explanation_lines(told)]
        if told.status in {"failed", "timeout"} and told.nodes:
            from gpuyard.cli.output.last_lines import last_lines

            lines += last_lines(cluster, task_id, task_id)
        typer.echo("\n".join(lines))
        return
    from gpuyard.cli.output.printing import print_answer

    print_answer(cluster)


def explanation_lines(told: "ExplainAnswer") -> list[str]:
    """Return the explanation as sentences."""
    reason = "" if told.reason == CANCELLED else told.reason or ""
    words = [f"{told.task_id} {ENDED.get(told.status, f'is {told.status}')}. {reason}".rstrip()]
    if told.status not in {"pending", "running"}:
        return words
    if told.status == "running":
        return [*words, *([f"Its GPUs are on {' and '.join(told.nodes)}."] if told.nodes else []), *_how_long(told)]
    if told.reason_code in SAYS_ALL:
        return [*words, *_how_long(told)]
    if fits_nowhere(told):
        step = next_step(told)
        return [*words, step] if step else words
    return [
        *words,
        _ahead(told.ahead, more=told.more_ahead),
        *([BACKFILL] if told.may_be_overtaken else []),
        _when(told),
        *_how_long(told),
        *_where_its_model_ran(told),
    ]


def _where_its_model_ran(told: "ExplainAnswer") -> list[str]:
    nodes = " and ".join(told.model_ran_on)
    return (
        [(f"Its model was last loaded on {nodes}: among equally good placements the scheduler prefers these nodes.")]
        if nodes
        else []
    )


def _how_long(told: "ExplainAnswer") -> list[str]:
    """Return the predicted run time, unless the user has given one."""
    from gpuyard.cli.output.printing import format_seconds

    if told.forecasts:
        return _by_its_work(told)
    if not told.predicted_from:
        return []
    spans = (told.estimated_seconds, told.estimated_low_seconds, told.estimated_high_seconds)
    likely, low, high = map(format_seconds, spans)
    said = f"run time: {likely}, between {low} and {high}, from the last {told.predicted_from} similar tasks"
    if told.predicted_from_other_work:
        few = f"fewer than {LEAST_KIND_RUNS} of its user, size and kind had ended when it was submitted"
        return [f"Guessed {said}: {few}."]
    return [f"Predicted {said}."]


def _by_its_work(told: "ExplainAnswer") -> list[str]:
    """Return the predictions from the declared work, the fastest GPU first."""
    from gpuyard.cli.output.printing import format_seconds

    words = []
    ranked = sorted(told.forecasts, key=lambda one: one.seconds)
    if told.estimated_seconds is not None:
        spans = (told.estimated_seconds, told.estimated_low_seconds, told.estimated_high_seconds)
        likely, low, high = map(format_seconds, spans)
        runs = f", corrected by {told.predicted_from} measured runs of its kind" if told.predicted_from else ""
        words.append(
            f"Predicted run time from its workload: {likely} on {ranked[0].gpu_model}, between {low} and {high}{runs}."
        )
    if len(ranked) > 1:
        others = ", ".join(
            f"{ranked[0].seconds / one.seconds:.2g} times as fast on {one.gpu_model}" for one in ranked[1:]
        )
        words.append(f"It is fastest on {ranked[0].gpu_model}; {others}.")
    if ranked[0].memory_mib is not None:
        words.append(f"Predicted memory: {ranked[0].memory_mib:,.0f} MiB on each GPU.")
    return words


def fits_nowhere(told: "ExplainAnswer") -> bool:
    """Whether no current node could hold the task, even if it were empty."""
    from gpuyard.core.domain.refusals import REFUSALS, Never

    return told.reason_code in {kind.__name__ for kind in REFUSALS if issubclass(kind, Never)}


def next_step(told: "ExplainAnswer") -> str:
    """What lets a task start that fits nowhere; empty if its reason says it."""
    return NEXT_STEPS.get(told.reason_code or "", NOWHERE)


def _ahead(count: int, *, more: bool) -> str:
    if more:
        return f"More than {count:,} tasks are ahead of it."
    return f"{count or 'No'} {('task is' if count < 2 else 'tasks are')} ahead of it."


def _when(told: "ExplainAnswer") -> str:
    """Return when the task is likely to start, and what the estimate is based on."""
    from gpuyard.cli.output.printing import format_instant

    if told.starts_at is None:
        return f"Its start cannot be estimated{_why_unknown(told)}."
    likely, low, high = map(format_instant, (told.starts_at, told.starts_low, told.starts_high))
    where = f" on {' and '.join(told.nodes)}" if told.nodes else ""
    between = f"between {low} and {high}"
    if told.ahead > MOST_AHEAD:
        span = f" {between}" if low != high else f" at about {likely}"
        return (
            f"Rough estimate: it starts{span}, from the run times of the {told.ahead:,} tasks ahead of it "
            "and the number of suitable GPUs."
        )
    if told.guessed and low != high and told.reason_code not in NOT_BY_ESTIMATES:
        uncertain = "running tasks and of those ahead of it" if told.ahead else "running tasks"
        return f"Rough estimate: it starts{where} {between}. The run times of {uncertain} are uncertain."
    start = f"starts{where} at {likely}{f', {between}' if low != high else ''}."
    return (
        f"It {start}"
        if told.reason_code in NOT_BY_ESTIMATES
        else f"By the estimates of running and waiting tasks, it {start}"
    )


def _why_unknown(told: "ExplainAnswer") -> str:
    if told.reason_code == "NodesClosed":
        return CLOSED
    if told.more_ahead:
        return f": more than {MOST_ESTIMATED:,} tasks are ahead of it"
    if told.reason_code not in IN_THE_WAY:
        return ""
    return f": a running task{' or one ahead of it' if told.ahead else ''}{NEITHER}"
