"""Instants as text, without a clock and without time zones of the machine."""

DAY_SECONDS = 86_400
FIRST_YEAR_DAYS = 719_468
"""Days from the first of March of the year 0 to the beginning of 1970."""


def utc_text(instant: float) -> str:
    """Return an instant as a date and a time to the minute, in UTC.

    The calendar is computed in years that begin in March, so that a leap day is the last day of its year.
    """
    days, seconds = divmod(int(instant), DAY_SECONDS)
    era, day = divmod(days + FIRST_YEAR_DAYS, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    from_march = (5 * day_of_year + 2) // 153
    month = from_march + 3 if from_march < 10 else from_march - 9
    day_of_month = day_of_year - (153 * from_march + 2) // 5 + 1
    minutes = seconds // 60
    years = year + era * 400 + (month <= 2)
    return f"{years:04}-{month:02}-{day_of_month:02} {minutes // 60:02}:{minutes % 60:02} UTC"
