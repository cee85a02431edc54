"""Paths of the API for what callers name."""

from urllib.parse import quote

from gpuyard.live.sdk.errors import NotFound
from gpuyard.live.sdk.values import TaskRef, created_at_of, id_of

EMPTY = "The name or id is empty; check whether a variable is not set."


def of_task(task: TaskRef) -> str:
    """Return the path of a task."""
    return f"/api/v1/tasks/{quoted(id_of(task))}"


def same(task: TaskRef) -> dict[str, object]:
    """Return the query that restricts a request to this task, and excludes another with the same number."""
    return {"created_at": created_at_of(task)}


def quoted(part: str) -> str:
    """Quote a name or id as part of a URL path; an empty one would result in a different URL."""
    if not part:
        raise NotFound(EMPTY, status=404, code="EmptyName")
    return quote(part, safe="")
