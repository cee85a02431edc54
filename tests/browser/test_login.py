"""The page of a cluster with logins: the session is a cookie that scripts cannot read."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from gpuyard.live.control_plane.access.principal import Role
from tests.acceptance.rest_cluster import RestCluster
from tests.browser.viewer import Viewer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    assert browser.is_connected()
    with RestCluster(tmp_path_factory.mktemp("logins"), local=False) as made:
        made.token_of("root", Role.ADMIN)
        made.token_of("alice", Role.MEMBER, "vision")
        yield made


@pytest.fixture
def viewer(browser: Browser, cluster: RestCluster, viewers: list[Viewer]) -> Viewer:
    viewers.append(Viewer(browser, cluster.port, outages=True))
    return viewers[-1]


def log_in(page: Page, username: str, password: str) -> None:
    page.get_by_label("Username").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_wrong_password_is_refused_and_the_right_one_leads_to_the_page_that_was_asked_for(viewer: Viewer) -> None:
    page = viewer.open("nodes")
    expect(page.locator("h1")).to_have_text("Log in to gpuyard")
    assert viewer.faults() == []
    viewer.picture("login")
    log_in(page, "root", "wrong horse")
    expect(page.get_by_role("alert")).to_have_text("Username or password is wrong.")
    log_in(page, "root", "correct horse")
    expect(page.locator("h1")).to_have_text("Nodes")
    expect(page.get_by_role("row", name="n1")).to_be_visible()
    assert page.evaluate("document.cookie") == "", "scripts can read the session"
    assert page.evaluate("Object.keys(localStorage).filter(name => !name.startsWith('gpuyard.'))") == []


def test_a_session_that_ends_leads_to_the_login_and_back(viewer: Viewer) -> None:
    page = viewer.open("tasks")
    log_in(page, "root", "correct horse")
    expect(page.locator("h1")).to_have_text("Tasks")
    page.context.clear_cookies()
    viewer.open("overview")
    expect(page.locator("h1")).to_have_text("Log in to gpuyard")
    expect(page.get_by_text("Your session has ended.")).to_be_visible()
    log_in(page, "root", "correct horse")
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_logging_out_ends_the_session_on_the_server(viewer: Viewer) -> None:
    page = viewer.open("overview")
    log_in(page, "root", "correct horse")
    expect(page.locator("h1")).to_have_text("Overview")
    cookies = page.context.cookies()
    page.get_by_role("button", name="Account").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in to gpuyard")
    page.context.add_cookies([{"name": one["name"], "value": one["value"], "url": viewer.home} for one in cookies])
    page.reload()
    expect(page.locator("h1")).to_have_text("Log in to gpuyard")


def test_a_member_sees_what_a_member_may_do(viewer: Viewer, cluster: RestCluster) -> None:
    cluster.ask("GET", "/api/v1/session")
    page = viewer.open("nodes")
    log_in(page, "alice", "correct horse")
    expect(page.get_by_role("row", name="n1")).to_be_visible()
    expect(page.get_by_role("button", name="Cordon")).to_have_count(0)
    viewer.open("access")
    expect(page.get_by_role("heading", name="Tokens", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Users", exact=True)).to_have_count(0)
    viewer.open("tenants")
    viewer.settled()
    expect(page.get_by_role("button", name="Change the split")).to_have_count(0)
