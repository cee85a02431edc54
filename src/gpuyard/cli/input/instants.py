"""Instants as people write them, in local time.

now  now+2h                    from now
18:00  6pm                     today, or tomorrow if that has passed
today 18:00  tomorrow 9:00     tomorrow alone is midnight
fri 18:00  friday              the next Friday; today if it is Friday and the time has not passed
2026-11-20 18:00               a date, with a time or at midnight; also as 2026-11-20T18:00, with Z or +01:00
"""

import re
from datetime import datetime, time, timedelta

from gpuyard.input.quantities import seconds_in

EXAMPLES = "now+2h, 18:00, tomorrow 9:00, fri 18:00 or 2026-11-20 18:00"
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(am|pm)?")


def instant_in(text: str, now: datetime) -> datetime:
    """Return an instant with its time zone. `now` is local time without a zone. Raises ValueError with the reason."""
    words = " ".join(text.lower().split())
    if not words or len(words) > 60:
        raise ValueError(f"it must be a time, such as {EXAMPLES}")
    if words == "now" or words.startswith(("now+", "now +")):
        after = words[3:].lstrip(" +")
        return now.astimezone() + timedelta(seconds=seconds_in(after) if after else 0.0)
    if (written := _iso(text.strip())) is not None:
        return written.astimezone()
    day, _, rest = words.partition(" ")
    if day in {"today", "tomorrow"}:
        date = now.date() + timedelta(days=day == "tomorrow")
        return datetime.combine(date, _clock(rest) if rest else time()).astimezone()
    if (weekday := _weekday(day)) is not None:
        clock = _clock(rest) if rest else time()
        found = datetime.combine(now.date() + timedelta(days=(weekday - now.weekday()) % 7), clock)
        return (found if found > now else found + timedelta(days=7)).astimezone()
    clock = _clock(words)
    found = datetime.combine(now.date(), clock)
    return (found if found > now else found + timedelta(days=1)).astimezone()


def _iso(text: str) -> datetime | None:
    """Return a date with or without a time; None: it is not written like one."""
    if not re.match(r"\d{4}-\d{2}-\d{2}", text):
        return None
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError("there is no such date or time; write it like 2026-11-20 18:00") from None


def _weekday(word: str) -> int | None:
    found = [number for number, name in enumerate(_DAYS) if len(word) >= 2 and name.startswith(word)]
    return found[0] if len(found) == 1 else None


def _clock(text: str) -> time:
    """Return a time of the day: 18:00, 9:30, 6pm. A number alone is refused: it could be a day or an hour."""
    found = _CLOCK.fullmatch(text)
    if found is None or not (found[2] or found[4]):
        raise ValueError(f"it must be a time, such as {EXAMPLES}")
    hours, minutes, seconds = (int(part or 0) for part in found.group(1, 2, 3))
    if found[4]:
        if not 1 <= hours <= 12:
            raise ValueError("hours with am or pm go from 1 to 12")
        hours = hours % 12 + (12 if found[4] == "pm" else 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError("hours go up to 23, minutes and seconds up to 59")
    return time(hours, minutes, seconds)


def spoken_instant(at: datetime) -> str:
    """Return an instant with its weekday and its zone, such as Fri 2026-11-20 18:00 CET."""
    zone = at.tzname() or ""
    offset = at.strftime("%z")
    shown = zone if zone and not zone.startswith(("+", "-")) else f"{offset[:3]}:{offset[3:]}"
    seconds = ":%S" if at.second else ""
    return f"{at.strftime(f'%a %Y-%m-%d %H:%M{seconds}')} {shown}"
