"""Where something is wrong in a file of a problem, for people: `line 12, workflows.w0.nodes[3].deps: …`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.wire.strict import spoken_path

if TYPE_CHECKING:
    import yaml

Path = tuple[str | int, ...]

LARGEST_WITH_LINES: Final = 1_000_000
"""In longer texts, which programs wrote, the path has to do."""


class Misplaced(WrongInput):
    """Something does not make sense; the path says where."""

    def __init__(self, path: Iterable[str | int], sentence: str) -> None:
        self.path: Path = tuple(path)
        self.sentence = sentence
        super().__init__(f"{spoken_path(self.path)}: {sentence}" if self.path else sentence)


class AsSaid(Misplaced):
    """A complaint whose sentence names the place already."""

    def __str__(self) -> str:
        return self.sentence


def with_line(error: Misplaced, text: bytes) -> WrongInput:
    """The same complaint, with the line where the place can be found."""
    line = _line_of(text, error.path)
    return WrongInput(f"line {line}, {error}" if line else str(error))


def _line_of(text: bytes, path: Path) -> int | None:
    """YAML's own reader knows the lines, and it reads JSON too. One line needs no number."""
    if len(text) > LARGEST_WITH_LINES or b"\n" not in text.strip() or not path:
        return None
    import yaml

    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    line = None
    for step in path:
        found = _below(node, step)
        if found is None:
            break
        line, node = found
    return line


def _below(node: "yaml.Node | None", step: str | int) -> "tuple[int, yaml.Node] | None":
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if str(key.value) == str(step):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    return None
