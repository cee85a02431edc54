"""A Python function as a task: pickle it, submit it, read its result.

    function ─ pickled once ─┐                                    ┌─ value or exception ─► the caller
    arguments ─ in chunks ───┴─► blobs ─► task ─► call_runner ─► blob

The function and what it refers to in `__main__` and in modules of the work folder travel by value; other modules are
imported on the node, from the same interpreter and the same paths.
"""

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from numbers import Number
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.sdk.connection import Connection
from gpuyard.live.sdk.errors import (
    CallCancelled,
    CallFailed,
    CallKilled,
    CallLost,
    CallOutOfMemory,
    CallTimedOut,
    ClusterError,
    RemoteError,
    ResultUnreadable,
)
from gpuyard.live.sdk.paths import of_task, same
from gpuyard.live.sdk.steps import OnConnection, Steps
from gpuyard.live.sdk.uploads import download, name_of
from gpuyard.live.sdk.values import Task
from gpuyard.system import payloads
from gpuyard.system.call_runner import ARGUMENTS, CALL_RUNNER, FUNCTION

WARN_BYTES = 1 << 20
"""A pickled function above this size carries data; a warning names the largest part."""
MOST_BYTES = 256 << 20
MOST_IN_A_CHUNK = 256
"""Calls whose arguments are in one blob."""
CHUNK_BYTES = 4 << 20
LONGEST_VALUE_IN_NAME = 24
LONGEST_ARGUMENTS_IN_NAME = 80
LOG_LINES = 5
LOG_BYTES = 4096
_LOST = frozenset({"node_lost", "attempt_lost", "not_launched"})
_MEMORY = frozenset({"out_of_memory", "out_of_memory_on_largest"})
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_SECRET = re.compile(r"token|secret|passw|credential|(^|_)key$|apikey", re.IGNORECASE)
"""Names of arguments whose values are not shown."""
_UNREADABLE = re.compile(r"[^\x21-\x7e\u00a1-\ufffc]|[,;:)\]}&|\ud800-\udfff]")
"""What a value in a name must not have: it would end the value for the [kind](kind_name) of the task, or the line."""


class PackedFunction:
    """A function, pickled once for all its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise WrongInput(f"{function!r} cannot be called; pass a function.")
        content = _dumps(function, f"The function {name_of_function(function)}")
        if len(content) > WARN_BYTES:
            largest = _largest_part(function)
            message = (
                f"The pickled function {name_of_function(function)} takes {len(content) / 2**20:,.1f} MiB"
                f"{f'; its largest global is {largest}' if largest else ''}. Load the data in the function instead."
            )
            warnings.warn(message, stacklevel=4)
        _check_size(len(content), f"The function {name_of_function(function)}")
        self.name = name_of_function(function)[:100]
        self._signature = _signature_of(function)
        self.payload = payloads.pack(content, path=[path for path in sys.path if path])
        self.blob = name_of(self.payload)

    def name_of_call(self, call: Arguments) -> str:
        """Return the function with short arguments, such as `train[lr=0.1,steps=5]`, as tasks of a sweep are named."""
        args, kwargs = call
        given: Mapping[str, Any] = {str(place): value for place, value in enumerate(args)} | kwargs
        if self._signature is not None:
            with suppress(TypeError):  # arguments that do not fit: the call itself says so
                given = _flat(self._signature.bind(*args, **kwargs))
        inside = ",".join(f"{name}={_short(name, value)}" for name, value in given.items())
        if len(inside) > LONGEST_ARGUMENTS_IN_NAME:
            inside = f"{inside[: LONGEST_ARGUMENTS_IN_NAME - 1]}…"
        return f"{self.name}[{inside}]" if inside else self.name

    def fields(self, arguments: str, index: int, call: Arguments, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task of one call, the one with this index in a blob of arguments."""
        fields: dict[str, Any] = {
            "command": [sys.executable, "-m", CALL_RUNNER, str(index)],
            "files": {FUNCTION: self.blob, ARGUMENTS: arguments},
            "store_result": True,
            **{name: value for name, value in options.items() if value is not None},
        }
        fields["name"] = fields.get("name") or self.name_of_call(call)
        if "work_dir" not in fields and "snapshot" not in fields:
            fields["work_dir"] = Path.cwd()
        return fields


def packed_arguments(calls: Iterable[Arguments]) -> list[tuple[bytes, int]]:
    """Return the arguments of calls in chunks: payloads, and how many calls each has."""
    chunks: list[tuple[bytes, int]] = []
    parts, size = list[bytes](), 0
    for place, arguments in enumerate(calls):
        part = _dumps(arguments, f"The arguments of call {place}")
        _check_size(len(part), f"The arguments of call {place}")
        if parts and (len(parts) >= MOST_IN_A_CHUNK or size + len(part) > CHUNK_BYTES):
            chunks.append((payloads.pack_parts(parts), len(parts)))
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        chunks.append((payloads.pack_parts(parts), len(parts)))
    return chunks


def name_of_function(function: Callable[..., Any]) -> str:
    """Return a name for people."""
    inner = getattr(function, "func", function)  # of functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def _signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C have none
        return None


def _flat(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return arguments by name, those of `**more` beside the others."""
    given = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    return given


def _short(name: str, value: Any) -> str:
    """Return a value for a name: simple values as they are, others by their type. Names are seen by others."""
    if _SECRET.search(name):
        return "***"
    if isinstance(value, Number | str | os.PathLike) or value is None:
        try:
            text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        except (TypeError, ValueError):  # an integer may have too many digits for text
            text = type(value).__name__
        text = text if isinstance(text, str) else os.fsdecode(text)
    else:
        text = type(value).__name__
    text = _UNREADABLE.sub("_", text)
    return text if len(text) <= LONGEST_VALUE_IN_NAME else f"{text[: LONGEST_VALUE_IN_NAME - 1]}…"


def _dumps(value: Any, what: str) -> bytes:
    import cloudpickle

    try:
        with _by_value():
            content: bytes = cloudpickle.dumps(value)
    except Exception as error:  # whatever an object raises when it is pickled
        raise WrongInput(f"{what} cannot be pickled: {str(error)[:300]}.") from error
    return content


@contextmanager
def _by_value() -> Any:
    """Pickle the modules of the current folder by value, because they may not be importable on the node."""
    import cloudpickle

    here = f"{Path.cwd()}{os.sep}"
    registered = []
    for module in list(sys.modules.values()):
        if module.__name__ != "__main__" and _is_own(module, here):
            with suppress(ValueError, KeyError):
                if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.register_pickle_by_value(module)
                    registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType, here: str) -> bool:
    file = getattr(module, "__file__", None) or ""
    return file.startswith(here) and "site-packages" not in file and not module.__name__.startswith("gpuyard.")


def _largest_part(function: Callable[..., Any]) -> str:
    """Return the name of the largest global, default or variable of a closure; empty if none is found."""
    inner = getattr(function, "func", function)
    code, known = getattr(inner, "__code__", None), getattr(inner, "__globals__", {})
    parts = {name: known[name] for name in _names_in(code) if name in known} if code is not None else {}
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(inner, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # it is not set yet
            parts[name] = cell.cell_contents
    sizes: dict[str, int] = {}
    for name, value in parts.items():
        if not isinstance(value, ModuleType):
            with suppress(Exception):
                sizes[name] = len(_dumps(value, name))
    if not sizes:
        return ""
    largest = max(sizes, key=lambda name: sizes[name])
    return f"{largest} ({sizes[largest] / 2**20:,.1f} MiB)"


def _names_in(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _check_size(size: int, what: str) -> None:
    if size > MOST_BYTES:
        raise WrongInput(
            f"{what}, pickled, takes {size / 2**20:,.0f} MiB; the maximum is {MOST_BYTES >> 20} MiB. Write a file and pass its path."
        )


# --- results ----------------------------------------------------------------------------------------------------------


def outcome_of(task: Task) -> Steps[tuple[Any, Exception | None]]:
    """Return the value of a call that has ended, or the exception that it raised or ended by."""
    if task.result is None or task.status not in {TaskStatus.SUCCESS, TaskStatus.FAILED}:
        return None, (yield from _failure(task))
    content = yield from download(task.result, task.tenant_id)
    if sha256(content).hexdigest() != task.result:
        return None, ResultUnreadable(f"The result of {task.id} was changed on the way; ask for it again.", task)
    try:
        payload = payloads.read(content)
    except payloads.WrongPayload as error:
        return None, ResultUnreadable(f"The result of {task.id} cannot be loaded. {error}", task)
    kind, loaded = payload.header.get("kind"), None
    try:
        loaded = payload.load() if kind in {payloads.VALUE, payloads.EXCEPTION} else None
    except Exception as error:  # another Python, or a class that is missing here; an exception is still described
        if kind == payloads.VALUE:
            why = str(error) if isinstance(error, payloads.WrongPayload) else f"{type(error).__name__}: {error}."
            return None, ResultUnreadable(f"The result of {task.id} cannot be loaded here. {why}", task)
    if kind == payloads.VALUE:
        return loaded, None
    trace = str(payload.header.get("traceback", ""))
    if isinstance(loaded, Exception):
        loaded.add_note(f"Raised by {task.id}:\n{trace}")
        return None, loaded
    described = RemoteError(str(payload.header.get("type", "")), str(payload.header.get("text", "")), task)
    described.add_note(f"Raised by {task.id}:\n{trace}")
    return None, described


def _failure(task: Task) -> Steps[CallFailed]:
    """Return the error for a call that ended without a result, with the last lines of its output."""
    lines = yield from _last_lines(task)
    code = task.reason_code or ""
    if task.status is TaskStatus.TIMEOUT:
        kind: type[CallFailed] = CallTimedOut
    elif task.status is TaskStatus.CANCELLED:
        kind = CallCancelled
    elif code in _MEMORY:
        kind = CallOutOfMemory
    elif code in _LOST:
        kind = CallLost
    else:
        kind = CallKilled if task.signal is not None else CallFailed
    return kind(f"{task.id} left no result. {task.reason or ''}".strip(), task, lines)


def _last_lines(task: Task) -> Steps[Sequence[str]]:
    def read(connection: Connection) -> Sequence[str]:
        query = {"tail": LOG_BYTES, **same(task)}
        try:
            content = connection.without_waiting().send("GET", f"{of_task(task)}/logs", query=query)
        except ClusterError:
            return ()  # the node may be lost
        return content.decode(errors="replace").splitlines()[-LOG_LINES:]

    lines: Sequence[str] = yield OnConnection(read)
    return lines
