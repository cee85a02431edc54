"""Run times from history: the most particular likeness that was seen often enough answers."""

from gpuyard.predictor.history import ENOUGH, REMEMBERED, Asked, History

ANN = Asked("ann", "", "train", 8.0)


def test_nobody_knows_before_anything_has_ended() -> None:
    assert History().estimate(ANN) is None


def test_the_same_again_is_judged_by_itself_and_not_by_others() -> None:
    history = History()
    for _ in range(ENOUGH):
        history.observe(ANN, 100.0)
        history.observe(Asked("ann", "", "test", 1.0), 5.0)
    found = history.estimate(ANN)
    assert found is not None
    assert found.seconds == 100.0


def test_somebody_new_is_judged_by_others_of_the_size() -> None:
    history = History()
    for seconds in (10.0, 20.0, 30.0):
        history.observe(Asked("bob", "", "x", 8.0), seconds)
        history.observe(Asked("bob", "", "x", 1.0), 9_999.0)
    found = history.estimate(ANN)
    assert found is not None
    assert (found.seconds, found.low_seconds, found.high_seconds) == (20.0, 10.0, 30.0)


def test_what_was_long_ago_is_forgotten() -> None:
    history = History()
    for _ in range(REMEMBERED):
        history.observe(ANN, 1.0)
    for _ in range(REMEMBERED):
        history.observe(ANN, 50.0)
    found = history.estimate(ANN)
    assert found is not None
    assert found.low_seconds == 50.0
