"""The queue of notifications: in order for each channel, each until it is taken."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headway.fleet.alerts.model import Notification, State

FIRST_RETRY_S, MAX_RETRY_S = 2.0, 600.0  # between two tries


def due_notifications(state: State, now: float, busy: Collection[str]) -> list[Notification]:
    """The next one of each channel that is at leisure; a later one never overtakes it."""
    heads: dict[str, Notification] = {}
    for one in state.outbox:
        heads.setdefault(one.to, one)
    return [one for to, one in heads.items() if to not in busy and one.due <= now]


def mark_delivered(state: State, one: Notification) -> State:
    """It is delivered."""
    return replace(
        state,
        outbox=tuple(x for x in state.outbox if _notification_key(x) != _notification_key(one)),
    )


def mark_failed(state: State, one: Notification, why: str, now: float) -> State:
    """It is tried again, each time after twice as long."""
    wait = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(one.tries, 20))
    failed = replace(one, tries=one.tries + 1, due=now + wait, why=why)
    outbox = tuple(
        failed if _notification_key(x) == _notification_key(one) else x for x in state.outbox
    )
    return replace(state, outbox=outbox)


def drop_unknown_receivers(
    state: State, channels: Collection[str]
) -> tuple[State, list[Notification]]:
    """Without what is for channels that are no longer there, and what that was."""
    dropped = [one for one in state.outbox if one.to not in channels]
    return replace(state, outbox=tuple(x for x in state.outbox if x.to in channels)), dropped


def _notification_key(one: Notification) -> tuple[str, str]:
    return one.id, one.to
