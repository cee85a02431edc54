"""Sweeps: one command, once for every combination of values.

    lr=1e-3,1e-4  seed=0..9            values with commas, ranges with both ends, as in bash
    k=0..100..10  k=@file  @grid.csv   with a step; the lines of a file; a table or lists from a file

Each text is an *axis*: a list of points, which map keys to values. The points of the sweep are the product of all axes,
or with `zip` the axes side by side. In the command `{lr}` stands for a value, `{index}` for the number of the task,
`{args}` for `--lr 1e-3 --seed 0`, `{hydra}` for `lr=1e-3 seed=0`; `{{` and `}}` are braces, and `${…}` belongs to the
shell. Values are inserted into arguments as they are, and quoted into shell lines.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from math import prod
from pathlib import Path
from shlex import join, quote
from typing import Any, Final, TypeAlias

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.values import PARAMETER_PREFIX

Point: TypeAlias = dict[str, str]
Axis: TypeAlias = list[Point]

MOST_POINTS: Final = 10_000
"""Of one sweep, which is accepted as a whole."""
LONGEST_NAME: Final = 200
LONGEST_BASE: Final = 100
LONGEST_VALUE_IN_NAME: Final = 40
LARGEST_FILE_BYTES: Final = 4 * 1024 * 1024

_OWN: Final = ("index", "args", "hydra")
_KEY: Final = re.compile(r"[A-Za-z_+~][A-Za-z0-9_.\-/+~@]{0,99}")
_INTEGER: Final = r"-?[0-9]{1,18}"
_DECIMAL: Final = r"-?(?:[0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})"
_RANGE: Final = re.compile(rf"({_DECIMAL})\.\.({_DECIMAL})(?:\.\.({_DECIMAL}))?")
_LIKE_RANGE: Final = re.compile(r"[-+]?\.?[0-9][0-9.eE+-]*\.\.[-+]?\.?[0-9][0-9.eE+-]*")
"""Two numbers with `..` between them: nobody means that as one value."""
_CALL: Final = re.compile(r"\s*(range|choice|glob|interval|linspace|logspace|uniform)\s*\((.*)\)?\s*")
_TOKEN: Final = re.compile(r"\$\{[^}]*\}?|\{\{|\}\}|\{[^{}]*\}|\{")
_SAFE: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_UNCLEAR: Final = re.compile(r"`|\$\(|\$'|<<|(^|[\s;&|()])#|\n")
"""Parts of a shell line inside which quotes mean something else than in the line itself."""
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_STARTERS: Final = re.compile(
    r"(python[0-9.]*|sh|bash|dash|zsh|env|uv|run|torchrun|accelerate|launch|srun|nohup|time)$"
)


class WrongSweep(WrongInput):
    """A sweep, or a command with its placeholders, cannot be understood."""


# --- values -----------------------------------------------------------------------------------------------------------


def parse_axes(texts: Iterable[str], folder: Path | None = None) -> list[Axis]:
    """Return the axes of `k=a,b`, `k=0..9`, `k=@file` and `@grid.csv`. Files are relative to `folder`."""
    axes: list[Axis] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if text.startswith("@"):
            axes += _axes_of_file(_path(text[1:], folder))
        elif not equals:
            raise WrongSweep(f"{text!r} is not a sweep; write KEY=VALUE,VALUE, KEY=0..9, KEY=@FILE or @grid.csv.")
        elif value.startswith("@"):
            axes.append(_axis(key, _lines(_path(value[1:], folder))))
        else:
            axes.append(_axis(key, _values(key, value)))
    return axes


def axes_of(values: Mapping[str, Any]) -> list[Axis]:
    """Return the axes of a mapping from keys to lists of values; a text is read as after `KEY=`."""
    axes = []
    for key, given in values.items():
        if isinstance(given, str):
            axes.append(_axis(key, _values(key, given)))
        elif isinstance(given, Iterable) and not isinstance(given, Mapping | bytes):
            axes.append(_axis(key, [_text(key, value) for value in given]))
        else:
            axes.append(_axis(key, [_text(key, given)]))
    return axes


def points_of(axes: Sequence[Axis], *, side_by_side: bool = False) -> list[Point]:
    """Return all points: the product of the axes, the last one changing fastest; or the axes side by side."""
    if not axes:
        raise WrongSweep("The sweep has no values.")
    seen: set[str] = set()
    for axis in axes:
        if twice := seen & axis[0].keys():
            raise WrongSweep(f"{min(twice)} is given twice in the sweep.")
        seen |= axis[0].keys()
    variables: dict[str, str] = {}
    for key in seen:
        if (other := variables.setdefault(variable_of(key), key)) != key:
            raise WrongSweep(f"{key} and {other} would share the variable {variable_of(key)}; rename one of them.")
    lengths = [len(axis) for axis in axes]
    if side_by_side and len(set(lengths)) > 1:
        each = ", ".join(f"{'/'.join(axis[0])} has {len(axis)}" for axis in axes)
        raise WrongSweep(f"Side by side, all keys need the same number of values; {each}.")
    count = lengths[0] if side_by_side else prod(lengths)
    if count > MOST_POINTS:
        raise WrongSweep(f"The sweep has {count:,} combinations; the maximum is {MOST_POINTS:,}.")
    rows = zip(*axes, strict=True) if side_by_side else product(*axes)
    return [{key: value for point in row for key, value in point.items()} for row in rows]


def _path(text: str, folder: Path | None) -> Path:
    if not text:
        raise WrongSweep("@ is not followed by the name of a file.")
    return (folder or Path()) / Path(text).expanduser()


def _axis(key: str, values: Sequence[str]) -> Axis:
    _check_key(key)
    if not values:
        raise WrongSweep(f"{key} has no values.")
    return [{key: value} for value in values]


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise WrongSweep(f"{key!r} is not a key of a sweep; use letters, digits, dots, dashes and underscores.")
    if key in _OWN:
        raise WrongSweep(f"{{{key}}} has a meaning of its own in a sweep; use another key.")


def _values(key: str, text: str) -> list[str]:
    if call := _CALL.fullmatch(text):
        raise WrongSweep(_instead_of_call(key, call[1], call[2].rstrip(") ")))
    values: list[str] = []
    for part in text.split(","):
        item = part.strip()
        if not item:
            raise WrongSweep(f"{key} has an empty value; remove the comma, or put the values into a file: {key}=@FILE.")
        found = _RANGE.fullmatch(item)
        if not found and len(item) <= LONGEST_NAME and _LIKE_RANGE.fullmatch(item):
            raise WrongSweep(
                f"{key}={item} is not a range: write its numbers with at most 18 digits before and after the point, without "
                f"an exponent, such as {key}=0..1..0.001; for a text, put it into a file: {key}=@FILE."
            )
        values += _range(key, *found.groups()) if found else [item]
        if len(values) > MOST_POINTS:
            raise WrongSweep(f"{key} has more than {MOST_POINTS:,} values, the maximum of a sweep.")
    return values


def _range(key: str, first: str, last: str, step: str | None) -> list[str]:
    """Return the numbers from first to last, both included, as the range of bash."""
    begin, end = Decimal(first), Decimal(last)
    if step is None and not (re.fullmatch(_INTEGER, first) and re.fullmatch(_INTEGER, last)):
        raise WrongSweep(f"{key}={first}..{last} needs a step, such as {key}={first}..{last}..0.1.")
    by = abs(Decimal(step or "1"))
    if not by:
        raise WrongSweep(f"{key}: the step of a range cannot be 0.")
    count = int(abs(end - begin) / by) + 1
    if count > MOST_POINTS:
        raise WrongSweep(f"{key} has {count:,} values; the maximum of a sweep is {MOST_POINTS:,}.")
    by = by if end >= begin else -by
    padded = any(re.fullmatch(r"-?0[0-9]+", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{begin + number * by:f}".zfill(width) for number in range(count)]


def _instead_of_call(key: str, name: str, inside: str) -> str:
    if name != "range":
        return f"{name}(…) is not known here; list the values with commas: {key}=a,b,c."
    try:
        numbers = [int(part) for part in inside.split(",")]
        first, end, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
        ours = f"{key}={first}..{end - (1 if step > 0 else -1)}" + (f"..{step}" if step != 1 else "")
    except (ValueError, IndexError):
        ours = f"{key}=0..9"
    return f"range(…) is not known here; write {ours}, which includes both ends."


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Mapping | Sequence):
        raise WrongSweep(f"{key} has a value that is neither text nor a number.")
    return str(value)


# --- files ------------------------------------------------------------------------------------------------------------


def _content(path: Path) -> bytes:
    from gpuyard.input.files import read_file, shown_path

    try:
        return read_file(path, largest=LARGEST_FILE_BYTES)
    except OSError as error:
        raise WrongSweep(f"{shown_path(path)}: {error.strerror or error}.") from None


def _decoded(path: Path) -> str:
    try:
        return _content(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise WrongSweep(f"{path} is not UTF-8.") from None


def _lines(path: Path) -> list[str]:
    lines = [line.strip() for line in _decoded(path).splitlines()]
    found = [line for line in lines if line]
    if not found:
        raise WrongSweep(f"{path} has no lines.")
    return found


def _axes_of_file(path: Path) -> list[Axis]:
    """Return the axes of a grid: the rows of a table are one axis, lists by key are one axis each."""
    if path.suffix.lower() in {".csv", ".tsv"}:
        return [_table(path)]
    if path.suffix.lower() not in {".json", ".yaml", ".yml"}:
        raise WrongSweep(f"{path} is not a grid; use .csv, .json or .yaml, or KEY=@FILE for the lines of a file.")
    from gpuyard.input.document import Unreadable, parse

    try:
        document = parse(_content(path))
    except Unreadable as error:
        raise WrongSweep(error.within(str(path))) from None
    value = document.as_written(document.value, ())
    try:
        if isinstance(value, Mapping):
            return axes_of(value)
        if isinstance(value, list) and value and all(isinstance(row, Mapping) and row for row in value):
            return [_rows([{key: _text(key, item) for key, item in row.items()} for row in value], [])]
    except WrongSweep as error:
        raise WrongSweep(f"{path}: {error}") from None
    raise WrongSweep(f"{path} is neither lists of values by key nor a list of points.")


def _table(path: Path) -> Axis:
    text = _decoded(path)
    reader = csv.reader(io.StringIO(text), delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    rows: list[Point] = []
    places: list[int] = []
    keys: list[str] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if not keys:
                keys = cells
                continue
            if len(cells) != len(keys):
                raise WrongSweep(
                    f"{path}, line {reader.line_num}: it has {len(cells)} cells, the first line {len(keys)}."
                )
            rows.append(dict(zip(keys, cells, strict=True)))
            places.append(reader.line_num)
    except csv.Error as error:
        raise WrongSweep(f"{path}, line {reader.line_num}: {error}.") from None
    if not rows:
        raise WrongSweep(f"{path} has no rows below its line of keys.")
    try:
        if len(set(keys)) < len(keys):
            raise WrongSweep("a key is given twice in the first line.")
        return _rows(rows, places)
    except WrongSweep as error:
        raise WrongSweep(f"{path}: {error}") from None


def _rows(rows: list[Point], places: list[int]) -> Axis:
    for key in rows[0]:
        _check_key(key)
    for number, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            where = f"line {places[number]}" if places else f"point {number + 1}"
            raise WrongSweep(f"{where} has other keys than the first one.")
    return rows


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweptTask:
    """One task of a sweep."""

    command: str | list[str]
    env: dict[str, str]
    name: str


def variable_of(key: str) -> str:
    """Return the variable in which a task finds the value of a key."""
    return PARAMETER_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", key).upper()


def swept_tasks(
    command: str | Sequence[str],
    points: Sequence[Point],
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    read_by: str = "",
) -> list[SweptTask]:
    """Return the tasks of a sweep: their commands, variables and names.

    A value of `env` may use placeholders of keys, too. Every key must be used: in the command, in `env`, or as a
    variable in `read_by`, the text of a script. Raises `WrongSweep`.
    """
    words = command if isinstance(command, str) else list(command)
    base = (name or _base_name(words))[:LONGEST_BASE]
    keys = list(points[0])
    used: set[str] = set()
    swept = []
    for index, point in enumerate(points):
        values = point | {"index": str(index)}
        filled = {variable: _in_value(text, values, used) for variable, text in (env or {}).items()}
        swept.append(
            SweptTask(
                _filled(words, values, keys, used),
                filled | {variable_of(key): value for key, value in point.items()},
                _name(base, point),
            )
        )
    text = (words if isinstance(words, str) else "\n".join(words)) + read_by
    unused = [key for key in keys if key not in used and variable_of(key) not in text]
    if unused:
        raise WrongSweep(
            f"{unused[0]} is not used in the command; write {{{unused[0]}}} or {{args}} there, "
            f"or -e NAME={{{unused[0]}}} for a program that reads its environment."
        )
    return swept


def _filled(words: str | list[str], values: Point, keys: list[str], used: set[str]) -> str | list[str]:
    if isinstance(words, str):
        return _in_line(words, values, keys, used)
    line = _shell_text(words)
    filled: list[str] = []
    for place, word in enumerate(words):
        if word in {"{args}", "{hydra}"}:
            used.update(keys)
            filled += _arguments(word[1:-1], values, keys)
        elif place == line:
            filled.append(_in_line(word, values, keys, used))
        else:
            filled.append(_replaced(word, values, keys, used, lambda value, _: value))
    return filled


def _shell_text(words: list[str]) -> int | None:
    """Return the position of the shell line in `sh -c LINE`."""
    is_line = len(words) > 2 and Path(words[0]).name in _SHELLS and re.fullmatch(r"-[a-z]*c", words[1])
    return 2 if is_line else None


def _arguments(kind: str, values: Point, keys: list[str]) -> list[str]:
    if kind == "hydra":
        return [f"{key}={values[key]}" for key in keys]
    return [part for key in keys for part in (f"--{key}", values[key])]


def _in_value(text: str, values: Point, used: set[str]) -> str:
    """Replace the placeholders of known keys in the value of a variable; other braces are left alone."""
    for key, value in values.items():
        if f"{{{key}}}" in text:
            used.add(key)
            text = text.replace(f"{{{key}}}", value)
    return text


def _in_line(line: str, values: Point, keys: list[str], used: set[str]) -> str:
    return _replaced(line, values, keys, used, lambda value, place: _quoted(value, line, place))


def _replaced(text: str, values: Point, keys: list[str], used: set[str], insert: Any) -> str:
    parts: list[str] = []
    end = 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        parts += [text[end : found.start()], _meaning(token, found.start(), values, keys, used, insert)]
        end = found.end()
    return "".join([*parts, text[end:]])


def _meaning(token: str, place: int, values: Point, keys: list[str], used: set[str], insert: Any) -> str:
    if token.startswith("$"):
        inside = token[2:].rstrip("}")
        if inside in values or inside in _OWN:
            raise WrongSweep(f"{token} belongs to the shell; write {{{inside}}} for the value of the sweep.")
        return token
    if token in {"{{", "}}"}:
        return token[0]
    name = token[1:-1]
    if not (name and (name in values or name in _OWN)):
        from gpuyard.input.nearest_name import closest_word

        near = closest_word(name, [*keys, *_OWN]) if name else None
        hint = f"did you mean {{{near}}}?" if near else f"the sweep has {', '.join(keys)}; write {{{{ for a brace."
        raise WrongSweep(f"Unknown placeholder {token} in the command; {hint}")
    if name in {"args", "hydra"}:
        used.update(keys)
        return join(_arguments(name, values, keys))
    used.add(name)
    return str(insert(values[name], place))


def _quoted(value: str, line: str, place: int) -> str:
    """Return a value as part of a shell line at this place: outside of quotes, or inside single or double ones."""
    if _SAFE.fullmatch(value):
        return value
    opened = _quote_at(line, place)
    if opened == "\\" or _UNCLEAR.search(line):
        raise WrongSweep(
            f"The value {value!r} cannot be quoted safely into this shell line, which has comments, $(…), `…`, <<, "
            f"several lines or a backslash there; use the variable ({PARAMETER_PREFIX}…) there, in double quotes."
        )
    match opened:
        case "'":
            return value.replace("'", "'\\''")
        case '"':
            return re.sub(r'([\\"$`])', r"\\\1", value)
    return quote(value)


def _quote_at(line: str, place: int) -> str:
    """Return the quote that is open at a place of a shell line, or a backslash before it; empty if none is."""
    quote_open, escaped = "", False
    for character in line[:place]:
        if escaped:
            escaped = False
        elif character == "\\" and quote_open != "'":
            escaped = True
        elif quote_open:
            quote_open = "" if character == quote_open else quote_open
        elif character in "'\"":
            quote_open = character
    return "\\" if escaped else quote_open


# --- names ------------------------------------------------------------------------------------------------------------


def _base_name(command: str | list[str]) -> str:
    """Return the program, for a sweep without a name: `train` for `python -u train.py --lr {lr}`."""
    words = command.split() if isinstance(command, str) else command
    for word in words:
        name = word.rstrip("/").rpartition("/")[2]
        if not name or name.startswith("-") or "{" in name or "=" in name or _STARTERS.fullmatch(name):
            continue
        stem = re.sub(r"\.(py|sh|bash|pl|R|jl)$", "", name)
        return "".join(character for character in stem if character.isprintable() and character != "[") or "sweep"
    return "sweep"


def _name(base: str, point: Point) -> str:
    """Return `train[lr=1e-3,seed=0]`: what is before the bracket is the same for all tasks of the sweep."""
    values = ",".join(f"{key}={_shortened(value)}" for key, value in point.items())
    room = LONGEST_NAME - len(base) - 2
    return f"{base}[{values if len(values) <= room else values[: room - 1] + '…'}]"


def _shortened(value: str) -> str:
    clean = "".join(character if character.isprintable() else "�" for character in value)
    return clean if len(clean) <= LONGEST_VALUE_IN_NAME else clean[: LONGEST_VALUE_IN_NAME - 1] + "…"
