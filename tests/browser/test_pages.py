"""The page of a running cluster: a scheduler and two agents with virtual GPUs, as real processes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from gpuyard.live.control_plane.rest.page import FOLDER
from tests.acceptance.live import Cluster, running_cluster
from tests.browser.viewer import Viewer, scripts_gzip_bytes

pytestmark = pytest.mark.slow

HEADINGS = {
    "overview": ("Overview", "总览"),
    "gpus": ("GPUs", "GPU"),
    "tasks": ("Tasks", "任务"),
    "timeline": ("Timeline", "时间线"),
    "plans": ("Plans", "编排"),
    "policies": ("Policies", "调度策略"),
    "usage": ("Usage", "用量"),
    "predictions": ("Predictions", "预测"),
    "alerts": ("Alerts", "告警"),
    "nodes": ("Nodes", "节点"),
    "tenants": ("Tenants & quotas", "租户与配额"),
    "access": ("Users & tokens", "用户与令牌"),
    "submit": ("Submit a task", "提交任务"),
}
HOSTILE = "<img src=x onerror=\"document.title='owned'\">\u202egnp.exe"
LONG_LINE_BYTES = 3 << 20


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assert browser.is_connected()  # without a browser no cluster is started
    agent = {"heartbeat_timeout": "4s"}
    with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=2, gpus=4, agent=agent) as made:
        client = made.ready(2)
        client.wait([client.submit("echo ready; exit 3", name="first"), client.submit("echo ready", name="second")])
        yield made


@pytest.fixture
def viewer(browser: Browser, cluster: Cluster, viewers: list[Viewer]) -> Viewer:
    viewers.append(Viewer(browser, cluster.http))
    return viewers[-1]


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_every_page_shows_its_data_without_an_error_or_a_serious_accessibility_fault(
    browser: Browser, cluster: Cluster, viewers: list[Viewer], language: str
) -> None:
    viewer = Viewer(browser, cluster.http, language=language, dark=language == "zh-CN")
    viewers.append(viewer)
    faults = {}
    for place, titles in HEADINGS.items():
        page = viewer.open(place)
        expect(page.locator("h1")).to_have_text(titles[language == "zh-CN"])
        viewer.settled()
        viewer.picture(f"{place}-{language}")
        if found := viewer.faults():
            faults[place] = found
    for place in ("gpus/node-1%2F0", "nodes/node-1", "tasks/task-1?tab=request"):
        viewer.open(place)
        viewer.settled()
        if found := viewer.faults():
            faults[place] = found
    assert not faults


def test_a_task_is_submitted_watched_and_cancelled(viewer: Viewer) -> None:
    page = viewer.open("submit")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_text("Enter a command.")).to_be_visible()
    page.get_by_label("Command", exact=True).fill("for i in 1 2 3; do echo line $i; done; sleep 600")
    page.get_by_label("Name", exact=True).fill("watched")
    page.get_by_label("GPUs per node").fill("many")
    expect(page.get_by_text("Enter a number from 0 to 1024.")).to_be_visible()
    page.get_by_label("GPUs per node").fill("1")
    page.get_by_label("Priority, 0 to 100").fill("100")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1")).to_have_text("watched")
    expect(page.locator(".page-head .badge")).to_contain_text("Running")
    page.get_by_role("tab", name="Log").click()
    expect(page.locator(".log")).to_contain_text("line 3")
    page.get_by_label("Search the whole log").fill("line 2")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("1 match")).to_be_visible()
    page.get_by_role("button", name="Cancel task").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel task").click()
    expect(page.locator(".page-head .badge")).to_contain_text("Cancelled")
    page.get_by_role("tab", name="Story").click()
    expect(page.locator(".story")).to_contain_text("The task ended: cancelled.")


def test_hostile_names_and_output_are_shown_as_text(viewer: Viewer, cluster: Cluster) -> None:
    written = (
        "printf '<script>document.title=1</script>\\033[31mred\\033[0m\\033]0;title\\007\\n'; "
        f"head -c {LONG_LINE_BYTES} /dev/zero | tr '\\0' x; echo; echo the end"
    )
    task = cluster.client().submit(written, name=HOSTILE, gpu_count=1, priority=100)
    page = viewer.open(f"tasks/{task.id}?tab=log")
    expect(page.locator("h1")).to_contain_text('<img src=x onerror="')
    expect(page.locator("h1")).to_contain_text("⟨U+202E⟩gnp.exe")
    log = page.locator(".log")
    expect(log).to_contain_text("the end")
    expect(log).to_contain_text("more bytes of this line")
    assert page.locator(".log .ln").count() < 100
    page.get_by_label("Search the whole log").fill("document.title")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator(".matches")).to_contain_text("<script>document.title=1</script>red")
    assert page.title().startswith(task.id)
    viewer.open("tasks")
    expect(page.get_by_role("row", name="gnp.exe")).to_be_visible()


def test_marks_that_reorder_text_are_visible_everywhere(viewer: Viewer, cluster: Cluster) -> None:
    hostile = "\u202etxt\u061c.\x9bexe"
    shown = "⟨U+202E⟩txt⟨U+061C⟩.⟨U+009B⟩exe"
    task = cluster.client().submit(f"echo {hostile}", project=hostile, gpu_count=1, priority=100)
    page = viewer.open(f"tasks/{task.id}?tab=request")
    expect(page.locator("pre.block")).to_contain_text(f"echo {shown}")
    viewer.open("usage?by=project&period=today")
    expect(page.get_by_role("cell", name=shown)).to_be_visible()
    assert not set(hostile[:1] + "\u061c\x9b") & set(page.locator("body").inner_text())


def test_a_plan_is_computed_in_the_background_and_drawn_with_its_bound(viewer: Viewer) -> None:
    page = viewer.open("plans")
    page.get_by_role("button", name="Insert an example").click()
    for costly in ("auto", "heft_affinity"):
        page.get_by_label(costly, exact=True).uncheck()
    page.get_by_role("button", name="Compute", exact=True).click()
    row = page.get_by_role("row", name=re.compile("^batch"))
    expect(row).to_contain_text("%", timeout=90_000)
    expect(page.get_by_role("heading", name="Schedule")).to_be_visible()
    expect(page.get_by_role("row", name="Plan · batch, dynamic")).to_contain_text("Done")
    viewer.picture("plan")
    assert viewer.faults() == []


def test_policies_are_compared_in_the_background(viewer: Viewer) -> None:
    page = viewer.open("policies")
    page.get_by_label("Number of tasks").fill("100")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("row", name=re.compile("^fair_share"))).to_be_visible(timeout=90_000)
    expect(page.get_by_role("img", name="Share of tasks that waited at most this long")).to_be_visible()
    viewer.picture("policy")


def test_usage_that_was_not_measured_is_not_drawn_as_used(viewer: Viewer) -> None:
    page = viewer.open("usage")
    bar = page.get_by_role("img", name=re.compile(r"default: .*\(used .*, held but idle .*, not measured 0\.\d+\)"))
    expect(bar).to_be_visible()


def test_language_and_theme_are_switched_and_kept(viewer: Viewer) -> None:
    page = viewer.open("overview")
    page.get_by_role("button", name="Account").click()
    page.get_by_role("button", name="中文").click()
    expect(page.locator("h1")).to_have_text("总览")
    page.get_by_role("button", name="深色").click()
    page.reload()
    expect(page.locator("h1")).to_have_text("总览")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.locator("html").get_attribute("lang") == "zh-CN"


def test_the_page_works_at_the_width_of_a_phone(browser: Browser, cluster: Cluster, viewers: list[Viewer]) -> None:
    viewer = Viewer(browser, cluster.http, width=390, height=844)
    viewers.append(viewer)
    for place in ("overview", "gpus", "tasks", "submit", "usage", "nodes", "tasks/task-1"):
        page = viewer.open(place)
        viewer.settled()
        viewer.picture(f"phone-{place.replace('/', '-')}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, f"{place} is {wide} px wide"
    page = viewer.page
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Nodes").click()
    expect(page.locator("h1")).to_have_text("Nodes")
    expect(page.get_by_role("navigation")).not_to_be_visible()


def test_the_keyboard_reaches_a_gpu_and_a_task(viewer: Viewer) -> None:
    page = viewer.open("gpus")
    canvas = page.locator("canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(canvas).to_have_accessible_name(re.compile("^node-1/1: "))
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("node-1/1")
    viewer.open("tasks")
    page.locator("[data-row='0']").focus()
    page.keyboard.press("ArrowDown")
    second = page.locator("[data-row='1']")
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".page-head")).to_contain_text("task-")


def test_six_tabs_share_one_stream(browser: Browser, cluster: Cluster, viewers: list[Viewer]) -> None:
    viewer = Viewer(browser, cluster.http)
    viewers.append(viewer)
    viewer.open("overview")
    tabs = [viewer.page.context.new_page() for _ in range(7)]
    for tab in tabs:
        tab.goto(f"{viewer.home}#/gpus")
        expect(tab.get_by_text("Live", exact=True)).to_be_visible()
        expect(tab.locator("canvas")).to_be_visible()


def test_a_lost_node_shows_up_without_a_reload(viewer: Viewer, cluster: Cluster) -> None:
    page = viewer.open("overview")
    expect(page.locator(".stat", has_text="Nodes")).to_contain_text("2")
    cluster.kill_node("node-2")
    expect(page.locator(".stat", has_text="Nodes")).to_contain_text("1 offline")
    expect(page.get_by_role("list", name="Recent changes")).to_contain_text("Node node-2 was lost")
    viewer.open("nodes")
    expect(page.get_by_role("row", name="node-2")).to_contain_text("Offline")
    viewer.open("gpus")
    expect(page.get_by_text("4 offline")).to_be_visible()


def test_the_page_recovers_when_the_scheduler_restarts(
    browser: Browser, cluster: Cluster, viewers: list[Viewer]
) -> None:
    viewer = Viewer(browser, cluster.http, outages=True)
    viewers.append(viewer)
    page = viewer.open("overview")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    cluster.stop_server()
    expect(page.get_by_text("The scheduler does not answer.")).to_be_visible()
    cluster.start_server()
    cluster.ready(1)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_text("The scheduler does not answer.")).not_to_be_visible()
    expect(page.locator(".stat", has_text="GPUs in use")).to_contain_text("of 8")


def test_the_scripts_are_small() -> None:
    assert 0 < scripts_gzip_bytes(FOLDER) < 400_000


def test_no_file_of_the_page_names_another_host() -> None:
    for path in Path(FOLDER).rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert "https://" not in text, path.name
