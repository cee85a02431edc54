"""Preloading: when a GPU that computes has loaded its next model (`Problem.preload`), and when it can load the one after.

A GPU has a copy engine, which loads and unloads one model at a time while calls run. It holds the model whose calls run
and, if both fit into its memory, loads the next one beside it. The old model is unloaded once its calls have ended, and
only then the model after the next one may be loaded:

    calls         ├─ a ─┤├─ a ─┤├─ b ─┤├──── b ────┤├─ c …
    copy engine   ├─ load b ─┤  ├ unload a ┤├─ load c ─┤├ unload b ┤

Two models that do not fit side by side are changed as without preloading: after the last call of the old model, it is
unloaded and the new one is loaded.

The state of a GPU is thus two instants: when its last call ends (`free`), and when its copy engine is free and the GPU
holds nothing but its current model (`copied`). Loading as early as possible never makes a later load later. Nor is any
call later than without preloading: if session k begins at S(k) then, `copied` is at most S(k) here, by induction.
"""

from typing import Any

from gpuyard.plan.planner.compiled.jit import njit_noref

TOLERANCE_GB = 1e-9


@njit_noref
def switched(
    a: int, b: int, free: float, copied: float, load: Any, unload: Any, size: Any, room: float
) -> tuple[float, float]:
    """Return when a GPU that holds model a can run b, and `copied` after that; a is below 0 if the GPU is empty."""
    if a == b:
        return free, copied
    if a < 0:
        at = max(free, copied) + load[b]
        return at, at
    if size[a] + size[b] <= room + TOLERANCE_GB:
        at = copied + load[b]
        return max(free, at), max(free, at) + unload[a]
    at = max(free, copied) + unload[a] + load[b]
    return at, at


@njit_noref
def switched_with_many(
    stamp: Any, now: int, a: int, b: int, free: float, copied: float, load: Any, unload: Any, size: Any, room: float
) -> tuple[float, float]:
    """The same for a GPU that keeps models while its memory suffices; `stamp` is the last use of each, 0: not held.

    The copy engine evicts the least recently used models before it loads; the current one only after its last call. It
    begins with the models for the session after the next one when the current session has ended.
    """
    if stamp[b] > 0:
        at = free
    else:
        taken = size[b]
        for other in range(len(stamp)):
            if stamp[other] > 0:
                taken += size[other]
        at = copied
        while taken > room + TOLERANCE_GB:
            oldest = -1
            for other in range(len(stamp)):
                if stamp[other] > 0 and (oldest < 0 or stamp[other] < stamp[oldest]):
                    oldest = other
            if oldest < 0:
                break
            if oldest == a:
                at = max(at, free)
            at += unload[oldest]
            taken -= size[oldest]
            stamp[oldest] = 0
        if a < 0:
            at = max(at, free)
        at += load[b]
    stamp[b] = now
    return max(free, at), copied if a == b else max(free, at)
