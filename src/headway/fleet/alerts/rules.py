"""Alert rules, and the strict reader of a rules file.

Unknown keys and invalid values are errors that name the line of the TOML file.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from headway.errors import UsageError
from headway.fleet.alerts.delivery import CHANNEL_KINDS as CHANNELS
from headway.fleet.alerts.delivery import Channel
from headway.fleet.metrics import ALERT_METRICS, AlertMetric
from headway.fleet.queries.dimensions import RUN_DIMENSIONS
from headway.units import format_duration, parse_duration

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An alert rule; times are in seconds."""

    name: str
    kind: str
    where: tuple[tuple[str, str], ...] = ()
    by: tuple[str, ...] = ()
    for_s: float = 0.0  # violated for this long before it fires; key `for`
    keep_firing_for: float  # not violated for this long before it resolves; key `clear_for`
    window: float  # time that is measured; of a change: its maximum age; key `over`
    severity: str = "warning"
    receivers: tuple[str, ...] = ()  # key `to`
    repeat_interval: float | None = None  # of reminders; key `renotify`
    metric: str = ""
    above: float | None = None
    below: float | None = None
    min_jobs: int = 1  # key `least_jobs`
    of: tuple[str, ...] = ("slices", "running")
    min_change: float = 0.5  # in points; key `points`
    fdr: float = 0.05  # key `level`
    history: float = 90 * DAY

    @property
    def metric_def(self) -> AlertMetric:
        """The metric of a threshold or burn rule."""
        return ALERT_METRICS[self.metric]

    def is_violated(self, value: float) -> bool:
        """Whether a value is beyond the limit."""
        return (self.above is not None and value > self.above) or (
            self.below is not None and value < self.below
        )

    @property
    def limit(self) -> str:
        """The limit in words, such as `above 5min`."""
        side, value = ("above", self.above) if self.above is not None else ("below", self.below)
        return f"{side} {self.metric_def.text(value or 0.0)}"

    def describe(self) -> str:
        """The rule in one line."""
        subject = (
            f"{self.metric_def.label} {self.limit}"
            if self.metric
            else f"changes of {join_names(self.of)}"
        )
        where = " ".join(f"{name}={value}" for name, value in self.where)
        group_by = f" by {','.join(self.by)}" if self.by else ""
        duration = f" for {format_duration(self.for_s)}" if self.for_s else ""
        receivers = join_names(self.receivers) if self.receivers else "no receiver"
        return (
            f"{self.name}: {self.kind}, {subject} of {where or 'all'}{group_by}{duration} "
            f"over {format_duration(self.window)}; {self.severity}, to {receivers}"
        )


@dataclass(frozen=True)
class Rules:
    """All rules and receivers of a file."""

    rules: tuple[Rule, ...] = ()
    channels: Mapping[str, Channel] = field(default_factory=dict)


def join_names(names: Sequence[str]) -> str:
    return ", ".join(names)


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML; UsageError if it is invalid."""
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not valid TOML: {error}", code="toml-invalid") from None
    return content


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The first line of the value at a path: up to there the text must contain it."""
    lines, begin = text.splitlines(), 1
    for number in range(1, len(lines) + 1):
        try:
            content = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a multi-line value
        if _has_path(content, path):
            return begin
        begin = number + 1
    return begin


def _has_path(node: Any, path: Sequence[str | int]) -> bool:
    for part in path:
        if isinstance(part, int):
            if not isinstance(node, list) or len(node) <= part:
                return False
        elif not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


RULE_KINDS = ("threshold", "change", "burn")
SEVERITIES = ("info", "warning", "critical")
CHANGE_SUBJECTS = ("slices", "running", "hosts")
HOUR = 3600.0
DEFAULT_OVER = {"threshold": DAY, "change": 7 * DAY}
DEFAULT_CLEAR = {"threshold": HOUR / 2, "change": DAY, "burn": HOUR / 2}

COMMON_KEYS = (
    "name",
    "kind",
    "where",
    "by",
    "for",
    "clear_for",
    "over",
    "severity",
    "to",
    "renotify",
)
KIND_KEYS = {
    "threshold": ("metric", "above", "below", "least_jobs"),
    "burn": ("metric", "above", "below", "least_jobs"),
    "change": ("of", "points", "level", "history"),
}

KeyPath = tuple["str | int", ...]


def read_rules(text: str, name: str) -> Rules:
    """Read a rules file; UsageError with the line number if it is invalid."""
    content = parse_toml(text, name)
    reader = _TableReader(text, name)
    reader.keys(content, ("rule", "to"), ())
    channels = {
        name: _channel(reader, name, table) for name, table in reader.tables(content, "to").items()
    }
    tables = content.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise reader.wrong("rules are written as [[rule]]", ("rule",), code="rules-not-a-list")
    if not tables:
        raise UsageError(f"{name} has no [[rule]]; add one", code="rules-empty")
    rules: list[Rule] = []
    for number, table in enumerate(tables):
        rule = _rule(reader, ("rule", number), table, channels)
        if rule.name in {other.name for other in rules}:
            raise reader.wrong(
                f"two rules have the name {rule.name!r}",
                ("rule", number, "name"),
                code="rule-name-duplicate",
            )
        rules.append(rule)
    return Rules(tuple(rules), channels)


class _TableReader:
    """Checked access to the values of TOML tables."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name

    def wrong(self, reason: str, path: KeyPath, *, code: str, **fields: object) -> UsageError:
        """The error with the line number of the value at `path`."""
        line = line_of(self._text, path)
        return UsageError(f"{self._name} line {line}: {reason}", code=code, line=line, **fields)

    def keys(self, table: Mapping[str, Any], known: Sequence[str], path: KeyPath) -> None:
        """Raise an error for an unknown key."""
        for key in table:
            if key not in known:
                near = next(iter(difflib.get_close_matches(key, known, 1)), None)
                hint = (
                    f"; did you mean {near!r}?" if near else f"; known keys are {join_names(known)}"
                )
                raise self.wrong(
                    f"unknown key {key!r}{hint}",
                    (*path, key),
                    code="rule-key-unknown",
                    key=key,
                    near=near,
                )

    def tables(self, table: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
        """The named tables below a key."""
        value = table.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
            raise self.wrong(
                f"channels are written as [{key}.NAME]", (key,), code="channels-not-tables"
            )
        return value

    def value(
        self,
        table: Mapping[str, Any],
        path: KeyPath,
        expected: str,
        is_valid: Callable[[Any], bool],
    ) -> Any:
        """A value that must be valid."""
        value = table[str(path[-1])]
        if not is_valid(value):
            raise self.wrong(
                f"{path[-1]!r} is {value!r}, but it must be {expected}",
                path,
                code="rule-value-invalid",
                key=path[-1],
            )
        return value

    def span(self, table: Mapping[str, Any], path: KeyPath, otherwise: float) -> float:
        """A duration in seconds."""
        if path[-1] not in table:
            return otherwise
        text = self.value(
            table, path, "a time such as 5min, 2h or 7d", lambda v: parse_duration(v) is not None
        )
        return parse_duration(text) or 0.0

    def names(
        self, table: Mapping[str, Any], path: KeyPath, known: Sequence[str]
    ) -> tuple[str, ...]:
        """A list of known names, or a single name."""
        value = table.get(str(path[-1]), [])
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(name in known for name in names):
            allowed = (
                f"names from {join_names(known)}" if known else "empty, as no channel is defined"
            )
            raise self.wrong(
                f"{path[-1]!r} is {value!r}, but it must be {allowed}",
                path,
                code="rule-value-invalid",
                key=path[-1],
            )
        return tuple(dict.fromkeys(names))


def _rule(
    reader: _TableReader, path: KeyPath, table: Mapping[str, Any], channels: Mapping[str, Channel]
) -> Rule:
    for key in ("name", "kind"):
        if key not in table:
            raise reader.wrong(f"this rule has no {key!r}", path, code="rule-key-missing", key=key)
    reader.value(
        table, (*path, "name"), "a string", lambda v: isinstance(v, str) and v.strip() != ""
    )
    kind = reader.value(
        table, (*path, "kind"), f"one of {join_names(RULE_KINDS)}", lambda v: v in RULE_KINDS
    )
    reader.keys(table, (*COMMON_KEYS, *KIND_KEYS[kind]), path)
    for_s = reader.span(table, (*path, "for"), 0.0)
    over = reader.span(table, (*path, "over"), DEFAULT_OVER.get(kind, for_s))
    if over <= 0 and kind != "burn":
        raise reader.wrong(
            "'over' must be above 0", (*path, "over"), code="rule-value-invalid", key="over"
        )
    shared = {
        "name": table["name"].strip(),
        "kind": kind,
        "where": _where(reader, path, table),
        "by": reader.names(table, (*path, "by"), RUN_DIMENSIONS),
        "for_s": for_s,
        "keep_firing_for": reader.span(table, (*path, "clear_for"), DEFAULT_CLEAR[kind]),
        "window": over,
        "receivers": reader.names(table, (*path, "to"), tuple(channels)),
        "repeat_interval": reader.span(table, (*path, "renotify"), 0.0) or None,
    }
    if "severity" in table:
        allowed = f"one of {join_names(SEVERITIES)}"
        shared["severity"] = reader.value(
            table, (*path, "severity"), allowed, lambda v: v in SEVERITIES
        )
    specific = _change(reader, path, table) if kind == "change" else _limit(reader, path, table)
    rule = Rule(**{**shared, **specific})
    if kind == "burn" and not HOUR <= rule.for_s <= rule.window:
        raise reader.wrong(
            "a burn rule needs 'for' of at least 1h, and 'over' must not be shorter than 'for'",
            path,
            code="rule-burn-too-short",
        )
    return rule


def _where(
    reader: _TableReader, path: KeyPath, table: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    where = table.get("where", {})
    if not isinstance(where, dict):
        raise reader.wrong(
            "'where' is written as { team = \"ads\" }",
            (*path, "where"),
            code="rule-value-invalid",
            key="where",
        )
    reader.keys(where, RUN_DIMENSIONS, (*path, "where"))
    for name in where:
        reader.value(where, (*path, "where", name), "a string", lambda v: isinstance(v, str))
    return tuple(where.items())


def _limit(reader: _TableReader, path: KeyPath, table: Mapping[str, Any]) -> dict[str, Any]:
    """The options of threshold and burn rules."""
    if "metric" not in table:
        raise reader.wrong("this rule has no 'metric'", path, code="rule-key-missing", key="metric")
    expected = f"one of {join_names(tuple(ALERT_METRICS))}"
    metric = reader.value(
        table, (*path, "metric"), expected, lambda v: isinstance(v, str) and v in ALERT_METRICS
    )
    sides = [side for side in ("above", "below") if side in table]
    if len(sides) != 1:
        raise reader.wrong(
            "a rule needs either 'above' or 'below'", path, code="rule-limit-ambiguous"
        )
    is_duration = ALERT_METRICS[metric].unit == "s"
    expected_value = "a time such as 5min, or seconds" if is_duration else "a number"
    limit = reader.value(
        table,
        (*path, sides[0]),
        expected_value,
        lambda v: _number(v) or (is_duration and parse_duration(v) is not None),
    )
    value = parse_duration(limit) if isinstance(limit, str) else float(limit)
    options: dict[str, Any] = {"metric": metric, sides[0]: value}
    if "least_jobs" in table:
        options["min_jobs"] = reader.value(
            table, (*path, "least_jobs"), "1 or more", lambda v: type(v) is int and v >= 1
        )
    return options


def _change(reader: _TableReader, path: KeyPath, table: Mapping[str, Any]) -> dict[str, Any]:
    """The options of change rules."""
    options: dict[str, Any] = {"history": reader.span(table, (*path, "history"), Rule.history)}
    if not table.get("by"):
        options["by"] = ("team", "model")
    if "of" in table:
        options["of"] = reader.names(table, (*path, "of"), CHANGE_SUBJECTS)
    if "points" in table:
        options["min_change"] = float(
            reader.value(table, (*path, "points"), "0 or more", lambda v: _number(v) and v >= 0)
        )
    if "level" in table:
        options["fdr"] = float(
            reader.value(
                table, (*path, "level"), "between 0 and 1", lambda v: _number(v) and 0 < v < 1
            )
        )
    return options


def _channel(reader: _TableReader, name: str, table: Mapping[str, Any]) -> Channel:
    kinds = [kind for kind in CHANNELS if kind in table]
    if len(kinds) != 1:
        raise reader.wrong(
            f"a channel needs exactly one of {join_names(tuple(CHANNELS))}",
            ("to", name),
            code="channel-kind-ambiguous",
        )
    kind = CHANNELS[kinds[0]]
    reader.keys(table, tuple(option.name for option in fields(kind)), ("to", name))
    for key, value in table.items():
        problem = kind.wrong(key, value)
        if problem:
            raise reader.wrong(
                f"{key!r} {problem}", ("to", name, key), code="channel-value-invalid", key=key
            )
    for option in fields(kind):
        if option.name not in table and option.default is option.default_factory is MISSING:
            raise reader.wrong(
                f"this channel has no {option.name!r}",
                ("to", name),
                code="channel-key-missing",
                key=option.name,
            )
    try:
        return kind(**table)
    except ValueError as error:
        raise reader.wrong(str(error), ("to", name), code="channel-invalid") from None


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -1e300 < value < 1e300
