"""Usage of GPUs over a window, as JSON or CSV. Members see their own tenant only."""

import csv
import io
from typing import Any

from msgspec import structs
from msgspec.structs import fields

from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.query import Parameter, instant, one_of
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import CHUNK_BYTES, LargeResponse, Response, encode, separated
from gpuyard.live.control_plane.usage.accounting import BUCKETS, KEYS, MOST_ROWS, TooManyUsageRows, WindowSums
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.usage_answers import UsageAnswer, UsageFigures, UsageRow

USUAL_SECONDS = 7 * 86_400.0
MOST_BUCKETS = 10_000
"""Maximum number of days or hours in a window, if rows are made for each."""
CSV = "text/csv; charset=utf-8"
PARAMETERS = (
    Parameter("since", "Beginning of the window (default: seven days before its end).", instant),
    Parameter("until", "End of the window, which is not part of it (default: now).", instant),
    Parameter(
        "by",
        "Keys of the rows; separate several with commas or repeat the parameter (default: tenant).",
        one_of({name: name for name in KEYS}),
        values=KEYS,
        many=True,
    ),
    Parameter("format", "json or csv.", one_of({"json": "json", "csv": "csv"}), values=("json", "csv")),
)


async def get_usage(context: AppContext, request: Request) -> Response:
    """Return the usage of a window."""
    scheduler, query = context.scheduler, request.query
    by = list(dict.fromkeys(query.get("by", ["tenant"])))
    until = query.get("until", scheduler.clock())
    since = query.get("since", max(0.0, until - USUAL_SECONDS))
    if since >= until:
        raise WrongRequest("WrongWindow", "since is not before until; give an earlier time.", "since")
    for name in by:
        if name in BUCKETS and (until - since) / BUCKETS[name] > MOST_BUCKETS:
            message = f"The window has more than {MOST_BUCKETS:,} {name}s; give a shorter one, or leave out {name}."
            raise WrongRequest("WrongWindow", message, "by")

    def made(sums: WindowSums) -> list[bytes]:
        rows = [UsageRow(**dict(zip(by, map(_key, by, key), strict=True)), **_rounded(row)) for key, row in sums.rows()]
        answer = UsageAnswer(instant_of(since), instant_of(until), by, rows, UsageFigures(**_rounded(sums.total())))
        return as_csv(answer) if query.get("format") == "csv" else as_json(answer)

    try:
        parts = await scheduler.usage.answer(since, until, by, visible_tenant(request.principal), made)
    except TooManyUsageRows:
        message = f"Usage by {', '.join(by)} has more than {MOST_ROWS:,} rows; leave out a key of by, or give a shorter window."
        raise WrongRequest("TooManyRows", message, "by") from None
    return LargeResponse(parts, media_type=CSV if query.get("format") == "csv" else None)


def _key(name: str, value: str | float) -> str:
    if isinstance(value, str):
        return value
    text = instant_of(value)
    return text[:10] if name == "day" else f"{text[:19]}Z"


def _rounded(sums: dict[str, float]) -> dict[str, Any]:
    """Return the figures without digits below a millisecond of one GPU."""
    return {name: value if isinstance(value, int) else round(value, 9) for name, value in sums.items()}


def as_json(answer: UsageAnswer) -> list[bytes]:
    """Return the answer in parts. Each row is encoded alone, because an encoder stops all threads while it works."""
    head, tail = encode(structs.replace(answer, rows=[])).split(b'"rows":[]')
    return [head, b'"rows":[', *separated([encode(row) for row in answer.rows]), b"]", tail]


def as_csv(answer: UsageAnswer) -> list[bytes]:
    """Return the rows with a line of names above. Names that a spreadsheet would take for a formula are quoted."""
    figures = [field.name for field in fields(UsageFigures)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*answer.by, *figures])
    for row in answer.rows:
        keys = [_harmless(str(getattr(row, name))) for name in answer.by]
        writer.writerow([*keys, *(getattr(row, name) for name in figures)])
    text = out.getvalue().encode()
    return [text[start : start + CHUNK_BYTES] for start in range(0, len(text), CHUNK_BYTES)]


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
