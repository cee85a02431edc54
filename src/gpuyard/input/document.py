"""Text into plain values that know their lines: YAML, or JSON, with a sentence that names the line where it is neither.

    parse       either of the two, told apart by the first character: files of problems, plans, runtimes and tasks
    parse_yaml  YAML alone: files of settings and what stands in environment variables

JSON is read by Python's own reader, and its lines are looked up only when an error has to name one. YAML is composed
into nodes, which know their lines, by the reader in C; what that can not read is read again by the one in Python, whose
errors say more. Keys are text whatever YAML would make of them. A key that is given twice is no error here: the first
value counts and `InputDocument.repeated` says where the others are.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import FieldPath, LocatedError, format_path
from gpuyard.input.strict import DEEPEST

if TYPE_CHECKING:
    import yaml

MOST_VALUES: Final = 20_000_000
"""References to references can stand for billions."""
LARGEST_WITH_LINES: Final = 1_000_000
"""In longer texts, which programs wrote, no lines are looked up: the path has to do."""

_WITH_AN_EXPONENT: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_MERGE: Final = "tag:yaml.org,2002:merge"


class Unreadable(WrongInput):
    """The text is not what it should be. `line` and `column` say where, as far as that is known."""

    def __init__(self, sentence: str, line: int | None = None, column: int | None = None) -> None:
        self.sentence, self.line, self.column = sentence, line, column
        super().__init__(f"{self._where}: {sentence}" if line else sentence)

    @property
    def _where(self) -> str:
        return f"line {self.line}" + (f", column {self.column}" if self.column else "")

    def within(self, source: str) -> str:
        """As a sentence that begins with the file or variable it is about: `yard.yaml, line 3: …`."""
        return f"{source}, {self._where}: {self.sentence}" if self.line else f"{source}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A key that was given before in the same mapping."""

    path: FieldPath
    line: int
    first_line: int

    @property
    def sentence(self) -> str:
        """What to do about it."""
        return f"{format_path(self.path)} is given twice, first in line {self.first_line}; keep one of them."


@dataclass
class InputDocument:
    """What was read."""

    value: Any
    """Mappings, lists, text, numbers, true and false, none."""
    text: str
    repeated: list[Repeated] = field(default_factory=list)

    @cached_property
    def lines(self) -> Mapping[FieldPath, int]:
        """The line of every key and of every item of a list; the empty path is the line where all of it begins."""
        reader = _Reader(MOST_VALUES, {})
        reader.read(_compose(self.text))
        return reader.lines or {}

    def line_of(self, path: FieldPath) -> int | None:
        """The line of a path, or of the nearest thing around it that has one."""
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)


def parse(content: bytes) -> InputDocument:
    """JSON or YAML. What is given twice, or is neither, is an error here."""
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
    """UTF-8 as text."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable("this is not UTF-8; save the file as UTF-8.", line) from None


def with_line(error: LocatedError, content: bytes) -> WrongInput:
    """The same complaint, with the line where its place can be found. One line needs no number."""
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
        return json.loads(text, object_pairs_hook=without_repeated_names, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise Unreadable("the file ends too early; part of it is missing.", error.lineno) from None
        sentence = f"this is not JSON: {error.msg[0].lower()}{error.msg[1:]}."
        raise Unreadable(sentence, error.lineno, error.colno) from None
    except RecursionError:
        raise Unreadable("This is nested far too deep.") from None


def without_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which no name is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable(f"{twice!r} is given twice in one object; keep one of them.")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Unreadable(f"{name} is not a number in JSON; all figures must be finite.")


# --- YAML -------------------------------------------------------------------------------------------------------------


def parse_yaml(text: str, *, most_values: int = MOST_VALUES) -> InputDocument:
    """One document of YAML; its value is None where there is nothing but comments."""
    reader = _Reader(most_values, None)
    return InputDocument(reader.read(_compose(text)), text, reader.repeated)


def _compose(text: str) -> "yaml.Node | None":
    """The nodes, which know their lines."""
    import yaml

    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_loader())
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _why_not(text) from None
    return node


def _loader() -> Any:
    import yaml

    class Loader(yaml.CSafeLoader):
        """Reads 1e3 as a number, as everybody does but YAML 1.1."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_AN_EXPONENT, list("-+0123456789"))
    return Loader


def _why_not(text: str) -> Unreadable:
    """What is wrong with text that is no YAML."""
    import yaml

    try:
        yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        return _not_yaml(error, text)
    except yaml.YAMLError as error:
        line = text[: getattr(error, "position", 0)].count("\n") + 1
        return Unreadable("a character that can not stand in a text file.", line)
    except RecursionError:
        return Unreadable("This is nested far too deep.")
    return Unreadable("This is neither JSON nor YAML that can be read.")


def _not_yaml(error: "yaml.MarkedYAMLError", text: str) -> Unreadable:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = error.problem or "it can not be read"
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    if "\t" in problem or "\\t" in problem or re.match(r"\s*\t", here):
        return Unreadable("there is a tab; YAML is indented with spaces.", line)
    if "end of stream" in problem or line > len(lines) or (line == len(lines) and "<stream end>" in problem):
        began = f", in what begins on line {error.context_mark.line + 1}" if error.context_mark else ""
        return Unreadable(f"the file ends too early{began}; part of it is missing.", line)
    if "single document" in (error.context or "") + problem:
        return Unreadable("a second document begins; there must be one only.", line)
    return Unreadable(f"this is not YAML: {problem}; look at the indentation and quotes there.", line)


class _Reader:
    """Turns YAML's nodes into plain values; notes on which line each key stands, where `lines` is given."""

    def __init__(self, most_values: int, lines: dict[FieldPath, int] | None) -> None:
        import yaml

        self.lines = lines
        self.repeated: list[Repeated] = []
        self._yaml = yaml
        self._constructor = yaml.constructor.SafeConstructor()
        self._left = most_values

    def read(self, root: "yaml.Node | None") -> Any:
        """The value of a whole document."""
        try:
            return None if root is None else self._value(root, ())
        except RecursionError:
            raise Unreadable("This is nested far too deep.") from None

    def _value(self, node: "yaml.Node", path: FieldPath) -> Any:
        self._left -= 1
        if self._left < 0 or len(path) > DEEPEST:
            raise Unreadable("this holds far too much.", _line(node))
        self._note(path, node)
        if isinstance(node, self._yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, self._yaml.SequenceNode):
            return [self._value(item, (*path, place)) for place, item in enumerate(node.value)]
        try:
            return self._constructor.construct_object(node)
        except (self._yaml.YAMLError, ValueError, OverflowError):
            raise Unreadable(f"{format_path(path)} has a value that can not be read.", _line(node)) from None

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
        for other in merged:  # what is said here goes before what is merged into it
            if not isinstance(other, self._yaml.MappingNode):
                raise Unreadable("<< must name a mapping, or a list of mappings.", _line(other))
            found = self._value(other, path) | found
        return found

    def _note(self, path: FieldPath, node: "yaml.Node") -> None:
        if self.lines is not None:
            self.lines.setdefault(path, _line(node))


def _line(node: "yaml.Node") -> int:
    return int(node.start_mark.line) + 1
