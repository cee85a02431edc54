"""Finds the model that a training script trains, without training it.

    python -m gpuyard.learn.performance.script train.py

The script is not run as a whole: its imports, classes and functions are executed, and calls that create a model are made on
torch's `meta` device, where nothing is computed and nothing takes memory. Loops, downloads and writes are not executed.
The input of the model is derived from its first layer; batch, mode and number type from the code. Third-party imports
do run, so this is a separate process with a time limit. It prints one JSON object.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

BATCH, TOKENS = 32, 128
"""Batch size and tokens of an input where the code does not state them."""
PEELED = {"to", "cuda", "cpu", "train", "eval", "half", "bfloat16", "float"}
SIDES = (224, 32, 28, 8, 16, 64, 96, 128, 256, 299, 384, 512)
"""Image sizes of common data sets, in pixels; without one in the code, the first that the model accepts is used."""
WRAPPERS = {"DataParallel", "DistributedDataParallel", "DDP", "compile", "prepare"}


def main(path: Path) -> dict[str, Any]:
    """Return the profile of the model and how it is run."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, str(path))
    try:
        import torch
    except ImportError:
        return {"error": f"{path} needs torch, which is not installed: pip install torch"}
    from gpuyard.learn.performance.flops import count
    from gpuyard.learn.performance.operation_profile import KINDS, OperationProfile

    sys.path.insert(0, str(path.parent))
    space: dict[str, Any] = {"__name__": "script", "__file__": str(path)}
    missing = _define(tree, space, path)
    found = [(line, make) for line, make in _makers(tree, space, path) if _is_model(make)]
    found += [
        (0, value)
        for value in space.values()
        if isinstance(value, type) and value.__module__ == "script" and _is_model(value)
    ]
    if not found:
        why = f": {missing[0]}" if missing else "; it needs a line such as 'model = Net()'"
        return {"error": f"No PyTorch model was found in {path}{why}"}
    line, build = max(found, key=lambda one: _size(one[1]))
    training = ".backward(" in source or ".fit(" in source
    with torch.device("meta"):
        size, stated, inputs = _inputs(build(), tree)
    batch = _number(tree, {"batch_size", "batch"})
    few, many = (count(build, partial(inputs, batch), training=training) for batch in (2, 4))
    made = OperationProfile.counted(few, many, 2, 4)
    return {
        "line": line,
        "model": type(build()).__name__,
        "mode": "train" if training else "infer",
        "batch": batch or BATCH,
        "precision": "amp" if "autocast" in source else "bf16" if "bfloat16" in source else "fp32",
        "compiled": "torch.compile(" in source,
        "size": size,
        "defaults": [name for name, known in (("batch", batch is not None), ("size", stated)) if not known],
        "groups": [[KINDS[int(kind)], *numbers] for kind, *numbers in made.groups.tolist()],
        "kept": made.kept_bytes,
        "largest": made.largest_bytes,
        "parameters": made.parameter_bytes,
    }


def _define(tree: ast.Module, space: dict[str, Any], path: Path) -> list[str]:
    """Execute imports, classes, functions and constants one by one; return what could not be imported."""
    missing = []
    for node in tree.body:
        plain = isinstance(node, ast.Assign) and _is_plain(node.value)
        if plain or isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef):
            try:
                exec(compile(ast.Module([node], []), str(path), "exec"), space)  # noqa: S102
            except ImportError as error:
                missing.append(f"line {node.lineno} needs {error.name or error}, which is not installed")
            except Exception as error:
                missing.append(f"line {node.lineno} fails with {type(error).__name__}: {error}")
    return missing


def _is_plain(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # all that literal_eval may raise
        return False
    return True


def _makers(tree: ast.Module, space: dict[str, Any], path: Path) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Yield every call whose result is assigned, without calls that only move or wrap it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            code = compile(ast.Expression(_bare(node.value)), str(path), "eval")
            yield node.lineno, lambda code=code: eval(code, space)  # type: ignore[misc]  # noqa: S307


def _bare(call: ast.expr) -> ast.expr:
    while isinstance(call, ast.Call):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in PEELED and isinstance(call.func, ast.Attribute):
            call = call.func.value
        elif name in WRAPPERS and call.args:
            call = call.args[0]
        else:
            break
    return call


def _is_model(make: Callable[[], Any]) -> bool:
    import torch

    try:
        with torch.device("meta"):
            return isinstance(make(), torch.nn.Module) and _size(make) > 0
    except (Exception, SystemExit):  # the call needs values that exist only in a run, such as arguments
        return False


def _size(make: Callable[[], Any]) -> int:
    import torch

    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


def _inputs(model: Any, tree: ast.Module) -> tuple[int, bool, Callable[[int], tuple[Any, ...]]]:
    """Return the size of the input, whether the script states it, and the images, tokens or vectors of a batch."""
    import torch

    says = torch.nn.Conv2d | torch.nn.Embedding | torch.nn.Linear | torch.nn.LSTM | torch.nn.GRU
    layer = next((layer for layer in model.modules() if isinstance(layer, says)), None)
    length = _number(tree, {"seq_len", "sequence_length", "block_size", "max_length", "context"})
    tokens, stated = length or TOKENS, length is not None
    match layer:
        case torch.nn.Conv2d():
            said = _number(tree, {"image_size", "img_size", "resolution", "size"})
            sides = SIDES if said is None else (said, *SIDES)
            side = next((side for side in sides if _takes(model, layer.in_channels, side)), sides[0])
            return side, side == said, lambda batch: (torch.empty(batch, layer.in_channels, side, side),)
        case torch.nn.Embedding():
            return tokens, stated, lambda batch: (torch.zeros(batch, tokens, dtype=torch.long),)
        case torch.nn.Linear():
            return layer.in_features, True, lambda batch: (torch.empty(batch, layer.in_features),)
        case torch.nn.LSTM() | torch.nn.GRU():
            return tokens, stated, lambda batch: (torch.empty(batch, tokens, layer.input_size),)
    raise ValueError("none of its layers defines the shape of its input")


def _takes(model: Any, channels: int, side: int) -> bool:
    """Return whether the model accepts images of this size: a layer with a fixed number of inputs accepts only one."""
    import torch

    try:
        with torch.device("meta"), torch.no_grad():
            model(torch.empty(2, channels, side, side))
    except (RuntimeError, ValueError):
        return False
    return True


def _number(tree: ast.Module, names: set[str]) -> int | None:
    """Return the first integer assigned to one of these names, in an assignment, a call or a command-line option."""
    for node in ast.walk(tree):
        value: ast.expr | None = None
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id.lower() in names for t in node.targets)
        ) or (isinstance(node, ast.keyword) and node.arg in names):
            value = node.value
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[-1], ast.Constant):
            said = str(node.args[-1].value).lstrip("-").replace("-", "_")
            value = next((k.value for k in node.keywords if k.arg == "default" and said in names), None)
        if isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value > 0:
            return value.value
    return None


if __name__ == "__main__":
    del sys.argv[0]  # the script then sees the same arguments as if it were run directly
    try:
        answer = main(Path(sys.argv[0]))
    except SyntaxError as wrong:
        answer = {"error": f"{sys.argv[0]}, line {wrong.lineno}: {wrong.msg}"}
    except Exception as wrong:
        answer = {
            "error": (f"{sys.argv[0]}: the operations of its model cannot be counted: {type(wrong).__name__}: {wrong}")
        }
    print(json.dumps(answer))
