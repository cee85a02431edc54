"""Frames between a client and the console of a task: one byte of type, eight of offset, then the content.

    client ── WebSocket ── scheduler ── gRPC ── agent ── unix socket ── holder of the console

Scheduler and agent pass frames on unread; on the unix socket each has its length (four bytes) in front. `INPUT` and
`OUTPUT` are numbered by the offset of their first byte, so that after a lost connection nothing is missing and nothing
comes twice: the client names the output it has, and the holder the input it has taken.

A `CONTROL` frame is a JSON object with one key:

    client   attach {token, received, steal, columns, rows}    resize [columns, rows]
    agent    rights {write}                                    before the first frame of the client
    holder   attached {offset, end, input, write, terminal}    exit {code, signal, end}
             gap [from, to]                                    error {code, message}

`ACK` of the client: the output that it has printed; of the holder: the input that it has taken. `END`: no more input.
"""

import struct
from typing import Any, NamedTuple

import msgspec

from gpuyard.core.domain.errors import GpuyardError

SUBPROTOCOL = "console.v1.gpuyard"
PORT_SUBPROTOCOL = "port.v1.gpuyard"
"""Of the channel to a TCP port: messages are parts of the stream, an empty one is its end."""
INPUT, OUTPUT, CONTROL, ACK, END = 0, 1, 3, 4, 255
_HEAD = struct.Struct(">BQ")
HEAD_BYTES = _HEAD.size
MOST_FRAME_BYTES = 64 * 1024 + HEAD_BYTES
"""Longest frame."""
PIECE_BYTES = 32 * 1024
"""Content of a frame of data, at most."""


class MalformedFrame(GpuyardError):
    """A frame of a console cannot be read."""


class ChannelPiece(NamedTuple):
    """A frame, split."""

    kind: int
    offset: int
    content: bytes

    @property
    def words(self) -> dict[str, Any]:
        """The object of a control frame."""
        try:
            found = msgspec.json.decode(self.content)
        except msgspec.MsgspecError:
            found = None
        if not isinstance(found, dict):
            raise MalformedFrame
        return found


def pack(kind: int, offset: int = 0, content: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEAD.pack(kind, offset) + content


def control(**words: Any) -> bytes:
    """Return a control frame."""
    return pack(CONTROL, 0, msgspec.json.encode(words))


def unpack(frame: bytes) -> ChannelPiece:
    """Split a frame. Raise `MalformedFrame` if it is too short or too long."""
    if not HEAD_BYTES <= len(frame) <= MOST_FRAME_BYTES:
        raise MalformedFrame
    kind, offset = _HEAD.unpack_from(frame)
    return ChannelPiece(kind, offset, frame[HEAD_BYTES:])
