"""What a worker is told, and what it answers. Everything here travels between processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Verb(Enum):
    """What is to be done with a model."""

    LOAD = "load"
    UNLOAD = "unload"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a model is run: a name in the table of runtimes, and what the file of runtimes says of it."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """What a call is about."""

    request: str
    node: str
    attempt: int
    input: object
    """What the file of runtimes says for this request."""
    results: dict[str, Any]
    """What the nodes before it brought, by node; packed while it travels."""


@dataclass(frozen=True, slots=True)
class Order:
    """One thing to do for the worker of a GPU."""

    operation: int
    verb: Verb
    model: str
    runtime: Runtime
    gpus: int
    """How many GPUs the model spans: the worker's own and those after it."""
    seconds: float
    """What is expected; what pretends to work sleeps so long."""
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """How an order ended."""

    operation: int
    seconds: float
    why: str | None = None
    """Of a bad end."""
    result: Any = None
