"""One browser for all tests of the page: Debian's chromium, driven by Playwright, without a proxy."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from gpuyard.live.control_plane.rest.page import FIRST, FOLDER
from tests.browser.viewer import Viewer


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A headless chromium; skips the tests where it or the page is missing."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here: apt-get install chromium fonts-wqy-microhei")
    if not (FOLDER / FIRST).is_file():
        pytest.skip("the page is not built: make page")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=[*sandbox, "--no-proxy-server", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def viewers(browser: Browser) -> Iterator[list[Viewer]]:
    """Viewers that a test opens; each is checked and closed at the end."""
    assert browser.is_connected()
    opened: list[Viewer] = []
    yield opened
    for one in opened:
        one.close()
