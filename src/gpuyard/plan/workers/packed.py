"""Results as they travel between processes: pickled where they are made, unpickled where they are used, never between."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Packed:
    """A result as it travels: what it was pickled to, or the file with that."""

    content: bytes | Path

    def unpack(self) -> Any:
        """The result itself."""
        content = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return pickle.loads(content)  # noqa: S301

    def drop(self) -> None:
        """Nobody needs it any more."""
        if isinstance(self.content, Path):
            self.content.unlink(missing_ok=True)


def pack(result: Any, path: Path | None = None, large: int = 0) -> Packed:
    """Make a result ready to travel; one of more bytes than `large` stays in a file, if one is named."""
    content = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    if path is None or len(content) <= large:
        return Packed(content)
    path.write_bytes(content)
    return Packed(path)
