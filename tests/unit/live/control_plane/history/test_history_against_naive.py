"""What the history says about any samples is what a naive computation over all of them says."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.live.control_plane.history.story import T0, Reading, opened, sample, series

COLUMNS = {
    "utilization": ("utilization", 0.5),
    "memory_mb": ("memory", 1.0),
    "temperature": ("temperature", 1.0),
    "power_watts": ("power", 0.1),
}
"""Series, the field of a reading, and the unit of its stored number."""
ROUNDING = 1e-3


def readings(supported: dict[str, bool]) -> "st.SearchStrategy[Reading]":
    """Readings of a card that reports some columns at times and the others never."""
    bounds = {"utilization": 200, "memory": 0xFFFE, "temperature": 254, "power": 0xFFFE}
    fields = {name: st.integers(0, most) | st.none() if supported[name] else st.none() for name, most in bounds.items()}
    return st.builds(Reading, **fields, task=st.integers(0, 3) | st.none())


@st.composite
def histories(draw: st.DrawFn) -> dict[int, dict[str, Reading]]:
    """Samples at any instants of three hours, of cards that come and go."""
    names = ("a", "b", "c")
    cards = {name: readings({field: draw(st.booleans()) for field, _ in COLUMNS.values()}) for name in names}
    instants = draw(st.lists(st.integers(0, 3 * 3600 - 1), min_size=1, max_size=60, unique=True))
    found = {}
    for at in sorted(instants):
        present = draw(st.sets(st.sampled_from(names)))
        found[T0 + at] = {name: draw(cards[name]) for name in sorted(present)}
    return found


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories(), step=st.sampled_from([1, 7, 60, 300, 3600, 7200]))
def test_means_and_maxima_are_those_of_the_samples(history: dict[int, dict[str, Reading]], step: int) -> None:
    with TemporaryDirectory() as folder:
        store = opened(Path(folder))
        for at, cards in history.items():
            store.append(sample(at, cards))
        until = T0 + 3 * 3600
        tiers = [tier for tier in store.tiers if step % tier.step == 0]
        since = max(T0, max(history) - 3000) if len(tiers) == 1 else T0  # single samples are kept for an hour
        since -= since % step
        points = (until - since) // step
        for name in "abc":
            found = series(store, name, since, since + points * step, step)
            within: dict[int, list[Reading]] = {}
            for at, cards in history.items():
                if name in cards:
                    within.setdefault((at - since) // step, []).append(cards[name])
            for number in range(points):
                if number in within:
                    compare({each: values[number] for each, values in found.items()}, within[number])
                else:
                    assert all(values[number] is None for values in found.values())
        store.close()


def compare(found: dict[str, float | None], within: list[Reading]) -> None:
    """Compare one step with the readings in it. Stored means are rounded once in each of two tiers."""
    for name, (field, unit) in COLUMNS.items():
        known = [value * unit for reading in within if (value := getattr(reading, field)) is not None]
        mean, highest = found[name], found.get(f"{name}_max")
        if not known:
            assert (mean, highest) == (None, None)
            continue
        assert mean is not None
        assert abs(mean - sum(known) / len(known)) <= unit + ROUNDING, name
        if f"{name}_max" in found:
            assert highest is not None
            assert abs(highest - max(known)) <= ROUNDING, name
    held, tasks = found["allocated"], [reading.task for reading in within if reading.task is not None]
    if not tasks:
        assert held is None
        return
    assert held is not None
    assert abs(held - 100 * sum(task > 0 for task in tasks) / len(tasks)) <= 0.5 + ROUNDING
