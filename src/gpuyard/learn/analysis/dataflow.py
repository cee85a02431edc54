"""Finds which units of a script must run before which others, and why.

Two units may run in either order only if this is proven: no variable, group of aliases, file or hidden state that one
of them changes is used by the other. A variable that a unit assigns before it reads it, and that no later unit reads,
is private to that unit: loops that reuse the name `i` do not depend on each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from gpuyard.learn.analysis.api_patterns import CLOCK, EXITS
from gpuyard.learn.analysis.effects import EVERYTHING, Effects, FileAccess, Variable
from gpuyard.learn.analysis.groups import Groups
from gpuyard.learn.analysis.paths import may_meet
from gpuyard.learn.analysis.source import one_line
from gpuyard.learn.analysis.steps import Unit


class Reason(NamedTuple):
    """Why one unit must run before another."""

    kind: Literal["value", "change", "file", "state", "control"]
    what: str

    def __str__(self) -> str:
        return {"change": f"{self.what} changes", "state": self.what, "control": f"decides: {self.what}"}.get(
            self.kind, f"{self.kind} {self.what}"
        )


Edges = dict[tuple[int, int], set[Reason]]
"""Reasons by the numbers of the earlier and the later unit."""


def dependencies(units: Sequence[Unit], hazard: str | None = None) -> Edges:
    """Return every pair of units that must keep its order; because of a hazard, all do."""
    effects = _with_private_names([unit.effects for unit in units])
    groups = Groups(pair for one in effects for pair in one.aliases)
    held: dict[Variable, set[FileAccess]] = {}
    for one in effects:
        for variable, file in one.holds:
            held.setdefault(groups.group(variable), set()).add(file)
    uses = [_Use(one, groups, held) for one in effects]
    edges: Edges = {}
    for later in range(len(units)):
        for earlier in range(later):
            found = set(_reasons(effects, uses, earlier, later))
            for number in (earlier, later):  # nothing is moved across the end of the script
                if effects[number].exits or EXITS in effects[number].states:
                    found.add(Reason("control", one_line(units[number].node, 40)))
            if hazard is not None:
                found.add(Reason("state", hazard))
            if found:
                edges[earlier, later] = found
    return edges


class _Use:
    """The groups, files and states that a unit uses."""

    def __init__(self, effects: Effects, groups: Groups[Variable], held: dict[Variable, set[FileAccess]]) -> None:
        self.reads: dict[Variable, set[str]] = {}
        for variable in effects.reads | effects.changes:
            self.reads.setdefault(groups.group(variable), set()).add(variable.name)
        self.changes = {groups.group(variable) for variable in effects.changes}
        files = set(effects.files).union(*(held.get(group, ()) for group in self.reads))
        self.files = sorted({(file.path.pattern, file.writes) for file in files})
        self.states = effects.states


def _with_private_names(effects: Sequence[Effects]) -> list[Effects]:
    """Return the effects with variables that are private to one unit renamed."""
    made = []
    for number, one in enumerate(effects):
        private = {v for v in one.assigns - one.reads if not _is_read_later(v, effects, number)}
        new = {variable: Variable(f"{variable.scope}#{number}", variable.name) for variable in private}
        made.append(
            replace(
                one,
                assigns=one.assigns - private,
                always_assigns=one.always_assigns - private,
                changes={new.get(variable, variable) for variable in one.changes},
                aliases={(new.get(left, left), new.get(right, right)) for left, right in one.aliases},
                holds={(new.get(variable, variable), file) for variable, file in one.holds},
            )
        )
    return made


def _is_read_later(variable: Variable, effects: Sequence[Effects], number: int) -> bool:
    """Return whether a later unit reads the value before it is certainly assigned again."""
    for later in effects[number + 1 :]:
        if variable in later.reads:
            return True
        if variable in later.always_assigns:
            return False
    return False


def _reasons(effects: Sequence[Effects], uses: Sequence[_Use], earlier: int, later: int) -> Iterator[Reason]:
    one, other = effects[earlier], effects[later]
    between = set().union(*(unit.always_assigns for unit in effects[earlier + 1 : later]))
    for variable in sorted(one.assigns & other.reads - between):
        yield Reason("value", variable.name)
    for variable in sorted(other.assigns & (one.reads | one.assigns)):
        if variable in one.reads or _is_read_later(variable, effects, later):
            yield Reason("change", variable.name)
    before, after = uses[earlier], uses[later]
    for group in (before.changes & after.reads.keys()) | (before.reads.keys() & after.changes):
        yield Reason("change", min(before.reads[group] & after.reads[group] or before.reads[group]))
    for used, writes in before.files:
        for using, writes_too in after.files:
            if (writes or writes_too) and may_meet(used, using):
                yield Reason("file", min(used, using, key=lambda path: path.count("*")))
    for state in sorted(before.states & after.states - {EXITS, CLOCK}):
        yield Reason("state", state)
    if EVERYTHING in before.states | after.states:
        yield Reason("state", EVERYTHING)
