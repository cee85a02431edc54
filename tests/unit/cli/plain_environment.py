"""A shell without the variables that travel with every task, so that a test sees those that it sets."""

import os

import pytest

from gpuyard.cli.input.environment import USUAL, USUAL_PREFIXES


def without_usual_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in USUAL or name.startswith(USUAL_PREFIXES):
            monkeypatch.delenv(name)
