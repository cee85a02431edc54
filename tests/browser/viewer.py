"""A person at the page: opens addresses, and notices what a person would not: console errors, foreign requests."""

import gzip
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from gpuyard.live.control_plane.rest.routes import ROUTES

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "build" / "screens"
PATIENCE_MS = 30_000
SERIOUS = {"serious", "critical"}
_UNREACHABLE = re.compile(r"Failed to load resource|net::ERR_|ERR_INCOMPLETE|EventSource")

expect.set_options(timeout=PATIENCE_MS)


@cache
def axe_source() -> str:
    """The accessibility checker, a development dependency of the page."""
    return (ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def is_absent(url: str) -> bool:
    """Whether this server has no such part of the API at all; the page says so in one sentence."""
    part = urlsplit(url).path.removeprefix("/api/v1/").partition("/")[0]
    return "/api/v1/" in url and not any(route.path.startswith(f"/api/v1/{part}") for route in ROUTES)


class Viewer:
    """One browser window without any memory of earlier ones."""

    def __init__(
        self,
        browser: Browser,
        port: int,
        *,
        language: str = "en-US",
        dark: bool = False,
        width: int = 1440,
        height: int = 900,
        outages: bool = False,
    ) -> None:
        """`outages`: requests may fail, because the test stops the server or has no session."""
        self.home = f"http://127.0.0.1:{port}/"
        self._outages = outages
        self.problems: list[str] = []
        self._context = browser.new_context(
            viewport={"width": width, "height": height},
            locale=language,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self._asked)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"}:
            return
        url = message.location.get("url", "")
        if not (self._outages and _UNREACHABLE.search(message.text)) and not is_absent(url):
            self.problems.append(f"console: {message.text} {url}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.problems.append(f"a request left the host: {request.url}")

    def open(self, place: str = "overview") -> Page:
        """Open a page of the dashboard by its address after `#/`, and wait for its heading."""
        if self.page.url.startswith(self.home):
            self.page.evaluate("place => { location.hash = '#/' + place }", place)
        else:
            self.page.goto(f"{self.home}#/{place}")
        expect(self.page.locator("h1")).to_be_visible()
        return self.page

    def settled(self) -> None:
        """Wait until the page shows data instead of skeletons."""
        expect(self.page.locator("main .skeleton")).to_have_count(0)

    def faults(self) -> list[str]:
        """Serious findings of the accessibility checker on the current page."""
        self.page.evaluate(axe_source())
        found: list[dict[str, Any]] = self.page.evaluate(
            "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
        )
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in SERIOUS
        ]

    def picture(self, name: str) -> Path:
        """Take a screenshot."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        path = SCREENS / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def close(self) -> None:
        """Close the window; fails if anything went wrong in it."""
        self._context.close()
        assert not self.problems, self.problems


def scripts_gzip_bytes(folder: Path) -> int:
    """The size of all scripts as they are sent."""
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in folder.rglob("*.js"))
