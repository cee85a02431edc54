"""Many runs, their counts, and the seeds that broke a promise."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from tests.simulation.replication.checks import Violation
from tests.simulation.replication.faults import FAULTS, Fault, old_backup_is_restored
from tests.simulation.replication.rules import switched_off
from tests.simulation.replication.world import World

COMMAND = "python -m tests.simulation.replication"


def faults_of(*, old_backups: bool) -> tuple[Fault, ...]:
    return (*FAULTS, *(old_backup_is_restored,) * 3) if old_backups else FAULTS


def play(
    seed: int,
    without: Collection[str] = (),
    *,
    old_backups: bool = False,
    choose: bool = False,
    grouped: bool = False,
    trace: bool = False,
) -> tuple[Violation | None, Counter[str]]:
    """One run. Return what was broken, and counts."""
    with switched_off(without):
        world = World(
            seed, without, trace=trace, faults=faults_of(old_backups=old_backups), choose=choose, grouped=grouped
        )
        try:
            world.run()
        except Violation as violation:
            return violation, world.counts
    return None, world.counts


def repeat(
    seed: int, without: Collection[str] = (), *, old_backups: bool = False, choose: bool = False, grouped: bool = False
) -> str:
    """The command that repeats a run."""
    rules = f" --without {','.join(sorted(without))}" if without else ""
    options = f"{' --old-backups' if old_backups else ''}{' --choose-voters' if choose else ''}"
    options += " --grouped" if grouped else ""
    return f"{COMMAND} --seeds {seed}{rules}{options} --trace"


def campaign(
    seeds: Iterable[int],
    without: Collection[str] = (),
    *,
    old_backups: bool = False,
    choose: bool = False,
    grouped: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, Counter[str], dict[str, list[tuple[int, str]]]]:
    """Runs, counts over all of them, and for each kind of violation its seeds and stories."""
    done, counts = 0, Counter[str]()
    broken: dict[str, list[tuple[int, str]]] = {}
    for seed in seeds:
        violation, more = play(seed, without, old_backups=old_backups, choose=choose, grouped=grouped)
        counts.update(more)
        done += 1
        if violation is not None:
            broken.setdefault(violation.kind, []).append((seed, violation.story))
        if progress is not None:
            progress(done, sum(map(len, broken.values())))
    return done, counts, broken
