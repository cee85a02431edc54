"""1,600 GPUs and tens of thousands of tasks: what the page asks for and draws does not grow with them."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from gpuyard.core.domain.commands import JoinNode
from tests.acceptance.rest_cluster import RestCluster
from tests.acceptance.waiting import until
from tests.browser.viewer import Viewer

pytestmark = pytest.mark.slow

NODES, GPUS_EACH = 200, 8
TASKS = 20_000
MOST_SCRIPT_SECONDS = 3.0
"""For scrolling through the whole list: 40 jumps. A bound against growth with the list, not a measured figure."""


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    assert browser.is_connected()
    with RestCluster(tmp_path_factory.mktemp("scale"), gpus=0) as made:
        for number in range(NODES):
            made.tell(JoinNode(made.node(f"rack{number // 20}-{number % 20:02}", GPUS_EACH, "H200")))
        task = {"command": "python train.py", "gpu_count": 8, "class": "online"}
        array = [{**task, "name": f"sweep-{part}", "array": {"count": 5000}} for part in range(TASKS // 5000)]
        reply = made.ask("POST", "/api/v1/tasks:batch", {"tasks": array})
        assert reply.status == 201, reply.body[:500]
        yield made


class ScriptClock:
    """The time that the page has spent in scripts since this was created."""

    def __init__(self, viewer: Viewer) -> None:
        self._session = viewer.page.context.new_cdp_session(viewer.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._began = self._now()

    def _now(self) -> float:
        told: list[dict[str, Any]] = self._session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in told if one["name"] == "ScriptDuration")

    @property
    def seconds(self) -> float:
        return self._now() - self._began


def test_the_map_shows_1600_gpus_and_finds_one(browser: Browser, cluster: RestCluster, viewers: list[Viewer]) -> None:
    viewer = Viewer(browser, cluster.port)
    viewers.append(viewer)
    page = viewer.open("gpus")
    expect(page.get_by_text("1,600 GPUs:")).to_be_visible()
    expect(page.locator("canvas")).to_be_visible()
    viewer.picture("gpus-1600")
    assert viewer.faults() == []
    page.get_by_label("Filter by node, model or task").fill("rack7-05/3")
    expect(page.get_by_text("1 GPUs:")).to_be_visible()
    page.locator("canvas").focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("rack7-05/3")


def test_a_long_list_is_scrolled_without_loading_it(
    browser: Browser, cluster: RestCluster, viewers: list[Viewer]
) -> None:
    viewer = Viewer(browser, cluster.port)
    viewers.append(viewer)
    page = viewer.open("tasks")
    expect(page.get_by_text("20,000 tasks", exact=True)).to_be_visible()
    clock = ScriptClock(viewer)
    for part in range(1, 41):
        page.locator(".vtable .view").evaluate(
            "(view, part) => { view.scrollTop = view.scrollHeight * part }", part / 40
        )
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.get_by_role("link", name="task-1", exact=False).last).to_contain_text("task-1")
    spent = clock.seconds
    assert page.locator(".vtable .line").count() < 60
    assert 0 < spent < MOST_SCRIPT_SECONDS, f"{spent:.1f} s of script time"
    page.get_by_label("Search name, command, user, id").fill("sweep-3")
    expect(page.get_by_text("5,000 tasks", exact=True)).to_be_visible()


SCROLLED = """async pixels => {
    const view = document.querySelector(".vtable .view");
    const [seen, frame] = [[], () => new Promise(done => requestAnimationFrame(done))];
    const watch = new MutationObserver(list => seen.push(...list));
    watch.observe(view, { subtree: true, childList: true, attributes: true, characterData: true });
    view.scrollTop += pixels;
    for (let i = 0; i < 4; i++) await frame();
    watch.disconnect();
    const lines = seen.filter(one => one.target.className === "space");
    return { all: seen.length, added: lines.reduce((sum, one) => sum + one.addedNodes.length, 0) };
}"""


def test_rows_that_stay_in_view_are_not_touched(browser: Browser, cluster: RestCluster, viewers: list[Viewer]) -> None:
    viewer = Viewer(browser, cluster.port)
    viewers.append(viewer)
    page = viewer.open("tasks")
    expect(page.get_by_text("20,000 tasks", exact=True)).to_be_visible()
    page.locator(".vtable .view").evaluate("view => { view.scrollTop = 44 * 40 }")
    expect(page.locator(".vtable .line.muted")).to_have_count(0)
    expect(page.locator('.vtable [aria-rowindex="42"]')).to_be_visible()
    assert page.evaluate(SCROLLED, 10) == {"all": 0, "added": 0}, "less than a row: nothing is rendered"
    moved = page.evaluate(SCROLLED, 44)
    assert moved["added"] == 1, moved
    assert moved["all"] <= 3, "one row comes, one goes, and no other changes"


def test_the_first_paint_waits_for_no_data(browser: Browser, cluster: RestCluster, viewers: list[Viewer]) -> None:
    """So its time does not grow with the cluster; benchmarks/dashboard.py measures it."""
    viewer = Viewer(browser, cluster.port)
    viewers.append(viewer)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    viewer.page.route("**/api/v1/overview*", hold)
    viewer.open("overview")
    expect(viewer.page.locator("main .skeleton").first).to_be_visible()
    until(lambda: viewer.page.evaluate("performance.getEntriesByName('first-contentful-paint').length"), 30, "a paint")
    assert held, "the data is still on its way"
    viewer.page.unroute("**/api/v1/overview*", hold)  # what it holds goes on
    viewer.settled()
    expect(viewer.page.locator(".stat .value").first).to_contain_text("1,600")
