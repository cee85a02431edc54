"""Errors in an input are one sentence that names the place."""

import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from gpuyard.input.nearest_name import closest_word
from gpuyard.input.strict import Strict, WrongRequest, repeated_key
from gpuyard.live.wire.tasks import read_batch, read_task

T = TypeVar("T")


class Even(int):
    """A type that reads itself."""

    words: ClassVar[str] = "an even number"

    @classmethod
    def read(cls, raw: object) -> Self:
        if not isinstance(raw, int) or raw % 2:
            raise ValueError
        return cls(raw)


class Inner(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1)]
    even: Even = Even(0)


class Outer(Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    kind: Literal["high", "low"] | Annotated[int, Meta(ge=0, le=100)] = 0
    items: list[Inner] = []
    words: str | list[str] | None = None
    table: dict[Annotated[str, Meta(max_length=3)], float] = {}
    flag: bool = False
    anything: Any = None
    password: str = ""


OUTER = Strict(Outer)


def complaint(read: Callable[[T], object], value: T) -> WrongRequest | None:
    try:
        read(value)
    except WrongRequest as wrong:
        return wrong
    return None


WRONG: dict[str, tuple[object, str, str | None, str]] = {
    "an unknown field": (
        {"nam": "a"}, "UnknownField", "nam", 'Unknown name "nam" in the request; did you mean "name"?'),
    "an unknown field far inside": (
        {"name": "a", "items": [{"count": 1}, {"coun": 1}]}, "UnknownField", "items[1].coun",
        'Unknown name "coun" in items[1]; did you mean "count"?'),
    "an unknown field like no other": (
        {"name": "a", "items": [{"xyz": 1}]}, "UnknownField", "items[0].xyz",
        'Unknown name "xyz" in items[0]; known names: count, even.'),
    "a missing field": ({}, "MissingField", "name", "name is missing; it is required."),
    "a wrong type": ({"name": 5}, "WrongType", "name", "name is 5; it must be text."),
    "true is not a number": (
        {"name": "a", "kind": True}, "WrongType", "kind",
        'kind is true; it must be "high", "low" or a whole number from 0 to 100.'),
    "a word that is none of two": (
        {"name": "a", "kind": "hgh"}, "OutOfRange", "kind",
        'kind is "hgh"; it must be "high", "low" or a whole number from 0 to 100.'),
    "a fraction": (
        {"name": "a", "items": [{"count": 1.5}]}, "WrongType", "items[0].count",
        "items[0].count is 1.5; it must be a whole number of at least 1."),
    "null where it is not allowed": ({"name": None}, "WrongType", "name", "name is null; it must be text."),
    "a list in a union": ({"name": "a", "words": ["a", 1]}, "WrongType", "words[1]", "words[1] is 1; it must be text."),
    "a value in a table": (
        {"name": "a", "table": {"x": "y"}}, "WrongType", "table.x", 'table.x is "y"; it must be a number.'),
    "a key in a table": (
        {"name": "a", "table": {"long": 1}}, "OutOfRange", "table",
        'table has the key "long"; a key must be text of at most 3 characters.'),
    "a type that reads itself": (
        {"name": "a", "items": [{"count": 1, "even": 3}]}, "WrongType", "items[0].even",
        "items[0].even is 3; it must be an even number."),
    "not an object at all": (
        [], "WrongType", None, "The request is a list; it must be an object with name, kind, items, words, …."),
    "a secret is not repeated": (
        {"name": "a", "password": 12345}, "WrongType", "password", "password is not valid (its value is not shown); it must be text."),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_json_and_plain_values_get_the_same_message(case: str) -> None:
    value, code, field, sentence = WRONG[case]
    for wrong in (complaint(OUTER.json, json.dumps(value).encode()), complaint(OUTER.plain, value)):
        assert wrong is not None
        assert (wrong.code, wrong.field, str(wrong), wrong.status) == (code, field, sentence, 400)


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        (b"", "MalformedJson", "is empty"),
        (b"  \n", "MalformedJson", "is empty"),
        (b'{"name": "a"', "MalformedJson", "line 1, column 13"),
        (b'{"name": "a"} x', "MalformedJson", "Extra data at line 1, column 15"),
        (b"{\"name\": 'a'}", "MalformedJson", "column 10"),
        (b'{"name": "a\nb"}', "MalformedJson", "control character"),
        (b'\xef\xbb\xbf{"name": "a"}', "MalformedJson", "byte order mark"),
        ('{"name": "a"}'.encode("utf-16"), "MalformedJson", "UTF-16"),
        (b'{"name": "\xff"}', "MalformedJson", "not UTF-8: byte 10"),
        (b'{"name": "a", "table": {"x": NaN}}', "MalformedJson", "NaN is not a number in JSON"),
        (b'{"name": "a", "table": {"x": -Infinity}}', "MalformedJson", "-Infinity is not a number in JSON"),
        (b'{"name": "a", "table": {"x": 1e999}}', "OutOfRange", "table.x is not a finite number"),
        (b'{"name": "a", "kind": 99999999999999999999}', "OutOfRange", "kind is a number with too many digits"),
        (b'{"name": "a", "kind": ' + b"9" * 5000 + b"}", "MalformedJson", "too many digits"),
        (b'{"name": "a\\u0000"}', "WrongText", "name contains a NUL"),
        (b'{"name": "a", "anything": {"b": ["\\u0000"]}}', "WrongText", "anything.b[0] contains a NUL"),
        (b'{"name": "\\ud800"}', "WrongText", "name contains half of a surrogate pair"),
        (b'{"name": "\\ud800\\u0041"}', "WrongText", "name contains half of a surrogate pair"),
        (b'{"name": "a", "anything": ' + b"[" * 100_000, "TooDeep", "nested more than"),
        (b'{"name": "a", "anything": ' + b'{"a":' * 100_000, "TooDeep", "nested more than"),
        (b'{"\\u0000": 1}', "UnknownField", "Unknown name"),
    ],
)
def test_invalid_json_is_reported_in_one_sentence(body: bytes, code: str, part: str) -> None:
    with pytest.raises(WrongRequest) as wrong:
        OUTER.json(body)
    assert wrong.value.code == code
    assert part in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert "\0" not in str(wrong.value)
    assert len(str(wrong.value)) < 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"name": "a", "name": "b"}', "name"),
        (b'{"name" : "a", "name": "\\":"}', "name"),
        (b'{"name": "a",\n "flag"\n:true,\t"flag"\t: true}', "flag"),
        (b'{"name": "a", "na\\u006de": "b"}', "name"),
        (b'{"name": "a", "table": {"x": 1, "x": 1}}', "table.x"),
        (b'{"name": "a", "items": [{"count": 1}, {"count": 1, "even": 2, "count": 1}]}', "items[1].count"),
        (b'{"name": "a", "anything": {"b": [{"c": {"d": 1, "e": 2, "d": 3}}]}}', "anything.b[0].c.d"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(body: bytes, field: str) -> None:
    with pytest.raises(WrongRequest) as wrong:
        OUTER.json(body)
    assert (wrong.value.code, wrong.value.field) == ("GivenTwice", field)
    assert str(wrong.value) == f"{field} is given more than once; it can have one value."


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "\\":\\":", "table": {"x": 1}}',
        b'{"name" :"a" , "table"  :{"x"\n:1}}',
        b'{"name": "name", "items": [{"count": 1}, {"count": 1}], "anything": {"name": {"name": [1]}}}',
    ],
)
def test_text_that_looks_like_a_key_and_white_space_are_no_second_key(body: bytes) -> None:
    assert OUTER.json(body) == msgspec.json.decode(body, type=Outer)


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_a_program_writes_has_no_key_twice(value: object) -> None:
    for body in (json.dumps(value).encode(), json.dumps(value, indent=1, separators=(" ,", " : ")).encode()):
        assert repeated_key(body) is None


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    assert OUTER.json(b'{"name": "a\\\\u0000"}').name == "a\\u0000"


def test_a_valid_surrogate_pair_is_accepted() -> None:
    assert OUTER.json(b'{"name": "\\ud83d\\ude00"}').name == "\U0001f600"


def test_an_error_in_a_part_can_be_reported_for_the_whole() -> None:
    inner = WrongRequest("Contradiction", "gpu_fraction asks for too much.", "gpu_fraction", status=409)
    outer = inner.within("tasks", 3)
    assert (outer.field, outer.code, outer.status) == ("tasks[3].gpu_fraction", "Contradiction", 409)
    assert str(outer) == "tasks[3]: gpu_fraction asks for too much."


def test_the_nearest_word_is_found_regardless_of_case() -> None:
    assert closest_word("GPU_Cuont", ["gpu_count", "command"]) == "gpu_count"
    assert closest_word("zzz", ["gpu_count", "command"]) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["tasks", "env", "gpu_count", "command"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_input_is_read_or_reported_in_one_sentence(value: object) -> None:
    body = json.dumps(value).encode()
    for wrong in (complaint(read_task, body), complaint(read_batch, body)):
        assert wrong is None or (str(wrong).endswith((".", "?")) and wrong.code != "WrongInput")


@given(st.binary(max_size=50))
def test_any_bytes_are_reported_in_one_sentence(body: bytes) -> None:
    wrong = complaint(read_task, body)
    assert wrong is None or msgspec.json.encode(str(wrong))


@pytest.mark.parametrize(
    ("booking", "code"), [(481515.0, "WrongType"), (True, "WrongType"), (0, "OutOfRange"), ("x", "OutOfRange")]
)
def test_a_value_with_alternatives_and_a_description_of_its_own_is_named(booking: object, code: str) -> None:
    body = json.dumps({"tasks": [{"command": "true", "booking": booking}]}).encode()
    found = complaint(read_batch, body)
    assert found is not None
    assert (found.code, found.field) == (code, "tasks[0].booking")
    assert "the number or id of a booking" in str(found)
