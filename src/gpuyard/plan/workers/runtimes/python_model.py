"""`python: module:name`: a class or function that loads a model and returns a callable that answers calls.

    class Summarizer:
        def __init__(self, **options): ...            # load, onto the visible GPUs
        def __call__(self, question): return ...      # question.input, question.results["node"], question.request, …
        def close(self): ...                          # optional: if dropping the object is not enough

Results must support `pickle`: they are sent to the calls that depend on them.
"""

import gc
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gpuyard.plan.workers.order import CallInput, Order


class _PythonModel:
    def __init__(self, model: Callable[[CallInput], Any]) -> None:
        self._model: Callable[[CallInput], Any] | None = model

    def call(self, question: CallInput, seconds: float) -> Any:  # noqa: ARG002
        assert self._model is not None
        return self._model(question)

    def close(self) -> None:
        close = getattr(self._model, "close", None)
        if close is not None:
            close()
        self._model = None
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def find(settings: Mapping[str, Any]) -> Any:
    """Return the class or function that loads the model. Its module is looked up in the folders of the file first."""
    for folder in settings.get("folders", ()):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    module, _, name = settings["python"].partition(":")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def load(order: Order) -> _PythonModel:
    """Load the model with the options of the file."""
    settings = order.runtime.settings
    return _PythonModel(find(settings)(**settings.get("options", {})))
