"""Texts on the boosters of `--auto`: what they did, and what they gained."""

from __future__ import annotations

from collections.abc import Iterator

from headway.format import duration, one_line
from headway.ledger.model import BoosterResult, Ledger

NOT_MEASURED = "the gain is not known yet"
MAX_REASON_LENGTH = 200


def booster_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Return name and text of each booster: first those that acted, then idle ones, then off."""
    if ledger.auto is None:
        return []
    order = {"acted": 0, "on": 1, "off": 2}
    ordered = sorted(ledger.auto.boosters, key=lambda booster: order.get(booster.state, 3))
    return [(booster.name, describe_booster(booster)) for booster in ordered]


def describe_booster(booster: BoosterResult) -> str:
    """Describe what a booster did, and its gain."""
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
    """Yield lines for the summary: one for each booster that acted or is off, one for idle ones."""
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
        yield f"Auto:  on, nothing to do: {', '.join(idle)}"
    for booster in ledger.auto.boosters:
        if booster.state == "off":
            yield f"Auto:  {booster.name:<14}{describe_booster(booster)}"
