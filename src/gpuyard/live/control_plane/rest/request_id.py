"""The id of a request: from its header X-Request-ID if that is a short printable token, generated otherwise.

It is returned in the same header of the response. It also appears in the log lines of the request, in the journal with
the events that the request caused, and in the launch that the agent logs.
"""

import re
from collections.abc import Iterable
from secrets import token_hex

_TOKEN = re.compile(rb"[!-~]{1,64}")


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client's id, or generate one."""
    for name, value in headers:
        if name == b"x-request-id" and _TOKEN.fullmatch(value):
            return value.decode("ascii")
    return token_hex(8)
