"""`python: module:name`: a class or function that loads a model and returns what answers calls.

    class Summarizer:
        def __init__(self, **options): ...            # load, onto the GPUs that are visible
        def __call__(self, question): return ...      # question.input, question.results["node"], question.request, …
        def close(self): ...                          # where dropping it is not enough; may be left out

What it returns must survive `pickle`: it travels to the calls that wait for it.
"""

import gc
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gpuyard.plan.workers.order import Order, Question


class _PythonModel:
    def __init__(self, model: Callable[[Question], Any]) -> None:
        self._model: Callable[[Question], Any] | None = model

    def call(self, question: Question, seconds: float) -> Any:  # noqa: ARG002
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
    """What loads the model: import its module, looking into the folders of the file first."""
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
