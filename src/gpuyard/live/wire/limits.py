"""Types with bounds for single fields that several requests share.

The bounds appear in the OpenAPI document and are checked while decoding; a description here also ends the sentence that
a user reads if a value does not fit ("name is …; it must be <description>").
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, TypeAlias

from msgspec import Meta

_PLAIN = r"^[^\u0000-\u001f\u007f]*$(?!\n)"

TenantName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[^\u0000-\u0020\u007f/?#%\\]+$(?!\n)",
        description="a name of 1 to 64 characters without spaces, slashes, ?, # and %",
    ),
]
TenantNameOrNone: TypeAlias = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=r"^[^\u0000-\u0020\u007f/?#%\\]*$(?!\n)",
        description="a name of at most 64 characters without spaces, slashes, ?, # and %",
    ),
]
NodeNameOrNone: TypeAlias = Annotated[
    str,
    Meta(
        max_length=128,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$(?!\n)",
        description="a name of at most 128 letters, digits, dots, dashes and underscores that begins with a letter or digit",
    ),
]
PoolName: TypeAlias = Annotated[
    str,
    Meta(
        max_length=100,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)",
        description="a name of at most 100 letters, digits, dots, dashes and underscores that begins with a letter or digit",
    ),
]
Title: TypeAlias = Annotated[
    str, Meta(max_length=200, pattern=_PLAIN, description="one line of text of at most 200 characters")
]
Description: TypeAlias = Annotated[str, Meta(max_length=4096)]
ModelName: TypeAlias = Annotated[
    str,
    Meta(min_length=1, max_length=128, pattern=_PLAIN, description="a GPU model, one line of 1 to 128 characters"),
]
GpuSelectors: TypeAlias = Annotated[
    list[Annotated[int, Meta(ge=0, le=9999)] | Annotated[str, Meta(min_length=1, max_length=128, pattern=_PLAIN)]],
    Meta(max_length=10_000, description="a list of GPUs by number or UUID, such as [0, 1] or [GPU-5e1f...]"),
]
GpuPercent: TypeAlias = Annotated[float, Meta(ge=1, le=100, description="a percentage from 1 to 100")]
SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 1024
Password: TypeAlias = Annotated[
    str,
    Meta(
        min_length=SHORTEST_PASSWORD,
        max_length=LONGEST_PASSWORD,
        description=f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD:,} characters",
    ),
]
"""A new password, wherever it is set."""
LabelKey: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=_PLAIN)]
LabelValue: TypeAlias = Annotated[str, Meta(max_length=256, pattern=_PLAIN)]
SystemUser: TypeAlias = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=r"^(?!root$)[A-Za-z0-9._-]*$(?!\n)",
        description="the name of a system account other than root, or empty",
    ),
]
Labels: TypeAlias = Annotated[dict[LabelKey, LabelValue], Meta(max_length=64)]
EnvName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=r"^[^=\u0000-\u001f]+$(?!\n)",
        description="the name of a variable, not empty and without an equals sign",
    ),
]
SetupLine: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=32768, pattern=r"^[^\u0000]*$", description="a line for the shell")
]
AbsolutePath: TypeAlias = Annotated[
    str,
    Meta(max_length=4096, pattern=r"^/[^\u0000]*$", description="an absolute path, such as /home/alice/experiment"),
]

MOST_GPUS_IN_A_NODE = 1024
GpuCount: TypeAlias = Annotated[int, Meta(ge=0, le=100_000)]
NodeCount: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
CpuCount: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Mebibytes: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]
"""Fields in `_mb` are in MiB, because what GPUs and tools print as MB is MiB."""
Priority: TypeAlias = Annotated[int, Meta(ge=0, le=100)]
PositiveSeconds: TypeAlias = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Weight: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6)]
GpuHours: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e12)]
BudgetPeriod: TypeAlias = Annotated[float, Meta(ge=60, le=1_000_000_000)]
Speed: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6)]
RetryCount: TypeAlias = Annotated[int, Meta(ge=0, le=1000)]
Percent: TypeAlias = Annotated[
    float, Meta(ge=0, le=1, description="a fraction from 0 to 1, such as 0.7 for 70 percent")
]

Instant: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339, UTC, with microseconds and a Z."""
LAST_SECOND = 253_402_300_799.0
"""The last second of the year 9999."""


def instant_of(seconds: float) -> Instant:
    """Format seconds since 1970 as the API does. Values outside the calendar are clamped."""
    microseconds = round(min(max(seconds, 0.0), LAST_SECOND) * 1_000_000)
    return f"{_second(microseconds // 1_000_000)}.{microseconds % 1_000_000:06d}Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Format a whole second. Cached, because values that are requested together are mostly close in time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
