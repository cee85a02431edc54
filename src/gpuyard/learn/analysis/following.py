"""Objects and who made them: what one step needs of another.

For each object we know the steps whose work is in it (`writers`) and those that have looked at it since (`readers`), and which
objects it holds. A step needs

    the writers of all it looks at, through whatever holds them       (it uses their result)
    the readers of all it changes                                     (they must have seen it before)
    what the conditions it is under were made from                    (else nobody knows whether it runs)
    the steps before it that wrote a file it reads, and so on         (`files`, at the end)

A need that appears only in the second round of a loop goes from one round to the next. It makes no edge, since a task stands for
all rounds; a loop without any has rounds that could all run at once. So edges go forward in the order of the code, and can
not form a circle.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpuyard.learn.analysis.objects import NOBODY, State, Value
from gpuyard.learn.analysis.steps import Loop, Step, When, exclusive, exclusive_sides, shared_files, unseen_effects
from gpuyard.learn.analysis.survey import Seen
from gpuyard.learn.analysis.texts import is_known, unmarked


class Following:
    """What is known of objects and steps while a script is walked."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.edges: dict[tuple[int, int], set[str]] = {}
        self.state = State()
        self.held: dict[int, set[int]] = {}
        self.plain: set[int] = set()
        """Numbers, texts, options: what nobody changes, and whoever got it holds only a copy of."""
        self.control: dict[int, str] = {}
        """Steps that decide whether what comes now is run, and how."""
        self.inside: Step | None = None
        self.own: set[int] = set()
        """Objects the step we are inside of has made or changed this time: what it needs of itself."""
        self.rounds_of: list[tuple[Loop, bool]] = []
        """Loops that are being walked, the innermost last, and whether it is the second round."""
        self._objects = 0

    def objects_of(self, name: str) -> frozenset[int]:
        """What a name refers to, the innermost place first."""
        for names in (self.state.names[-1], *self.state.names[-2::-1]):
            if name in names:
                return names[name]
        return frozenset()

    def bind(self, name: str, objects: frozenset[int]) -> None:
        """Give objects a name."""
        self.state.names[-1][name] = objects

    def new(self, authors: frozenset[int], holds: frozenset[int]) -> frozenset[int]:
        """An object that these steps made."""
        self._objects += 1
        self.state.writers[self._objects] = authors
        if self.inside is not None:
            self.own.add(self._objects)
        self.hold(self._objects, holds)
        return frozenset({self._objects})

    def hold(self, thing: int, others: Iterable[int]) -> None:
        """An object refers to others from now on."""
        self.held.setdefault(thing, set()).update(
            other for other in others if other not in self.plain and other != thing
        )

    def reach(self, objects: Iterable[int]) -> set[int]:
        """These and all that they hold."""
        found, waiting = set(objects), list(objects)
        while waiting:
            for held in self.held.get(waiting.pop(), ()):
                if held not in found:
                    found.add(held)
                    waiting.append(held)
        return found

    def read(self, value: Value) -> frozenset[int]:
        """The steps whose work is in a value; inside of a step, that step needs them."""
        return self.look_at(value, self.inside, "")

    def look_at(self, value: Value, step: Step | None, name: str) -> frozenset[int]:
        """The steps whose work is in a value, which a step looks at now under this name."""
        authors = set(value.steps)
        itself = {step.number} if step is not None else set()
        needed = value.steps - itself
        for thing in self.reach(value.objects):
            writers = self.state.writers.get(thing, NOBODY)
            authors |= writers
            needed |= writers - itself if thing in self.own else writers
            if step is not None:
                self.state.readers[thing] = self.state.readers.get(thing, NOBODY) | itself
        if step is not None:
            for author in needed:
                self.need(author, step, f"value {name}" if name else "value")
        return frozenset(authors)

    def change(
        self, value: Value, authors: frozenset[int], step: Step | None = None, *, only_itself: bool = False
    ) -> None:
        """An object and all it holds get new authors; a collection that only gets one more does not touch the others."""
        step = step or self.inside
        for thing in (value.objects if only_itself else self.reach(value.objects)) - self.plain:
            if step is None:
                self.state.writers[thing] = self.state.writers.get(thing, NOBODY) | authors
                continue
            itself = frozenset({step.number})
            writers = self.state.writers.get(thing, NOBODY)
            for other in (self.state.readers.get(thing, NOBODY) - itself) | (
                writers - itself if thing in self.own else writers
            ):
                self.need(other, step, "before it changes")
            if step is self.inside:
                self.own.add(thing)
            self.state.writers[thing] = itself
            self.state.readers[thing] = NOBODY

    def need(self, earlier: int, step: Step, why: str) -> None:
        """A step needs an earlier one; in the second round of a loop around both, only the round does."""
        pair = (earlier, step.number)
        for loop, second in reversed(self.rounds_of):
            if second and loop in self._common(earlier, step):
                if pair not in self.edges:
                    loop.carried.add(why)
                return
        if earlier < step.number:
            self.edges.setdefault(pair, set()).add(why)

    def _common(self, earlier: int, step: Step) -> Iterator[Loop]:
        both = set(map(id, self.steps[earlier].loops))
        return (loop for loop in step.loops if id(loop) in both)

    @contextmanager
    def under(self, steps: Iterable[int], why: str) -> Iterator[None]:
        """What is inside runs only if something made by these steps says so."""
        kept = dict(self.control)
        self.control |= {step: why for step in steps if step not in self.control}
        yield
        self.control = kept

    def writers_of_files(self, paths: Iterable[str], whens: tuple[When, ...]) -> frozenset[int]:
        """The steps so far that write what is quick to look at, or to be told the name of."""
        wanted = Seen(reads={path for path in paths if is_known(path)})
        return frozenset(
            step.number
            for step in self.steps
            if step.seen.writes
            and not exclusive_sides(step.whens, whens)
            and any(shared_files(step.seen, wanted, only_results=True))
        )

    def files(self) -> None:
        """Steps that use the same files keep the order of the code."""
        using = [step for step in self.steps if step.seen.touches_files]
        unseen = [step for step in self.steps if "runs text" in step.seen.effects]
        pairs = {(one.number, other.number) for one in using for other in using if one.number < other.number}
        pairs |= {tuple(sorted((one.number, two.number))) for one in unseen for two in self.steps if one is not two}  # type: ignore[misc]
        for pair in sorted(pairs):
            earlier, later = self.steps[pair[0]], self.steps[pair[1]]
            if exclusive(earlier, later):
                continue
            whys = {*shared_files(earlier.seen, later.seen), *unseen_effects(earlier.seen, later.seen)}
            if whys:
                self.edges.setdefault(pair, set()).update(whys)
        for step in self.steps:
            for loop in step.loops:
                loop.carried |= {f"file {unmarked(path)}" for path in step.seen.writes if loop.mark not in path}
                if "waits" in step.seen.effects:
                    loop.carried.add("programs that it starts")
            for later in self.steps[step.number :] if step.loops and step.seen.reads else ():
                for loop in self._common(later.number, step):
                    theirs = Seen(writes={path for path in later.seen.writes if loop.mark not in path})
                    loop.carried |= set(shared_files(theirs, step.seen, only_results=True))
