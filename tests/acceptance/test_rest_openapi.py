"""The OpenAPI document matches the server: schemathesis sends valid and invalid requests and compares."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.control_plane.rest.routes import ROUTES
from tests.acceptance.rest_cluster import PATIENCE_SECONDS, RestCluster

EXAMPLES = 6
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WHOLE = [route for route in ROUTES if route.media not in {"text/event-stream", "text/plain"}]
"""Others may run forever; they have their own tests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    with RestCluster(tmp_path_factory.mktemp("openapi")) as cluster:
        cluster.submit(priority="high")
        yield cluster


@pytest.fixture(scope="module")
def document(cluster: RestCluster) -> Any:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{cluster.port}/openapi.json", timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("route", WHOLE, ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
def test_answers_match_the_openapi_document(document: Any, route: Route, mode: GenerationMode) -> None:
    operation = document[route.path][route.method]
    if mode is GenerationMode.NEGATIVE and not (route.request or route.query or "{" in route.path):
        return  # there is nothing one could get wrong

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(timeout=PATIENCE_SECONDS)
        case.validate_response(response, checks=CHECKS)

    ask()


def test_the_document_has_exactly_the_existing_routes(cluster: RestCluster) -> None:
    paths = cluster.get("/openapi.json")["paths"]
    told = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert told == {(route.method, route.path) for route in ROUTES}
