"""The OpenAPI document describes what is really decoded, and the page is self-contained."""

import re
from html.parser import HTMLParser
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis

from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import TaskId, TaskStatus, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.legacy.messages import LegacyTask
from gpuyard.live.control_plane.rest.openapi import OpenApiDocument, docs_page, openapi_document
from gpuyard.live.control_plane.rest.query import counted, switch
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.wire.answers import GpusAnswer, QuotaAnswer, QuotaRequest
from gpuyard.live.wire.task_answers import TaskAnswer, answer_of
from gpuyard.live.wire.tasks import TaskRequest, read_task


async def _handle(context: AppContext, request: Request) -> Response:
    raise NotImplementedError


ROUTES = (
    Route(
        handle=_handle,
        action=Action.SUBMIT,
        method="POST",
        path="/api/v1/tasks",
        summary="Submit a task",
        request=TaskRequest,
        answer=TaskAnswer,
        status=201,
        errors=(409,),
        section="Tasks",
        idempotent=True,
        example={"priority": "high", "gpu_count": 1, "command": "echo it's done"},
    ),
    Route(
        handle=_handle,
        action=None,
        method="GET",
        path="/api/v1/tasks/{task_id}/logs",
        summary="Read the output",
        media="text/plain",
        query=(switch("follow", "Follow the output until the task ends"),),
        errors=(404,),
        section="Tasks",
    ),
    Route(
        handle=_handle,
        action=None,
        method="GET",
        path="/api/tasks",
        summary="All tasks",
        answer=list[LegacyTask],
        section="Legacy",
    ),
    Route(handle=_handle, action=None, method="GET", path="/api/v1/gpus", summary="All <GPUs>", answer=GpusAnswer),
    Route(
        handle=_handle,
        action=None,
        method="PUT",
        path="/api/v1/quota",
        summary="Split anew",
        request=QuotaRequest,
        answer=QuotaAnswer,
    ),
    Route(
        handle=_handle,
        action=None,
        method="GET",
        path="/api/monitor/device/{id}",
        summary="One device",
        status=204,
        query=(counted("limit", "How many", 1, 10),),
    ),
)


@pytest.fixture(scope="module")
def document() -> OpenApiDocument:
    return openapi_document(ROUTES, version="1.2.3")


@pytest.mark.slow
def test_the_document_is_valid_openapi_that_schemathesis_can_use(document: OpenApiDocument) -> None:
    loaded = schemathesis.openapi.from_dict(document)
    loaded.validate()
    operations: list[Any] = list(loaded.get_all_operations())
    found = {(each.ok().method.upper(), each.ok().path) for each in operations}
    assert found == {(route.method, route.path) for route in ROUTES}


def test_every_reference_in_the_document_resolves(document: OpenApiDocument) -> None:
    for ref in re.findall(r'"\$ref":"#/components/schemas/(\w+)"', msgspec.json.encode(document).decode()):
        assert ref in document["components"]["schemas"]


def test_values_the_schema_allows_are_decoded_and_values_it_forbids_are_refused(document: OpenApiDocument) -> None:
    schema: dict[str, Any] = {"$ref": "#/components/schemas/TaskRequest", "components": document["components"]}
    validator = jsonschema_rs.validator_for(schema)
    for body, right in [
        ({"priority": "high", "gpu_count": 2, "command": "python train.py"}, True),
        ({"priority": 100, "gpu_model": ["A100", "H100"], "command": ["a", "b"], "env": {"A": "1"}}, True),
        ({"class": "online", "depends_on": [1, "task-2"], "array": {"count": 3}}, True),
        ({"priority": 101}, False),
        ({"priority": "medium"}, False),
        ({"gpu_cout": 1}, False),
        ({"work_dir": "relative"}, False),
        ({"env": {"A=B": "1"}}, False),
        ({"timeout": 0}, False),
        ({"name": "two\nlines"}, False),
    ]:
        assert validator.is_valid(body) is right, body
        try:
            read_task(msgspec.json.encode(body))
            decoded = True
        except WrongRequest:
            decoded = False
        assert decoded is right, body


def test_an_answer_matches_the_schema(document: OpenApiDocument) -> None:
    spec = TaskSpec(TenantId("a"), Resources(gpus=1))
    answer = answer_of(
        TaskId(1), spec, status=TaskStatus.PENDING, priority=50, submitted_at=0, started_at=None, finished_at=None,
        exit_code=None, signal=None, attempts=0, placement=None, reason=None, reason_code=None, created_by="",
    )  # fmt: skip
    schema: dict[str, Any] = {"$ref": "#/components/schemas/TaskAnswer", "components": document["components"]}
    jsonschema_rs.validator_for(schema).validate(msgspec.json.decode(msgspec.json.encode(answer)))


def test_fields_carry_their_docstrings(document: OpenApiDocument) -> None:
    fields = document["components"]["schemas"]["TaskRequest"]["properties"]
    assert fields["nodes"]["description"].startswith("More than one: a gang")
    assert document["components"]["schemas"]["ErrorAnswer"]["description"] == "The form of every error."


def test_a_duplicate_route_is_detected() -> None:
    with pytest.raises(AssertionError, match="listed twice"):
        openapi_document([ROUTES[0], ROUTES[0]], version="1")


class Page(HTMLParser):
    """What a browser would fetch or jump to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        for name in ("href", "src"):
            if given.get(name):
                self.links.append(str(given[name]))


def test_the_page_lists_every_route_with_a_curl_line_and_fetches_nothing(document: OpenApiDocument) -> None:
    text = docs_page(document, server="http://yard:1")
    page = Page()
    page.feed(text)
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert all(link == "/openapi.json" or link.removeprefix("#") in page.ids for link in page.links)
    assert "url(" not in text
    assert text.count("<span class=method>") == len(ROUTES)
    assert "curl -X POST &#x27;http://yard:1/api/v1/tasks&#x27; -H &quot;Authorization: Bearer $GPUYARD_TOKEN" in text
    assert "All &lt;GPUs&gt;" in text
    assert "prefers-color-scheme: dark" in text
