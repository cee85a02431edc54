"""Counts the cost of a step: arithmetic, memory traffic, kernels, bytes that are kept. Counts on torch's `meta` device,
where tensors have shapes and no contents: no GPU is needed, and a billion parameters take no memory.

Every operation that PyTorch dispatches is counted once. Its FLOPs come from torch's own table; its traffic is its
inputs and outputs; views cost nothing. The memory of the backward pass is what autograd saves.

An embedding reads the requested rows, not its table. Two operations are one kernel on a GPU and many on `meta`:
attention, whose scores never reach memory, and recurrent layers, whose steps cuDNN runs in a few kernels. They are
intercepted before they are decomposed and counted as a whole.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Cost of one step."""

    operations: tuple[tuple[str, int, float, float], ...]
    """In order of execution: kind (see `operation_profile.KINDS`), kernels, FLOPs, bytes."""
    parameter_bytes: float
    activation_bytes: float
    """Bytes saved for the backward pass; 0 without one."""

    @property
    def flops(self) -> float:
        """FLOPs of matrix products, convolutions and attention; a multiply-add counts as two."""
        return sum(flops for kind, _, flops, _ in self.operations if kind not in {"norm", "light"})

    @property
    def bytes(self) -> float:
        """Bytes read and written, added up over operations."""
        return sum(moved for *_, moved in self.operations)

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return sum(kernels for _, kernels, _, _ in self.operations)


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts one model. Storages are identified by their address, so the model must stay alive while it is counted."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.operations: list[tuple[str, int, float, float]] = []
        """In order of execution: kind (see `operation_profile.KINDS`), kernels, FLOPs, bytes."""
        self.parameters = {storage_of(p): p for p in model.parameters()}
        self.kept: dict[int, int] = {}
        """Bytes of storages that autograd saves."""

    def step(self, given: Sequence[Any], *, training: bool) -> None:
        """Run one step: forward and, in training, backward from a simple loss."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda x: x)
        with torch.set_grad_enabled(training), self, _Catch(self), hooks:
            out = self.model(*given)
            if training:
                self.forward_is_over()
                loss = reduce(torch.add, [x.float().square().mean() for x in _learnable(out)])
                loss.backward()  # type: ignore[no-untyped-call]

    def add(self, kind: str, kernels: int, flops: float, moved: float, given: Tensors, made: Tensors) -> None:  # noqa: ARG002 - of use to those who add more
        """Add one operation: its cost, its inputs and its outputs."""
        self.operations.append((kind, kernels, flops, moved))

    def forward_is_over(self) -> None:
        """Mark the end of the forward pass; the loss and the backward pass follow."""

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a tensor that autograd saves."""
        if storage_of(tensor) not in self.parameters:
            self.kept[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation that PyTorch dispatches."""
        out = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if func.is_view or operation in _FREE:
            return out
        given, made = _tensors((args, kwargs)), _tensors(out)
        moved = _bytes((*made, *made) if operation is torch.ops.aten.embedding else (*given, *made))
        name = str(operation)
        if operation not in flop_registry:
            self.add("norm" if "norm" in name else "light", 1, 0.0, moved, given, made)
        else:
            kind = "grouped" if _is_grouped(name, args) else _kind(name)
            self.add(kind, 1, _flops(operation, args, kwargs or {}, out), moved, given, made)
        return out


class _Whole(torch.autograd.Function):
    """Replaces an operation that is one kernel on a GPU: records its cost and returns tensors of the right shape."""

    @staticmethod
    def forward(
        context: Any, seen: OperationCounter, kind: str, flops: float, kernels: int, shape: Any, *tensors: Any
    ) -> Any:
        """Record the cost and return an output of this `shape`."""
        context.cost = seen, kind, flops, kernels
        context.save_for_backward(*tensors)
        out = tensors[0].new_empty(shape)
        seen.add(kind, kernels, flops, _bytes((*tensors, out)), tensors, (out,))
        return out

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        """Record twice the arithmetic; attention also computes its scores again."""
        seen, kind, flops, kernels = context.cost
        tensors = context.saved_tensors
        made = tuple(torch.empty_like(x) if x.is_floating_point() else None for x in tensors)
        more, moved = (2.5 if kind == "attention" else 2.0), _bytes((*tensors, *tensors, *_tensors(grads)))
        seen.add(kind, 2 * kernels, flops * more, moved, (*tensors, *_tensors(grads)), _tensors(made))
        return (None, None, None, None, None, *made)


class _Catch(TorchFunctionMode):
    """Replaces attention and recurrent layers by `_Whole`."""

    def __init__(self, seen: OperationCounter) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attention(*args, **(kwargs or {}))
        if name in {"item", "__bool__"} and args[0].is_meta:
            return False  # contents are read to test for a special case, such as a mask without effect
        if name in {"lstm", "gru"} and len(args) == 9:
            return self._recurrent(name, *args)
        return func(*args, **(kwargs or {}))

    def _attention(
        self, q: Any, k: Any, v: Any, _mask: Any = None, _dropout: float = 0.0, is_causal: bool = False, **_: Any
    ) -> Any:
        work = 2.0 * q.numel() * k.shape[-2] + 2.0 * q.numel() // q.shape[-1] * k.shape[-2] * v.shape[-1]
        return _Whole.apply(  # type: ignore[no-untyped-call]
            self.seen, "attention", work / (2 if is_causal else 1), 1, (*q.shape[:-1], v.shape[-1]), q, k, v
        )

    def _recurrent(self, name: str, x: Any, hidden: Any, weights: Any, *more: Any) -> Any:
        layers = more[1]
        steps, rows = (x.shape[1], x.shape[0]) if more[-1] else (x.shape[0], x.shape[1])
        width = (hidden[0] if name == "lstm" else hidden).shape[-1] * (2 if more[-2] else 1)
        work = 2.0 * steps * rows * sum(w.numel() for w in weights if w.dim() == 2)
        out = _Whole.apply(  # type: ignore[no-untyped-call]
            self.seen, "matmul", work, layers * (steps + 1), (*x.shape[:-1], width), x, *weights
        )
        return (out, *hidden) if name == "lstm" else (out, hidden)


_FREE = {
    torch.ops.aten.empty,
    torch.ops.aten.detach,
    torch.ops.aten.empty_like,
    torch.ops.aten._reshape_alias,
    torch.ops.aten.new_empty,
}
"""Operations that take no time on a GPU."""


def _flops(operation: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the FLOPs by torch's table, except for convolutions backward, where the table ignores groups."""
    if operation is not torch.ops.aten.convolution_backward:
        return float(flop_registry[operation](*args, **kwargs, out_val=out))
    grad, before, weight, *_, transposed, _padding, _groups, mask = args
    return float(2.0 * (before if transposed else grad).numel() * weight[0].numel() * sum(mask[:2]))


def _is_grouped(name: str, args: Any) -> bool:
    """Return whether a convolution processes few channels at a time, which leaves most of a GPU idle."""
    return _kind(name) == "convolution" and int(args[9 if "backward" in name else 8]) > 1


def _kind(name: str) -> str:
    return "attention" if "attention" in name else "convolution" if "conv" in name else "matmul"


def _on_meta(build: Callable[[], Any]) -> Any:
    """Build without contents; on the CPU first if building itself reads values."""
    try:
        with torch.device("meta"):
            return build()
    except (NotImplementedError, RuntimeError):
        with torch.device("cpu"):
            return build().to("meta")


def count(
    build: Callable[[], Any], inputs: Callable[[], tuple[Any, ...]], *, training: bool, dtype: str = "float32"
) -> StepCounts:
    """Count one step. `build` and `inputs` create their tensors on torch's default device, which is `meta` here."""
    model = _on_meta(build).to(getattr(torch, dtype)).train(training)
    with torch.device("meta"):
        given = tuple(x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in inputs())
    seen = OperationCounter(model)
    seen.step(given, training=training)
    return StepCounts(tuple(seen.operations), _bytes(model.parameters()), float(sum(seen.kept.values())))


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of the storage; views of a tensor share it."""
    return int(tensor.untyped_storage()._cdata)


def _learnable(out: Any) -> Tensors:
    found = [x for x in _tensors(out) if x.is_floating_point() and x.requires_grad]
    if not found:
        raise ValueError("its outputs have no gradient")
    return found


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(tensors: Iterable[torch.Tensor]) -> float:
    return float(sum(x.numel() * x.element_size() for x in tensors))
