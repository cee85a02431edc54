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
    viewer.open("policies")
    expect(page.get_by_label("Number of tasks")).to_be_visible()
    expect(page.get_by_role("button", name="Own history")).to_have_count(0)
    viewer.open("overview")
    expect(page.locator(".stat", has_text="GPUs in use")).to_contain_text("whole cluster")
    expect(page.locator(".stat", has_text="Running tasks")).to_contain_text("tenant vision")


def test_an_admin_changes_a_user_and_makes_a_token_that_outlives_the_login(
    viewer: Viewer, cluster: RestCluster
) -> None:
    cluster.token_of("bob", Role.MEMBER, "vision")
    page = viewer.open("access")
    log_in(page, "root", "correct horse")
    bob = page.get_by_role("row", name="bob").filter(has=page.get_by_role("button", name="Change password"))
    bob.get_by_role("button", name="Change", exact=True).click()
    page.get_by_role("dialog").get_by_label("Role").select_option("viewer")
    page.get_by_role("dialog").get_by_label("Tenant").fill("speech")
    page.get_by_role("dialog").get_by_label("Disabled").check()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(bob).to_contain_text("Viewer")
    expect(bob).to_contain_text("speech")
    expect(bob).to_contain_text("disabled")
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    assert viewer.faults() == []
    dialog.get_by_label("Name").fill("laptop")
    dialog.get_by_label("Lifetime, days").fill("90")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_contain_text("lifetime is longer than that of your login")
    dialog.get_by_label("Your password").fill("correct horse")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_contain_text("Copy the token now.")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("row", name="laptop")).to_be_visible()


def test_a_user_changes_the_own_password_and_logs_in_with_it(viewer: Viewer, cluster: RestCluster) -> None:
    cluster.token_of("carol", Role.MEMBER, "vision")
    page = viewer.open("access")
    log_in(page, "carol", "correct horse")
    page.get_by_role("button", name="Change password").click()
    page.get_by_label("Present password").fill("correct horse")
    page.get_by_label("New password").fill("another horse")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_have_text("Log in to gpuyard")
    log_in(page, "carol", "another horse")
    expect(page.locator("h1")).to_have_text("Users & tokens")
