"""The form for tasks: every field is sent, is on the command line below it, and is named if it is wrong."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, expect
from typer.testing import CliRunner

from gpuyard.cli import app
from tests.acceptance.rest_cluster import RestCluster
from tests.browser.viewer import Viewer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    assert browser.is_connected()
    with RestCluster(tmp_path_factory.mktemp("submit")) as made:
        assert made.ask("POST", "/api/v1/tasks", {"command": "sleep 1", "gpu_count": 4}).status == 201
        yield made


@pytest.fixture
def viewer(browser: Browser, cluster: RestCluster, viewers: list[Viewer]) -> Viewer:
    viewers.append(Viewer(browser, cluster.port))
    return viewers[-1]


FIELDS = {
    "Command": "echo 'it''s' \"$HOME\"; exit 0",
    "Name": "all of it",
    "Project": "p-1",
    "GPUs per node": "2",
    "GPU memory, MiB": "4096",
    "CPUs": "3",
    "Host memory, MiB": "512",
    "Nodes": "1",
    "Priority, 0 to 100": "60",
    "Time limit": "1h30m",
    "Expected run time": "20m",
    "Retries": "2",
    "Copies": "3",
    "Tenant": "vision",
    "Working directory": "/tmp/a b",
    "Start after these succeed": "task-1",
    "Environment": "A=1\nB=x y's",
}
CHOICES = {"Class": "batch", "Preemption": "requeue"}


def preview_of(page: Page) -> dict[str, Any]:
    """The request that the page sends to preview what is in the form."""

    def is_last(request: Request) -> bool:
        return "dry_run" in request.url and '"B"' in (request.post_data or "")

    with page.expect_request(is_last) as asked:
        for label, text in FIELDS.items():
            page.get_by_label(label, exact=True).fill(text)
    body: dict[str, Any] = json.loads(asked.value.post_data or "")
    return body


def test_the_command_line_submits_what_the_form_would(viewer: Viewer, cluster: RestCluster) -> None:
    page = viewer.open("submit")
    page.get_by_role("button", name="More options").click()
    for label, value in CHOICES.items():
        page.get_by_label(label, exact=True).select_option(value)
    model = page.get_by_label("GPU model").locator("option").last.get_attribute("value")
    assert model
    page.get_by_label("GPU model").select_option(model)
    body = preview_of(page)
    assert len(body) == len(FIELDS) + len(CHOICES) + 1
    line = page.get_by_label("The same on the command line").inner_text()
    words = shlex.split(line)
    assert words[:2] == ["gpuyard", "submit"]
    options = ["--json", "--server", f"http://127.0.0.1:{cluster.port}"]
    ran = CliRunner().invoke(app, ["submit", *options, *words[2:]], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert len(told["tasks"]) == body.pop("array")["count"] == 3
    assert {name: told[name] for name in body} == body
    expect(page.get_by_text("3 copies.")).to_be_visible()
    assert viewer.faults() == []


def test_the_first_wrong_field_gets_the_focus(viewer: Viewer) -> None:
    page = viewer.open("submit")
    page.get_by_label("Command", exact=True).fill("echo hello")
    page.get_by_label("Time limit", exact=True).fill("soon")
    expect(page.get_by_text("Enter a time such as 90s, 30m or 1h30m")).to_be_visible()
    expect(page.get_by_text("Correct the marked fields")).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_label("Time limit", exact=True)).to_be_focused()
    page.get_by_label("Time limit", exact=True).fill("90s")
    page.get_by_label("GPU memory, MiB").fill("9999999")
    expect(page.get_by_text("Cannot start on this cluster")).to_be_visible()
    expect(page.get_by_text("cancel it and request less")).to_be_visible()


def test_a_waiting_task_is_held_released_and_cancelled_with_a_word_about_each(
    viewer: Viewer, cluster: RestCluster
) -> None:
    task = cluster.ask("POST", "/api/v1/tasks", {"command": "python later.py", "gpu_count": 4}).json["id"]
    page = viewer.open(f"tasks/{task}")
    expect(page.locator("h1")).to_have_text("python later.py")
    page.get_by_role("button", name="Hold").click()
    expect(page.get_by_text(f"{task} is on hold.")).to_be_visible()
    expect(page.locator(".callout")).to_contain_text("The task is on hold. Release it")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text(f"{task} was released.")).to_be_visible()
    expect(page.locator(".callout")).to_contain_text("The quota of batch tasks is 1 GPU")
    page.get_by_role("button", name="Cancel task").click()
    expect(page.get_by_role("dialog")).to_contain_text("It leaves the queue.")
    page.get_by_role("dialog").get_by_role("button", name="Cancel task").click()
    expect(page.locator(".page-head .badge")).to_contain_text("Cancelled")
    page.get_by_role("button", name="Account").click()
    page.get_by_role("button", name="中文").click()
    expect(page.locator(".callout")).to_have_text(re.compile("^已取消。"))
