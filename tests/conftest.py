"""Compile the planner, stop PostgreSQL, and report at the end how many random scenarios were run, summed over all workers."""

import os
from typing import Any

import pytest

from tests.postgres_server import PostgresServer, shared_server, stop_shared_server
from tests.property.scenario_count import SCENARIOS

os.environ.setdefault("NUMBA_DISABLE_JIT", "0")  # the first plan of a fresh clone is not planned by plain Python


@pytest.fixture
def postgres() -> PostgresServer:
    """A running PostgreSQL; the test is skipped where there is none."""
    return shared_server()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the database of a worker, and pass its count to the controller."""
    stop_shared_server()
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["scenarios"] = SCENARIOS["count"]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Sum up."""
    SCENARIOS["count"] += getattr(node, "workeroutput", {}).get("scenarios", 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say it."""
    if SCENARIOS["count"]:
        terminalreporter.write_line(f"random scenarios run by the property tests: {SCENARIOS['count']}")
