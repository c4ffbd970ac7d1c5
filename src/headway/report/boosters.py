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
    ordered = sorted(ledger.auto.boosters, key=lambda booster: order.get(booster.state, 3))
    return [(booster.name, describe_booster(booster)) for booster in ordered]


def describe_booster(booster: BoosterResult) -> str:
    """What it did, and what that was worth."""
    if booster.state == "off":
        return f"off: {one_line(booster.why, MAX_REASON_LENGTH)}"
    if booster.state == "on":
        return one_line(booster.what, MAX_REASON_LENGTH) or "nothing to do"
    taken_back = f"; then off: {one_line(booster.why, MAX_REASON_LENGTH)}" if booster.why else ""
    return f"{one_line(booster.what, MAX_REASON_LENGTH)}{_gain(booster)}{taken_back}"


def _gain(booster: BoosterResult) -> str:
    if booster.time is None:
        return ""
    if booster.baseline is None:
        return f": {duration(booster.time)}, {NOT_MEASURED}"
    saved = booster.baseline - booster.time
    more = f"{duration(abs(saved))} {'less' if saved >= 0 else 'more'}"
    return f": {duration(booster.time)} instead of {duration(booster.baseline)}, {more}"


def booster_lines(ledger: Ledger) -> Iterator[str]:
    """For the end of a run: one line for each that acted, one for all others."""
    if ledger.auto is None:
        return
    acted = [booster for booster in ledger.auto.boosters if booster.state == "acted"]
    for booster in acted:
        yield f"Auto:  {booster.name:<14}{describe_booster(booster)}"
    for booster in ledger.auto.boosters:
        if booster.state == "on" and booster.what:
            yield f"Auto:  {booster.name:<14}{describe_booster(booster)}"
    idle = [
        booster.name
        for booster in ledger.auto.boosters
        if booster.state == "on" and not booster.what
    ]
    if idle:
        yield f"Auto:  on, with nothing to do: {', '.join(idle)}"
    for booster in ledger.auto.boosters:
        if booster.state == "off":
            yield f"Auto:  {booster.name:<14}{describe_booster(booster)}"
