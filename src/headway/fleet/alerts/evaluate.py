"""Evaluate samples against the alert state: pure functions, the clock is passed in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.fleet.alerts.rules import Rule, Rules
from headway.fleet.alerts.state import (
    ACKNOWLEDGED,
    FIRING,
    PENDING,
    RESOLVED,
    Alert,
    Notification,
    Sample,
    State,
    message,
)

SAME_CHANGE_S = 3 * 86400.0  # changes of a slice that lie so near are the same one
RESOLVED_AGE_S = 30 * 86400.0  # so long a resolved alert is remembered
MAX_RESOLVED = 500  # and so many at most

# A rule that was not asked, or could not be, has None: what is known of it stays as it is.
SamplesByRule = Mapping[str, Sequence[Sample] | None]


@dataclass(frozen=True)
class Evaluation:
    """The alerts as they are now, and what is new to be sent."""

    alerts: tuple[Alert, ...]
    notifications: tuple[Notification, ...]


def evaluate(rules: Rules, answers: SamplesByRule, state: State, now: float) -> Evaluation:
    """Hold each rule against its answer."""
    before = {one.id: one for one in state.alerts}
    again = {rule.name: rule.renotify for rule in rules.rules}
    alerts: list[Alert] = []
    notifications: list[Notification] = []
    for alert in _unresolved(rules, answers, state, now):
        event = _event(before.get(alert.id), alert, again.get(alert.rule), now)
        if event:
            alert = replace(alert, told=now, count=alert.count + 1)
            notifications += _notifications(rules, state, alert, event, now)
        alerts.append(alert)
    return Evaluation((*_recently_resolved(state, now), *alerts), tuple(notifications))


def _unresolved(rules: Rules, answers: SamplesByRule, state: State, now: float) -> list[Alert]:
    """All alerts that were not over before."""
    live = [one for one in state.alerts if one.state != RESOLVED]
    taken = {one.id for one in state.alerts}
    found: list[Alert] = []
    for rule in rules.rules:
        own = [one for one in live if one.rule == rule.name]
        readings = answers.get(rule.name)
        found += own if readings is None else _rule(rule, readings, own, taken, now)
    named = {rule.name for rule in rules.rules}
    gone = [one for one in live if one.rule not in named and one.state != PENDING]
    return found + [
        replace(_resolve(one, now), text=f"{one.text}; its rule is gone") for one in gone
    ]


def _recently_resolved(state: State, now: float) -> list[Alert]:
    over = [one for one in state.alerts if one.state == RESOLVED]
    recent = [one for one in over if now - (one.until or 0.0) < RESOLVED_AGE_S]
    return sorted(recent, key=lambda one: one.until or 0.0)[-MAX_RESOLVED:]


def _notifications(
    rules: Rules, state: State, alert: Alert, event: str, now: float
) -> list[Notification]:
    told = message(alert, event, alert.count)
    return [
        Notification(told["id"], to, now, told, due=now)
        for to in alert.to
        if to in rules.channels and not (event == "reminder" and _is_undelivered(state, alert, to))
    ]


def _rule(
    rule: Rule, readings: Sequence[Sample], own: Sequence[Alert], taken: set[str], now: float
) -> list[Alert]:
    """The alerts of one rule: those that go on, those that are new, those that are over."""
    left = list(own)
    found = []
    for reading in readings:
        alike = [one for one in left if _distance(one, reading) <= SAME_CHANGE_S]
        known = min(alike, key=lambda one: _distance(one, reading), default=None)
        if known is not None:
            left.remove(known)
        if reading.bad:
            found.append(_fire(rule, known or _new(rule, reading, taken, now), reading, now))
        elif known is not None:
            found += _recover(rule, _update(rule, known, reading), now)
    for one in left:
        found += _recover(rule, one, now)
    return found


def _distance(alert: Alert, reading: Sample) -> float:
    """How far a reading is from what an alert is about; infinite if it is about something else."""
    if alert.slice != reading.slice or (alert.moment is None) != (reading.moment is None):
        return math.inf
    return abs((alert.moment or 0.0) - (reading.moment or 0.0))


def _new(rule: Rule, reading: Sample, taken: set[str], now: float) -> Alert:
    since = now if reading.since is None else min(reading.since, now)
    name = _id(rule.name, reading.slice, now, taken)
    taken.add(name)
    return Alert(
        id=name,
        rule=rule.name,
        slice=reading.slice,
        severity=rule.severity,
        to=rule.to,
        state=PENDING,
        since=since,
        first=now,
        text=reading.text,
        value=reading.value,
        moment=reading.moment,
    )


def _id(rule: str, where: str, now: float, taken: Collection[str]) -> str:
    """Of each firing its own, also where a clock was set back."""
    number = 0
    while True:
        name = hashlib.sha256(f"{rule}\n{where}\n{now!r}\n{number}".encode()).hexdigest()[:12]
        if name not in taken:
            return name
        number += 1


def _update(rule: Rule, alert: Alert, reading: Sample) -> Alert:
    """An alert that goes on, with what is known of it now."""
    return replace(
        alert, text=reading.text, value=reading.value, severity=rule.severity, to=rule.to
    )


def _fire(rule: Rule, alert: Alert, reading: Sample, now: float) -> Alert:
    alert = replace(_update(rule, alert, reading), good=None)
    # A burn has been bad for long enough by the store's own account.
    hold = 0.0 if rule.kind == "burn" else rule.hold
    fires = alert.state == PENDING and now - alert.first >= hold
    return replace(alert, state=FIRING) if fires else alert


def _recover(rule: Rule, alert: Alert, now: float) -> list[Alert]:
    if alert.state == PENDING:
        return []
    since = now if alert.good is None else alert.good
    if now - since >= rule.clear:
        return [_resolve(alert, since)]
    return [replace(alert, good=since)]


def _resolve(alert: Alert, at: float) -> Alert:
    return replace(alert, state=RESOLVED, until=at, good=None)


def _event(before: Alert | None, alert: Alert, again: float | None, now: float) -> str | None:
    """What there is to tell, if anything."""
    was = PENDING if before is None else before.state
    if alert.state == RESOLVED:
        return "resolved"
    if alert.state == FIRING and was == PENDING:
        return "firing"
    bad = alert.state == FIRING and alert.good is None
    if bad and again is not None and now - (alert.told or 0.0) >= again:
        return "reminder"
    return None


def _is_undelivered(state: State, alert: Alert, to: str) -> bool:
    """Whether a channel has not even taken what was to be told before."""
    return any(one.to == to and one.message["alert"]["id"] == alert.id for one in state.outbox)


def acknowledge(state: State, acks: Mapping[str, str | None]) -> State:
    """Alerts that somebody has taken on: no reminder any more, but it is told when it is over."""
    alerts = tuple(
        replace(one, state=ACKNOWLEDGED, by=acks[one.id])
        if one.state == FIRING and one.id in acks
        else one
        for one in state.alerts
    )
    return replace(state, alerts=alerts)
