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

SAME_CHANGE_S = 3 * 86400.0  # changes of a slice within this distance are the same change
RESOLVED_AGE_S = 30 * 86400.0  # resolved alerts are kept this long
MAX_RESOLVED = 500  # maximum number of resolved alerts that are kept

# None for a rule that was not measured, or not successfully: its alerts do not change.
SamplesByRule = Mapping[str, Sequence[Sample] | None]


@dataclass(frozen=True)
class Evaluation:
    """The current alerts, and new notifications."""

    alerts: tuple[Alert, ...]
    notifications: tuple[Notification, ...]


def evaluate(rules: Rules, samples_by_rule: SamplesByRule, state: State, now: float) -> Evaluation:
    """Update the alerts of all rules from their samples."""
    before = {alert.id: alert for alert in state.alerts}
    repeat_intervals = {rule.name: rule.repeat_interval for rule in rules.rules}
    alerts: list[Alert] = []
    notifications: list[Notification] = []
    for alert in _unresolved(rules, samples_by_rule, state, now):
        event = _event(before.get(alert.id), alert, repeat_intervals.get(alert.rule), now)
        if event:
            alert = replace(alert, last_notified_at=now, count=alert.count + 1)
            notifications += _notifications(rules, state, alert, event, now)
        alerts.append(alert)
    return Evaluation((*_recently_resolved(state, now), *alerts), tuple(notifications))


def _unresolved(
    rules: Rules, samples_by_rule: SamplesByRule, state: State, now: float
) -> list[Alert]:
    """The alerts that were not resolved before."""
    unresolved = [alert for alert in state.alerts if alert.state != RESOLVED]
    used_ids = {alert.id for alert in state.alerts}
    alerts: list[Alert] = []
    for rule in rules.rules:
        own_alerts = [alert for alert in unresolved if alert.rule == rule.name]
        samples = samples_by_rule.get(rule.name)
        alerts += own_alerts if samples is None else _rule(rule, samples, own_alerts, used_ids, now)
    named = {rule.name for rule in rules.rules}
    orphaned = [alert for alert in unresolved if alert.rule not in named and alert.state != PENDING]
    return alerts + [
        replace(_resolve(alert, now), text=f"{alert.text}; the rule no longer exists")
        for alert in orphaned
    ]


def _recently_resolved(state: State, now: float) -> list[Alert]:
    resolved = [alert for alert in state.alerts if alert.state == RESOLVED]
    recent = [alert for alert in resolved if now - (alert.until or 0.0) < RESOLVED_AGE_S]
    return sorted(recent, key=lambda alert: alert.until or 0.0)[-MAX_RESOLVED:]


def _notifications(
    rules: Rules, state: State, alert: Alert, event: str, now: float
) -> list[Notification]:
    content = message(alert, event, alert.count)
    return [
        Notification(content["id"], receiver, now, content, due=now)
        for receiver in alert.receivers
        if receiver in rules.channels
        and not (event == "reminder" and _is_undelivered(state, alert, receiver))
    ]


def _rule(
    rule: Rule,
    samples: Sequence[Sample],
    own_alerts: Sequence[Alert],
    used_ids: set[str],
    now: float,
) -> list[Alert]:
    """Update the alerts of one rule: existing, new and resolved ones."""
    unmatched = list(own_alerts)
    alerts = []
    for sample in samples:
        matches = [alert for alert in unmatched if _distance(alert, sample) <= SAME_CHANGE_S]
        alert = min(matches, key=lambda alert: _distance(alert, sample), default=None)
        if alert is not None:
            unmatched.remove(alert)
        if sample.is_bad:
            alerts.append(_fire(rule, alert or _new(rule, sample, used_ids, now), sample, now))
        elif alert is not None:
            alerts += _recover(rule, _update(rule, alert, sample), now)
    for alert in unmatched:
        alerts += _recover(rule, alert, now)
    return alerts


def _distance(alert: Alert, sample: Sample) -> float:
    """Seconds between the changes of an alert and a sample; infinite for another slice."""
    if alert.slice != sample.slice or (alert.change_at is None) != (sample.change_at is None):
        return math.inf
    return abs((alert.change_at or 0.0) - (sample.change_at or 0.0))


def _new(rule: Rule, sample: Sample, used_ids: set[str], now: float) -> Alert:
    since = now if sample.since is None else min(sample.since, now)
    alert_id = _id(rule.name, sample.slice, now, used_ids)
    used_ids.add(alert_id)
    return Alert(
        id=alert_id,
        rule=rule.name,
        slice=sample.slice,
        severity=rule.severity,
        receivers=rule.receivers,
        state=PENDING,
        since=since,
        first_seen_at=now,
        text=sample.text,
        value=sample.value,
        change_at=sample.change_at,
    )


def _id(rule: str, slice_: str, now: float, used_ids: Collection[str]) -> str:
    """A unique ID, even if the clock was set back."""
    number = 0
    while True:
        alert_id = hashlib.sha256(f"{rule}\n{slice_}\n{now!r}\n{number}".encode()).hexdigest()[:12]
        if alert_id not in used_ids:
            return alert_id
        number += 1


def _update(rule: Rule, alert: Alert, sample: Sample) -> Alert:
    """Update what an alert shows."""
    return replace(
        alert,
        text=sample.text,
        value=sample.value,
        severity=rule.severity,
        receivers=rule.receivers,
    )


def _fire(rule: Rule, alert: Alert, sample: Sample, now: float) -> Alert:
    alert = replace(_update(rule, alert, sample), ok_since=None)
    # The budget itself requires `for_s` of violations.
    for_s = 0.0 if rule.kind == "burn" else rule.for_s
    is_due = alert.state == PENDING and now - alert.first_seen_at >= for_s
    return replace(alert, state=FIRING) if is_due else alert


def _recover(rule: Rule, alert: Alert, now: float) -> list[Alert]:
    if alert.state == PENDING:
        return []
    since = now if alert.ok_since is None else alert.ok_since
    if now - since >= rule.keep_firing_for:
        return [_resolve(alert, since)]
    return [replace(alert, ok_since=since)]


def _resolve(alert: Alert, at: float) -> Alert:
    return replace(alert, state=RESOLVED, until=at, ok_since=None)


def _event(
    before: Alert | None, alert: Alert, repeat_interval: float | None, now: float
) -> str | None:
    """The event to notify receivers of, if any."""
    old_state = PENDING if before is None else before.state
    if alert.state == RESOLVED:
        return "resolved"
    if alert.state == FIRING and old_state == PENDING:
        return "firing"
    is_bad = alert.state == FIRING and alert.ok_since is None
    if (
        is_bad
        and repeat_interval is not None
        and now - (alert.last_notified_at or 0.0) >= repeat_interval
    ):
        return "reminder"
    return None


def _is_undelivered(state: State, alert: Alert, receiver: str) -> bool:
    """Whether an earlier notification of the alert has not been delivered yet."""
    return any(
        notification.receiver == receiver and notification.message["alert"]["id"] == alert.id
        for notification in state.outbox
    )


def acknowledge(state: State, acks: Mapping[str, str | None]) -> State:
    """Acknowledge alerts: reminders stop, but receivers are notified when an alert resolves."""
    alerts = tuple(
        replace(alert, state=ACKNOWLEDGED, acknowledged_by=acks[alert.id])
        if alert.state == FIRING and alert.id in acks
        else alert
        for alert in state.alerts
    )
    return replace(state, alerts=alerts)
