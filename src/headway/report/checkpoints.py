"""Texts on saves: cost, intervals, failed saves and asynchronous saves."""

from __future__ import annotations

from headway.format import count, duration, one_line, percent
from headway.ledger.model import CheckpointOutcome, Ledger, SaveInterval
from headway.ledger.resume import Save, merge_files
from headway.units import NS

DAY = 86_400 * NS
PLACES = {"memory": "in memory", "disk": "to disk"}


def checkpoint_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Return label and value of each fact: saves of a level, its interval, the recommended one."""
    facts = []
    for level, name in PLACES.items():
        good = [
            outcome for outcome in ledger.outcomes if outcome.level == level and not outcome.error
        ]
        intervals = [interval for interval in ledger.save_intervals if interval.level == level]
        if good or intervals:
            facts.append((name, _saves(good) if good else "no save"))
        for interval in intervals:
            facts += _interval_facts(interval)
    return facts


def failed_saves(ledger: Ledger) -> list[str]:
    """Return each failed save with its reason, in order of time."""
    return [
        f"step {s.step:,} {PLACES[s.level]}, attempt {s.attempt}: {one_line(s.error, 300)}"
        for s in ledger.outcomes
        if s.error
    ]


def describe_resume(step: int | None, by: str | None) -> str:
    """Describe the step, and the level of the checkpoint, from which an attempt resumed."""
    if step is None:
        return "-"
    return f"step {step:,}" + (f", {by}" if by else "")


def _saves(good: list[CheckpointOutcome]) -> str:
    blocked = sum(s.blocked for s in good) // len(good)
    slowdown = sum(s.step_slowdown for s in good) // len(good)
    text = f"{count(len(good), 'save')}; each blocks {duration(blocked)}"
    text += f" and slows steps by {duration(slowdown)}" if slowdown else ""
    text += f"; durable after at most {duration(max(outcome.durable for outcome in good))}"
    size = max(outcome.size for outcome in good)
    return f"{text}, {size / 1e6:,.0f} MB" if size else text


def _interval_facts(interval: SaveInterval) -> list[tuple[str, str]]:
    now = f"every {duration(interval.interval)}{_describe_loss(interval.wasted_percent)}"
    if interval.recommended is None:
        return [("  interval", now)]
    better = f"every {duration(interval.recommended)}{_describe_loss(interval.recommended_percent)}"
    if (interval.recommended_percent or 0.0) > (interval.wasted_percent or 0.0):
        better += "; with a shorter interval, saves wait for each other"
    facts = [("  interval", now), ("  recommended", better)]
    if interval.failures_per_hour is not None:
        rate = f"{interval.failures_per_hour:.2g} per hour"
        if interval.failures_low is not None and interval.failures_high is not None:
            rate += f" (between {interval.failures_low:.2g} and {interval.failures_high:.2g})"
        facts.append(("  failures", rate))
    return facts


def _describe_loss(share: float | None) -> str:
    if share is None:
        return ""
    if share >= 100:
        return ": all of the loop time lost"
    return f": {percent(share)} of the loop time lost, {duration(round(share / 100 * DAY))} per day"


def merged_saves(ledger: Ledger) -> list[Save]:
    """Return saves in order of time; files of the same step in one attempt are one save."""
    return merge_files(ledger.checkpoints)


SHOWN_REASONS = 3


def async_save_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Return label and value of each fact."""
    saves = ledger.async_save
    if saves is None:
        return []
    text = f"{count(saves.saves, 'save')}, {duration(saves.blocked)} blocked, "
    text += f"{duration(saves.write)} written in the background"
    text += f", {duration(saves.wait)} waited" if saves.wait else ""
    text += f", {saves.failed} failed" if saves.failed else ""
    facts = [("asynchronous", text)]
    if saves.sync_fallbacks:
        most = sorted(saves.sync_fallbacks.items(), key=lambda item: -item[1])
        reasons = "; ".join(
            f"{number} x {one_line(reason, 100)}" for reason, number in most[:SHOWN_REASONS]
        )
        more = len(most) - SHOWN_REASONS
        reasons += f"; and {count(more, 'more reason')}" if more > 0 else ""
        fallbacks = count(sum(saves.sync_fallbacks.values()), "save")
        facts.append(("fallbacks", f"{fallbacks} fell back to synchronous: {reasons}"))
    return facts
