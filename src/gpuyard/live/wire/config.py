"""Settings from a YAML file and the environment, read strictly.

A setting `key` of a section `section` is `section: {key: value}` in the file and `GPUYARD_SECTION__KEY=value` in the
environment, which takes precedence. Lists and maps are written as YAML in the environment, too
(`GPUYARD_USERS='[{username: a}]'`). Variables without a double underscore, such as GPUYARD_SERVER, belong to clients
and tasks and are ignored.

Each error is one sentence that begins with the file and line, or with the variable, that it is about.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from msgspec import Struct, inspect
from msgspec.structs import force_setattr

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.document import InputDocument, Unreadable, decoded, parse_yaml
from gpuyard.input.files import LARGEST_TEXT_BYTES, read_file
from gpuyard.input.strict import Strict, WrongRequest

T = TypeVar("T")
Keys: TypeAlias = tuple[str | int, ...]
Complaint: TypeAlias = tuple[str, str]
"""The key it is about (`scheduler.role`), and the sentence."""

PREFIX = "GPUYARD_"
"""Limit on the values of a file, because YAML aliases of aliases can expand to billions."""


class WrongSettings(WrongInput):
    """The settings cannot be used; correct what the sentences name and start again. Each complaint is one line."""

    @classmethod
    def of(cls, complaints: Iterable[str]) -> Self:
        """Combine all complaints, in the order of the file; those without a line come last."""
        return cls("\n".join(sorted(dict.fromkeys(complaints), key=_line_of)))


_LINE = re.compile(r", line (\d+): ")


def _line_of(complaint: str) -> int:
    found = _LINE.search(complaint)
    return int(found[1]) if found else sys.maxsize


# --- loading ------------------------------------------------------------------------------------------------------------


def load(
    type_: type[T],
    path: Path | None,
    env: Mapping[str, str],
    *,
    check: Callable[[T], Iterable[Complaint]] = lambda _: (),
    not_ours: Collection[str] = (),
    other_names: Iterable[tuple[str, str]] = (),
) -> T:
    """Load settings from a file, if one is given, and the environment. Raise `WrongSettings` if anything is wrong.

    `check` finds errors that involve several settings. `not_ours` are variables that another part, started from the
    same environment, reads (`variables` names them). `other_names` are pairs of keys with the same meaning: a value in
    the environment under one of them removes the value in the file under the other.
    """
    places: dict[Keys, str] = {}
    complaints: list[str] = []
    raw = _read_file(path, places, complaints) if path is not None else {}
    set_ = _add_environment(raw, env, inspect.type_info(type_), not_ours, places, complaints)
    for one, other in other_names:
        for said, same in ((one, other), (other, one)):
            if tuple(said.split(".")) in set_ and tuple(same.split(".")) not in set_:
                raw = _without(raw, [tuple(same.split("."))])
    strict = Strict(type_, what="the settings")
    faults = strict.faults(raw)
    complaints += [_placed(fault.path, str(fault), path, places) for fault in faults]
    try:
        settings = strict.plain(_without(raw, [fault.path for fault in faults]) if faults else raw)
    except WrongRequest as wrong:  # without the wrong values something else is missing: report what is known so far
        raise WrongSettings.of(complaints or [_placed(wrong.path, str(wrong), path, places)]) from None
    for key, sentence in check(settings):
        complaints.append(_placed(tuple(key.split(".")), sentence, path, places))
    if complaints:
        raise WrongSettings.of(complaints)
    return settings


def _without(raw: Any, paths: Iterable[Keys]) -> Any:
    """Return a copy without the wrong values, for a list without the whole entry, so that the rest can be checked."""
    wrong = set(paths)

    def copy(value: Any, here: Keys) -> Any:
        if isinstance(value, dict):
            return {key: copy(below, (*here, key)) for key, below in value.items() if (*here, key) not in wrong}
        if isinstance(value, list):
            places = [
                place
                for place in range(len(value))
                if not any(path[: len(here) + 1] == (*here, place) for path in wrong)
            ]
            return [copy(value[place], (*here, place)) for place in places]
        return value

    return copy(raw, ())


def _placed(keys: Keys, sentence: str, path: Path | None, places: Mapping[Keys, str]) -> str:
    """Prefix a complaint with the nearest known place."""
    for length in range(len(keys), 0, -1):
        if place := places.get(keys[:length]):
            return f"{place}: {sentence}"
    return f"{path}: {sentence}" if path else sentence


def variables(type_: type) -> frozenset[str]:
    """Return every environment variable that sets one of the type's settings."""
    return frozenset(PREFIX + "__".join(keys).upper() for keys in keys_of(type_))


def keys_of(type_: type) -> list[tuple[str, ...]]:
    """Return every key of the type's sections, in order. A list or a map, whose keys are the user's, is one key."""
    return _keys(inspect.type_info(type_))


def _keys(info: inspect.Type) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for field in _fields(info):
        below = _keys(field.type)
        found += [(field.encode_name, *keys) for keys in below] or [(field.encode_name,)]
    return found


def _bare(info: inspect.Type) -> inspect.Type:
    """Return the type without bounds and without the alternative None."""
    if isinstance(info, inspect.Metadata):
        return _bare(info.type)
    if isinstance(info, inspect.UnionType):
        rest = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        return _bare(rest[0]) if len(rest) == 1 else info
    return info


def _fields(info: inspect.Type) -> tuple[inspect.Field, ...]:
    bare = _bare(info)
    return bare.fields if isinstance(bare, inspect.StructType) else ()


# --- the file -----------------------------------------------------------------------------------------------------------


def _read_file(path: Path, places: dict[Keys, str], complaints: list[str]) -> dict[str, Any]:
    try:
        content = read_file(path, largest=LARGEST_TEXT_BYTES)
    except FileNotFoundError:
        raise WrongSettings(f"File {path} does not exist; give the path of a settings file.") from None
    except IsADirectoryError:
        raise WrongSettings(f"{path} is a folder, not a settings file.") from None
    except OSError as error:
        raise WrongSettings(f"{path} cannot be read: {error.strerror}.") from None
    document = _parsed(content, str(path), complaints)
    if document.value is None:
        raise WrongSettings(f"{path} is empty; add settings, or omit the file to use the defaults.")
    if not isinstance(document.value, dict):
        line = document.lines[()]
        raise WrongSettings(f"{path}, line {line}: write settings as `section:` with `key: value` below it.")
    places |= {keys: f"{path}, line {line}" for keys, line in document.lines.items() if keys}
    return document.value


def _parsed(content: bytes, source: str, complaints: list[str]) -> InputDocument:
    try:
        document = parse_yaml(decoded(content))
    except Unreadable as error:
        raise WrongSettings(error.within(source)) from None
    complaints += [f"{source}, line {one.line}: {one.sentence}" for one in document.repeated]
    return document


# --- the environment ----------------------------------------------------------------------------------------------------


def _add_environment(
    raw: dict[str, Any],
    env: Mapping[str, str],
    info: inspect.Type,
    not_ours: Collection[str],
    places: dict[Keys, str],
    complaints: list[str],
) -> set[Keys]:
    """Put the values of the variables into `raw`, and return the keys that were set."""
    done: set[Keys] = set()
    whole = {field.encode_name for field in _fields(info) if not _fields(field.type)}
    for name in sorted(env):
        if not name.startswith(PREFIX) or not env[name] or _belongs_to(name, not_ours):
            continue
        keys = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if len(keys) < 2 and keys[0] not in whole:
            continue
        place = f"Environment variable {name}"
        try:
            _set(raw, keys, _environment_value(env[name], _type_at(info, keys), place, complaints), place)
        except WrongSettings as wrong:
            complaints.append(str(wrong))
            continue
        # The variable replaces the whole value, so lines of the file below this key no longer apply.
        for known in [known for known in places if known[: len(keys)] == keys]:
            del places[known]
        for length in range(1, len(keys)):
            places.setdefault(keys[:length], place)
        places[keys] = place
        done.add(keys)
    return done


def _belongs_to(name: str, variables_of_others: Collection[str]) -> bool:
    return name in variables_of_others or any(name.startswith(f"{other}__") for other in variables_of_others)


def _type_at(info: inspect.Type, keys: Keys) -> inspect.Type | None:
    for key in keys:
        bare = _bare(info)
        if isinstance(bare, inspect.DictType):
            info = bare.value_type
            continue
        field = next((field for field in _fields(bare) if field.encode_name == key), None)
        if field is None:
            return None
        info = field.type
    return _bare(info)


def _environment_value(text: str, info: inspect.Type | None, place: str, complaints: list[str]) -> object:
    """Parse a value, but keep text if the setting is text.

    A token of digits is not a number, [::]:8080 is not a list.
    """
    if isinstance(info, inspect.StrType) or (isinstance(info, inspect.CustomType) and issubclass(info.cls, str)):
        return text
    return _parsed(text.encode(errors="surrogateescape"), place, complaints).value


def _set(raw: dict[str, Any], keys: tuple[str, ...], value: object, place: str) -> None:
    section = raw
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise WrongSettings(f"{place}: {key} has a single value in the file, so it has no keys below it.")
    section[keys[-1]] = value


# --- values with a form of their own ------------------------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
LONGEST_SECONDS = 1e9


def _duration(raw: object, unit_seconds: float) -> float:
    """Convert a number in the unit of its setting, or text with units: 5s, 500ms, 1h30m.

    Raise `ValueError` if invalid.
    """
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        seconds = raw * unit_seconds
    elif isinstance(raw, str) and re.fullmatch(f"(?:{_PART.pattern})+", raw.strip()):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(raw))
    else:
        raise ValueError
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ValueError
    return seconds


def keep_plain_floats(section: Struct) -> None:
    """Convert the durations of a section to plain floats. For `__post_init__` of a section.

    A duration is read by its own type, but settings end up in events, and the journal writes plain values only.
    """
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, float) and type(value) is not float:
            force_setattr(section, name, float(value))


def too_short(settings: Struct, least: Mapping[str, float]) -> Iterator[Complaint]:
    """Yield durations below their least value, by key (`monitor.interval`). 0 and None mean "none" and are skipped."""
    for key, seconds in least.items():
        value: Any = settings
        for name in key.split("."):
            value = getattr(value, name, None)
        if value and value < seconds:
            yield key, f"{key} is {value:g} s; it must be at least {seconds:g} s."


class Duration(float):
    """A duration above zero. A plain number is seconds. It defines how to read one; a section keeps a plain float."""

    words: ClassVar[str] = "a duration above zero, such as 5, 5s, 500ms or 2m"
    unit_seconds: ClassVar[float] = 1.0
    """The unit of a plain number, in seconds."""

    @classmethod
    def read(cls, raw: object) -> Self:
        """Parse the raw value. Raise `ValueError` if it is invalid."""
        seconds = _duration(raw, cls.unit_seconds)
        if not seconds:
            raise ValueError
        return cls(seconds)


class DurationOrNone(float):
    """A duration; 0 means none."""

    words: ClassVar[str] = "a duration such as 5, 5s, 500ms or 2m, or 0 for none"

    @classmethod
    def read(cls, raw: object) -> Self:
        """Parse the raw value. Raise `ValueError` if it is invalid."""
        return cls(_duration(raw, 1))


class DurationGivenInMilliseconds(Duration):
    """A duration for a legacy setting whose plain numbers are milliseconds."""

    words: ClassVar[str] = "a number of milliseconds above zero, or a duration such as 5s or 500ms"
    unit_seconds: ClassVar[float] = 0.001


class DurationGivenInHours(Duration):
    """A duration for a legacy setting whose plain numbers are hours."""

    words: ClassVar[str] = "a number of hours above zero, or a duration such as 7d or 12h"
    unit_seconds: ClassVar[float] = 3600.0


_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9._-]*):(?P<port>\d{1,5})")


class Address(str):
    """Where to listen. `:8080` means every interface; port 0 means any free one."""

    words: ClassVar[str] = "an address as HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"
    __slots__ = ()

    @classmethod
    def read(cls, raw: object) -> Self:
        """Parse the raw value. Raise `ValueError` if it is invalid."""
        if not isinstance(raw, str):
            raise ValueError
        if "//" in raw:
            raise ValueError("write HOST:PORT without http://")
        found = _ADDRESS.fullmatch(raw)
        if found is None:
            raise ValueError
        if int(found["port"]) > 65535:
            raise ValueError("ports go up to 65535")
        if found["host"].startswith("["):
            try:
                ip_address(found["host"][1:-1])
            except ValueError:
                raise ValueError(f"{found['host']} is not an IPv6 address") from None
        return cls(raw)

    @property
    def host(self) -> str:
        """The host without brackets; 0.0.0.0 if none is given."""
        return self.rpartition(":")[0].strip("[]") or "0.0.0.0"  # noqa: S104 - what `:8080` means everywhere

    @property
    def port(self) -> int:
        """The port."""
        return int(self.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class PeerAddress(Address):
    """The address of another machine or process; empty: none."""

    words: ClassVar[str] = "an address as HOST:PORT, such as scheduler-1:9090, or empty for none"
    __slots__ = ()

    @classmethod
    def read(cls, raw: object) -> Self:
        """Parse the raw value. Raise `ValueError` if it is invalid."""
        if raw == "":
            return cls("")
        address = super().read(raw)
        if address.startswith(":") or address.port == 0:
            raise ValueError("it needs a host and a port above 0")
        return address
