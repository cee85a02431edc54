"""The replication protocol keeps its promises under faults, and the model notices when one of its rules is missing."""

import pytest

from tests.simulation.replication.campaign import play, repeat
from tests.simulation.replication.rules import RULES

SHARES = 4
SEEDS_IN_A_SHARE = 60

LACKS = "leader lacks committed entries"
REMOVED = "committed entries would be removed"
FORKED = "history forked"
STUCK = "no progress"
TWO_ACT = "two leaders may act"
NOT_DURABLE = "committed but not durable"

FOUND: dict[str, tuple[int, str]] = {
    "candidate_promise": (246, REMOVED),
    "compare_before": (120, NOT_DURABLE),
    "confirm_compared": (0, NOT_DURABLE),
    "conflict_only": (4, REMOVED),
    "consent": (0, NOT_DURABLE),
    "copy_committed": (9, FORKED),
    "early_copy": (31, STUCK),
    "in_sync": (11, LACKS),
    "include_complete": (73, LACKS),
    "include_first": (189, LACKS),
    "joint": (52, LACKS),
    "journal_sync": (0, NOT_DURABLE),
    "learn_membership": (1, LACKS),
    "leave_decided": (1, NOT_DURABLE),
    "monotonic": (287, TWO_ACT),
    "new_memory": (4, "attempt launched twice"),
    "new_replica": (31, LACKS),
    "obeys": (8, "old leader obeyed"),
    "own_confirmation": (1224, NOT_DURABLE),
    "replica_promise": (2736, REMOVED),
    "resign_first": (1921, TWO_ACT),
    "restart_wait": (437, TWO_ACT),
    "send_time": (326, TWO_ACT),
    "voter_lease": (16, TWO_ACT),
}
"""A seed for each rule with which the model fails without that rule, and the promise that is then broken."""

FOUND_WITH_GROUPS: dict[str, tuple[int, str]] = {
    "whole_commits": (65, "append in part"),
    "whole_reigns": (9, "append in part"),
}
"""The same for the rules about appends of several entries."""

ARGUED = {"decide_first", "include_inherited", "voter_sync"}
"""Rules for which no failing run was found: docs/decisions/0065 gives the argument for them."""

OLD_BACKUP = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_no_promise_is_broken_by_faults(share: int) -> None:
    for seed in range(share * SEEDS_IN_A_SHARE, (share + 1) * SEEDS_IN_A_SHARE):
        violation, _ = play(seed)
        assert violation is None, f"seed {seed}: {violation}; repeat with {repeat(seed)}"


def test_a_run_is_determined_by_its_seed() -> None:
    assert play(7) == play(7)


def test_no_promise_is_broken_when_voters_are_chosen() -> None:
    for seed in range(SEEDS_IN_A_SHARE):
        violation, _ = play(seed, choose=True)
        assert violation is None, f"seed {seed}: {violation}; repeat with {repeat(seed, choose=True)}"


def test_no_promise_is_broken_with_appends_of_several_entries() -> None:
    for seed in range(SEEDS_IN_A_SHARE):
        violation, _ = play(seed, grouped=True)
        assert violation is None, f"seed {seed}: {violation}; repeat with {repeat(seed, grouped=True)}"


@pytest.mark.parametrize("rule", sorted(FOUND_WITH_GROUPS))
def test_without_a_rule_about_appends_one_counts_in_part(rule: str) -> None:
    seed, promise = FOUND_WITH_GROUPS[rule]
    violation, _ = play(seed, [rule], grouped=True)
    assert violation is not None, f"the model no longer fails; search: --grouped --without {rule} --seeds 0:2000"
    assert violation.kind == promise


@pytest.mark.parametrize("rule", sorted(FOUND))
def test_without_a_rule_a_promise_is_broken(rule: str) -> None:
    seed, promise = FOUND[rule]
    violation, _ = play(seed, [rule])
    assert violation is not None, f"the model no longer fails without {rule}; search: --without {rule} --seeds 0:2000"
    assert violation.kind == promise


def test_every_rule_was_switched_off() -> None:
    assert set(FOUND) | set(FOUND_WITH_GROUPS) | set(ARGUED) == set(RULES)


def test_an_old_backup_is_not_safe() -> None:
    violation, _ = play(OLD_BACKUP, old_backups=True)
    assert violation is not None
    assert violation.kind == "leader lacks committed entries"
