"""Ages are doublings of sixteen seconds, levels fourfold steps from ten minutes on."""

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.remaining_time import AGES, age_begins_at, age_of, level_of


@given(st.integers(1, AGES - 1))
def test_an_age_begins_where_the_previous_one_ends(age: int) -> None:
    assert age_of(age_begins_at(age)) == age
    assert age_of(age_begins_at(age) - 1e-3) == age - 1


def test_nothing_is_older_than_the_last_age() -> None:
    assert age_of(1e15) == AGES - 1
    assert (age_of(0.0), age_begins_at(0)) == (0, 0.0)


def test_levels_begin_at_ten_minutes() -> None:
    assert [level_of(seconds) for seconds in (0, 599, 600, 2400, 9600, 38400, 1e9)] == [0, 0, 1, 2, 3, 4, 4]
