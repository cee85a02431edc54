"""The client that blocks and the one that is awaited have the same methods, from one implementation."""

import inspect
import subprocess
import sys

import pytest

from gpuyard.live.sdk.aio import AsyncClient
from gpuyard.live.sdk.client import Client, ClusterOperations
from gpuyard.live.sdk.steps import listing, operation

BY_HAND = {"submit", "map", "wait", "lease", "close", "without_waiting", "connection"}
"""Methods that each client has itself, because they are overloaded or context managers."""
BLOCKING_ONLY = {"console", "shell", "forward", "executor"}
"""They return an object that threads drive. `asyncio.wrap_future` takes the futures of an executor."""


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_both_clients_have_the_same_methods() -> None:
    assert public(Client) - BLOCKING_ONLY == public(AsyncClient)


@pytest.mark.parametrize("name", sorted(public(ClusterOperations)))
def test_a_shared_method_is_an_operation_or_a_listing(name: str) -> None:
    """A plain method would block the event loop of an `AsyncClient`."""
    assert isinstance(inspect.getattr_static(ClusterOperations, name), operation | listing)


@pytest.mark.parametrize("name", sorted((public(Client) & public(AsyncClient)) - {"connection"}))
def test_a_method_has_the_same_parameters_in_both(name: str) -> None:
    here, there = (inspect.getattr_static(client, name) for client in (Client, AsyncClient))
    if name in BY_HAND:
        ours, theirs = (list(inspect.signature(each).parameters.values()) for each in (here, there))
        assert ours == theirs
    else:
        assert here is there
        assert here.__doc__


def test_no_other_method_is_written_twice() -> None:
    written = {name for name in vars(AsyncClient) if not name.startswith("_")}
    assert written <= BY_HAND


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_program_that_blocks_never_imports_asyncio() -> None:
    loaded = imported_by("import gpuyard; gpuyard.connect('http://127.0.0.1:1')")
    assert "gpuyard.live.sdk.client" in loaded
    assert not {"asyncio", "cloudpickle", "concurrent.futures.thread"} & loaded
    assert "asyncio" in imported_by("import gpuyard; gpuyard.aio.connect('http://127.0.0.1:1')")
