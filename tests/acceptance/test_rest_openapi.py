"""The document says what the server does: schemathesis sends what it allows and what it forbids, and compares."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gpuyard.control_plane.rest.routes import ROUTES
from tests.acceptance.rest_yard import RestYard

FLOWS = r"/(events|logs)$"
"""They may go on for ever; tests of their own look at them."""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestYard]:
    with RestYard(tmp_path_factory.mktemp("openapi")) as yard:
        yard.submit(priority="high")
        yield yard


@pytest.fixture(scope="module")
def document(yard: RestYard) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{yard.port}/openapi.json").exclude(path_regex=FLOWS)


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_answers_are_as_the_document_says(case: Any) -> None:
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    case.call_and_validate(checks=checks)


def test_the_document_has_every_route_and_nothing_else(yard: RestYard) -> None:
    paths = yard.get("/openapi.json")["paths"]
    told = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert told == {(route.method, route.path) for route in ROUTES}
