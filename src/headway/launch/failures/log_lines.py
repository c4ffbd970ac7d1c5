"""Parse one line of a log: its text without colors and prefixes, its rank, node, time and level."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import NamedTuple

MAX_CHARACTERS = 8192  # characters of a line that are read

_COLOR = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])|[\x00-\x08\x0b\x0e-\x1a]"
)
_DATE = (
    r"(?P<year>(?:19|20)\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _-]"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<part>[.,]\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NAMES = "|".join(_MONTHS)
# Prefixes, which may be repeated.
_PREFIXES = tuple(
    re.compile(text)
    for text in (
        r"\[rank ?(?P<rank>\d+)\]:? ?",
        r"\[default(?P<rank>\d+)\]: ?",
        r"\[\d+,(?P<rank>\d+)\]<std(?:err|out)>:? ?",
        r"\((?:[\w.<>:$-]+ )?pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\) ?",
        r"\((?:raylet|autoscaler)(?:, ip=(?P<node>[\w.:-]+))?\) ?",
        r" {0,5}(?P<rank>\d{1,5}): (?=\S| )",
        rf"\[?{_DATE}\]?:?(?: UTC)?(?: \||,)? ?",
        rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(?P<name>{_NAMES}) +(?P<day>\d\d?)"
        r" (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<part>\.\d+)?"
        r"(?: (?P<node>[\w.-]+) (?P<by>[\w./-]+)(?:\[\d+\])?:)? ",
        rf"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<name>{_NAMES}) +(?P<day>\d\d?)"
        r" (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) (?P<year>\d{4})\] ?",
        r"\[ *(?P<uptime>\d+\.\d{3,6})\] ?",
        r"\[pod/(?P<node>[^/\]]+)(?:/[^\]]+)?\] ?",
        r"(?P<node>[a-zA-Z][\w-]*-\d+|[a-zA-Z][\w.-]*\d) +\| ",
        r"(?P<node>\d{1,3}(?:\.\d{1,3}){3}): ",
        r"(?P<node>(?![\w.-]*[Ee]rror:|python|s3|gs|nvme|sd|eth|ib|mlx|torch|cuda|int|fp|bf|step|epoch|layer)"
        r"(?:[a-z][a-z_-]*\d[\w.-]*|[a-z]\w*-[\w.-]*\d)): (?=\S| )",
        r"\d\d:\d\d:\d\d(?:[.,]\d+)? ",
        r"\[\d{1,9}\] (?=\[|\S)",
        r"(?:> )+",
        r"(?:\s*[|+] )+",
        r"kernel: ",
    )
)
# glog, as torch writes it: a level, a date without its year, a place.
_GLOG = re.compile(
    r"\[?(?P<level>[EWIF])(?:(?P<month>\d\d?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):"
    r"(?P<second>\d\d)(?P<part>\.\d+)?)?(?: +\d+)? (?:[\w./-]+\.(?:cpp|cc|py|h|cu):\d+)\] ?"
)
_RANK = re.compile(r"\[(?:[^\[\]]{0,120} )?[Rr]ank:? ?(\d+)\]|\blocal_rank: (\d+)|\(RANK (\d+)\)")
_LEVELS = {"E": "error", "F": "error", "W": "warning", "I": "info"}
_MESSAGE = ("message", "msg", "log", "error", "textPayload", "event")
_TIME = ("time", "ts", "timestamp", "@timestamp", "asctime")


# A line of JSON that spans several lines: the value of its message.
_VALUE = re.compile(
    r"""^\s*["'](?:message|msg|error|exception|reason)["']\s*:\s*["'](.*?)["']?,?\s*$"""
)


class Line(NamedTuple):
    """The text of a line and the values in its prefixes."""

    text: str
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    level: str = ""
    kernel: bool = False


def parse(raw: bytes, year: int | None = None) -> Line:
    """Parse a line; bytes that are not UTF-8 are replaced."""
    text = raw[: MAX_CHARACTERS * 4].decode("utf-8", "replace")[:MAX_CHARACTERS].rstrip()
    if "\x1b" in text or any(mark in text for mark in "\x00\x07\x08"):
        text = _COLOR.sub("", text)
    year = year or time.localtime().tm_year
    if text.lstrip().startswith('{"'):
        return _of_json(text, year)
    return _of_text(text, year)


def _of_text(text: str, year: int) -> Line:
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    level, kernel = "", False
    for _ in range(8):
        match = next((match for regex in _PREFIXES if (match := regex.match(text))), None)
        if match is None:
            match = _GLOG.match(text)
            if match is None:
                break
            level = level or _LEVELS[match["level"]]
        names = match.groupdict()
        if names.get("rank") is not None and rank is None:
            rank = int(names["rank"])
        node = node or names.get("node")
        kernel = (
            kernel
            or names.get("by") == "kernel"
            or "uptime" in names
            or text.startswith("kernel: ")
        )
        at = at if at is not None or not names.get("hour") else _seconds(names, year)
        text = text[match.end() :]
    if '": "' in text and (value := _VALUE.match(text)):
        text = value[1]
    if rank is None and (rank_match := _RANK.search(text[:400])):
        rank = next(int(group) for group in rank_match.groups() if group is not None)
    return Line(text, rank, node, at, level, kernel)


def _seconds(names: dict[str, str | None], year: int) -> float | None:
    name = names.get("name")
    month = str(_MONTHS.index(name) + 1) if name else names.get("month")
    parts = (
        names.get("year") or year,
        month,
        names["day"],
        names["hour"],
        names["minute"],
        names["second"],
    )
    try:
        moment = datetime(*(int(part or 0) for part in parts))  # type: ignore[arg-type]
    except ValueError:
        return None
    zone = names.get("zone")
    if zone == "Z":
        moment = moment.replace(tzinfo=UTC)
    elif zone:
        moment = datetime.strptime(
            f"{moment:%Y%m%d%H%M%S}{zone.replace(':', '')}", "%Y%m%d%H%M%S%z"
        )
    return moment.timestamp() + float((names.get("part") or "0").replace(",", "."))


def _of_json(text: str, year: int) -> Line:
    """A line of a structured log: its message if it has one."""
    try:
        content = json.loads(text)
    except ValueError:
        return _of_text(text, year)
    if not isinstance(content, dict):
        return _of_text(text, year)
    messages = [
        str(content[key]) for key in (*_MESSAGE, "exception", "exc_info") if content.get(key)
    ]
    if not messages:
        return _of_text(text, year)
    line = _of_text(" ".join(messages), year)
    rank = content.get("rank")
    level = str(
        content.get("level") or content.get("severity") or content.get("levelname") or ""
    ).lower()
    at = next((_of_text(f"{content[key]} ", year).at for key in _TIME if content.get(key)), None)
    return line._replace(
        rank=rank if isinstance(rank, int) else line.rank,
        at=line.at if at is None else at,
        level=level if level in _LEVELS.values() else line.level,
    )
