"""The request that submits a task again, made from the answer about it."""

from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from msgspec import to_builtins
from msgspec.structs import fields

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk.values import Task
from gpuyard.live.wire.tasks import STEPS_SECRET, TaskRequest

_REQUEST = frozenset(field.encode_name for field in fields(TaskRequest))
_NOT_REPEATED = frozenset({"depends_on", "after_any", "secrets", "gpu_count", "estimated_seconds"})


def request_again(task: Task, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request with these changes. Every field that request and answer have in common is copied."""
    if task.command is None and "command" not in changes:
        raise WrongInput(f"{task.id} is a lease, which runs no command; take another one with `gpuyard lease`.")
    if STEPS_SECRET in task.secrets:
        changes = {**changes, "secrets": {STEPS_SECRET: token_hex(32), **changes.get("secrets", {})}}
    missing = [name for name in task.secrets if name not in changes.get("secrets", {})]
    if missing:
        names = ", ".join(missing)
        message = f"{task.id} has secrets, which the scheduler does not return; give {names} again (--secret, secrets)."
        raise WrongInput(message)
    told: dict[str, Any] = to_builtins(task)
    body = {
        name: value
        for name, value in told.items()
        if name in _REQUEST - _NOT_REPEATED and value not in (None, "", 0, False) and value not in ([], {})
    }
    if task.predicted_from is None and task.estimated_seconds is not None:
        body["estimated_seconds"] = task.estimated_seconds
    if task.gpu_fraction is None and "gpu_fraction" not in changes:
        body["gpu_count"] = task.gpu_count
    elif task.gpu_fraction == 0:
        body["gpu_fraction"] = 0
    if task.array_index is not None:
        body["array"] = {"count": 1, "first": task.array_index}
    if "gpu_count" in changes:
        body.pop("gpu_fraction", None)
    if "class" in changes and isinstance(body.get("priority"), str):
        del body["priority"]
    if "priority" in changes and isinstance(changes["priority"], str):
        body.pop("class", None)
    env = {**body.get("env", {}), **changes.get("env", {})}
    secret = changes.get("secrets", {})
    env = {name: value for name, value in env.items() if name not in secret}
    return {**body, **changes, **({"env": env} if env else {})}
