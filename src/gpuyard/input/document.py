"""Parse YAML or JSON to plain values with line numbers; an error names the line of the problem.

    parse       JSON or YAML, distinguished by the first character: problem, plan, runtime and task files
    parse_yaml  YAML only: configuration files and the values of environment variables

Python's own parser reads JSON; line numbers are looked up only if an error needs one. The C parser composes YAML to
nodes, which have line numbers; text that it rejects is parsed again in Python for a more precise error. Plain values
mean what the core schema of YAML 1.2 says: `yes`, `1:30`, `1_000` and dates are text, `0100` is a hundred. Keys are
always text. `parse_yaml` does not reject a repeated key: the first value counts, and `InputDocument.repeated` lists the
others.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import FieldPath, LocatedError, format_path, shortened
from gpuyard.input.strict import DEEPEST

if TYPE_CHECKING:
    import yaml

MOST_FROM_ALIASES: Final = 100_000
"""A limit on the values that aliases add to those in the text: aliases of aliases could expand to billions."""
LARGEST_WITH_LINES: Final = 1_000_000
"""In longer texts, which programs generate, no line is looked up; the error names only the path."""

_YAML: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_YAML}merge"
_MAPPING: Final = f"{_YAML}map"
_SEQUENCE: Final = f"{_YAML}seq"
_TOO_DEEP: Final = "The document is nested too deeply."
_MANY_DIGITS: Final = re.compile(r"[0-9]{4301}")
"""Python converts no longer numbers."""

_CORE: Final = (
    ("null", r"(~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("bool", r"(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("merge", r"<<$", "<"),
)
"""The core schema of YAML 1.2 and merge keys: tag, pattern of a plain value, the characters it may begin with."""


class Unreadable(WrongInput):
    """The text is not what it should be. `line` and `column` say where, as far as that is known."""

    def __init__(self, sentence: str, line: int | None = None, column: int | None = None) -> None:
        self.sentence, self.line, self.column = sentence, line, column
        super().__init__(f"{self._where}: {sentence}" if line else sentence)

    @property
    def _where(self) -> str:
        return f"line {self.line}" + (f", column {self.column}" if self.column else "")

    def within(self, source: str) -> str:
        """Return the message with the file or variable in front: `yard.yaml, line 3: …`."""
        return f"{source}, {self._where}: {self.sentence}" if self.line else f"{source}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A key that occurs again in the same mapping."""

    path: FieldPath
    line: int
    first_line: int

    @property
    def sentence(self) -> str:
        """The message for the user."""
        return f"{format_path(self.path)} is given twice, first in line {self.first_line}; remove one of them."


@dataclass
class InputDocument:
    """A parsed document."""

    value: Any
    """Dictionaries, lists, strings, numbers, booleans and None."""
    text: str
    repeated: list[Repeated] = field(default_factory=list)

    @cached_property
    def lines(self) -> Mapping[FieldPath, int]:
        """The line of every key and list item; the empty path gives the line where the document begins."""
        return self._located.lines or {}

    @cached_property
    def _located(self) -> "_Reader":
        reader = _Reader({})
        reader.read(*_compose(self.text))
        return reader

    def line_of(self, path: FieldPath) -> int | None:
        """Return the line of a path or of its nearest enclosing value; None if there is none."""
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)

    def as_written(self, value: Any, path: FieldPath) -> Any:
        """Return a value of this document with its numbers and booleans as they are written, such as `1e-3`."""
        if isinstance(value, Mapping):
            return {key: self.as_written(below, (*path, key)) for key, below in value.items()}
        if isinstance(value, list):
            return [self.as_written(below, (*path, place)) for place, below in enumerate(value)]
        if not isinstance(value, int | float):
            return value
        try:
            return self._located.texts.get(path, value)
        except Unreadable:  # JSON may have what YAML has not
            return value


def parse(content: bytes) -> InputDocument:
    """Parse JSON or YAML. Raises `Unreadable` if the text is neither, is empty, or repeats a key."""
    if not content.strip():
        raise Unreadable("The file is empty.")
    text = decoded(content)
    if text.lstrip()[:1] in {"{", "["}:
        return InputDocument(_json(text), text)
    document = parse_yaml(text)
    for one in document.repeated:
        raise Unreadable(one.sentence, one.line)
    return document


def decoded(content: bytes) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises `Unreadable` with the line of an invalid byte."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable("this is not UTF-8; save the file as UTF-8.", line) from None


def with_line(error: LocatedError, content: bytes) -> WrongInput:
    """Return the error with its line number, if that can be found. A text of one line needs none."""
    if len(content) > LARGEST_WITH_LINES or b"\n" not in content.strip() or not error.path:
        return error
    try:
        line = InputDocument(None, decoded(content)).line_of(error.path)
    except Unreadable:
        return error
    return WrongInput(f"line {line}, {error}") if line else error


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repeated_names, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise Unreadable("the file ends too early; part of it is missing.", error.lineno) from None
        sentence = f"this is not JSON: {error.msg[0].lower()}{error.msg[1:]}."
        raise Unreadable(sentence, error.lineno, error.colno) from None
    except ValueError:
        found = _MANY_DIGITS.search(text)
        line = text.count("\n", 0, found.start()) + 1 if found else None
        raise Unreadable("there is a number with too many digits.", line) from None
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None


def refuse_repeated_names(content: bytes) -> None:
    """Raise `Unreadable` if an object in this valid JSON has a name twice. Quick: decoded again, fewer colons are left."""
    left = msgspec.json.encode(msgspec.json.decode(content)).count(b":")
    if content.count(b":") != left or b"\\u003a" in content.lower():
        _json(decoded(content))


def _without_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raise `Unreadable` if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name in times if times[name] > 1)
        raise Unreadable(f"{shortened(twice)!r} is given twice in one object; remove one of them.")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Unreadable(f"{name} is not a number in JSON; all numbers must be finite.")


# --- YAML -------------------------------------------------------------------------------------------------------------


def parse_yaml(text: str) -> InputDocument:
    """Parse one YAML document; its value is None if it has only comments. Raises `Unreadable`."""
    reader = _Reader(None)
    return InputDocument(reader.read(*_compose(text)), text, reader.repeated)


def _compose(text: str) -> "tuple[yaml.Node | None, int]":
    """Compose YAML to nodes, which have line numbers; also return their number."""
    import yaml

    try:
        return _composed_by(_loader(), text)
    except yaml.composer.ComposerError as error:
        if "duplicate anchor" not in str(error):
            raise _why_not(text) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _why_not(text) from None
    try:
        return _composed_by(_loader_with_new_anchors(), text)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _why_not(text) from None


def _composed_by(kind: Any, text: str) -> "tuple[yaml.Node | None, int]":
    loader = kind(text)
    try:
        return loader.get_single_node(), loader.nodes
    finally:
        loader.dispose()


@cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.CSafeLoader):
        """Resolves plain values as YAML 1.2 does, and limits the depth: the C parser recurses until the stack ends."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - filled below
        depth = nodes = 0

        def descend_resolver(self, current_node: "yaml.Node | None", current_index: object) -> None:  # noqa: ARG002
            """Called by the C parser before each node."""
            self.nodes += 1
            self.depth += 1
            if self.depth > DEEPEST + 1:
                raise Unreadable(_TOO_DEEP)

        def ascend_resolver(self) -> None:
            """Called by the C parser after each node."""
            self.depth -= 1

    for name, pattern, begins in _CORE:
        Loader.add_implicit_resolver(_YAML + name, re.compile(pattern), list(begins))
    return Loader


@cache
def _loader_with_new_anchors() -> Any:
    """Return a slower loader that accepts an anchor defined again, as YAML allows; the C composer does not."""
    import yaml

    class Loader(yaml.composer.Composer, _loader()):  # type: ignore[misc]
        """Composes in Python what the C parser has read."""

        def __init__(self, text: str) -> None:
            _loader().__init__(self, text)
            self.anchors: dict[str, yaml.Node] = {}

        def compose_node(self, parent: "yaml.Node | None", index: Any) -> "yaml.Node | None":
            """Forget the older node of an anchor, and compose the next node."""
            if not self.check_event(yaml.AliasEvent):
                self.anchors.pop(self.peek_event().anchor, None)
            found: yaml.Node | None = super().compose_node(parent, index)
            return found

    return Loader


def _why_not(text: str) -> Unreadable:
    """Return the error for text that is not YAML."""
    import yaml

    try:
        yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        return _not_yaml(error, text)
    except yaml.YAMLError as error:
        line = text[: getattr(error, "position", 0)].count("\n") + 1
        return Unreadable("a character that is not allowed in a text file.", line)
    except RecursionError:
        return Unreadable(_TOO_DEEP)
    return Unreadable("The document is neither valid JSON nor valid YAML.")


def _not_yaml(error: "yaml.MarkedYAMLError", text: str) -> Unreadable:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = error.problem or "it cannot be read"
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    if "\t" in problem or "\\t" in problem or re.match(r"\s*\t", here):
        return Unreadable("there is a tab; indent YAML with spaces.", line)
    if "end of stream" in problem or line > len(lines) or (line == len(lines) and "<stream end>" in problem):
        began = f", in the block that begins on line {error.context_mark.line + 1}" if error.context_mark else ""
        return Unreadable(f"the file ends too early{began}; part of it is missing.", line)
    if "single document" in (error.context or "") + problem:
        return Unreadable("a second document begins; only one is allowed.", line)
    return Unreadable(f"this is not YAML: {problem}; check the indentation and quotes there.", line)


class _Reader:
    """Converts YAML nodes to plain values; records lines and texts by path in `lines` and `texts` unless `lines` is None."""

    def __init__(self, lines: dict[FieldPath, int] | None) -> None:
        import yaml

        self.lines = lines
        self.texts: dict[FieldPath, str] = {}
        self.repeated: list[Repeated] = []
        self._yaml = yaml
        self._left = 0

    def read(self, root: "yaml.Node | None", nodes: int) -> Any:
        """Return the value of a whole document, which has this number of nodes; None for an empty one."""
        self._left = nodes + MOST_FROM_ALIASES
        try:
            return None if root is None else self._value(root, ())
        except RecursionError:
            raise Unreadable(_TOO_DEEP) from None

    def _value(self, node: "yaml.Node", path: FieldPath) -> Any:
        self._left -= 1
        if self._left < 0 or len(path) > DEEPEST:
            raise Unreadable("the document is too large after its aliases are expanded.", _line(node))
        self._note(path, node)
        if isinstance(node, self._yaml.MappingNode) and node.tag == _MAPPING:
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode) and node.tag == _SEQUENCE:
            return [self._value(item, (*path, place)) for place, item in enumerate(node.value)]
        try:
            if not isinstance(node, self._yaml.ScalarNode):
                raise ValueError(node.tag)
            if self.lines is not None:
                self.texts.setdefault(path, node.value)
            return _plain_value(node.tag.removeprefix(_YAML), node.value)
        except ValueError:
            raise Unreadable(f"{format_path(path)} has a value that cannot be read.", _line(node)) from None

    def _mapping(self, node: "yaml.MappingNode", path: FieldPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        line_of: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged += value_node.value if isinstance(value_node, self._yaml.SequenceNode) else [value_node]
                continue
            if not isinstance(key_node, self._yaml.ScalarNode):
                raise Unreadable("a key must be a single word.", _line(key_node))
            key = str(key_node.value)
            below = (*path, key)
            if key in found:
                self.repeated.append(Repeated(below, _line(key_node), line_of[key]))
                continue
            line_of[key] = _line(key_node)
            self._note(below, key_node)
            found[key] = self._value(value_node, below)
        for other in merged:  # keys of the mapping itself override merged ones
            if not isinstance(other, self._yaml.MappingNode):
                raise Unreadable("<< must name a mapping, or a list of mappings.", _line(other))
            found = self._value(other, path) | found
        return found

    def _note(self, path: FieldPath, node: "yaml.Node") -> None:
        if self.lines is not None:
            self.lines.setdefault(path, _line(node))


def _plain_value(kind: str, text: str) -> str | int | float | bool | None:
    """Return the value of a scalar, resolved or with an explicit tag. Raises ValueError if it has none."""
    match kind:
        case "str":
            return text
        case "int":
            base = {"0o": 8, "0x": 16}.get(text[:2])
            return int(text[2:], base) if base else int(text)
        case "float":
            return float(text.replace(".", "", 1) if text.lower().endswith(("inf", "nan")) else text)
        case "bool" if text.lower() in {"true", "false"}:
            return text.lower() == "true"
        case "null":
            return None
    raise ValueError(text)


def _line(node: "yaml.Node") -> int:
    return int(node.start_mark.line) + 1
