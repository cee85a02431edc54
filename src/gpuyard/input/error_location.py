"""The location of an error in the input: a path for programs, `workflows.w0.nodes[3].deps` for users."""

from collections.abc import Iterable
from typing import TypeAlias

from gpuyard.core.domain.errors import WrongInput

FieldPath: TypeAlias = tuple[str | int, ...]
"""Keys of mappings and indexes of lists, from the outermost to the innermost."""


class LocatedError(WrongInput):
    """Something does not make sense; `path` says where. `names_place`: the sentence itself says where, too."""

    def __init__(self, path: Iterable[str | int], sentence: str, *, names_place: bool = False) -> None:
        self.path: FieldPath = tuple(path)
        self.sentence = sentence
        super().__init__(f"{format_path(self.path)}: {sentence}" if self.path and not names_place else sentence)


def format_path(path: FieldPath) -> str:
    """Format a path as text: `tasks[3].gpu_count`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{shortened(step)}" if text else shortened(step)
    return text


def shortened(text: str) -> str:
    """Shorten text to 60 characters and replace unprintable ones, so that it fits into a one-line message."""
    clean = "".join(character if character.isprintable() else "�" for character in text[:60])
    return clean + ("…" if len(text) > 60 else "")
