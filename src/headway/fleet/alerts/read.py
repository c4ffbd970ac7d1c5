"""A rules file, read strictly: what is not known, or does not fit, is told with its line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from headway.errors import UsageError
from headway.fleet.alerts import toml
from headway.fleet.alerts.channels import KINDS as CHANNELS
from headway.fleet.alerts.channels import Channel
from headway.fleet.alerts.figures import FIGURES
from headway.fleet.alerts.rules import DAY, Rule, Rules, listed
from headway.fleet.alerts.spans import seconds
from headway.fleet.queries.slices import OF_RUNS

KINDS = ("threshold", "change", "burn")
SEVERITIES = ("info", "warning", "critical")
CHANGES = ("slices", "running", "hosts")
HOUR = 3600.0
OVER = {"threshold": DAY, "change": 7 * DAY}
CLEAR = {"threshold": HOUR / 2, "change": DAY, "burn": HOUR / 2}

EVERY = ("name", "kind", "where", "by", "for", "clear_for", "over", "severity", "to", "renotify")
OWN = {
    "threshold": ("metric", "above", "below", "least_jobs"),
    "burn": ("metric", "above", "below", "least_jobs"),
    "change": ("of", "points", "level", "history"),
}

Keys = tuple["str | int", ...]


def read(text: str, name: str) -> Rules:
    """A rules file; UsageError with the line for whatever is wrong in it."""
    found = toml.parse(text, name)
    reader = _Reader(text, name)
    reader.keys(found, ("rule", "to"), ())
    channels = {
        one: _channel(reader, one, table) for one, table in reader.tables(found, "to").items()
    }
    given = found.get("rule", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise reader.wrong(("rule",), "rules are written as [[rule]]")
    if not given:
        raise UsageError(f"{name} has no [[rule]]; give it one")
    rules: list[Rule] = []
    for number, table in enumerate(given):
        rule = _rule(reader, ("rule", number), table, channels)
        if rule.name in {one.name for one in rules}:
            raise reader.wrong(
                ("rule", number, "name"), f"there are two rules of the name {rule.name!r}"
            )
        rules.append(rule)
    return Rules(tuple(rules), channels)


class _Reader:
    """Values of a TOML table, each with what it must be."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name

    def wrong(self, path: Keys, why: str) -> UsageError:
        """The sentence, with the line of what stands at that path."""
        return UsageError(f"{self._name} line {toml.line(self._text, path)}: {why}")

    def keys(self, table: Mapping[str, Any], known: Sequence[str], path: Keys) -> None:
        """Nothing but what is known."""
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known are {listed(known)}"
                raise self.wrong((*path, key), f"{key!r} is not known here{hint}")

    def tables(self, table: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
        """Named tables below a key."""
        found = table.get(key, {})
        if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
            raise self.wrong((key,), f"channels are written as [{key}.NAME]")
        return found

    def one(
        self, table: Mapping[str, Any], path: Keys, what: str, fits: Callable[[Any], bool]
    ) -> Any:
        """A value that has to fit."""
        value = table[str(path[-1])]
        if not fits(value):
            raise self.wrong(path, f"{path[-1]!r} is {value!r}, but it must be {what}")
        return value

    def span(self, table: Mapping[str, Any], path: Keys, otherwise: float) -> float:
        """A duration."""
        if path[-1] not in table:
            return otherwise
        text = self.one(
            table, path, "a time such as 5min, 2h or 7d", lambda v: seconds(v) is not None
        )
        return seconds(text) or 0.0

    def names(self, table: Mapping[str, Any], path: Keys, known: Sequence[str]) -> tuple[str, ...]:
        """A list of words out of those that are known; one alone needs no list."""
        value = table.get(str(path[-1]), [])
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(one in known for one in found):
            some = f"names out of {listed(known)}" if known else "empty: no channel is defined"
            raise self.wrong(path, f"{path[-1]!r} is {value!r}, but it must be {some}")
        return tuple(dict.fromkeys(found))


def _rule(
    reader: _Reader, path: Keys, table: Mapping[str, Any], channels: Mapping[str, Channel]
) -> Rule:
    for key in ("name", "kind"):
        if key not in table:
            raise reader.wrong(path, f"this rule has no {key!r}")
    reader.one(table, (*path, "name"), "a text", lambda v: isinstance(v, str) and v.strip() != "")
    kind = reader.one(table, (*path, "kind"), f"one of {listed(KINDS)}", lambda v: v in KINDS)
    reader.keys(table, (*EVERY, *OWN[kind]), path)
    hold = reader.span(table, (*path, "for"), 0.0)
    over = reader.span(table, (*path, "over"), OVER.get(kind, hold))
    if over <= 0 and kind != "burn":
        raise reader.wrong((*path, "over"), "'over' must be above 0")
    shared = {
        "name": table["name"].strip(),
        "kind": kind,
        "where": _where(reader, path, table),
        "by": reader.names(table, (*path, "by"), OF_RUNS),
        "hold": hold,
        "clear": reader.span(table, (*path, "clear_for"), CLEAR[kind]),
        "over": over,
        "to": reader.names(table, (*path, "to"), tuple(channels)),
        "renotify": reader.span(table, (*path, "renotify"), 0.0) or None,
    }
    if "severity" in table:
        allowed = f"one of {listed(SEVERITIES)}"
        shared["severity"] = reader.one(
            table, (*path, "severity"), allowed, lambda v: v in SEVERITIES
        )
    own = _change(reader, path, table) if kind == "change" else _limit(reader, path, table)
    rule = Rule(**{**shared, **own})
    if kind == "burn" and not HOUR <= rule.hold <= rule.over:
        raise reader.wrong(
            path, "a burn needs a 'for' of 1h or more, and an 'over' that is not shorter"
        )
    return rule


def _where(reader: _Reader, path: Keys, table: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = table.get("where", {})
    if not isinstance(found, dict):
        raise reader.wrong((*path, "where"), "'where' is written as { team = \"ads\" }")
    reader.keys(found, OF_RUNS, (*path, "where"))
    for name in found:
        reader.one(found, (*path, "where", name), "a text", lambda v: isinstance(v, str))
    return tuple(found.items())


def _limit(reader: _Reader, path: Keys, table: Mapping[str, Any]) -> dict[str, Any]:
    """What only rules about a figure have."""
    if "metric" not in table:
        raise reader.wrong(path, "this rule has no 'metric'")
    known = f"one of {listed(tuple(FIGURES))}"
    metric = reader.one(
        table, (*path, "metric"), known, lambda v: isinstance(v, str) and v in FIGURES
    )
    sides = [side for side in ("above", "below") if side in table]
    if len(sides) != 1:
        raise reader.wrong(path, "a rule has either 'above' or 'below'")
    time = FIGURES[metric].unit == "s"
    what = "a time such as 5min, or seconds" if time else "a number"
    given = reader.one(
        table,
        (*path, sides[0]),
        what,
        lambda v: _number(v) or (time and seconds(v) is not None),
    )
    value = seconds(given) if isinstance(given, str) else float(given)
    found: dict[str, Any] = {"metric": metric, sides[0]: value}
    if "least_jobs" in table:
        found["least_jobs"] = reader.one(
            table, (*path, "least_jobs"), "1 or more", lambda v: type(v) is int and v >= 1
        )
    return found


def _change(reader: _Reader, path: Keys, table: Mapping[str, Any]) -> dict[str, Any]:
    """What only rules about changes have."""
    found: dict[str, Any] = {"history": reader.span(table, (*path, "history"), Rule.history)}
    if not table.get("by"):
        found["by"] = ("team", "model")
    if "of" in table:
        found["of"] = reader.names(table, (*path, "of"), CHANGES)
    if "points" in table:
        found["points"] = float(
            reader.one(table, (*path, "points"), "0 or more", lambda v: _number(v) and v >= 0)
        )
    if "level" in table:
        found["level"] = float(
            reader.one(
                table, (*path, "level"), "between 0 and 1", lambda v: _number(v) and 0 < v < 1
            )
        )
    return found


def _channel(reader: _Reader, name: str, table: Mapping[str, Any]) -> Channel:
    kinds = [kind for kind in CHANNELS if kind in table]
    if len(kinds) != 1:
        raise reader.wrong(("to", name), f"a channel has one of {listed(tuple(CHANNELS))}")
    kind = CHANNELS[kinds[0]]
    reader.keys(table, tuple(one.name for one in fields(kind)), ("to", name))
    for key, value in table.items():
        why = kind.wrong(key, value)
        if why:
            raise reader.wrong(("to", name, key), f"{key!r} {why}")
    for one in fields(kind):
        if one.name not in table and one.default is one.default_factory is MISSING:
            raise reader.wrong(("to", name), f"this channel has no {one.name!r}")
    try:
        return kind(**table)
    except ValueError as error:
        raise reader.wrong(("to", name), str(error)) from None


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -1e300 < value < 1e300
