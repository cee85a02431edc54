"""The permissions of each role, repeated here as sentences."""

import pytest

from gpuyard.core.domain.values import TenantId
from gpuyard.live.control_plane.access.principal import (
    ROLE_SCOPES,
    Action,
    AuthMethod,
    Principal,
    Role,
    forbidden,
    may,
    visible_tenant,
)

LAB, OTHERS = TenantId("lab"), TenantId("others")


def somebody(role: Role) -> Principal:
    return Principal("ann", LAB, role, AuthMethod.TOKEN, "10.0.0.1", "t1")


def allowed(role: Role, tenant: TenantId | None) -> set[str]:
    return {action.value for action in Action if may(somebody(role), action, tenant)}


def test_an_admin_may_do_everything_everywhere() -> None:
    for tenant in (LAB, OTHERS, None):
        assert allowed(Role.ADMIN, tenant) == set(Action)


def test_an_operator_may_do_everything_except_users_tokens_of_others_and_settings() -> None:
    for tenant in (LAB, OTHERS, None):
        assert allowed(Role.OPERATOR, tenant) == set(Action) - {"all_access", "settings"}


def test_a_member_sees_submits_and_stops_tasks_of_its_tenant() -> None:
    assert allowed(Role.MEMBER, LAB) == {"see", "submit", "stop", "see_cluster", "own_access"}
    assert allowed(Role.MEMBER, OTHERS) == allowed(Role.MEMBER, None) == {"see_cluster", "own_access"}


def test_a_viewer_only_sees_tasks_of_its_tenant() -> None:
    assert allowed(Role.VIEWER, LAB) == {"see", "see_cluster", "own_access"}
    assert allowed(Role.VIEWER, OTHERS) == allowed(Role.VIEWER, None) == {"see_cluster", "own_access"}


def test_the_table_has_an_answer_for_every_role_and_action() -> None:
    assert set(ROLE_SCOPES) == set(Action)
    assert all(set(row) == set(Role) for row in ROLE_SCOPES.values())


@pytest.mark.parametrize(
    ("role", "sees"), [(Role.ADMIN, None), (Role.OPERATOR, None), (Role.MEMBER, LAB), (Role.VIEWER, LAB)]
)
def test_admins_and_operators_see_all_tenants_and_others_their_own(role: Role, sees: TenantId | None) -> None:
    assert visible_tenant(somebody(role)) == sees


def test_a_user_without_a_tenant_does_not_own_tasks_without_one() -> None:
    assert not may(Principal("ann", None, Role.MEMBER, AuthMethod.TOKEN, "10.0.0.1"), Action.SEE, None)


def test_a_denied_user_is_told_which_role_could() -> None:
    denied = forbidden(somebody(Role.VIEWER), Action.SUBMIT)
    assert denied.status == 403
    assert denied.sentence == "ann is a viewer; this requires an admin or an operator or a member."
