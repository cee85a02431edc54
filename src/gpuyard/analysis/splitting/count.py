"""`python -m gpuyard.analysis.splitting.count`: count one forward pass of somebody's model. The only place that runs user code.

The model is made on torch's meta device, where tensors have shapes and no contents: no GPU is needed, and no memory. Every
operation that PyTorch dispatches is seen with the module it runs in, the storages it reads and writes, and what autograd keeps.
Attention and recurrent layers, one kernel on a GPU and many operations here, are caught before they fall apart.

What is asked comes as JSON on standard input. The answer goes to the file that is named there, since a model may print
what it likes.
"""

import json
import sys
from pathlib import Path
from typing import Any


class Refused(Exception):
    """A sentence for whoever asked."""


def main() -> None:
    """Answer one question."""
    asked = json.load(sys.stdin)
    try:
        answer = count(asked)
    except Refused as refused:
        answer = {"error": str(refused)}
    Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def count(asked: dict[str, Any]) -> dict[str, Any]:
    """The columns of `Counts`."""
    try:
        import torch
    except ImportError:
        raise Refused(
            "dividing a model needs PyTorch, which this Python does not have; name one with --python."
        ) from None
    from gpuyard.analysis.splitting.counter import Counter

    made = _maker(asked["folder"], asked["module"], asked["name"])
    with torch.device("meta"):
        try:
            model = made() if not isinstance(made, torch.nn.Module) else made.to("meta")
        except Exception as error:
            raise Refused(f"{asked['name']} can not be made without arguments: {_line(error)}") from None
    if not isinstance(model, torch.nn.Module):
        raise Refused(f"{asked['name']} gives a {type(model).__name__}, not a torch.nn.Module.")
    inputs = [torch.zeros(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in asked["inputs"]]
    model.train(asked["training"])
    counter = Counter(model)
    try:
        with counter.running(training=asked["training"]), torch.device("meta"):
            model(*inputs)
    except Exception as error:
        raise Refused(f"{asked['name']} can not run with inputs {asked['spoken']}: {_line(error)}") from None
    if counter.saw_nothing:
        raise Refused(f"{asked['name']} does nothing with its inputs.")
    return {"model": asked["name"], "batch": inputs[0].shape[0], **counter.answer()}


def _maker(folder: str, module: str, name: str) -> Any:
    from importlib import import_module

    sys.path.insert(0, folder)
    sys.argv = [module]
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise Refused(
            f"{module} can not be imported: there is no module {error.name!r}; is a package missing?"
        ) from None
    except BaseException as error:
        raise Refused(f"{module} can not be imported: {_line(error)}") from None
    if not hasattr(found, name):
        from difflib import get_close_matches

        near = get_close_matches(name, [one for one in vars(found) if not one.startswith("_")], 1)
        raise Refused(f"there is no {name} in {module}{f'; did you mean {near[0]}?' if near else '.'}")
    return getattr(found, name)


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}"


if __name__ == "__main__":
    main()
