"""The page of a standby shows the cluster and says where the leader is."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance.pair import Pair
from tests.browser.viewer import Viewer

pytestmark = pytest.mark.slow


def test_the_page_of_a_standby_names_the_leader_and_is_usable_after_a_take_over(
    browser: Browser, viewers: list[Viewer], tmp_path: Path
) -> None:
    pair = Pair(tmp_path)
    try:
        pair.start(pair.a, "master")
        pair.until(pair.a.leads, "the first scheduler leads")
        pair.start(pair.b)
        pair.start_agent("node-1")
        pair.until(pair.b.follows, "the second scheduler follows")
        pair.ready(1)
        pair.until_complete()
        viewers.append(Viewer(browser, pair.b.http, outages=True))
        page = viewers[-1].open("submit")
        note = page.get_by_text("This scheduler is a standby", exact=False)
        expect(note.first).to_be_visible()
        link = page.get_by_role("link", name="Open the page of the leader")
        expect(link).to_have_attribute("href", f"{pair.a.url}/#/submit")
        assert viewers[-1].faults() == []
        viewers[-1].picture("standby")
        page.get_by_label("Command").fill("true")
        page.get_by_role("button", name="Submit").last.click()
        expect(page.get_by_text("Use the page of the one that leads", exact=False)).to_be_visible()
        assert list(pair.client().tasks()) == [], "the page does not follow the redirection"

        pair.kill(pair.a.process)
        pair.until(pair.b.leads, "the second scheduler leads")
        page = viewers[-1].open("tasks")
        expect(link).to_have_count(0)
        viewers[-1].open("submit")
        page.get_by_label("Command").fill("true")
        page.get_by_role("button", name="Submit").last.click()
        expect(page.locator("h1")).to_have_text("true")
        assert [task.id for task in pair.client().tasks()] == ["task-1"]
        # The browser reports where it was redirected to, although the page has not asked there.
        viewers[-1].problems = [each for each in viewers[-1].problems if f"left the host: {pair.a.url}/" not in each]
    finally:
        pair.end()
