"""Strict decoding: input matches its type exactly, or is rejected with a one-sentence message.

The fast path is a single msgspec call. Only if that fails is the input examined again, slowly: the diagnosis walks the
value and its type in parallel to the first mismatch, so the message names the place (`tasks[3].gpu_count`), the value
found there and the values allowed there. It does not parse msgspec's own messages.

    WrongRequest   caller: correct the input and send it again; `status` is the HTTP status
"""

import atexit
import gc
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar, runtime_checkable

import msgspec
from msgspec import inspect

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.input.error_location import FieldPath, format_path, shortened
from gpuyard.input.nearest_name import closest_word

atexit.register(gc.freeze)
# If the final garbage collection of CPython 3.12 at exit finds a msgspec decoder (0.18 to 0.22), the process crashes
# one time in four. `gc.freeze` hides all objects from that collection; their memory is freed with the process anyway.

T = TypeVar("T")

DEEPEST = 64
"""The maximum nesting depth. Valid input is never deeper; deeper input is malicious."""

_SECRET = frozenset({"secrets", "password", "token", "join_token"})
"""Values under these names are never quoted in messages, because messages are logged."""
_NUL = b"\\u0000"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8 with a byte order mark", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class WrongRequest(GpuyardError):
    """What was sent is wrong; correct it and send it again."""

    def __init__(
        self, code: str, message: str, field: str | None = None, *, status: int = 400, path: FieldPath = ()
    ) -> None:
        super().__init__(message)
        self._code = code
        self.message = message
        self.field = field
        """The location: `gpu_count`, `tasks[3].gpu_count`; None: the whole input."""
        self.status = status
        """The HTTP status of the response."""
        self.path = path
        """The location of `field` as a tuple, for programs."""

    @property
    def code(self) -> str:
        """The stable error code in the API."""
        return self._code

    def within(self, *outer: str | int) -> "WrongRequest":
        """Return the error with its location inside a larger input: `gpu_count` becomes `tasks[3].gpu_count`."""
        path = (*outer, *(self.path or ((self.field,) if self.field else ())))
        message = f"{format_path(outer)}: {self.message}"
        return WrongRequest(self._code, message, format_path(path), status=self.status, path=path)


@runtime_checkable
class Readable(Protocol):
    """A type with its own text form, such as a duration, and its own parser."""

    words: ClassVar[str]
    """The allowed values, as the end of a sentence: "a duration such as 5s"."""

    @classmethod
    def read(cls, raw: object) -> Self:
        """Parse a value. Raises ValueError with the reason, or without a message if `words` is sufficient."""
        ...


class Strict(Generic[T]):
    """Decodes input of one type. `what` names the input in messages."""

    def __init__(self, type_: type[T], *, what: str = "the request") -> None:
        self._type = type_
        self._what = what
        self._decode = msgspec.json.Decoder(type_, dec_hook=_read_custom).decode
        self._info: inspect.Type | None = None

    def json(self, body: bytes) -> T:
        """Decode JSON. Raises WrongRequest with the first error."""
        try:
            value = self._decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._say_what_is_wrong(self._raw(body), error)
        if _NUL in body:
            self._say_where_a_nul_is(body)
        if wrong := repeated_key(body):
            raise wrong
        return value

    def plain(self, raw: object) -> T:
        """Convert parsed YAML or a parsed query string (dictionaries, lists, text, numbers). Raises WrongRequest."""
        if wrong := _unusable_text(raw, ()):
            raise wrong
        try:
            return msgspec.convert(raw, self._type, dec_hook=_read_custom)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._say_what_is_wrong(raw, error)

    def _say_what_is_wrong(self, raw: object, error: Exception) -> NoReturn:
        if self._info is None:
            self._info = inspect.type_info(self._type)
        raise (next(_faults(self._info, raw, (), self._what), None) or _in_other_words(error)) from None

    def faults(self, raw: object) -> list[WrongRequest]:
        """Return all errors in parsed YAML, so that users can correct a file in one pass."""
        if wrong := _unusable_text(raw, ()):
            return [wrong]
        if self._info is None:
            self._info = inspect.type_info(self._type)
        return list(_faults(self._info, raw, (), self._what))

    def _say_where_a_nul_is(self, body: bytes) -> None:
        """Raise WrongRequest if the decoded text has a NUL: an escaped backslash before `u0000` is not one."""
        if wrong := _unusable_text(msgspec.json.decode(body), ()):
            raise wrong

    def _raw(self, body: bytes) -> object:
        try:
            return msgspec.json.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return _read_slowly(body, self._what)


def fault_in(type_: Any, value: object, name: str) -> WrongRequest | None:
    """Return what is wrong with a value called `name`, if it does not fit the type."""
    return next(_faults(inspect.type_info(type_), value, (name,), name), None)


def _read_custom(type_: type, raw: object) -> object:
    assert isinstance(type_, Readable), f"{type_} cannot be read from outside"
    return type_.read(raw)


# --- invalid JSON ------------------------------------------------------------------------------------------------


def _read_slowly(body: bytes, what: str) -> object:
    """Diagnose JSON that msgspec cannot parse: raise the reason, or return the value if Python's parser accepts it."""
    if not body.strip():
        raise _malformed(f"{_capital(what)} is empty; send a JSON object.")
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if body.startswith(mark):
            raise _malformed(f"{_capital(what)} is encoded as {encoding}; send plain UTF-8.")
    try:
        read: object = json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as found:
        raise _malformed(f"{_capital(what)} is not UTF-8: byte {found.start} cannot be decoded; send UTF-8.") from None
    except _Constant as found:
        raise _malformed(f"{found} is not a number in JSON; send a finite number or null.") from None
    except RecursionError:
        raise _too_deep(()) from None
    except json.JSONDecodeError as found:
        message = f"{_capital(what)} is not JSON: {found.msg} at line {found.lineno}, column {found.colno}."
        raise _malformed(message) from None
    except ValueError:
        raise _malformed(f"{_capital(what)} contains a number with too many digits.") from None
    if wrong := _unusable_text(read, ()):
        raise wrong
    return read


class _Pairs(list[tuple[str, object]]):
    """A JSON object with all its keys, also repeated ones."""


def repeated_key(body: bytes) -> WrongRequest | None:
    """Return an error if an object in valid JSON has a key twice, of which msgspec takes the last one; None if not."""
    if not _may_repeat_a_key(body):
        return None
    try:
        return _find_repeated_key(json.loads(body, object_pairs_hook=_Pairs), ())
    except RecursionError:
        return _too_deep(())


def _may_repeat_a_key(body: bytes) -> bool:
    """Return False if no object in valid JSON has a key twice, in a few µs.

    Every key is followed by a quote and a colon, or by white space in between. If there are as many of these as keys in
    the parsed value, no key was overwritten. Text with a quote and a colon makes it more: then it must be examined.
    """
    if b" :" in body or b"\n:" in body or b"\t:" in body or b"\r:" in body:
        return True
    return body.count(b'":') != _count_keys(msgspec.json.decode(body))


def _count_keys(value: object) -> int:
    items: Iterable[object]
    if type(value) is dict:
        count, items = len(value), value.values()
    elif type(value) is list:
        count, items = 0, value
    else:
        return 0
    for item in items:
        if type(item) is dict or type(item) is list:
            count += _count_keys(item)
    return count


def _find_repeated_key(value: object, path: FieldPath) -> WrongRequest | None:
    """Return an error for the first key that its object has twice, or None."""
    if isinstance(value, _Pairs):
        seen = set[str]()
        for key, item in value:
            if key in seen:
                return _wrong("GivenTwice", "is given more than once; it can have one value.", (*path, key))
            seen.add(key)
            if wrong := _find_repeated_key(item, (*path, key)):
                return wrong
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if wrong := _find_repeated_key(item, (*path, index)):
                return wrong
    return None


def _malformed(message: str) -> WrongRequest:
    return WrongRequest("MalformedJson", message)


class _Constant(Exception):
    """NaN or an infinity where JSON has none."""


def _refuse_constant(name: str) -> NoReturn:
    raise _Constant(name)


def _in_other_words(error: Exception) -> WrongRequest:
    """Return msgspec's own message: the last resort if msgspec rejects input in which the diagnosis finds no error."""
    return WrongRequest("WrongInput", f"The input cannot be read: {error}.")


def _unusable_text(value: object, path: FieldPath) -> WrongRequest | None:
    """Return an error for text that no process, file or terminal accepts (NUL or a lone surrogate), or None."""
    if len(path) > DEEPEST:
        return _too_deep(path)
    if isinstance(value, str):
        if "\0" in value:
            return _wrong("WrongText", "contains a NUL character; remove it.", path)
        if not value.isascii() and _LONE_SURROGATE.search(value):
            return _wrong("WrongText", "contains half of a surrogate pair; send whole characters.", path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and ("\0" in key or _LONE_SURROGATE.search(key)):
                return _wrong("WrongText", "has a key with an invalid character.", path)
            if wrong := _unusable_text(item, (*path, key)):
                return wrong
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if wrong := _unusable_text(item, (*path, index)):
                return wrong
    return None


def _too_deep(path: FieldPath) -> WrongRequest:
    return WrongRequest(
        "TooDeep", f"The input is nested more than {DEEPEST} levels deep.", format_path(path[:2]) or None
    )


# --- values that do not fit their type --------------------------------------------------------------------------------


def _faults(info: inspect.Type, value: object, path: FieldPath, what: str) -> Iterator[WrongRequest]:
    """Iterate over all mismatches between the value and the type, in order."""
    if len(path) > DEEPEST:
        yield _too_deep(path)
        return
    if isinstance(value, str) and (wrong := _unusable_text(value, path)):
        yield wrong
        return
    bare = _bare(info)
    if isinstance(bare, inspect.UnionType):
        yield from _faults_in_union(info, bare, value, path, what)
    elif not _same_kind(bare, value):
        yield _wrong("WrongType", f"is {_shown(value, path)}; it must be {_words(info)}.", path, what)
    elif isinstance(bare, inspect.StructType):
        assert isinstance(value, Mapping)
        yield from _faults_in_struct(bare, value, path, what)
    elif isinstance(bare, inspect.DictType):
        assert isinstance(value, Mapping)
        yield from _faults_in_dict(info, bare, value, path, what)
    elif isinstance(bare, inspect.ListType | inspect.VarTupleType):
        assert isinstance(value, list | tuple)
        yield from _faults_in_list(info, bare, value, path, what)
    elif isinstance(bare, inspect.CustomType):
        yield from _faults_in_custom(bare, value, path)
    elif not _fits(bare, value):
        yield _wrong("OutOfRange", f"is {_shown(value, path)}; it must be {_words(info)}.", path, what)


def _faults_in_union(
    info: inspect.Type, union: inspect.UnionType, value: object, path: FieldPath, what: str
) -> Iterator[WrongRequest]:
    alike = [member for member in union.types if _same_kind(_bare(member), value)]
    if not alike:
        yield _wrong("WrongType", f"is {_shown(value, path)}; it must be {_words(info)}.", path, what)
        return
    faults = [list(_faults(member, value, path, what)) for member in alike]
    if [] in faults:
        return
    # Errors inside the value are reported as they are; an error of the value itself names all alternatives.
    first = faults[0]
    if first[0].path != path or isinstance(value, Mapping):
        yield from first
    else:
        yield _wrong("OutOfRange", f"is {_shown(value, path)}; it must be {_words(info)}.", path, what)


def _faults_in_struct(
    struct: inspect.StructType, value: Mapping[Any, object], path: FieldPath, what: str
) -> Iterator[WrongRequest]:
    known = {field.encode_name: field for field in struct.fields}
    for key, item in list(value.items()):
        field = known.get(key)
        if field is None:
            yield _unknown(str(key), known, path, what)
        else:
            yield from _faults(field.type, item, (*path, key), what)
    for name, field in known.items():
        if field.required and name not in value:
            yield _wrong("MissingField", "is missing; it is required.", (*path, name), what)


def _faults_in_dict(
    info: inspect.Type, mapping: inspect.DictType, value: Mapping[Any, object], path: FieldPath, what: str
) -> Iterator[WrongRequest]:
    if not _length_fits(mapping, value):
        yield _wrong("OutOfRange", f"has {len(value)} entries; it must be {_words(info)}.", path, what)
    for key, item in list(value.items()):
        if wrong := next(_faults(mapping.key_type, key, (), what), None):
            bad = f"has the key {_shown(key)}; a key must be {_words(mapping.key_type)}."
            yield _wrong(wrong.code, bad, path, what)
        else:
            yield from _faults(mapping.value_type, item, (*path, key), what)


def _faults_in_list(
    info: inspect.Type,
    items: inspect.ListType | inspect.VarTupleType,
    value: list[object] | tuple[object, ...],
    path: FieldPath,
    what: str,
) -> Iterator[WrongRequest]:
    for index, item in enumerate(value):
        yield from _faults(items.item_type, item, (*path, index), what)
    if not _length_fits(items, value):
        yield _wrong("OutOfRange", f"has {len(value)} entries; it must be {_words(info)}.", path, what)


def _faults_in_custom(custom: inspect.CustomType, value: object, path: FieldPath) -> Iterator[WrongRequest]:
    assert isinstance(custom.cls, Readable)
    try:
        custom.cls.read(value)
    except ValueError as error:
        more = str(error) or f"it must be {custom.cls.words}"
        yield _wrong("WrongType", f"is {_shown(value, path)}; {more}.", path)


def _unknown(key: str, known: Iterable[str], path: FieldPath, what: str) -> WrongRequest:
    names = list(known)
    where = format_path(path) if path else what
    shown = _shown(key)
    near = closest_word(key, names)
    hint = f'did you mean "{near}"?' if near else f"known names: {', '.join(names)}."
    field = format_path((*path, key))
    return WrongRequest("UnknownField", f"Unknown name {shown} in {where}; {hint}", field, path=(*path, key))


def _wrong(code: str, rest: str, path: FieldPath, what: str = "the input") -> WrongRequest:
    field = format_path(path)
    return WrongRequest(code, f"{field or _capital(what)} {rest}", field or None, path=path)


# --- types ------------------------------------------------------------------------------------------------------------


def _bare(info: inspect.Type) -> inspect.Type:
    return info.type if isinstance(info, inspect.Metadata) else info


def _same_kind(info: inspect.Type, value: object) -> bool:
    """Whether the value has the JSON kind of the type (number, text, list, object); its content is checked later."""
    match info:
        case inspect.AnyType() | inspect.CustomType():
            return True
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool)
        case inspect.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case inspect.StrType() | inspect.EnumType():
            return isinstance(value, str)
        case inspect.LiteralType():
            return any(type(value) is type(known) for known in info.values)
        case inspect.ListType() | inspect.VarTupleType():
            return isinstance(value, list | tuple)
        case inspect.DictType() | inspect.StructType():
            return isinstance(value, Mapping)
        case inspect.UnionType():  # with a description of its own, inside of another one
            return any(_same_kind(_bare(member), value) for member in info.types)
    raise AssertionError(f"{info} is not used on the line")


def _fits(info: inspect.Type, value: Any) -> bool:
    match info:
        case inspect.IntType() | inspect.FloatType():
            return (
                (isinstance(value, int) or isfinite(value))
                and (info.ge is None or value >= info.ge)
                and (info.gt is None or value > info.gt)
                and (info.le is None or value <= info.le)
                and (info.lt is None or value < info.lt)
            )
        case inspect.StrType():
            return _length_fits(info, value) and (info.pattern is None or re.search(info.pattern, value) is not None)
        case inspect.EnumType():
            return value in {member.value for member in info.cls}
        case inspect.LiteralType():
            return value in info.values
    return True


def _length_fits(info: Any, value: Any) -> bool:
    return (info.min_length or 0) <= len(value) and (info.max_length is None or len(value) <= info.max_length)


def _words(info: inspect.Type) -> str:
    """Describe the allowed values, as the end of a sentence. A description in the type's metadata takes precedence."""
    if isinstance(info, inspect.Metadata):
        description = (info.extra_json_schema or {}).get("description")
        return description if isinstance(description, str) else _words(info.type)
    match info:
        case inspect.UnionType() | inspect.EnumType() | inspect.LiteralType():
            return _either(_choices(info))
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _range(info.ge, info.gt, info.le)
        case inspect.FloatType():
            return "a number" + _range(info.ge, info.gt, info.le)
        case inspect.StrType():
            return "text" + _amount(info, "characters")
        case inspect.ListType() | inspect.VarTupleType():
            return "a list" + _amount(info, "entries")
        case inspect.DictType():
            return "an object" + _amount(info, "entries")
        case inspect.StructType():
            return f"an object with {', '.join(field.encode_name for field in info.fields[:4])}" + (
                ", …" if len(info.fields) > 4 else ""
            )
        case inspect.CustomType():
            assert isinstance(info.cls, Readable)
            return info.cls.words
    return "something else"


def _choices(info: inspect.Type) -> list[str]:
    """Return the alternatives of a type, one by one; null is left out."""
    match info:
        case inspect.UnionType():
            members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
            return [choice for member in members for choice in _choices(member)]
        case inspect.EnumType():
            return [_shown(member.value) for member in info.cls]
        case inspect.LiteralType():
            return [_shown(known) for known in info.values]
    return [_words(info)]


def _either(words: Iterable[str]) -> str:
    each = list(dict.fromkeys(words))
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} or {each[-1]}"


def _range(least: float | None, above: float | None, most: float | None) -> str:
    if above is not None:
        return f" above {above:g}" + (f" and at most {most:,}" if most is not None else "")
    if least is not None and most is not None:
        return f" from {least:,} to {most:,}"
    if least is not None:
        return f" of at least {least:,}"
    return f" of at most {most:,}" if most is not None else ""


def _amount(info: Any, unit: str) -> str:
    if info.min_length and info.max_length:
        return f" of {info.min_length:,} to {info.max_length:,} {unit}"
    if info.max_length is not None:
        return f" of at most {info.max_length:,} {unit}"
    return f" of at least {info.min_length:,} {unit}" if info.min_length else ""


# --- how things are shown ---------------------------------------------------------------------------------------------


def _shown(value: object, path: FieldPath = ()) -> str:
    """Format a value for a message: short, on one line, and never a secret."""
    if not _SECRET.isdisjoint(path):
        return "not valid (its value is not shown)"
    if isinstance(value, bool | None):
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(shortened(value), ensure_ascii=False)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else "a number with too many digits"
    if isinstance(value, float):
        return repr(value) if isfinite(value) else "not a finite number"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def _capital(what: str) -> str:
    return what[:1].upper() + what[1:]
