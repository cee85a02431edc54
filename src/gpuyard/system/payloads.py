"""Pickled Python values between a program and its function on a node: a JSON header, then the pickle.

The header is checked before anything is loaded: a pickle of another minor version of Python can crash the interpreter, and
one of another content than announced must not be run. This module imports neither cloudpickle nor anything of gpuyard.
"""

import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

MAGIC = b"gpuyard payload 1\n"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
VALUE, EXCEPTION, DESCRIBED = "value", "exception", "described"
"""What a result is: the value, the exception that was raised, or only its description."""


class WrongPayload(Exception):
    """The payload cannot be loaded here; the message says why."""


class Payload(NamedTuple):
    """A payload whose header was read."""

    header: Mapping[str, Any]
    content: bytes

    def load(self, start: int = 0, end: int | None = None) -> Any:
        """Check the header, and unpickle a part of the content."""
        import pickle

        check(self)
        return pickle.loads(self.content[start:end])  # noqa: S301 - only by the user who made it


def pack(content: bytes, **header: Any) -> bytes:
    """Return a payload with this pickle."""
    import json

    told = {"python": PYTHON, "cloudpickle": cloudpickle_version(), "sha256": sha256(content).hexdigest(), **header}
    return MAGIC + json.dumps(told).encode() + b"\n" + content


def pack_parts(parts: Sequence[bytes], **header: Any) -> bytes:
    """Return a payload with several pickles, one behind the other; `ends` in the header says where each one ends."""
    ends, end = [], 0
    for part in parts:
        end += len(part)
        ends.append(end)
    return pack(b"".join(parts), ends=ends, **header)


def read(data: bytes) -> Payload:
    """Read the header of a payload; nothing is loaded."""
    import json

    if not data.startswith(MAGIC):
        raise WrongPayload("It is not a payload of this version of gpuyard; submit the function again.")
    line, _, content = data[len(MAGIC) :].partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or not isinstance(header.get("sha256"), str):
        raise WrongPayload("Its header is damaged; submit the function again.")
    return Payload(header, content)


def check(payload: Payload) -> None:
    """Raise `WrongPayload` if the content cannot be loaded here."""
    theirs = payload.header.get("python")
    if theirs != PYTHON:
        raise WrongPayload(
            f"It was pickled by Python {theirs}, and this is Python {PYTHON}; a pickle can be loaded by the same minor "
            "version only. Use the same interpreter on both sides."
        )
    if sha256(payload.content).hexdigest() != payload.header["sha256"]:
        raise WrongPayload("Its content was changed on the way; submit the function again.")


def part_of(payload: Payload, index: int) -> tuple[int, int]:
    """Return where a pickle of `pack_parts` begins and ends."""
    ends: Sequence[int] = payload.header["ends"]
    return (ends[index - 1] if index else 0), ends[index]


def cloudpickle_version() -> str:
    """Return the version of cloudpickle, if it is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cloudpickle")
    except PackageNotFoundError:
        return ""
