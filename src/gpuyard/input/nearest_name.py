"""Suggest the closest known name for a misspelled one ("did you mean …?")."""

import difflib
from collections.abc import Iterable


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the most similar known word, ignoring case, or None if none is similar."""
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:100].lower(), lower, n=1, cutoff=0.55)
    return lower[found[0]] if found else None
