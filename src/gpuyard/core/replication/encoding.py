"""Messages as bytes: the name of the type and its fields, in msgpack.

A receiver accepts only messages that are meant for it: a voter none of a replica, a replica none of a voter's. A message
that is too long, of another type or with an impossible value is refused with `WrongMessage`; the connection that it came
from is of no use then, because both ends are programs.
"""

from math import isfinite
from typing import Any, get_args

import msgspec

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.replication.messages import Message, ToReplica, ToVoter
from gpuyard.core.replication.timing import LONGEST_LEASE_SECONDS

MOST_BYTES = 4 * 1024 * 1024
"""A receiver holds a whole message in memory."""

MOST_NUMBER = 2**53
"""Epochs and positions are far below; the files of replicas and voters have room for no more than 64 bits."""


class WrongMessage(GpuyardError):
    """The other end sent a message that this version does not understand."""


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_FOR_VOTERS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(ToVoter)}
_FOR_REPLICAS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(ToReplica)}


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _encode((type(message).__name__, message))


def decode_for_voter(content: bytes) -> ToVoter:
    """Return the message to a voter in these bytes."""
    message: ToVoter = _decode(content, _FOR_VOTERS)
    return message


def decode_for_replica(content: bytes) -> ToReplica:
    """Return the message to a replica in these bytes."""
    message: ToReplica = _decode(content, _FOR_REPLICAS)
    return message


def _decode(content: bytes, decoders: "dict[str, msgspec.msgpack.Decoder[Any]]") -> Any:
    if len(content) > MOST_BYTES:
        raise WrongMessage(f"A message has {len(content)} bytes; at most {MOST_BYTES} are allowed.")
    try:
        name, fields = _envelope.decode(content)
        decoder = decoders.get(name)
        if decoder is None:
            raise WrongMessage(f"A message of the type {name[:40]!r} is not expected here.")
        message = decoder.decode(fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WrongMessage(f"A message cannot be read: {error}.") from error
    sent_at, free_in = getattr(message, "sent_at", 0.0), getattr(message, "free_in", 0.0)
    numbers = [getattr(message, name, 0) for name in ("epoch", "promised", "start", "before", "position", "try_from")]
    for membership in (getattr(message, "accepted", None), getattr(message, "membership", None)):
        numbers += () if membership is None else membership.order
    numbers += getattr(message, "order", ())
    if (
        not isfinite(sent_at)
        or not 0 <= free_in <= LONGEST_LEASE_SECONDS
        or not all(0 <= number <= MOST_NUMBER for number in numbers)
    ):
        raise WrongMessage(f"A message of the type {name} has an impossible number.")
    return message
