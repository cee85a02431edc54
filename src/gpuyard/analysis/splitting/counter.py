"""Sees every operation of a forward pass on torch's meta device; see `count`. Imported only where torch is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
FREE = {_aten.empty, _aten.empty_like, _aten.new_empty, _aten.detach, _aten._reshape_alias, _aten.lift_fresh}
"""They take no time on a GPU."""
LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of one model. Storages are told apart by their address, so what was made is held until the end."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._path = [""]
        """Modules that are running, the innermost last."""
        self._parameters = {_storage(tensor): tensor for tensor in model.parameters()}
        self._buffers = {_storage(tensor) for tensor in model.buffers()}
        self._held: list[torch.Tensor] = []
        self._blocks: list[str] = []
        self._rows: list[tuple[float, float, float, float]] = []
        """FLOPs, bytes of activations, bytes of parameters, bytes of parameters seen for the first time."""
        self._made: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._sizes: dict[int, float] = {}
        """For each storage: which operation made it (-1: it came from outside), which used it last, its bytes."""
        self._kept: dict[int, int] = {}
        """For each storage that autograd keeps: at which operation."""
        self._users: dict[int, list[str]] = {}
        """For each parameter: the blocks that use it."""

    def note(self, flops: float, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """One operation."""
        place, block = len(self._rows), self._block(self._path[-1])
        fixed = owned = 0.0
        for tensor in given:
            key = _storage(tensor)
            if key in self._parameters:
                fixed += _bytes(tensor)
                users = self._users.setdefault(key, [])
                owned += 0.0 if users else _bytes(self._parameters[key])
                if block not in users:
                    users.append(block)
            elif key not in self._buffers:
                self._made.setdefault(key, -1)
                self._sizes[key] = float(tensor.untyped_storage().nbytes())
                self._used[key] = place
        for tensor in made:
            key = _storage(tensor)
            self._made.setdefault(key, place)
            self._sizes[key] = float(tensor.untyped_storage().nbytes())
            self._held.append(tensor)
        moved = float(sum(map(_bytes, [*given, *made]))) - fixed
        self._rows.append((flops, moved, fixed, owned))
        self._blocks.append(block)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation comes by here."""
        out = func(*args, **(kwargs or {}))
        if func.is_view or func.overloadpacket in FREE:
            return out
        table = flop_registry.get(func.overloadpacket)
        flops = float(table(*args, **(kwargs or {}), out_val=out)) if table else 0.0
        self.note(flops, _tensors((args, kwargs)), _tensors(out))
        return out

    @contextmanager
    def running(self, *, training: bool) -> Iterator[None]:
        """Around the forward pass."""
        hooks = []
        for name, module in self._model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._enters(name)))
            hooks.append(module.register_forward_hook(self._leaves, always_call=True))
        saved = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        with torch.set_grad_enabled(training), saved, self, _Catch(self):
            yield
        for hook in hooks:
            hook.remove()

    def _enters(self, name: str) -> Any:
        return lambda *_: self._path.append(name)

    def _leaves(self, *_: Any) -> None:
        self._path.pop()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        key = _storage(tensor)
        if key not in self._parameters and key not in self._kept:
            self._kept[key] = len(self._rows)
            self._sizes[key] = float(tensor.untyped_storage().nbytes())
            self._held.append(tensor)
        return tensor

    def _block(self, path: str) -> str:
        """The part of the model that is not divided: an element of a list of layers, else the module itself."""
        module, name = self._model, ""
        for part in path.split(".") if path else ():
            is_element = isinstance(module, LISTS)
            module, name = module.get_submodule(part), f"{name}.{part}".lstrip(".")
            if is_element and not isinstance(module, LISTS):
                break
        return name or type(self._model).__name__

    @property
    def saw_nothing(self) -> bool:
        """Whether no operation came by."""
        return not self._rows

    def answer(self) -> dict[str, Any]:
        """The columns of `Counts`."""
        flops, moved, fixed, owned = (list(column) for column in zip(*self._rows, strict=True))
        kept = [0.0] * len(self._rows)
        for key, place in self._kept.items():
            kept[min(place, len(kept) - 1)] += self._sizes[key]
        return {
            "blocks": self._blocks,
            "flops": flops,
            "activation_bytes": moved,
            "parameter_bytes": fixed,
            "crossing_bytes": self._crossing(),
            "kept_bytes": kept,
            "owned_bytes": owned,
            "shared": sorted({(users[0], other) for users in self._users.values() for other in users[1:]}),
        }

    def _crossing(self) -> list[float]:
        """Before each operation: the bytes that are there and still needed."""
        change = [0.0] * (len(self._rows) + 1)
        for key, last in self._used.items():
            if self._made[key] < last:
                change[self._made[key] + 1] += self._sizes[key]
                change[last + 1] -= self._sizes[key]
        now, found = 0.0, []
        for size in change[:-1]:
            now += size
            found.append(now)
        return found


class _Whole(torch.autograd.Function):
    """Stands for an operation that is one kernel on a GPU: gives back a tensor of the right shape."""

    @staticmethod
    def forward(context: Any, counter: Counter, flops: float, shape: Any, *tensors: Any) -> Any:
        context.save_for_backward(*tensors)
        out = tensors[0].new_empty(shape)
        counter.note(flops, list(tensors), [out])
        return out

    @staticmethod
    def backward(context: Any, *_: Any) -> Any:
        raise NotImplementedError("nothing runs backward here")


class _Catch(TorchFunctionMode):
    """Catches attention and recurrent layers before they fall apart."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every function of torch comes by here."""
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attention(*args, **(kwargs or {}))
        if name in {"lstm", "gru"} and len(args) == 9:
            return self._recurrent(name, *args)
        return func(*args, **(kwargs or {}))

    def _attention(self, q: Any, k: Any, v: Any, *_: Any, is_causal: bool = False, **__: Any) -> Any:
        work = 2.0 * q.numel() * k.shape[-2] + 2.0 * q.numel() / q.shape[-1] * k.shape[-2] * v.shape[-1]
        return _whole(self._counter, work / (2 if is_causal else 1), (*q.shape[:-1], v.shape[-1]), q, k, v)

    def _recurrent(self, name: str, x: Any, hidden: Any, weights: Any, *more: Any) -> Any:
        steps, rows = (x.shape[1], x.shape[0]) if more[-1] else (x.shape[0], x.shape[1])
        width = (hidden[0] if name == "lstm" else hidden).shape[-1] * (2 if more[-2] else 1)
        work = 2.0 * steps * rows * sum(weight.numel() for weight in weights if weight.dim() == 2)
        out = _whole(self._counter, work, (*x.shape[:-1], width), x, *weights)
        return (out, *hidden) if name == "lstm" else (out, hidden)


def _whole(counter: Counter, flops: float, shape: tuple[int, ...], *tensors: Any) -> Any:
    return _Whole.apply(counter, flops, shape, *tensors)  # type: ignore[no-untyped-call]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
