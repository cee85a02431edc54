"""YAML and JSON become plain values that know their lines; invalid input is one sentence with the line."""

import subprocess
import sys
from math import inf

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.document import InputDocument, Unreadable, parse, parse_yaml, with_line
from gpuyard.input.error_location import LocatedError

YAML = """# a file
models:
  chat: {memory_gb: 16}
  judge:
    memory_gb: 64
requests:
  - id: r0
  - {id: r1,
     at: 3}
"""


def test_yaml_and_json_become_the_same_values() -> None:
    assert parse(b"a: [1, 2.5, x, true, null]").value == parse(b'{"a": [1, 2.5, "x", true, null]}').value


def test_keys_are_text_and_numbers_may_have_exponents() -> None:
    assert parse(b"1: 1e3\nyes: 2E-1\nno: 1e").value == {"1": 1000.0, "yes": 0.2, "no": "1e"}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("models",), 2),
        (("models", "chat", "memory_gb"), 3),
        (("models", "judge", "memory_gb"), 5),
        (("requests", 1), 8),
        (("requests", 1, "at"), 9),
        (("requests", 1, "missing"), 8),
        (("nothing",), None),
    ],
)
def test_every_value_has_a_line_and_a_missing_one_that_of_its_parent(
    path: tuple[str | int, ...], line: int | None
) -> None:
    assert parse(YAML.encode()).line_of(path) == line


def test_json_has_lines_too() -> None:
    assert parse(b'{\n "a": {\n  "b": 1\n }\n}').line_of(("a", "b")) == 3


def test_an_error_about_a_place_gets_its_line_if_there_is_more_than_one() -> None:
    error = LocatedError(("models", "judge"), "it is too large.")
    assert str(with_line(error, YAML.encode())) == "line 4, models.judge: it is too large."
    assert str(with_line(error, b"models: {judge: 1}")) == "models.judge: it is too large."
    assert str(with_line(error, b"models:\n\t- [")) == "models.judge: it is too large."


def test_a_duplicate_key_is_noted_and_the_first_one_counts() -> None:
    document = parse_yaml("a: 1\nb: {c: 1,\n c: 2}\na: 3\n")
    assert document.value == {"a": 1, "b": {"c": 1}}
    assert [(one.path, one.line, one.first_line) for one in document.repeated] == [(("b", "c"), 3, 2), (("a",), 4, 1)]


def test_mappings_can_be_merged_and_local_keys_win() -> None:
    document = parse_yaml("base: &base {a: 1, b: 1}\none:\n  <<: *base\n  b: 2\n")
    assert document.value["one"] == {"a": 1, "b": 2}
    assert (document.line_of(("one", "a")), document.line_of(("one", "b"))) == (1, 4)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "The file is empty."),
        (b"a: 1\nb: \xff", "line 2: this is not UTF-8; save the file as UTF-8."),
        (b"a:\n\tb: 1", "line 2: there is a tab; indent YAML with spaces."),
        (b'a: "b', "line 1: the file ends too early, in the block that begins on line 1; part of it is missing."),
        (b"a: 1\n---\na: 2", "line 2: a second document begins; only one is allowed."),
        (b"a: 1\na: 2", "line 2: a is given twice, first in line 1; remove one of them."),
        (b"a: !!python/name:os.system", "line 1: a has a value that cannot be read."),
        (b"a: {<<: 5}", "line 1: << must name a mapping, or a list of mappings."),
        (b"a: &a {<<: *a}", "The document is nested too deeply."),
        (b"? [a]\n: b", "line 1: a key must be a single word."),
        (b"a: b\0", "line 1: a character that is not allowed in a text file."),
        (b'{"a": 1,\n "b"; 2}', "line 2, column 5: this is not JSON: expecting ':' delimiter."),
        (b'{"a": 1,\n "b": [', "line 2: the file ends too early; part of it is missing."),
        (b'{"a": 1, "a": 2}', "'a' is given twice in one object; remove one of them."),
        (b'{"a": NaN}', "NaN is not a number in JSON; all numbers must be finite."),
        (b"[" * 100_000, "The document is nested too deeply."),
        (b'{"a": 1,\n "b": ' + b"9" * 5000 + b"}", "line 2: there is a number with too many digits."),
        (b"a: " + b"9" * 5000, "line 1: a has a value that cannot be read."),
        (b"a: !!bool maybe", "line 1: a has a value that cannot be read."),
        (b"a: !!map [1]", "line 1: a has a value that cannot be read."),
        (b"a: !!seq {b: 1}", "line 1: a has a value that cannot be read."),
        (b"a: " + b"[" * 90 + b"]" * 90, "The document is nested too deeply."),
    ],
)
def test_unreadable_input_is_one_sentence_with_its_line(content: bytes, sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        parse(content)
    assert str(error.value) == sentence


def test_references_to_references_are_not_followed_forever() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(Unreadable, match="too large after its aliases are expanded"):
        parse_yaml("\n".join(lines))


def test_an_anchor_that_is_defined_again_means_the_newer_value() -> None:
    document = parse_yaml("a: &x 1\nb: &x {c: 2}\nd: *x\ne: &y [*x]\nf: *y\n")
    assert document.value == {"a": 1, "b": {"c": 2}, "d": {"c": 2}, "e": [{"c": 2}], "f": [{"c": 2}]}
    assert document.line_of(("b", "c")) == 2


def test_a_name_that_is_repeated_among_many_is_found_quickly() -> None:
    """200,000 names; the time for each pair of them would be many minutes."""
    names = ",".join(f'"k{number}": 1' for number in range(200_000))
    with pytest.raises(Unreadable, match="'k199999' is given twice in one object"):
        parse(f'{{{names}, "k199999": 2}}'.encode())


def test_comments_alone_are_no_value() -> None:
    assert parse_yaml("# nothing\n") == InputDocument(None, "# nothing\n")


@pytest.mark.parametrize("opens", ["[", "{a: ", "- ", "? "])
def test_thirty_thousand_levels_are_refused_and_do_not_end_the_process(opens: str) -> None:
    call = [
        sys.executable,
        "-c",
        "import sys; from gpuyard.input.document import parse; parse(sys.stdin.buffer.read())",
    ]
    done = subprocess.run(call, input=b"a:\n  " + opens.encode() * 30_000, capture_output=True, check=False)
    assert done.returncode == 1
    assert "The document is nested too deeply." in done.stderr.decode()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1:30", "1:30"),
        ("0100", 100),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("off", "off"),
        ("2024-01-02", "2024-01-02"),
        ("=", "="),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("-.inf", -inf),
        ("True", True),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
    ],
)
def test_plain_values_mean_what_the_core_schema_of_yaml_1_2_says(written: str, value: object) -> None:
    found = parse_yaml(f"a: {written}\n").value["a"]
    assert (found, type(found)) == (value, type(value))


def test_a_long_list_is_no_alias_bomb() -> None:
    assert len(parse_yaml("- 1\n" * 200_000).value) == 200_000
