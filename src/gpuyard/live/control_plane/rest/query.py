"""Query parameters: known names and values, or an error with the closest match."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal

from starlette.datastructures import QueryParams

from gpuyard.input.nearest_name import closest_word
from gpuyard.input.strict import WrongRequest
from gpuyard.live.wire.limits import LAST_SECOND

MOST_PARAMETERS = 100


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter. `read` converts the text, or raises a ValueError that says what is allowed."""

    name: str
    words: str
    """Description for the documentation."""
    read: Callable[[str], Any]
    type: Literal["string", "integer", "boolean"] = "string"
    values: tuple[str, ...] = ()
    """All allowed values; empty: any value of its type."""
    least: int | None = None
    most: int | None = None
    many: bool = False
    """May be given several times, or with comma-separated values; the result is a list."""


def read_query(known: Sequence[Parameter], given: QueryParams) -> dict[str, Any]:
    """Return the values by name; parameters that were not given are left out."""
    pairs = given.multi_items()
    if len(pairs) > MOST_PARAMETERS:
        message = f"The request has more than {MOST_PARAMETERS} query parameters, the maximum."
        raise WrongRequest("TooManyParameters", message)
    by_name = {parameter.name: parameter for parameter in known}
    values: dict[str, Any] = {}
    for name, value in pairs:
        parameter = by_name.get(name)
        if parameter is None:
            raise _unknown(name, by_name)
        if parameter.many:
            values.setdefault(name, []).extend(_read(parameter, part) for part in value.split(","))
        elif name in values:
            raise WrongRequest("GivenTwice", f"{name} is given more than once; give one value.", name)
        else:
            values[name] = _read(parameter, value)
    return values


def _read(parameter: Parameter, value: str) -> object:
    try:
        return parameter.read(value)
    except ValueError as error:
        shown = value if len(value) <= 60 and value.isprintable() else ascii(value[:60]) + "…"
        message = f'{parameter.name} is "{shown}"; {error}'
        message += "" if message.endswith("?") else "."
        raise WrongRequest("WrongParameter", message, parameter.name) from None


def _unknown(name: str, known: dict[str, Parameter]) -> WrongRequest:
    shown = name if len(name) <= 60 and name.isprintable() else ascii(name[:60]) + "…"
    if not known:
        return WrongRequest("UnknownParameter", f'Unknown query parameter "{shown}"; this endpoint has none.', shown)
    near = closest_word(name, known)
    hint = f'did you mean "{near}"?' if near else f"known parameters: {', '.join(known)}."
    return WrongRequest("UnknownParameter", f'Unknown query parameter "{shown}"; {hint}', shown)


# --- kinds of values --------------------------------------------------------------------------------------------------


def text(value: str) -> str:
    """Accept any text except the empty one."""
    if not value:
        raise ValueError("give it a value or omit it")
    if "\0" in value:
        raise ValueError("it must not contain a NUL character")
    return value


def counted(name: str, words: str, least: int, most: int) -> Parameter:
    """Make a parameter that is an integer between `least` and `most`."""
    return Parameter(name, words, number(least, most), "integer", least=least, most=most)


def switch(name: str, words: str) -> Parameter:
    """Make a parameter that is on or off."""
    return Parameter(name, words, yes_or_no, "boolean")


def number(least: int, most: int) -> Callable[[str], int]:
    """Make a reader of integers between `least` and `most`."""

    def read(value: str) -> int:
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 20 and least <= int(value) <= most:
            return int(value)
        raise ValueError(f"it must be a whole number from {least:,} to {most:,}")

    return read


def yes_or_no(value: str) -> bool:
    """Read a switch; without a value it is on."""
    if value in {"", "1", "true", "yes"}:
        return True
    if value in {"0", "false", "no"}:
        return False
    raise ValueError("it must be true or false")


def one_of(words: dict[str, Any]) -> Callable[[str], Any]:
    """Make a reader that accepts these words and returns their values."""

    def read(value: str) -> Any:
        if value in words:
            return words[value]
        near = closest_word(value, words)
        raise ValueError(f'did you mean "{near}"?' if near else f"known values: {', '.join(words)}")

    return read


def instant(value: str) -> float:
    """Read a time: RFC 3339, or seconds since 1970."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = _read_date(value)
    if not isfinite(seconds) or not 0 <= seconds <= LAST_SECOND:
        raise ValueError("it must be between the years 1970 and 9999")
    return seconds


def _read_date(value: str) -> float:
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("it must be a time such as 2026-01-31T12:00:00Z, or seconds since 1970") from None
    try:
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        raise ValueError("it must be between the years 1970 and 9999") from None
