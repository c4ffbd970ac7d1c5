"""What the boosters of `--auto` did and gained, in words."""

from __future__ import annotations

from collections.abc import Iterator

from headway.format import duration, one_line
from headway.ledger.model import BoosterResult, Ledger

NOT_MEASURED = "what it brought is not known yet"
MAX_REASON_LENGTH = 200  # of a reason


def booster_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Name and value of each booster: those that acted first, then the idle, then those off."""
    if ledger.auto is None:
        return []
    order = {"acted": 0, "on": 1, "off": 2}
    found = sorted(ledger.auto.boosters, key=lambda one: order.get(one.state, 3))
    return [(one.name, describe_booster(one)) for one in found]


def describe_booster(one: BoosterResult) -> str:
    """What it did, and what that was worth."""
    if one.state == "off":
        return f"off: {one_line(one.why, MAX_REASON_LENGTH)}"
    if one.state == "on":
        return one_line(one.what, MAX_REASON_LENGTH) or "nothing to do"
    taken_back = f"; then off: {one_line(one.why, MAX_REASON_LENGTH)}" if one.why else ""
    return f"{one_line(one.what, MAX_REASON_LENGTH)}{_gain(one)}{taken_back}"


def _gain(one: BoosterResult) -> str:
    if one.here is None:
        return ""
    if one.before is None:
        return f": {duration(one.here)}, {NOT_MEASURED}"
    saved = one.before - one.here
    more = f"{duration(abs(saved))} {'less' if saved >= 0 else 'more'}"
    return f": {duration(one.here)} instead of {duration(one.before)}, {more}"


def booster_lines(ledger: Ledger) -> Iterator[str]:
    """For the end of a run: one line for each that acted, one for all others."""
    if ledger.auto is None:
        return
    acted = [one for one in ledger.auto.boosters if one.state == "acted"]
    for one in acted:
        yield f"Auto:  {one.name:<14}{describe_booster(one)}"
    for one in ledger.auto.boosters:
        if one.state == "on" and one.what:
            yield f"Auto:  {one.name:<14}{describe_booster(one)}"
    idle = [one.name for one in ledger.auto.boosters if one.state == "on" and not one.what]
    if idle:
        yield f"Auto:  on, with nothing to do: {', '.join(idle)}"
    for one in ledger.auto.boosters:
        if one.state == "off":
            yield f"Auto:  {one.name:<14}{describe_booster(one)}"
