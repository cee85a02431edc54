"""Which GPU model a user means: names in small letters and parts of names count, if they mean one model only."""

import re
from collections.abc import Collection
from difflib import get_close_matches

_PIECES = re.compile(r"[a-z]+|[0-9]+")


def resolve_gpu_name(asked: str, known: Collection[str]) -> str | None:
    """The one known model that a name means; none if no model or more than one could be meant.

    `rtx4090` and `RTX 4090` mean `RTX4090`, and `4090` means `NVIDIA GeForce RTX 4090`. A part of a word or number
    means nothing: `H2` is not `H200`.
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
    """The known model whose name looks most like this one, if any does."""
    by_small = {model.lower(): model for model in sorted(known)}
    close = get_close_matches(asked.lower(), by_small, n=1, cutoff=0.8)
    return by_small[close[0]] if close else None


def _holds(name: list[str], part: list[str]) -> bool:
    return any(name[at : at + len(part)] == part for at in range(len(name) - len(part) + 1))
