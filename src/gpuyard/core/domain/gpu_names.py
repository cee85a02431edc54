"""Match the GPU names that users type: case and separators are ignored, and a part of a name suffices.

A name is a sequence of words, a word a sequence of letters and numbers: `A100-SXM4-80GB` is `a 100`, `sxm 4`, `80 gb`. A
typed name matches if its words occur in this order, and no number of it is followed by more of its word: `A10` matches
neither `A100` nor `A10G`, and `L40` does not match `L40S`. The vendor's words are left out.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches

_WORDS = re.compile(r"[a-z0-9]+")
_PIECES = re.compile(r"[a-z]+|[0-9]+")
_VENDOR = frozenset({"nvidia", "geforce", "tesla"})


def matching_gpu_names(asked: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the known models that a name means; empty if none matches.

    `rtx4090`, `RTX 4090` and `4090` mean `NVIDIA GeForce RTX 4090`; `a100` means every A100 of the cluster, and `a100-80g`
    those with 80 GB. A model that has exactly this name comes before longer ones: `RTX 3090` does not mean `RTX 3090 Ti`.
    """
    if asked in known:
        return (asked,)
    words = _words(asked)
    if not any(piece.isdigit() for word in words for piece in word):
        return ()
    same = sorted(model for model in known if _pieces(_words(model)) == _pieces(words))
    return tuple(same or sorted(model for model in known if _holds(_words(model), words)))


def closest_gpu_name(asked: str, known: Collection[str]) -> str | None:
    """Return the known model with the most similar name, or None if none is similar."""
    by_small = {model.lower(): model for model in sorted(known)}
    close = get_close_matches(asked.lower(), by_small, n=1, cutoff=0.8)
    return by_small[close[0]] if close else None


def _words(name: str) -> list[list[str]]:
    words = [_PIECES.findall(word) for word in _WORDS.findall(name.lower()) if word not in _VENDOR]
    return [
        [*word[:-1], "gb"] if len(word) > 1 and word[-2].isdigit() and word[-1] in {"g", "gib"} else word
        for word in words
    ]


def _pieces(words: list[list[str]]) -> list[str]:
    return [piece for word in words for piece in word]


def _holds(name: list[list[str]], asked: list[list[str]]) -> bool:
    """Return whether a name has these words in this order."""
    pieces = _pieces(name)
    ends = {sum(map(len, name[: place + 1])) for place in range(len(name))}
    at = 0
    for word in asked:
        found = next((start for start in range(at, len(pieces)) if _is_at(pieces, ends, word, start)), None)
        if found is None:
            return False
        at = found + len(word)
    return True


def _is_at(pieces: list[str], ends: set[int], word: list[str], start: int) -> bool:
    end = start + len(word)
    return pieces[start:end] == word and (end in ends or not word[-1].isdigit())
