"""Saves in words: what they cost, how often to save, which ones failed, and asynchronous saves."""

from __future__ import annotations

from headway.format import count, duration, one_line, percent
from headway.ledger.model import CheckpointOutcome, Ledger, SaveInterval
from headway.ledger.resume import Save
from headway.ledger.resume import merge_files as gathered
from headway.units import NS

DAY = 86_400 * NS
PLACES = {"memory": "in memory", "disk": "to disk"}


def checkpoint_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Name and value of each: the saves of a level, its interval, and the better one."""
    found = []
    for level, name in PLACES.items():
        good = [one for one in ledger.saved if one.level == level and not one.error]
        rhythms = [one for one in ledger.rhythms if one.level == level]
        if good or rhythms:
            found.append((name, _saves(good) if good else "no save was made"))
        for rhythm in rhythms:
            found += _interval_facts(rhythm)
    return found


def failed_saves(ledger: Ledger) -> list[str]:
    """Each save that failed, and why; the first ones first."""
    return [
        f"step {one.step:,} {PLACES[one.level]}, attempt {one.attempt}: {one_line(one.error, 300)}"
        for one in ledger.saved
        if one.error
    ]


def describe_resume(step: int | None, by: str | None) -> str:
    """Where an attempt went on."""
    if step is None:
        return "-"
    return f"step {step:,}" + (f", {by}" if by else "")


def _saves(good: list[CheckpointOutcome]) -> str:
    blocked, slower = (sum(getattr(s, n) for s in good) // len(good) for n in ("blocked", "slower"))
    said = f"{count(len(good), 'save')}; each blocks {duration(blocked)}"
    said += f" and makes steps {duration(slower)} longer" if slower else ""
    said += f"; safe after {duration(max(one.durable for one in good))} at most"
    size = max(one.size for one in good)
    return f"{said}, {size / 1e6:,.0f} MB" if size else said


def _interval_facts(one: SaveInterval) -> list[tuple[str, str]]:
    now = f"every {duration(one.interval)}{_describe_loss(one.wasted_percent)}"
    if one.recommended is None:
        return [("  interval", now)]
    better = f"every {duration(one.recommended)}{_describe_loss(one.recommended_percent)}"
    if (one.recommended_percent or 0.0) > (one.wasted_percent or 0.0):
        better += "; with a shorter one saves wait for each other"
    found = [("  interval", now), ("  recommended", better)]
    if one.failures_per_hour is not None:
        rate = f"{one.failures_per_hour:.2g} per hour"
        if one.failures_low is not None and one.failures_high is not None:
            rate += f" (between {one.failures_low:.2g} and {one.failures_high:.2g})"
        found.append(("  failures", rate))
    return found


def _describe_loss(share: float | None) -> str:
    if share is None:
        return ""
    if share >= 100:
        return ": all of the loop is lost"
    return f": {percent(share)} of the loop is lost, {duration(round(share / 100 * DAY))} a day"


def merged_saves(ledger: Ledger) -> list[Save]:
    """Saves in time order; ranks that saved the same step in one attempt are one save."""
    return gathered(ledger.checkpoints)


SHOWN_REASONS = 3  # reasons


def async_save_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Name and value of each fact."""
    told = ledger.behind
    if told is None:
        return []
    text = f"{count(told.saves, 'save')}, {duration(told.blocked)} blocked, "
    text += f"{duration(told.written)} written behind"
    text += f", {duration(told.waited)} waited for" if told.waited else ""
    text += f", {told.failed} failed" if told.failed else ""
    found = [("asynchronous", text)]
    if told.plain:
        most = sorted(told.plain.items(), key=lambda item: -item[1])
        whys = "; ".join(f"{number} x {one_line(why, 100)}" for why, number in most[:SHOWN_REASONS])
        more = len(most) - SHOWN_REASONS
        whys += f"; and {count(more, 'more reason')}" if more > 0 else ""
        found.append(("plain all the same", f"{count(sum(told.plain.values()), 'save')}: {whys}"))
    return found
