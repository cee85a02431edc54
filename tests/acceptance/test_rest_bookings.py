"""Bookings over REST: who may make, see and cancel them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.control_plane.settings import ServerSettings
from tests.acceptance.rest_cluster import RestCluster

BOOKINGS = "/api/v1/bookings"
NOW = datetime.now(UTC).replace(microsecond=0)
"""Bookings begin within a year."""


def after(days: int) -> str:
    """Return an instant some days from now, as the API writes it."""
    return (NOW + timedelta(days=days)).isoformat().replace("+00:00", "Z")


ASKED: dict[str, Any] = {"gpu_count": 2, "begins_at": after(30), "seconds": 3600, "note": "demo"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RestCluster]:
    with RestCluster(tmp_path) as made:
        yield made


def test_members_book_only_if_the_scheduler_allows_it(cluster: RestCluster) -> None:
    member = cluster.token_of("alice", Role.MEMBER, "lab")
    refused = cluster.ask("POST", BOOKINGS, ASKED, token=member)
    assert (refused.status, refused.error["code"]) == (403, "Forbidden")
    assert "scheduler.members_may_book" in refused.error["message"]


def test_members_book_for_their_own_tenant_and_others_see_only_when_and_where(tmp_path: Path) -> None:
    settings = ServerSettings()
    settings = replace(settings, scheduler=replace(settings.scheduler, members_may_book=True))
    with RestCluster(tmp_path, settings=settings) as cluster:
        alice, bob = cluster.token_of("alice", Role.MEMBER, "lab"), cluster.token_of("bob", Role.MEMBER, "shop")
        viewer = cluster.token_of("vera", Role.VIEWER, "lab")
        made = cluster.ask("POST", BOOKINGS, ASKED, token=alice)
        assert made.status == 201
        assert (made.json["tenant_id"], made.json["user"], made.json["gpu_count"]) == ("lab", "alice", 2)
        path = f"{BOOKINGS}/{made.json['id']}"
        seen = cluster.ask("GET", path, token=bob).json
        assert (seen["tenant_id"], seen["user"], seen["note"]) == ("", "", "")
        assert seen["begins_at"] == made.json["begins_at"]
        assert cluster.ask("DELETE", path, token=bob).status == 404
        assert cluster.ask("DELETE", path, token=viewer).status == 403
        assert cluster.ask("POST", BOOKINGS, {**ASKED, "tenant_id": "shop"}, token=alice).status == 403
        for more in ({"preempt": True}, {"maintenance": True, "nodes": ["n1"], "gpu_count": None}):
            assert cluster.ask("POST", BOOKINGS, {**ASKED, **more}, token=alice).status == 403
        task = {"command": "true", "booking": made.json["id"]}
        assert cluster.ask("POST", "/api/v1/tasks", task, token=bob).error["code"] == "BookingOfOthers"
        assert cluster.ask("DELETE", path, token=alice).status == 200
        assert cluster.get(BOOKINGS)["total"] == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"seconds": None}, "Contradiction"),
        ({"ends_at": after(31)}, "Contradiction"),
        ({"begins_at": "soon"}, "WrongValue"),
        ({"gpu_count": None}, "MissingField"),
        ({"maintenance": True}, "Contradiction"),
        ({"gpu_count": 99}, "TooLittleToBook"),
        ({"seconds": None, "ends_at": after(29)}, "BookingTimes"),
        ({"seconds": 31 * 365 * 86400}, "BookingTooLong"),
        ({"begins_at": after(4000)}, "BookingTooFar"),
    ],
)
def test_a_wrong_request_gets_a_code_and_books_nothing(cluster: RestCluster, change: dict[str, Any], code: str) -> None:
    body = {name: value for name, value in {**ASKED, **change}.items() if value is not None}
    refused = cluster.ask("POST", BOOKINGS, body)
    assert refused.status in {400, 409}
    assert refused.error["code"] == code
    assert cluster.get(BOOKINGS)["total"] == 0
