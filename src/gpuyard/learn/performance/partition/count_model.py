"""`python -m gpuyard.learn.performance.partition.count_model`: count a step of a model. Only this runs user code.

The model is created on torch's meta device, where tensors have shapes and no contents: no GPU and no memory is needed.
It is counted as in `performance.flops`; for every operation its module, the storages it reads and writes, and what
autograd keeps are recorded. Counted twice, for a batch and for twice the batch: growing parts belong to a sample,
constant ones to the model.

The request is JSON on standard input. The answer goes to the file named there, because a model may print to standard
output.
"""

import json
import sys
from pathlib import Path
from typing import Any


class CountError(Exception):
    """The model cannot be counted; the message is one sentence for the user."""


def main() -> None:
    """Answer one request."""
    asked = json.load(sys.stdin)
    try:
        answer = count(asked)
    except CountError as refused:
        answer = {"error": str(refused)}
    Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def count(asked: dict[str, Any]) -> dict[str, Any]:
    """Return `Counts` for the batch, and for a batch twice as large."""
    try:
        import torch
    except ImportError:
        raise CountError(
            "partitioning a model needs PyTorch, which this Python does not have; choose another "
            "interpreter with --python."
        ) from None
    from gpuyard.learn.performance.partition.module_counter import Counter

    made = _maker(asked["folder"], asked["module"], asked["name"])
    with torch.device("meta"):
        try:
            model = made() if not isinstance(made, torch.nn.Module) else made.to("meta")
        except Exception as error:
            raise CountError(f"{asked['name']} cannot be created without arguments: {_line(error)}") from None
    if not isinstance(model, torch.nn.Module):
        raise CountError(f"{asked['name']} returns a {type(model).__name__}, not a torch.nn.Module.")
    model.train(asked["training"])
    found = []
    for times, spoken in ((1, "inputs"), (2, "a batch twice as large as in")):
        inputs = [
            torch.zeros((times * batch, *shape), dtype=getattr(torch, dtype), device="meta")
            for (batch, *shape), dtype in asked["inputs"]
        ]
        model.zero_grad()  # otherwise the second step would add to the gradients of the first
        counter = Counter(model)
        try:
            with torch.device("meta"):
                counter.step(inputs, training=asked["training"])
        except Exception as error:
            raise CountError(f"{asked['name']} cannot run with {spoken} {asked['spoken']}: {_line(error)}") from None
        if counter.saw_nothing:
            raise CountError(f"{asked['name']} does nothing with its inputs.")
        found.append(counter.answer())
    return {"few": found[0], "many": found[1]}


def _maker(folder: str, module: str, name: str) -> Any:
    from importlib import import_module

    sys.path.insert(0, folder)
    sys.argv = [module]
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise CountError(
            f"{module} cannot be imported: module {error.name!r} does not exist; a package may be missing."
        ) from None
    except BaseException as error:
        raise CountError(f"{module} cannot be imported: {_line(error)}") from None
    if not hasattr(found, name):
        from difflib import get_close_matches

        near = get_close_matches(name, [one for one in vars(found) if not one.startswith("_")], 1)
        raise CountError(f"{module} has no {name}{(f'; did you mean {near[0]}?' if near else '.')}")
    return getattr(found, name)


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}"


if __name__ == "__main__":
    main()
