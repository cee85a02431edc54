"""Runtimes: how a model is loaded and called, a file each, and the table of them.

A runtime is a function that loads a model as an order says and returns what holds it. It is called in the worker, which
sees its own GPU first and then those that a wide model spans besides (CUDA_VISIBLE_DEVICES).
"""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Protocol

from gpuyard.plan.workers.order import Order, Question, Runtime

RUNTIMES: Final = {
    "python": "python_model:load",
    "command": "command:load",
    "openai": "openai:load",
    "virtual": "virtual:load",
}
"""Every runtime: where its function is, as `module:function` below this package."""


class Held(Protocol):
    """A model that is loaded."""

    def call(self, question: Question, seconds: float) -> Any:
        """Its answer. `seconds` is what was planned."""

    def close(self) -> None:
        """Free what it takes."""


def prepare(runtimes: Iterable[Runtime]) -> None:
    """What a worker can do before the plan's clock begins: import what Python models need. What fails says so later."""
    for runtime in runtimes:
        if runtime.name == "python":
            from gpuyard.plan.workers.runtimes.python_model import find

            with suppress(Exception):
                find(runtime.settings)


def load(order: Order) -> Held:
    """Load a model in the runtime that its order names."""
    module, _, function = RUNTIMES[order.runtime.name].partition(":")
    held: Held = getattr(import_module(f"{__name__}.{module}"), function)(order)
    return held
