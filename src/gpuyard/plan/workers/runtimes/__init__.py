"""Runtimes: how a model is loaded and called, one file per runtime, and the registry.

A runtime is a function that loads a model as an order says and returns a `LoadedModel`. It is called in the worker, which sees
its own GPU first and then the others that a wide model spans (CUDA_VISIBLE_DEVICES).
"""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Protocol

from gpuyard.plan.workers.order import CallInput, Order, Runtime

RUNTIMES: Final = {
    "python": "python_model:load",
    "command": "command:load",
    "openai": "openai:load",
    "virtual": "virtual:load",
}
"""All runtimes: the location of the function, as `module:function` below this package."""


class LoadedModel(Protocol):
    """A loaded model."""

    def call(self, question: CallInput, seconds: float) -> Any:
        """Return the answer of the model. `seconds` is the planned duration."""

    def close(self) -> None:
        """Free the resources of the model."""


def prepare(runtimes: Iterable[Runtime]) -> None:
    """Import what Python models need, before the plan's clock starts. Errors are reported later, by the load."""
    for runtime in runtimes:
        if runtime.name == "python":
            from gpuyard.plan.workers.runtimes.python_model import find

            with suppress(Exception):
                find(runtime.settings)


def load(order: Order) -> LoadedModel:
    """Load a model in the runtime that its order names."""
    module, _, function = RUNTIMES[order.runtime.name].partition(":")
    held: LoadedModel = getattr(import_module(f"{__name__}.{module}"), function)(order)
    return held
