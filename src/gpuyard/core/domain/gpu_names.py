"""Match the GPU names that users type: case is ignored, and a part of a name suffices if it is unambiguous."""

import re
from collections.abc import Collection
from difflib import get_close_matches

_PIECES = re.compile(r"[a-z]+|[0-9]+")


def resolve_gpu_name(asked: str, known: Collection[str]) -> str | None:
    """Return the known model that a name means; None if no model or more than one matches.

    `rtx4090` and `RTX 4090` mean `RTX4090`, and `4090` means `NVIDIA GeForce RTX 4090`. Words and numbers must be
    complete: `H2` does not match `H200`.
    """
    if asked in known:
        return asked
    pieces = _PIECES.findall(asked.lower())
    if not pieces:
        return None
    same = [model for model in known if _PIECES.findall(model.lower()) == pieces]
    found = same or [model for model in known if _holds(_PIECES.findall(model.lower()), pieces)]
    return found[0] if len(found) == 1 else None


def closest_gpu_name(asked: str, known: Collection[str]) -> str | None:
    """Return the known model with the most similar name, or None if none is similar."""
    by_small = {model.lower(): model for model in sorted(known)}
    close = get_close_matches(asked.lower(), by_small, n=1, cutoff=0.8)
    return by_small[close[0]] if close else None


def _holds(name: list[str], part: list[str]) -> bool:
    return any(name[at : at + len(part)] == part for at in range(len(name) - len(part) + 1))
