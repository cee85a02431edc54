"""Print errors to standard error: a sentence, or with `--json` one object in the format of the API."""

import re
import sys
from collections.abc import Collection

_WORDS_OF_PEOPLE = (
    (r"is not a valid int(eger)?( range)?\b", "is not a whole number"),
    (r"is not a valid float( range)?\b", "is not a number"),
    (r"is not in the range x>=(\S+)", "is too small; it must be at least \\1"),
    (r"is not in the range (\S+)<=x<=(\S+)", r"is not between \1 and \2"),
    (r"Got unexpected extra argument\S* \((.*)\)", r"Too many words: \1"),
)
"""Messages of typer, and their replacements."""

_OPTION_OF = {
    "gpu_count": "--gpus",
    "gpu_memory_mb": "--gpu-memory",
    "gpu_fraction": "--fraction",
    "cpu_count": "--cpus",
    "memory_mb": "--mem",
    "labels": "--label",
    "estimated_seconds": "--estimate",
    "depends_on": "--after",
    "secrets": "--secret",
    "tenant_id": "--tenant",
    "username": "--user",
    "max_gpus_by_model": "--max-by-model",
    "gpu_hours_period": "--period",
    "online_percent": "--online",
}
"""Fields of the API whose option has another name."""


_OF_A_BATCH = re.compile(r"^tasks\[\d+\](\.|: )")


class CallContext:
    """State of a call that `main` needs when it fails."""

    as_json = False
    words: tuple[str, ...] = ()
    """The words of the call."""


def complain(message: str, *, code: str, field: str | None = None, as_json: bool) -> None:
    """Print the error once."""
    if not as_json:
        from gpuyard.cli.shell.messages import localized

        for line in localized(message).splitlines() or [""]:
            print(f"gpuyard: {line}", file=sys.stderr)
        return
    from msgspec import json

    from gpuyard.live.wire.answers import Error, ErrorAnswer

    print(json.encode(ErrorAnswer(Error(code, message, field))).decode(), file=sys.stderr)


def option_of(field: str) -> str:
    """Return the option for a field of the API."""
    return _OPTION_OF.get(field, f"--{field.replace('_', '-')}")


def fields_to_options(message: str, field: str | None, options: Collection[str]) -> str:
    """Return a refusal of the scheduler with the fields of the API replaced by their options, where there is one."""

    def called(name: str) -> str:
        option = option_of(name)
        return option if option in options else name

    if "--sweep" in options:  # all tasks of a sweep have the same options
        message = _OF_A_BATCH.sub("", message)
        field = _OF_A_BATCH.sub("", field) if field else field
    if field and message.startswith(f"{field} "):  # for `array.count` and `depends_on[0]` the first word is the option
        base = re.split(r"[.\[]", field)[0]
        message = f"{called(base)}{message.removeprefix(field if called(base) != base else base)}"
    if "--key" in options:
        message = message.replace("The Idempotency-Key", "--key").replace("This Idempotency-Key", "This --key")
    return re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda found: called(found[0]), message)


def plain_usage_error(message: str) -> str:
    """Return a usage error of typer in plain words."""
    message = message.rstrip(".")
    for pattern, words in _WORDS_OF_PEOPLE:
        message = re.sub(pattern, words, message)
    return message
