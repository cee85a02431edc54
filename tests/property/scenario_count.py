"""Count the scenarios that the property tests ran, for the report at the end."""

LIVES = {"count": 0}


def count_life() -> None:
    """Count one more cluster."""
    LIVES["count"] += 1
