"""Usage of GPUs over a window, as JSON or CSV. Members see their own tenant only."""

import csv
import io
from typing import Any

from msgspec.structs import fields

from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.query import Parameter, instant, one_of
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.usage.accounting import BUCKETS, KEYS
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
    account = await scheduler.usage.account(since, until, by, visible_tenant(request.principal))
    rows = [
        UsageRow(**dict(zip(by, map(_key, by, key), strict=True)), **_rounded(sums)) for key, sums in account.rows()
    ]
    answer = UsageAnswer(instant_of(since), instant_of(until), by, rows, UsageFigures(**_rounded(account.total())))
    if query.get("format") == "csv":
        return Response(as_csv(answer).encode(), media_type=CSV)
    return json_response(answer)


def _key(name: str, value: str | float) -> str:
    if isinstance(value, str):
        return value
    text = instant_of(value)
    return text[:10] if name == "day" else f"{text[:19]}Z"


def _rounded(sums: dict[str, float]) -> dict[str, Any]:
    """Return the figures without digits below a millisecond of one GPU."""
    return {name: value if isinstance(value, int) else round(value, 9) for name, value in sums.items()}


def as_csv(answer: UsageAnswer) -> str:
    """Return the rows with a line of names above. Names that a spreadsheet would take for a formula are quoted."""
    figures = [field.name for field in fields(UsageFigures)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*answer.by, *figures])
    for row in answer.rows:
        keys = [_harmless(str(getattr(row, name))) for name in answer.by]
        writer.writerow([*keys, *(getattr(row, name) for name in figures)])
    return out.getvalue()


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
