"""Policy variants for comparisons: a policy with its settings, by the name for `gpuyard simulate --policy`.

`fifo`, `sjf`, `qssf`, `srtf` and `tiresias` are as published, so that results can be compared with the papers: the
first three stop at the first job that does not fit, and jobs may be preempted immediately and without limit.
`+backfill` lets any job that fits overtake. `default`, `priority` and `fair_share` are as in the live scheduler;
`levels` is `default` without run-time estimates. A name with a file or a module, `mine.py:POLICY`, is a policy of one's
own (`own_policies.py`): it has the default settings of the engine and sees estimates from the history of the run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from enum import StrEnum

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import fields, replace

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.validation import check_settings
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.input.error_location import shortened
from gpuyard.input.nearest_name import closest_word
from gpuyard.simulator.own_policies import guarded, load_policy


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
    own: Policy | None = None
    """The policy, if it is not one of the package."""


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


def policy_variant(
    chosen: "str | Policy | PolicyVariant",
    among: Mapping[str, PolicyVariant] = POLICY_VARIANTS,
    here: Callable[[PolicyVariant], PolicyVariant] = lambda it: it,
) -> PolicyVariant:
    """Return the variant of this name, optionally with `+backfill` and with settings: `default:level_seconds=86400`.

    A policy of one's own is `FILE.py:NAME`, `MODULE:NAME` or a `Policy`; `here` gives it the other settings of the
    cluster.
    """
    if isinstance(chosen, PolicyVariant):
        return chosen
    if isinstance(chosen, Policy):
        return here(_own(guarded(chosen, shortened(str(chosen.name))), chosen.name))
    called, *changes = chosen.split(":")
    plain = called.removesuffix(BACKFILL)
    found = among.get(plain)
    if found is None and changes and "=" not in changes[0] and changes[0]:
        source, called = called, changes.pop(0)
        plain = called.removesuffix(BACKFILL)
        found = here(_own(load_policy(source, plain), chosen))
    if found is None:
        if plain.endswith(".py"):
            raise NoSuchPolicy(f"Name the policy in {shortened(plain)} after a colon: {shortened(plain)}:POLICY.")
        raise NoSuchPolicy(
            f"Unknown policy {shortened(plain)!r}; available policies: {', '.join(among)}, and your own as FILE.py:NAME."
        )
    settings = replace(found.settings, backfill=Backfill.GREEDY) if plain != called else found.settings
    for change in changes:
        settings = _with(settings, change)
    return dataclass_replace(found, name=chosen, settings=settings)


def base_name(name: str) -> str:
    """Return the name of a variant without `+backfill`, settings, and what a scenario or an oracle adds to it."""
    return name.split(":", maxsplit=1)[0].split("+", maxsplit=1)[0]


def _own(policy: Policy, name: str) -> PolicyVariant:
    return PolicyVariant(name, Settings(policy=policy.name), EstimateSource.LEARNED, policy)


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
