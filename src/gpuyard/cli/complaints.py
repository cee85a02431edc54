"""What went wrong, on standard error: a sentence for people; with `--json` one object, of the shape the API has."""

import re
import sys

_WORDS_OF_PEOPLE = (
    (r"is not a valid int(eger)?( range)?\b", "is not a whole number"),
    (r"is not a valid float( range)?\b", "is not a number"),
    (r"is not in the range x>=(\S+)", r"is too little, it must be \1 or more"),
    (r"is not in the range (\S+)<=x<=(\S+)", r"is not between \1 and \2"),
    (r"Got unexpected extra argument\S* \((.*)\)", r"Too many words: \1"),
)
"""What typer says, and what it means."""


class Asked:
    """What `main` has to know of a call that failed."""

    as_json = False


def complain(message: str, *, code: str, field: str | None = None, as_json: bool) -> None:
    """Say it once."""
    if not as_json:
        print(f"gpuyard: {message}", file=sys.stderr)
        return
    from msgspec import json

    from gpuyard.wire.answers import Error, ErrorAnswer

    print(json.encode(ErrorAnswer(Error(code, message, field))).decode(), file=sys.stderr)


def in_words_of_people(message: str) -> str:
    """What typer found wrong in a call."""
    message = message.rstrip(".")
    for pattern, words in _WORDS_OF_PEOPLE:
        message = re.sub(pattern, words, message)
    return message
