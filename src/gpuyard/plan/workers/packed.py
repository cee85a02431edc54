"""Results in transit between processes: pickled where they are made, unpickled only where they are used."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled result, in memory or in a file."""

    content: bytes | Path

    def unpack(self) -> Any:
        """Return the result itself."""
        content = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return pickle.loads(content)  # noqa: S301

    def drop(self) -> None:
        """Delete the file of the result, if it has one."""
        if isinstance(self.content, Path):
            self.content.unlink(missing_ok=True)


def pack(result: Any, path: Path | None = None, large: int = 0) -> Packed:
    """Pickle a result; one of more bytes than `large` is stored at `path`, if given."""
    content = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    if path is None or len(content) <= large:
        return Packed(content)
    path.write_bytes(content)
    return Packed(path)
