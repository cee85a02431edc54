"""Instants as people write them, in local time.

now  now+2h                    from now
18:00  6pm                     today, or tomorrow if that has passed
today 18:00  tomorrow 9:00     tomorrow alone is midnight
fri 18:00  friday              the next Friday; today if it is Friday and the time has not passed
2026-11-20 18:00               a date, with a time or at midnight; also as 2026-11-20T18:00, with Z or +01:00

Of the past, where that is meant (`past_instant_in`):

10m  now-10m                   so long ago
14:30  fri 18:00               the last time that it was so late
yesterday 9:00                 yesterday alone is midnight
"""

import re
from contextlib import suppress
from datetime import datetime, time, timedelta

from gpuyard.input.quantities import seconds_in

EXAMPLES = "now+2h, 18:00, tomorrow 9:00, fri 18:00 or 2026-11-20 18:00"
PAST_EXAMPLES = "10m, 14:30, yesterday 9:00, fri 18:00 or 2026-11-20 18:00"
_DAYS_FROM_NOW = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(am|pm)?")


def instant_in(text: str, now: datetime) -> datetime:
    """Return an instant with its time zone. `now` is local time without a zone. Raises ValueError with the reason."""
    return _instant_in(text, now, EXAMPLES, past=False)


def past_instant_in(text: str, now: datetime, *, may_be_later: bool = False) -> datetime:
    """Return an instant that is not in the future, in the same grammar; a duration alone is so long ago.

    `may_be_later`: a date in the future is accepted, too, as for the end of a period.
    """
    words = " ".join(text.lower().split()).removeprefix("now").lstrip(" -")
    if words and re.fullmatch(r"[\d.]+ ?[a-z].*", words):
        with suppress(ValueError):
            return now.astimezone() - timedelta(seconds=seconds_in(words))
    found = _instant_in(text, now, PAST_EXAMPLES, past=True)
    if found > now.astimezone() and not may_be_later:
        raise ValueError("it is in the future")
    return found


def _instant_in(text: str, now: datetime, examples: str, *, past: bool) -> datetime:
    words = " ".join(text.lower().split())
    if not words or len(words) > 60:
        raise ValueError(f"it must be a time, such as {examples}")
    if words == "now" or words.startswith(("now+", "now +")):
        after = words[3:].lstrip(" +")
        return now.astimezone() + timedelta(seconds=seconds_in(after) if after else 0.0)
    if (written := _iso(text.strip())) is not None:
        return written.astimezone()
    day, _, rest = words.partition(" ")
    if day in _DAYS_FROM_NOW and (past or day != "yesterday"):
        date = now.date() + timedelta(days=_DAYS_FROM_NOW[day])
        return datetime.combine(date, _clock(rest, examples) if rest else time()).astimezone()
    if (weekday := _weekday(day)) is not None:
        clock = _clock(rest, examples) if rest else time()
        found = datetime.combine(now.date() + timedelta(days=(weekday - now.weekday()) % 7), clock)
        return _nearest(found, now, timedelta(days=7), past=past)
    return _nearest(datetime.combine(now.date(), _clock(words, examples)), now, timedelta(days=1), past=past)


def _nearest(found: datetime, now: datetime, step: timedelta, *, past: bool) -> datetime:
    """Return the next such instant after now, or the last one before it."""
    if past:
        return (found if found <= now else found - step).astimezone()
    return (found if found > now else found + step).astimezone()


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


def _clock(text: str, examples: str) -> time:
    """Return a time of the day: 18:00, 9:30, 6pm. A number alone is refused: it could be a day or an hour."""
    found = _CLOCK.fullmatch(text)
    if found is None or not (found[2] or found[4]):
        raise ValueError(f"it must be a time, such as {examples}")
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
