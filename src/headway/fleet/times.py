"""Times as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from headway.errors import UsageError

AGES = {"h": "hours", "d": "days", "w": "weeks"}


def when(text: str | None, now: datetime) -> datetime | None:
    """`30d` ago, or a date, in UTC."""
    if text is None:
        return None
    age = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if age:
        return now - timedelta(**{AGES[age[2]]: int(age[1])})
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time; give one such as 30d, 12h or 2026-11-16") from None
    return found.astimezone(timezone.utc).replace(tzinfo=None) if found.tzinfo else found
