"""Durations and sizes as people write them: one grammar for all options, the Python client and task files.

    durations   90, 90s, 30m, 2h, 1h30m, 1d, 2 hours, 500ms      a plain number is seconds
                H:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS               as in Slurm
    sizes       8G = 8GB = 8GiB = 8192, 0.5T, 800M               a plain number is MiB; case does not matter

`2:00` is refused: Slurm means two minutes by it, most people mean two hours. `#SBATCH` lines have the grammar of Slurm
(`slurm.py` of the command line), in which a plain number of `--time` is minutes.
"""

import re
from math import ceil, isfinite
from typing import Final

LONGEST_SECONDS: Final = 1e9
LARGEST_MEBIBYTES: Final = 1_000_000_000_000
GPU_MEMORY_PART: Final = 0.93
"""A GPU sold with 24 GB reports 23,028 to 24,576 MiB; of a size in G or T so much is required of a whole GPU."""
DURATION_WORDS: Final = "a duration above zero, such as 90, 30m, 2h, 1h30m, 1d or 2:00:00"
SIZE_WORDS: Final = "a size, such as 8G, 800M or 8192 (MiB)"

_SECONDS: Final = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}
TIME_UNITS: Final = frozenset(_SECONDS)
_MEBIBYTES: Final = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3}
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_PART: Final = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
_PARTS: Final = re.compile(rf"(?:(?:{_NUMBER})\s*[a-z]+\s*)+")
_CLOCK: Final = re.compile(
    r"(?:(?P<days>[0-9]+)-)?(?P<first>[0-9]+)(?::(?P<second>[0-9]{2}))?(?::(?P<third>[0-9]{2}))?"
)
_SIZE: Final = re.compile(rf"({_NUMBER})\s*(?:([kmgtp])(?:i?b)?)?")
_LONGEST_TEXT: Final = 100


def seconds_in(value: object) -> float:
    """Return a duration in seconds. Raises ValueError with the reason, as the end of a sentence."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"it must be {DURATION_WORDS}")
    seconds = float(value) if isinstance(value, int | float) else _seconds_in_text(value.strip().lower())
    if not isfinite(seconds) or not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(f"it must be {DURATION_WORDS}")
    return seconds


def _seconds_in_text(text: str) -> float:
    wrong = ValueError(f"it must be {DURATION_WORDS}")
    if len(text) > _LONGEST_TEXT:
        raise wrong
    if re.fullmatch(_NUMBER, text):
        return float(text)
    if _PARTS.fullmatch(text):
        parts = _PART.findall(text)
        if any(unit not in _SECONDS for _, unit in parts):
            raise wrong
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    clock = _CLOCK.fullmatch(text)
    if clock is None:
        raise wrong
    days, first, second, third = (int(part) if part else None for part in clock.groups())
    if days is None and third is None:
        raise ValueError(
            f"that could be hours and minutes, or minutes and seconds as in Slurm; write {first}h{second}m or {first}m{second}s"
        )
    if max(second or 0, third or 0) >= 60:
        raise ValueError("minutes and seconds go up to 59")
    return (days or 0) * 86400.0 + (first or 0) * 3600.0 + (second or 0) * 60.0 + (third or 0)


def mebibytes_in(value: object) -> int:
    """Return a size in MiB, rounded up. Raises ValueError with the reason, as the end of a sentence."""
    return _mebibytes(value)[0]


def gpu_mebibytes_in(value: object) -> int:
    """Return the memory that each whole GPU needs, in MiB: of a size in G or T, 93 percent.

    Users write the size on the box. `nvidia-smi` shows less: 23,034 MiB for 24 GB of an L4, 15,360 for 16 GB of a T4,
    81,559 for 80 GB of an H100. A size in MiB is exact.
    """
    size, nominal = _mebibytes(value)
    return ceil(size * GPU_MEMORY_PART) if nominal else size


def _mebibytes(value: object) -> tuple[int, bool]:
    """Return a size in MiB, and whether it was given in G or more."""
    if isinstance(value, int) and not isinstance(value, bool):
        number, unit = float(value), ""
    else:
        found = (
            _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) and len(value) <= _LONGEST_TEXT else None
        )
        if found is None:
            raise ValueError(f"it must be {SIZE_WORDS}")
        number, unit = float(found[1]), found[2] or ""
        if not unit and "." in found[1]:
            raise ValueError(f"a plain number is whole MiB; write {found[1]}G for GiB")
    size = number * _MEBIBYTES[unit or "m"]
    if not 0 <= size <= LARGEST_MEBIBYTES:
        raise ValueError(f"it must be {SIZE_WORDS}")
    return ceil(round(size, 6)), unit in {"g", "t", "p"}


def gpus_in(value: object) -> tuple[int, str | None]:
    """Parse a number of GPUs, with or without their model: 2, A100:2, 2:A100, A100. Raises ValueError."""
    wrong = ValueError("it must be a number of GPUs, a model, or both, such as 2, A100:2 or A100")
    if isinstance(value, int) and not isinstance(value, bool):
        return value, None
    if not isinstance(value, str) or not value.strip():
        raise wrong
    text = value.strip()
    if _is_count(text):
        return int(text), None
    if text.replace(".", "", 1).isdigit():
        raise ValueError(
            "the number of GPUs is not a whole number; --fraction 0.5 (gpu_fraction) requests a share of one"
        )
    left, colon, right = (part.strip() for part in text.partition(":"))
    if text.startswith("-"):
        raise wrong
    if "," in text:
        raise ValueError("it names several models; list those that will do with --any-of H100,A100 (gpu_model)")
    if not colon:
        if not any(character.isdigit() for character in text):  # a typing error rather than a model
            raise wrong
        return 1, text
    if ":" in right:
        raise ValueError("it has more than a model and a number; give the memory with --gpu-memory (gpu_memory)")
    model, count = (left, right) if _is_count(right) else (right, left)
    if not model or not _is_count(count):
        raise wrong
    return int(count), model


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
