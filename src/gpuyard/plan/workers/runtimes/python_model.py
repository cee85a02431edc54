"""`python: module:name`: a class or function that loads a model and returns a callable that answers calls.

    class Summarizer:
        def __init__(self, **options): ...            # load, onto the visible GPUs
        def __call__(self, question): return ...      # question.input, question.results["node"], question.request, …
        def close(self): ...                          # optional: if dropping the object is not enough

Results must support `pickle`: they are sent to the calls that depend on them.

A model that is loaded beside the calls of another one is loaded in a thread of its own. With PyTorch it gets a CUDA
stream of its own, because copies in the default stream would wait for the calls.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
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
    build = find(settings)
    with _own_stream() if order.beside else nullcontext():
        return _PythonModel(build(**settings.get("options", {})))


@contextmanager
def _own_stream() -> Iterator[None]:
    """Let PyTorch copy to the GPU while it computes in the default stream; return when all copies are done."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        yield
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
