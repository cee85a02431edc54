"""The page of a cluster without tasks, and of one without nodes: what to do next."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance.rest_cluster import RestCluster
from tests.browser.viewer import Viewer

pytestmark = pytest.mark.slow


def test_an_empty_cluster_offers_a_sample_workload_that_shows_up_without_a_reload(
    browser: Browser, tmp_path: Path
) -> None:
    with RestCluster(tmp_path) as cluster:
        viewer = Viewer(browser, cluster.port)
        page = viewer.open("overview")
        expect(page.get_by_role("heading", name="No tasks yet")).to_be_visible()
        assert viewer.faults() == []
        page.get_by_role("button", name="Start sample workload").click()
        expect(page.locator(".stat", has_text="Queue").locator(".value")).to_have_text("6waiting")
        expect(page.get_by_role("list", name="Recent changes")).to_contain_text("task-1")
        expect(page.get_by_role("heading", name="No tasks yet")).to_have_count(0)
        viewer.open("tasks")
        expect(page.get_by_role("row", name="sample-train")).to_be_visible()
        page.get_by_role("link", name="sample-report").click()
        expect(page.get_by_text("Why it waits")).to_be_visible()
        viewer.close()


def test_a_cluster_without_nodes_says_how_to_add_one(browser: Browser, tmp_path: Path) -> None:
    with RestCluster(tmp_path, gpus=0) as cluster:
        viewer = Viewer(browser, cluster.port)
        page = viewer.open("overview")
        expect(page.get_by_role("heading", name="No GPU node has joined")).to_be_visible()
        for place in ("gpus", "nodes", "tasks"):
            viewer.open(place)
            expect(page.locator(".empty")).to_be_visible()
        viewer.close()
