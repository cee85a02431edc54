"""Slots: the places of cards and nodes in the rows of the history.

A slot belongs to one card from some instant on. A card that has left keeps its slot until its history has expired, so
that its past can still be read. If cards come and go faster than that, the slot that has been free longest is taken, and
the past of its last owner is no longer shown. A slot is never passed on within the same hour: no row mixes two cards.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SPARE_SLOTS = 64
"""Slots of cards that have left, in addition to one for each present card."""
REST_SECONDS = 2 * 3_600
"""A slot is not passed on before this time after its owner has left."""
MOST_SLOTS = 65_536
"""Cards beyond this number are not recorded."""


@dataclass(slots=True)
class Owner:
    """A card or node, and the time in which it has had its slot."""

    slot: int
    name: str
    """`NODE/INDEX` of a card, the id of a node."""
    mark: str
    """Differs if another card is at the same place: the UUID, and the memory."""
    memory_mib: int
    since: int
    until: int | None = None
    """When it left; None: it is present."""


class Assigned(NamedTuple):
    """The result of an assignment."""

    slots: list[int | None]
    """The slot of each card; None: there are too many, it is not recorded."""
    changed: list[Owner]
    dropped: list[int]
    """Slots that have no owner any more."""


class Slots:
    """The slots of one kind."""

    def __init__(self, keep_seconds: float, owners: Iterable[Owner] = ()) -> None:
        self._keep_seconds = max(keep_seconds, REST_SECONDS)
        self.owners = {owner.slot: owner for owner in owners}
        """All owners whose history may still exist, by slot."""
        self._by_key = {(owner.name, owner.mark): owner for owner in self.owners.values()}

    @property
    def count(self) -> int:
        """Return the number of slots in a row."""
        return max(self.owners, default=-1) + 1

    def named(self, name: str) -> list[Owner]:
        """Return all owners with this name, present and past."""
        return [owner for owner in self.owners.values() if owner.name == name]

    def assign(self, cards: Sequence[tuple[str, str, int]], now: int) -> Assigned:
        """Give every card (name, mark, memory) its slot; take it from those that are not in the list."""
        changed, dropped = dict[int, Owner](), list[int]()
        wanted = {(name, mark) for name, mark, _ in cards}
        for key, owner in self._by_key.items():
            if owner.until is None and key not in wanted:
                owner.until = now
                changed[owner.slot] = owner
            elif owner.until is not None and key in wanted:  # it is back
                owner.until = None
                changed[owner.slot] = owner
        for owner in list(self.owners.values()):
            if owner.until is not None and owner.until + self._keep_seconds < now:
                self._drop(owner, dropped)
        free = self._free(len(cards), now, dropped)
        slots = list[int | None]()
        for name, mark, memory_mib in cards:
            known = self._by_key.get((name, mark))
            if known is None and (slot := next(free, None)) is not None:
                known = Owner(slot, name, mark, memory_mib, now)
                self.owners[slot] = self._by_key[name, mark] = changed[slot] = known
            slots.append(None if known is None else known.slot)
        return Assigned(slots, list(changed.values()), [slot for slot in dropped if slot not in self.owners])

    def _drop(self, owner: Owner, dropped: list[int]) -> None:
        del self.owners[owner.slot]
        del self._by_key[owner.name, owner.mark]
        dropped.append(owner.slot)

    def _free(self, cards: int, now: int, dropped: list[int]) -> Iterator[int]:
        """Yield slots to assign: unused ones, new ones, then those that have been free longest."""
        count, most = self.count, min(MOST_SLOTS, 2 * cards + SPARE_SLOTS)
        yield from [slot for slot in range(count) if slot not in self.owners]
        yield from range(count, most)
        rested = [
            owner for owner in self.owners.values() if owner.until is not None and owner.until + REST_SECONDS < now
        ]
        for owner in sorted(rested, key=lambda owner: owner.until or 0):
            self._drop(owner, dropped)
            yield owner.slot
        yield from range(max(count, most), MOST_SLOTS)
