"""Count the scenarios that the property tests ran, for the report at the end."""

SCENARIOS = {"count": 0}


def count_scenario() -> None:
    """Count one more cluster."""
    SCENARIOS["count"] += 1
