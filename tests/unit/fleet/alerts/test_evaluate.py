"""Alerts on made-up readings and clocks: when they fire, when they are over, who hears of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.fleet.alerts import delivery
from headway.fleet.alerts.delivery import Channel, Command
from headway.fleet.alerts.evaluate import RESOLVED_AGE_S, SAME_CHANGE_S, acknowledge, evaluate
from headway.fleet.alerts.measure import HOUR, budget_use
from headway.fleet.alerts.rules import Rule, Rules
from headway.fleet.alerts.state import (
    ACKNOWLEDGED,
    FIRING,
    PENDING,
    RESOLVED,
    Alert,
    Sample,
    State,
    from_json,
    to_json,
)
from tests.support import examples

pytestmark = pytest.mark.timeout(120)
CHANNELS: dict[str, Channel] = {"x": Command(command=["x"]), "y": Command(command=["y"])}
START = 1_790_000_000.0
MIN = 60.0


def rules(**fields: Any) -> Rules:
    shape: dict[str, Any] = {
        "kind": "threshold",
        "window": 1.0,
        "keep_firing_for": 0.0,
        "receivers": ("x", "y"),
    }
    return Rules((Rule(name="r", **{**shape, **fields}),), CHANNELS)


def reading(where: str = "a", *, bad: bool = True, change_at: float | None = None) -> Sample:
    return Sample(where, bad, f"{where} is {'bad' if bad else 'good'}", change_at=change_at)


def looked(
    of: Rules, state: State, minute: float, *readings: Sample, asked: bool = True
) -> tuple[State, list[str]]:
    """The next state, and the events of the notifications that it has besides."""
    answers = {"r": list(readings) if asked else None}
    found = evaluate(of, answers, state, START + minute * MIN)
    events = [f"{one.message['event']} {one.receiver}" for one in found.notifications]
    return State(found.alerts, (*state.outbox, *found.notifications)), events


def only(state: State) -> Alert:
    (found,) = state.alerts
    return found


def test_it_fires_once_and_is_over_once() -> None:
    state, events = looked(rules(), State(), 0, reading())
    assert events == ["firing x", "firing y"] and only(state).state == FIRING
    state, events = looked(rules(), state, 1, reading())
    assert events == []
    state, events = looked(rules(), state, 2, reading(bad=False))
    assert events == ["resolved x", "resolved y"] and only(state).state == RESOLVED
    assert only(state).until == START + 2 * MIN and only(state).text == "a is good"
    state, events = looked(rules(), state, 3)
    assert events == []
    state, events = looked(rules(), state, 4, reading())
    assert events == ["firing x", "firing y"] and len({one.id for one in state.alerts}) == 2
    assert len({one.id for one in state.outbox}) == 3


def test_it_must_be_bad_for_long_enough_without_a_break() -> None:
    of = rules(for_s=10 * MIN)
    state, events = looked(of, State(), 0, reading())
    assert events == [] and only(state).state == PENDING
    state, _ = looked(of, state, 5, reading(bad=False))
    assert state.alerts == ()
    state, _ = looked(of, state, 6, reading())
    state, events = looked(of, state, 15, reading())
    assert events == []
    state, events = looked(of, state, 16, reading())
    assert events == ["firing x", "firing y"] and only(state).since == START + 6 * MIN


def test_what_goes_up_and_down_is_one_alert() -> None:
    of = rules(keep_firing_for=10 * MIN)
    state, told = State(), []
    for minute in range(60):
        state, events = looked(of, state, minute, reading(bad=minute % 7 < 2))
        told += events
    assert told == ["firing x", "firing y"]
    for minute in range(60, 75):
        state, events = looked(of, state, minute, reading(bad=False))
        told += events
    assert told[2:] == ["resolved x", "resolved y"]
    assert only(state).until == START + 58 * MIN  # since when it was good


def test_reminders_end_when_somebody_takes_it_on_and_its_end_is_told() -> None:
    of = rules(repeat_interval=30 * MIN)
    state, _ = looked(of, State(), 0, reading())
    state = replace(state, outbox=())
    state, events = looked(of, state, 29, reading())
    assert events == []
    state, events = looked(of, state, 30, reading())
    assert events == ["reminder x", "reminder y"]
    state = acknowledge(replace(state, outbox=()), {only(state).id: "kim"})
    assert (only(state).state, only(state).acknowledged_by) == (ACKNOWLEDGED, "kim")
    state, events = looked(of, state, 90, reading())
    assert events == [] and only(state).state == ACKNOWLEDGED
    state, events = looked(of, state, 91)
    assert events == ["resolved x", "resolved y"]


def test_a_channel_that_takes_nothing_is_not_reminded_on_top() -> None:
    of = rules(repeat_interval=30 * MIN)
    state, _ = looked(of, State(), 0, reading())
    (first,) = [one for one in state.outbox if one.receiver == "x"]
    state, events = looked(of, delivery.mark_delivered(state, first), 30, reading())
    assert events == ["reminder x"]


def test_a_rule_that_was_not_asked_changes_nothing() -> None:
    state, _ = looked(rules(), State(), 0, reading())
    assert looked(rules(), state, 60, asked=False) == (state, [])


def test_a_rule_that_is_gone_ends_its_alerts() -> None:
    state, _ = looked(rules(), State(), 0, reading())
    found = evaluate(Rules((), CHANNELS), {}, state, START + MIN)
    assert only(State(found.alerts)).state == RESOLVED
    assert only(State(found.alerts)).text.startswith("a is bad; ")
    assert [one.message["event"] for one in found.notifications] == ["resolved", "resolved"]
    assert evaluate(Rules((), {}), {}, state, START + MIN).notifications == ()


def test_slices_are_alerts_of_their_own() -> None:
    state, _ = looked(rules(), State(), 0, reading("a"), reading("b"))
    state, events = looked(rules(), state, 1, reading("b"))
    assert events == ["resolved x", "resolved y"]
    assert {one.slice: one.state for one in state.alerts} == {"a": RESOLVED, "b": FIRING}


def test_changes_that_lie_near_are_the_same_and_others_are_not() -> None:
    of, day = rules(kind="change"), 86400.0
    state, _ = looked(of, State(), 0, reading(change_at=START - 9 * day))
    near = START - 9 * day + SAME_CHANGE_S - 1
    state, events = looked(of, state, 1, reading(change_at=near))
    assert events == [] and only(state).change_at == START - 9 * day
    both = (reading(change_at=START - day), reading(change_at=START - 9 * day))
    state, events = looked(of, state, 2, *both)
    assert events == ["firing x", "firing y"] and len(state.alerts) == 2
    state, _ = looked(of, State(), 0, *both)
    assert len({one.id for one in state.alerts}) == 2


def test_what_is_over_is_forgotten_after_a_month() -> None:
    state, _ = looked(rules(), State(), 0, reading())
    state, _ = looked(rules(), state, 1)
    later, _ = looked(rules(), state, 1 + (RESOLVED_AGE_S - 1) / MIN)
    assert len(later.alerts) == 1
    assert looked(rules(), later, 1 + RESOLVED_AGE_S / MIN)[0].alerts == ()


def test_a_clock_that_was_set_back_gives_no_id_twice() -> None:
    state, _ = looked(rules(), State(), 0, reading())
    state, _ = looked(rules(), state, 0)
    state, _ = looked(rules(), state, 0, reading())
    assert len({one.id for one in state.alerts}) == 2


# -- how long a limit was not kept ----------------------------------------------------------


def hours(text: str) -> dict[float, bool]:
    """`#` is a bad hour, `.` a good one, a blank one of which nothing is known."""
    return {i * HOUR: mark == "#" for i, mark in enumerate(text) if mark != " "}


@pytest.mark.parametrize(
    ("known", "now", "over", "bad"),
    [
        ("###", 2.5, 2, 2),
        ("##.", 2.5, 2, 1.5),
        ("##", 2.5, 2, 2),  # the hour that is not over is as the one before it
        ("#", 2.5, 2, 0.5),  # but one that is over and empty is not
        ("# #", 2.5, 2, 2),
        (". #", 2.5, 2, 0.5),
        ("", 2.5, 2, 0),
        ("#.#.#.#.", 8, 8, 4),
        ("#       ", 8, 2, 0),
    ],
)
def test_bad_hours_add_up(known: str, now: float, over: float, bad: float) -> None:
    found = budget_use(hours(known), now * HOUR, over * HOUR)
    assert found.seconds == pytest.approx(bad * HOUR)
    assert (found.since is None) == (bad == 0)


# -- killed at any instant ------------------------------------------------------------------


class Killed(Exception):
    """kill -9."""


class World:
    """The loop of watch.py by hand: what is on disk, what is in memory, what receivers got."""

    def __init__(self, of: Rules) -> None:
        self.of, self.now, self.kills = of, START, 0
        self.disk = json.dumps(to_json(State()))
        self.got: list[tuple[str, str, str]] = []  # channel, message id, event
        self.fired: set[str] = set()
        self.acked: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        self.state = from_json(json.loads(self.disk))

    def keep(self, state: State, killed: bool) -> None:
        if killed:
            raise Killed
        self.disk, self.state = json.dumps(to_json(state)), state
        self.fired |= {one.id for one in state.alerts if one.state != PENDING}
        live = [one.slice for one in state.alerts if one.state != RESOLVED]
        assert len(live) == len(set(live))

    def look(self, bad: dict[str, bool] | None, killed: bool) -> None:
        readings = None if bad is None else [reading(one, bad=b) for one, b in bad.items()]
        found = evaluate(self.of, {"r": readings}, self.state, self.now)
        self.keep(State(found.alerts, (*self.state.outbox, *found.notifications)), killed)

    def send(self, how: str) -> None:
        for one in delivery.due_notifications(self.state, self.now, ()):
            if how == "refused":
                self.keep(delivery.mark_failed(self.state, one, "no", self.now), False)
                continue
            self.got.append((one.receiver, one.id, one.message["event"]))
            self.keep(delivery.mark_delivered(self.state, one), how == "killed")

    def ack(self) -> None:
        firing = [one for one in self.state.alerts if one.state == FIRING]
        if firing:
            self.keep(acknowledge(self.state, {firing[0].id: "kim"}), False)
            self.acked[firing[0].id] = firing[0].count


# Plain choices, the usual ones more often: else most examples would never come to fire.
ANSWERS: tuple[dict[str, bool] | None, ...] = (
    *({"a": True}, {"a": True}, {"a": False}, {"a": True, "b": True}, {"b": False}),
    *({}, None),
)
STEPS = (
    *(("look", answer, False) for answer in ANSWERS),
    *(("look", answer, True) for answer in ANSWERS[:3]),
    *(("wait", seconds) for seconds in (1.0, 60.0, 60.0, 130.0, 700.0)),
    *(("send", how) for how in ("taken", "taken", "refused", "killed")),
    ("ack",),
    ("restart",),
)
SHAPES = st.fixed_dictionaries(
    {
        "for_s": st.sampled_from([0.0, 60.0]),
        "keep_firing_for": st.sampled_from([0.0, 120.0]),
        "repeat_interval": st.sampled_from([None, 60.0]),
    }
)


@settings(max_examples=examples(300), deadline=None)
@given(shape=SHAPES, steps=st.lists(st.sampled_from(STEPS), min_size=20, max_size=60))
def test_whatever_is_killed_nothing_is_lost_and_nothing_told_twice(
    shape: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    world = World(rules(**shape))
    for kind, *what in steps:
        try:
            if kind == "wait":
                world.now += what[0]
            elif kind == "restart":
                world.start()
            else:
                getattr(world, kind)(*what)
        except Killed:
            world.kills += 1
            world.start()
    while world.state.outbox:
        world.now += 700.0
        world.send("taken")

    for to in CHANNELS:
        mine = [(id_, event) for channel, id_, event in world.got if channel == to]
        by_alert: dict[str, list[tuple[str, str]]] = {}
        for id_, event in dict.fromkeys(mine):  # what a receiver that knows ids has left
            by_alert.setdefault(id_.partition(".")[0], []).append((id_, event))
        assert by_alert.keys() == world.fired
        for events in by_alert.values():
            names = [event for _, event in events]
            assert names[0] == "firing" and names.count("firing") == 1
            assert "resolved" not in names[:-1]
            counts = [int(id_.partition(".")[2]) for id_, _ in events]
            assert counts == sorted(set(counts))
        for alert, count in world.acked.items():
            late = [event for id_, event in by_alert[alert] if int(id_.partition(".")[2]) > count]
            assert late in ([], ["resolved"])
    repeated = sum(times - 1 for times in Counter(world.got).values())
    assert repeated <= world.kills
