"""Which tasks are one line of a list: those of an array, of a sweep, or of a group such as the calls of a map."""

from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import TaskId

MILLISECONDS = 1000


def fold_of(task: TaskId, spec: TaskSpec, submitted_at: float) -> str:
    """Return what the tasks of one line have in common, as text for the archive; empty: the task has its own line.

    A task with a group belongs to all tasks of its user with that group, whenever they were submitted. An array is
    recognized by consecutive numbers and indices, a sweep by names such as `tune[lr=1]`, each in one submission.
    """
    if spec.group:
        return f"group\n{spec.tenant}\n{spec.user}\n{spec.group}"
    if spec.array_index is not None:
        return f"array\n{task - spec.array_index}\n{submitted_at * MILLISECONDS:.0f}"
    base, bracket, rest = spec.name.partition("[")
    if bracket and rest.endswith("]") and "=" in rest:
        return f"sweep\n{spec.tenant}\n{spec.user}\n{base}\n{submitted_at * MILLISECONDS:.0f}"
    return ""
