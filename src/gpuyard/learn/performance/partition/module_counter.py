"""Assigns every operation of a step to a part of the model; see `count_model`. Imported only where torch is installed.

In the forward pass that is the running module. In the backward pass it is the module whose forward operation created
the running autograd node: nodes are numbered in the order of creation, so the number at each change of module is
sufficient.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr

from gpuyard.learn.performance import flops
from gpuyard.learn.performance.flops import Tensors, storage_of

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
CountedOperation = tuple[str, int, float, float]


class Counter(flops.OperationCounter):  # type: ignore[no-untyped-call]
    """Counts one model by module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._path = [""]
        """The running modules, the innermost last."""
        self._changed: int | None = 0
        """Number of the next autograd node when the module changed, if no operation ran since; otherwise None."""
        self._is_forward = True
        self._blocks: list[str] = []
        self._starts: list[int] = []
        """For each unit (consecutive operations of one block): its block, and its first autograd node."""
        self._done: list[list[CountedOperation]] = []
        self._owned: list[float] = []
        """For each unit: its forward and backward operations, and the bytes of parameters first used there."""
        self._buffers = {storage_of(tensor) for tensor in model.buffers()}
        self._made: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._sizes: dict[int, float] = {}
        """For each storage: the unit that created it (-1 for inputs), the unit that used it last, its bytes."""
        self._kept_at: dict[int, int] = {}
        self._users: dict[int, list[str]] = {}
        """The unit at which autograd kept each storage; the blocks that use each parameter."""
        self._held: list[torch.Tensor] = []
        """Keeps tensors alive: the address of a freed storage could be reused."""

    def step(self, given: Sequence[Any], *, training: bool) -> None:
        """Run one step as `flops.OperationCounter` does, and track the running modules."""
        hooks = []
        for name, module in self.model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._enters(name)))
            hooks.append(module.register_forward_hook(self._leaves, always_call=True))
        self._changed = _get_sequence_nr()
        super().step(given, training=training)
        for hook in hooks:
            hook.remove()

    def _enters(self, name: str) -> Any:
        return lambda *_: self._change(lambda: self._path.append(name))

    def _leaves(self, *_: Any) -> None:
        self._change(self._path.pop)

    def _change(self, path: Any) -> None:
        if self._changed is None:
            self._changed = _get_sequence_nr()
        path()

    def forward_is_over(self) -> None:
        """Stop tracking modules."""
        self._is_forward = False

    def add(self, kind: str, kernels: int, flops: float, moved: float, given: Tensors, made: Tensors) -> None:
        """Add one operation to its unit."""
        unit = self._forward(given, made) if self._is_forward else self._backward()
        self._done[unit].append((kind, kernels, flops, moved))

    def _backward(self) -> int:
        """Return the unit whose backward pass is running; the loss belongs to the last unit."""
        node: torch.autograd.graph.Node | None = torch._C._current_autograd_node()  # torch's type omits the None
        return len(self._starts) - 1 if node is None else max(bisect_right(self._starts, node._sequence_nr()) - 1, 0)

    def _forward(self, given: Tensors, made: Tensors) -> int:
        block = self._block(self._path[-1])
        if not self._blocks or self._blocks[-1] != block:
            self._blocks.append(block)
            self._starts.append(_get_sequence_nr() - 1 if self._changed is None else self._changed)
            self._done.append([])
            self._owned.append(0.0)
        self._changed = None
        unit = len(self._blocks) - 1
        for tensor in given:
            key = storage_of(tensor)
            if key in self.parameters:
                self._owned[unit] += 0.0 if key in self._users else float(self.parameters[key].nbytes)
                users = self._users.setdefault(key, [])
                if block not in users:
                    users.append(block)
            elif key not in self._buffers:
                self._made.setdefault(key, -1)
                self._sizes[key] = float(tensor.untyped_storage().nbytes())
                self._used[key] = unit
        for tensor in made:
            self._made.setdefault(storage_of(tensor), unit)
            self._sizes[storage_of(tensor)] = float(tensor.untyped_storage().nbytes())
            self._held.append(tensor)
        return unit

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a tensor that autograd saves."""
        self._kept_at.setdefault(storage_of(tensor), max(len(self._blocks) - 1, 0))
        self._held.append(tensor)
        return super().keep(tensor)

    def _block(self, path: str) -> str:
        """Return the undivided part of the model: an element of a list of layers, otherwise the module itself."""
        module, name = self.model, ""
        for part in path.split(".") if path else ():
            is_element = isinstance(module, LISTS)
            module, name = module.get_submodule(part), f"{name}.{part}".lstrip(".")
            if is_element and not isinstance(module, LISTS):
                break
        return name or type(self.model).__name__

    @property
    def saw_nothing(self) -> bool:
        """Whether no operation was counted."""
        return not self._blocks

    def answer(self) -> dict[str, Any]:
        """Return the units in the form of `Counts`."""
        kept = [0.0] * len(self._blocks)
        for key, size in self.kept.items():
            kept[self._kept_at[key]] += size
        units = [
            {
                "block": block, "operations": done, "parameter_bytes": owned,
                "crossing_bytes": crossing, "activation_bytes": activations,
            }
            for block, done, owned, crossing, activations in zip(
                self._blocks, self._done, self._owned, self._crossing(), kept, strict=True
            )
        ]  # fmt: skip
        shared = {(users[0], other) for users in self._users.values() for other in users[1:]}
        return {"units": units, "shared": sorted(shared)}

    def _crossing(self) -> list[float]:
        """Return for each unit the bytes that exist before it and are needed by it or later units."""
        change = [0.0] * (len(self._blocks) + 1)
        for key, last in self._used.items():
            if self._made[key] < last:
                change[self._made[key] + 1] += self._sizes[key]
                change[last + 1] -= self._sizes[key]
        return list(accumulate(change[:-1]))
