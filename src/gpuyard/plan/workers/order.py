"""Orders to workers and their replies. All values here are sent between processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class OrderKind(Enum):
    """The action on a model."""

    LOAD = "load"
    UNLOAD = "unload"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a model is run: a name in the table of runtimes, and its settings from the file of runtimes."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallInput:
    """The input of a call."""

    request: str
    node: str
    attempt: int
    input: object
    """The input of this request in the file of runtimes."""
    results: dict[str, Any]
    """The results of the nodes before it, by node; packed in transit."""


@dataclass(frozen=True, slots=True)
class Order:
    """One order for the worker of a GPU."""

    operation: int
    kind: OrderKind
    model: str
    runtime: Runtime
    gpus: int
    """The number of GPUs that the model spans: the worker's own and those after it."""
    seconds: float
    """The expected duration; virtual runtimes sleep this long."""
    question: CallInput | None = None
    beside: bool = False
    """A load or an unload that is executed while the worker may execute a call."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of an order."""

    operation: int
    seconds: float
    why: str | None = None
    """The reason of a failure."""
    result: Any = None
