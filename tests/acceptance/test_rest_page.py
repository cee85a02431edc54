"""The files of the dashboard over HTTP: where they are, with which headers, and what is said without them."""

import gzip
import hashlib
from pathlib import Path

import pytest

from gpuyard.live.control_plane.rest import app
from gpuyard.live.control_plane.rest.page import page_files
from tests.acceptance.rest_cluster import RestCluster


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small built page."""
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>gpuyard</title>")
    (folder / "assets" / "index-abc.js").write_text("export {};\n" * 500)
    monkeypatch.setattr(app, "page_files", lambda: page_files(folder))


@pytest.mark.usefixtures("built")
def test_the_page_is_served_with_a_strict_policy_and_needs_no_login(tmp_path: Path) -> None:
    with RestCluster(tmp_path, local=False) as cluster:
        page = cluster.ask("GET", "/")
        assert page.status == 200
        assert b"<title>gpuyard</title>" in page.body
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-cache"
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert cluster.scheduler.live.build == hashlib.sha256(page.body).hexdigest()[:16], "the live stream names it"
        assert cluster.ask("HEAD", "/").body == b""
        assert cluster.ask("POST", "/").error["code"] == "MethodNotAllowed"
        assert cluster.ask("GET", "/", Host="evil.example").error["code"] == "WrongHost"


@pytest.mark.usefixtures("built")
def test_scripts_are_compressed_and_kept_by_browsers(tmp_path: Path) -> None:
    with RestCluster(tmp_path) as cluster:
        plain = cluster.ask("GET", "/assets/index-abc.js")
        assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
        assert "immutable" in plain.headers["cache-control"]
        packed = cluster.ask("GET", "/assets/index-abc.js", accept_encoding="gzip, br")
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert cluster.ask("GET", "/assets/other.js").error["code"] == "NotFound"
        assert cluster.ask("GET", "/assets/../index.html").status == 404


def test_without_a_built_page_one_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "page_files", dict)
    with RestCluster(tmp_path) as cluster:
        reply = cluster.ask("GET", "/")
        assert reply.status == 503
        assert b"make page" in reply.body
        assert cluster.get("/health")["status"] == "ok"
