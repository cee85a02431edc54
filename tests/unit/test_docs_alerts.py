"""The page about alerts has every rule with its values, and every key of a receiver; the page about usage every figure."""

import re
from pathlib import Path

from msgspec.structs import fields

from gpuyard.live.control_plane.alerts.rules.built_in import BUILT_IN
from gpuyard.live.control_plane.settings import MailEntry, RuleEntry, WebhookEntry
from gpuyard.live.control_plane.usage.accounting import KEYS
from gpuyard.live.wire.usage_answers import UsageFigures

MANUAL = Path(__file__).parents[2] / "docs" / "manual"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.+?) \| (.+?) \| (\S+)(?: s)? \| (\S+)(?: s)? \|(.*?)\|$", re.MULTILINE)


def _page(name: str) -> str:
    return (MANUAL / name).read_text(encoding="utf-8")


def test_the_table_of_rules_has_the_built_in_values() -> None:
    rows = ROW.findall(_page("alerts.md").split("## Rules")[1].split("## States")[0])
    assert [row[0] for row in rows] == list(BUILT_IN)
    for name, severity, fires, ends, wait, keep, _ in rows:
        rule = BUILT_IN[name]
        assert severity == rule.severity.value, name
        assert (float(wait), float(keep)) == (rule.for_seconds, rule.keep_firing_seconds), name
        if name != "agent_lost":
            assert re.search(rf"(?<![\d.]){rule.threshold:g}(?![\d.])", fires), name
            assert re.search(rf"(?<![\d.]){rule.clear:g}(?![\d.])", ends), name


def test_every_key_of_a_rule_and_of_a_receiver_is_in_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", _page("alerts.md"))) | set(re.findall(r"(\w+):", _page("alerts.md")))
    for type_ in (RuleEntry, WebhookEntry, MailEntry):
        assert {field.encode_name for field in fields(type_)} <= named


def test_every_figure_and_key_of_usage_is_in_its_page() -> None:
    named = set(re.findall(r"`(\w+)`", _page("usage.md")))
    assert {field.encode_name for field in fields(UsageFigures)} | set(KEYS) <= named
