"""Did you mean …?"""

import difflib
from collections.abc import Iterable


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, if any is."""
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:100].lower(), lower, n=1, cutoff=0.55)
    return lower[found[0]] if found else None
