"""How many lives the property tests ran, so that the end of the run can say so."""

LIVES = {"count": 0}


def count_life() -> None:
    """One more cluster was founded."""
    LIVES["count"] += 1
