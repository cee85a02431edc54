"""Which kinds are kept and which are forgotten."""

from gpuyard.learn.estimates.kinds import RecentKinds


def test_the_least_recently_seen_kind_is_forgotten() -> None:
    kinds = RecentKinds(list[int], most=2)
    for number, name in enumerate("abac"):
        kinds.touch((name,)).append(number)
    kinds.forget()
    assert kinds == {("a",): [0, 2], ("c",): [3]}


def test_nothing_is_forgotten_below_the_limit() -> None:
    kinds = RecentKinds(list[int], most=2)
    for name in "abcd":
        kinds.touch((name,))
    assert len(kinds) == 4
