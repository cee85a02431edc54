"""Policy variants for comparisons: a policy with its settings, by the name for `gpuyard simulate --policy`.

`fifo`, `sjf`, `qssf`, `srtf` and `tiresias` are as published, so that results can be compared with the papers: the
first three stop at the first job that does not fit, and jobs may be preempted immediately and without limit.
`+backfill` lets any job that fits overtake. `default`, `priority` and `fair_share` are as in the live scheduler;
`levels` is `default` without run-time estimates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import fields, replace

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.validation import check_settings
from gpuyard.input.error_location import shortened
from gpuyard.input.nearest_name import closest_word


class EstimateSource(StrEnum):
    """Where a policy gets its run times from."""

    NONE = "none"
    LEARNED = "learned"
    """As in a live cluster, from the tasks that have ended and those that run; with an oracle, the real run times."""


@dataclass(frozen=True, slots=True)
class PolicyVariant:
    """A policy with its settings, by name."""

    name: str
    settings: Settings
    estimate_source: EstimateSource = EstimateSource.NONE


class NoSuchPolicy(WrongInput):
    """There is no policy of this name."""


BACKFILL = "+backfill"
PREEMPT_FREELY = Settings(backfill=Backfill.GREEDY, preemption_min_run_seconds=0.0, preemption_limit=10_000_000)
"""Preemption immediately and without limit."""
NO_BACKFILL = Settings(backfill=Backfill.NONE, preemption=False)

POLICY_VARIANTS = {
    it.name: it
    for it in (
        PolicyVariant("fifo", replace(NO_BACKFILL, policy="fifo")),
        PolicyVariant("sjf", replace(NO_BACKFILL, policy="sjf"), EstimateSource.LEARNED),
        PolicyVariant("qssf", replace(NO_BACKFILL, policy="qssf"), EstimateSource.LEARNED),
        PolicyVariant("srtf", replace(PREEMPT_FREELY, policy="srtf"), EstimateSource.LEARNED),
        PolicyVariant("default", Settings(), EstimateSource.LEARNED),
        PolicyVariant("levels", Settings()),
        PolicyVariant("tiresias", replace(PREEMPT_FREELY, policy="tiresias", tiresias_threshold_gpu_seconds=18_000.0)),
        PolicyVariant("small_first", replace(PREEMPT_FREELY, policy="small_first")),
        PolicyVariant("dqn", replace(PREEMPT_FREELY, policy="dqn"), EstimateSource.LEARNED),
        PolicyVariant("priority", Settings(policy="priority"), EstimateSource.LEARNED),
        PolicyVariant("fair_share", Settings(policy="fair_share"), EstimateSource.LEARNED),
    )
}


def policy_variant(name: str, among: Mapping[str, PolicyVariant] = POLICY_VARIANTS) -> PolicyVariant:
    """Return the variant of this name, optionally with `+backfill` and with settings: `default:level_seconds=86400`."""
    called, *changes = name.split(":")
    plain = called.removesuffix(BACKFILL)
    found = among.get(plain)
    if found is None:
        raise NoSuchPolicy(f"Unknown policy {shortened(plain)!r}; available policies: {', '.join(among)}.")
    settings = replace(found.settings, backfill=Backfill.GREEDY) if plain != called else found.settings
    for change in changes:
        settings = _with(settings, change)
    return PolicyVariant(name, settings, found.estimate_source)


def _with(settings: Settings, change: str) -> Settings:
    """Return the settings with one changed, given as name=value."""
    name, _, value = change.partition("=")
    known = {field.name: field.encode_name for field in fields(Settings) if field.name != "policy"}
    if name not in known:
        near = closest_word(name, known)
        raise NoSuchPolicy(
            f"{shortened(change)!r} is not a setting of the engine{(f'; did you mean {near!r}?' if near else '.')}"
        )
    try:
        changed = convert({**to_builtins(settings), known[name]: value}, Settings, strict=False)
    except ValidationError:
        raise NoSuchPolicy(f"{shortened(change)!r}: {shortened(value)!r} is not a valid value of {name}.") from None
    if refusal := check_settings(changed):
        raise NoSuchPolicy(refusal.sentence())
    return changed
