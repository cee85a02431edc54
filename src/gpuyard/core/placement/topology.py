"""Choose GPUs within a device group: close together if the task prefers it, and without splitting groups needlessly.

The choice depends only on the free GPUs, the number wanted and the link preference, so it is computed once and cached.
A group is a set of connected GPUs: those on one NVLink, or in one NUMA domain. The rule is best fit: the smallest group
that holds the whole request; if there is none, the largest groups first, so that the task is split into few pieces.
"""

from functools import lru_cache

from gpuyard.core.domain.node import Gpu
from gpuyard.core.domain.values import Link

MOST_LIKED = 10_000
"""Cache limit of `pick_preferred`: with many free GPUs there are too many combinations to cache all of them."""


class Topology:
    """How the GPUs of a device group are connected. Device groups with the same layout share one object."""

    def __init__(self, gpus: tuple[tuple[int, Gpu], ...]) -> None:
        self._numa = _groups(gpus, "numa")
        self._nvlink = _groups(gpus, "nvlink")
        self._picks: dict[tuple[int, int, Link], tuple[int, ...]] = {}
        self._liked: dict[tuple[int, int, int, Link], tuple[int, ...]] = {}

    def pick(self, free: int, count: int, link: Link) -> tuple[int, ...]:
        """Choose `count` of the free GPUs; `free` has one bit for each GPU's index on the node."""
        key = (free, count, link)
        chosen = self._picks.get(key)
        if chosen is None:
            chosen = self._picks[key] = self._pick(free, count, link)
        return chosen

    def pieces(self, gpus: tuple[int, ...], link: Link) -> int:
        """Return over how many groups a choice is spread; 1 is best."""
        groups = self._numa if link is Link.NUMA else self._nvlink
        return sum(1 for group in groups if mask_of(gpus) & group)

    def pick_preferred(self, free: int, liked: int, count: int, link: Link) -> tuple[int, ...]:
        """Choose as `pick` does, but among the `liked` GPUs only; return an empty tuple if that choice is worse."""
        key = (free, liked, count, link)
        chosen = self._liked.get(key)
        if chosen is None:
            if len(self._liked) >= MOST_LIKED:
                self._liked.clear()
            chosen = self._liked[key] = self._pick_liked(free, liked, count, link)
        return chosen

    def _pick_liked(self, free: int, liked: int, count: int, link: Link) -> tuple[int, ...]:
        """Accept the liked GPUs only if they give the same number of pieces and leave free groups of the same sizes."""
        if liked.bit_count() < count:
            return ()
        chosen, usual = self.pick(liked, count, link), self.pick(free, count, link)
        same_pieces = self.pieces(chosen, link) == self.pieces(usual, link)
        return chosen if same_pieces and self._rests(free, chosen) == self._rests(free, usual) else ()

    def _rests(self, free: int, taken: tuple[int, ...]) -> list[int]:
        left = free & ~mask_of(taken)
        return sorted((group & left).bit_count() for group in self._nvlink)

    def _pick(self, free: int, count: int, link: Link) -> tuple[int, ...]:
        groups = self._numa if link is Link.NUMA else self._nvlink
        pools = [pool for group in groups if (pool := group & free)]
        enough = [pool for pool in pools if pool.bit_count() >= count]
        if enough:
            pools = [min(enough, key=lambda pool: (pool.bit_count(), pool))]
        else:
            pools.sort(key=lambda pool: (-pool.bit_count(), pool))
        indices = [index for pool in pools for index in _indices_of(pool)]
        return tuple(sorted(indices[:count]))


def _groups(gpus: tuple[tuple[int, Gpu], ...], by: str) -> list[int]:
    """Return the bit mask of each group; GPUs without NVLink are grouped by NUMA domain."""
    masks: dict[tuple[str, int], int] = {}
    for index, gpu in gpus:
        key = ("nvlink", gpu.nvlink) if by == "nvlink" and gpu.nvlink is not None else ("numa", gpu.numa)
        masks[key] = masks.get(key, 0) | 1 << index
    return list(masks.values())


def _indices_of(mask: int) -> list[int]:
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


@lru_cache(maxsize=1 << 16)
def mask_of(gpus: tuple[int, ...]) -> int:
    """Return GPU indexes as a bit mask."""
    return sum(1 << gpu for gpu in gpus)
