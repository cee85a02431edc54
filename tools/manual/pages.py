"""The pages of the manual that are made from the code, by file name. The same code gives the same bytes."""

from collections.abc import Iterable, Iterator
from enum import Enum
from importlib import import_module
from inspect import getdoc

from gpuyard.core.domain import errors, events, refusals, settings
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.refusals import REFUSALS, Conflict, Invalid, Never, NotNow, Refusal
from gpuyard.core.domain.settings import Settings
from gpuyard.core.engine.phases import HOLDING, STATUS, TRANSITIONS, Ended, Phase
from gpuyard.core.engine.policies import POLICIES
from tools.manual.commands import commands, rows, usage
from tools.manual.drawing import drawing
from tools.manual.source import Field, fields, paragraphs, said

HEAD = "<!-- Made from the code by `make docs`. Change the code, not this page. -->\n\n"


def pages() -> dict[str, str]:
    """Every generated file of the manual."""
    return {
        "states.svg": drawing(),
        "task_states.md": task_states(),
        "events.md": all_events(),
        "refusals.md": refusals_and_errors(),
        "policies.md": policies(),
        "settings.md": all_settings(),
        "commands.md": all_commands(),
    }


# --- task_states.md ---------------------------------------------------------------------------------------------------


def task_states() -> str:
    """The phases of a task, and what leads from one to the other."""
    phases = _phases()
    return _page(
        "# The states of a task",
        "![The states of a task and the events that lead from one to the other](states.svg)",
        "A task is always in one phase. Users are told a status, which is coarser. Events move a task from phase to phase "
        "(see [events](events.md)); an event that is not in the second table cannot happen to a task in that phase.",
        "## Phases",
        _table(
            ("phase", "meaning", "status told to users", "holds GPUs"),
            (
                (f"`{phase.__name__}`", said(phase), _status(phase), "yes" if phase in HOLDING else "no")
                for phase in phases
            ),
        ),
        "## Transitions",
        _table(
            ("in phase", "event", "leads to"),
            (
                (f"`{source.__name__}`", f"`{event.__name__}`", f"`{target.__name__}`")
                for (source, event), target in TRANSITIONS.items()
            ),
        ),
    )


def _phases() -> list[type[Phase]]:
    """All phases, in the order of the table."""
    return list(dict.fromkeys([*(source for source, _ in TRANSITIONS), *TRANSITIONS.values()]))


def _status(phase: type[Phase]) -> str:
    return "how it ended: `success`, `failed`, `cancelled` or `timeout`" if phase is Ended else f"`{STATUS[phase]}`"


# --- events.md --------------------------------------------------------------------------------------------------------


def all_events() -> str:
    """Every event, with its fields."""
    rows = (
        (f"`{events.name_of(kind)}`", said(kind), ", ".join(f"`{name}`" for name in kind.__struct_encode_fields__))
        for kind in events.EVENTS
    )
    return _page("# Events", *_prose(getdoc(events)), _table(("event", "meaning", "fields"), rows))


# --- refusals.md ------------------------------------------------------------------------------------------------------


def refusals_and_errors() -> str:
    """Every refusal in its group, and every error."""
    parts = [
        "# Refusals and errors",
        "A refusal is an answer: it has a stable code, and one sentence for people. Words in braces are filled in.",
        _drawn(getdoc(refusals)),
    ]
    for group in (Invalid, Conflict, Never, NotNow):
        parts += [f"## {group.__name__}", said(group), _table(("code", "when", "sentence"), _refusals_of(group))]
    parts += [
        "## Errors",
        "An error is raised where no refusal can be handed back. The command line prints its sentence and ends with code 1.",
        _drawn(getdoc(errors)),
        _table(("code", "message"), ((f"`{kind.__name__}`", said(kind)) for kind in _errors())),
    ]
    return _page(*parts)


def _refusals_of(group: type[Refusal]) -> Iterator[tuple[str, str, str]]:
    for kind in REFUSALS:
        if issubclass(kind, group):
            yield f"`{kind.__name__}`", said(kind), kind.text


def _errors() -> list[type[GpuyardError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GpuyardError)]


# --- policies.md ------------------------------------------------------------------------------------------------------


def policies() -> str:
    """What each policy promises."""
    parts = [
        "# Policies",
        "A policy orders the queue. Choose one with `scheduler.algorithm` in the file of the scheduler (see [algorithms](configuration.md#algorithms)); `gpuyard simulate` takes `--policy`.",
        _table(
            ("policy", "in a word", "everything starts in the end", "may stop running tasks"),
            (
                (
                    f"[`{name}`](#{name})",
                    _first_sentence(name),
                    _yes(policy.starts_all),
                    _yes(policy.rank is not None),
                )
                for name, policy in POLICIES.items()
            ),
        ),
        "Whatever the policy, tenants with a guarantee and classes that lent GPUs can take back what is theirs, and tasks that a guarantee covers go first.",
    ]
    for name in POLICIES:
        parts += [f"## {name}", *_prose(paragraphs(import_module(f"gpuyard.core.engine.policies.{name}")))]
    return _page(*parts)


def _first_sentence(policy: str) -> str:
    head = paragraphs(import_module(f"gpuyard.core.engine.policies.{policy}")).split("\n\n")[0]
    return " ".join(head.split())


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# --- settings.md ------------------------------------------------------------------------------------------------------


KEYS = {
    "policy": "scheduler.algorithm",
    "score": "scheduler.score",
    "weight_time": "scheduler.weights.time",
    "weight_energy": "scheduler.weights.energy",
    "weight_balance": "scheduler.weights.balance",
    "weight_fragmentation": "scheduler.weights.fragmentation",
    "weights_follow_idle": "scheduler.weights.follow_idle",
    "preemption": "scheduler.preemptive",
    "preemption_min_run_seconds": "scheduler.preemption_min_run",
    "preemption_limit": "scheduler.preemption_limit",
    "backfill": "scheduler.backfill",
    "reserve_after_seconds": "scheduler.reserve_after",
    "aging_seconds": "scheduler.aging",
    "level_seconds": "scheduler.level",
    "defragment": "scheduler.defragment",
    "model_affinity": "scheduler.model_affinity",
    "queue_size": "scheduler.queue_size",
    "longest_booking_seconds": "scheduler.longest_booking",
    "book_ahead_seconds": "scheduler.book_ahead",
}
"""The keys of a live cluster that set a setting of the engine."""


def all_settings() -> str:
    """Every setting with its default, and the values of those that are words."""
    parts = [
        "# Settings of the engine",
        said(settings),
        "The last column has the key of a live cluster's [configuration](configuration.md). A setting without a key has its default there and can only be changed in a [simulation](simulation.md).",
        _table(
            ("setting", "type", "default", "meaning", "key"),
            (
                (f"`{f.name}`", f"`{f.kind}`", f"`{_default(f.name)}`", f.doc or _about(f), _key(f.name))
                for f in fields(Settings)
            ),
        ),
    ]
    for kind in _enums(fields(Settings)):
        rows = ((f"`{member.value}`", _member_doc(kind, member.name)) for member in kind)
        parts += [f"## {kind.__name__}", said(kind), _table(("value", "meaning"), rows)]
    return _page(*parts)


def _key(name: str) -> str:
    key = KEYS.get(name, "")
    return f"`{key}`" if key else ""


def _default(name: str) -> str:
    return str(getattr(Settings(), name))


def _about(field: Field) -> str:
    """What is said about the kind of a setting stands for a setting that says nothing itself."""
    kind = getattr(settings, field.kind, None)
    return f"{said(kind)} See below." if isinstance(kind, type) and issubclass(kind, Enum) else ""


def _enums(all_fields: list[Field]) -> list[type[Enum]]:
    kinds = (getattr(settings, field.kind, None) for field in all_fields)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]


def _member_doc(kind: type, name: str) -> str:
    return next(field.doc for field in fields(kind) if field.name == name)


# --- commands.md ---------------------------------------------------------------------------------------------------------


def all_commands() -> str:
    """Every command of the command line with its options."""
    parts = [
        "# Commands",
        "Every command of `gpuyard` with its options; `gpuyard COMMAND --help` shows the same. See also [the command line](command_line.md).",
    ]
    for path, command in commands():
        level = "##" if path.count(" ") == 1 else "###"
        parts += [f"{level} {path}", " ".join(str(command.help or "").split()), f"```\n{usage(path, command)}\n```"]
        if found := list(rows(command)):
            parts.append(_table(("option", "meaning"), found))
    return _page(*parts)


# --- small things -----------------------------------------------------------------------------------------------------


def _page(*parts: str) -> str:
    return HEAD + "\n\n".join(parts) + "\n"


def _table(names: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [names, tuple("---" for _ in names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _prose(doc: str | None) -> list[str]:
    """Paragraphs of a docstring, each on one line; a line that begins a new thought begins a new paragraph."""
    text = doc or ""
    for word in ("Promise:", "Choose it", "Reference:"):
        text = text.replace(f"\n{word}", f"\n\n{word}")
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _drawn(doc: str | None) -> str:
    """The indented drawing inside a docstring, as it is."""
    lines = [line for line in (doc or "").splitlines() if line.startswith("    ")]
    return "```\n" + "\n".join(line[4:] for line in lines) + "\n```"
