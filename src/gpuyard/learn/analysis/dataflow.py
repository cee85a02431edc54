"""Finds which units of a script must run before which others, and why.

Units are gone through in the order of the code. For everything that two units may share (a name, a group of aliases, a
file, a hidden state) it is kept which unit changed it last and which have used it since: a unit that uses it comes after
the change, a unit that changes it comes after all of them. Dependencies that these imply are not listed, so that the
work grows with the length of the script. A name that no other unit reads is private to the unit that assigns it: loops
that reuse the name `i` do not depend on each other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from gpuyard.learn.analysis.api_patterns import CLOCK, EXITS
from gpuyard.learn.analysis.effects import EVERYTHING, Effects, FileAccess, Groups, Variable
from gpuyard.learn.analysis.paths import ANY, may_meet, normal
from gpuyard.learn.analysis.source import one_line
from gpuyard.learn.analysis.steps import Unit

MOST_HELD = 50
"""A group of aliases that was made with more files than this may use any file."""


class Reason(NamedTuple):
    """Why one unit must run before another."""

    kind: Literal["value", "name", "change", "file", "state", "control"]
    """`name`: the other assigns a value to the name that no later unit reads; separate processes may do that at once."""
    what: str

    def __str__(self) -> str:
        if self.kind in {"name", "change"}:
            return f"{self.what} changes"
        return {"state": self.what, "control": f"decides: {self.what}"}.get(self.kind, f"{self.kind} {self.what}")


Edges = dict[tuple[int, int], set[Reason]]
"""Reasons by the numbers of the earlier and the later unit."""


@dataclass
class _Shared:
    """Something that units share: the unit that changed it last, and those that have used it since."""

    changed: int | None = None
    used: list[int] = field(default_factory=list)

    def before(self, *, changes: bool) -> list[int]:
        """Return the units that a unit comes after which uses or changes this."""
        last = [] if self.changed is None else [self.changed]
        return self.used or last if changes else last

    def add(self, number: int, *, changes: bool) -> None:
        """Record a use by a unit."""
        if changes:
            self.changed, self.used = number, []
        else:
            self.used.append(number)


def dependencies(units: Sequence[Unit], hazard: str | None = None) -> Edges:
    """Return the pairs of units that must keep their order, without most that others imply; a hazard orders all."""
    effects = _with_private_names([unit.effects for unit in units])
    groups = Groups(pair for one in effects for pair in one.aliases)
    held: dict[Variable, set[FileAccess]] = {}
    for one in effects:
        for variable, file in one.holds:
            held.setdefault(groups.group(variable), set()).add(file)
    vague = {FileAccess(ANY, writes=False), FileAccess(ANY, writes=True)}
    held = {group: files if len(files) <= MOST_HELD else vague for group, files in held.items()}
    last_read = {variable: number for number, one in enumerate(effects) for variable in one.reads}
    edges: Edges = {}
    shared: dict[object, _Shared] = {}
    files = _Files()
    names: list[dict[Variable, set[str]]] = []
    for number, (unit, one) in enumerate(zip(units, effects, strict=True)):
        names.append({})
        for variable in one.reads | one.changes:
            names[number].setdefault(groups.group(variable), set()).add(variable.name)
        changed = {groups.group(variable) for variable in one.changes}
        exits = one.exits or EXITS in one.states
        uses: list[tuple[object, bool, Reason]] = [
            ("unknown", EVERYTHING in one.states, Reason("state", unit.unknown)),
            ("end", exits, Reason("control", one_line(unit.node, 40) if exits else "")),
            *((("name", v), v in one.assigns, Reason("value", v.name)) for v in sorted(one.reads | one.assigns)),
            *((("object", group), group in changed, Reason("change", "")) for group in sorted(names[number])),
            *((("state", s), True, Reason("state", s)) for s in sorted(one.states - {EXITS, CLOCK, EVERYTHING})),
            *([("hazard", True, Reason("state", hazard))] if hazard is not None else []),
        ]
        for key, changes, reason in uses:
            track = shared.setdefault(key, _Shared())
            for earlier in track.before(changes=changes):
                why = reason
                match key:
                    case ("name", Variable() as v) if earlier != track.changed or v not in one.reads:
                        why = Reason("name" if last_read[v] < number else "change", v.name)
                    case ("object", Variable() as group):
                        known = names[earlier][group]
                        why = Reason("change", min(known & names[number][group] or known))
                    case "unknown" if not unit.unknown:
                        why = Reason("state", units[earlier].unknown)
                    case "end" if not exits:
                        why = Reason("control", one_line(units[earlier].node, 40))
                edges.setdefault((earlier, number), set()).add(why)
            track.add(number, changes=changes)
        for earlier, pattern in files.use(number, set(one.files).union(*(held.get(g, ()) for g in names[number]))):
            edges.setdefault((earlier, number), set()).add(Reason("file", pattern))
    return edges


class _Files:
    """The files that units have used so far, by their patterns."""

    def __init__(self) -> None:
        self._shared: dict[str, _Shared] = {}
        self._below: dict[str, set[str]] = {}
        """Patterns by the first part of their path; "" if it is not known."""

    def use(self, number: int, files: Iterable[FileAccess]) -> Iterator[tuple[int, str]]:
        """Record the files of a unit; yield each earlier unit that it must come after, and the file."""
        own = sorted({(normal(file.path), file.writes) for file in files})
        for path, writes in own:
            first = _first_part(path)
            for other in sorted(self._below.get(first, set()) | self._below.get("", set())) if first else self._shared:
                if may_meet(path, other):
                    for earlier in self._shared[other].before(changes=writes):
                        yield earlier, min(path, other, key=lambda pattern: pattern.count(ANY))
        for path, writes in own:
            if path == ANY and writes:  # this unit comes after all others
                self._shared, self._below = {}, {}
            self._shared.setdefault(path, _Shared()).add(number, changes=writes)
            self._below.setdefault(_first_part(path), set()).add(path)


def _first_part(path: str) -> str:
    """Return the first part of a path: the folder or file of the current directory that it is in; "" if unknown."""
    first = path.partition("/")[0]
    return "" if ANY in first or first.startswith(("~", ".")) else first


def _with_private_names(effects: Sequence[Effects]) -> list[Effects]:
    """Return the effects with variables that are private to one unit renamed."""
    readers = Counter(variable for one in effects for variable in one.reads)
    made = []
    for number, one in enumerate(effects):
        private = {variable for variable in one.assigns if not readers[variable]}
        new = {variable: Variable(f"{variable.scope}#{number}", variable.name) for variable in private}
        made.append(
            replace(
                one,
                assigns=one.assigns - private,
                changes={new.get(variable, variable) for variable in one.changes},
                aliases={(new.get(left, left), new.get(right, right)) for left, right in one.aliases},
                holds={(new.get(variable, variable), file) for variable, file in one.holds},
            )
        )
    return made


def needs(units: Sequence[Unit], edges: Edges) -> dict[int, dict[int, set[Reason]]]:
    """Return for each unit the steps that it needs directly or through setup, without those that others imply."""
    before: dict[int, list[int]] = {}
    for earlier, later in edges:
        before.setdefault(later, []).append(earlier)
    found: dict[int, dict[int, set[Reason]]] = {}
    above: dict[int, int] = {}
    """The steps that a unit needs in any way, as bits."""
    for unit in units:
        why: dict[int, set[Reason]] = {}
        for earlier in before.get(unit.number, ()):
            reasons = edges[earlier, unit.number]
            for step, more in ({earlier: reasons} if units[earlier].is_step else found[earlier]).items():
                why.setdefault(step, set()).update(reasons if step == earlier else more)
        implied, kept = 0, []
        for step in sorted(why, reverse=True):
            if not implied >> step & 1:
                kept.append(step)
                implied |= 1 << step | above[step]
        above[unit.number] = implied
        found[unit.number] = {step: why[step] for step in reversed(kept)}
    return found
