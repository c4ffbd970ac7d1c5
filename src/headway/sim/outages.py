"""Outages of nodes: faults as StepFun recorded them, and spot nodes as Bamboo recorded them.

The fault trace has 584 faults of 400 servers in 348 days. Of a spot trace only the number of nodes
over time is used: the same share of the simulated spot nodes is available. See data/NOTICE.md.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path

from headway.errors import UsageError


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is unavailable from `start` to `end`, announced `notice` seconds before."""

    node: int
    start: float
    end: float
    notice: float = 0.0


FAULT_FILE = Path(__file__).parent / "data" / "fault_trace.json.gz"
FAULT_SERVERS, FAULT_DAYS = 400, 348.0
DAY = 86400.0


def read_faults(path: Path = FAULT_FILE) -> list[list[tuple[float, float]]]:
    """The faults of each server, as start and end in days; an empty list if it has none."""
    try:
        with gzip.open(path, "rt") as file:
            events = sorted(json.load(file), key=lambda event: event["event_time"])
        faults: dict[str, list[tuple[float, float]]] = {}
        open_faults: dict[str, float] = {}
        for event in events:
            node, at = event["node_id"], float(event["event_time"])
            if event["event_type"] == "fault_start":
                open_faults.setdefault(node, at)
            elif node in open_faults:
                faults.setdefault(node, []).append((open_faults.pop(node), at))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a fault trace: {error}", code="trace-invalid") from error
    for node, at in open_faults.items():
        faults.setdefault(node, []).append((at, FAULT_DAYS))
    return [*faults.values(), *([] for _ in range(FAULT_SERVERS - len(faults)))]


def draw_faults(nodes: int, horizon: float, seed: int, path: Path = FAULT_FILE) -> list[Outage]:
    """Each node repeats the faults of one server from a random day on, so bad servers stay bad."""
    servers, rng = read_faults(path), random.Random(f"faults {seed}")
    outages = []
    for node in range(nodes):
        faults, offset = rng.choice(servers), rng.random() * FAULT_DAYS
        for turn in range(int(horizon / (FAULT_DAYS * DAY)) + 2):
            for start, end in faults:
                at = (start - offset + turn * FAULT_DAYS) * DAY
                if 0 <= at < horizon:
                    outages.append(Outage(node, at, at + max(end - start, 0.0) * DAY))
    return sorted(outages, key=lambda outage: (outage.start, outage.node))


DATA = Path(__file__).parent / "data"
SPOT_FILES = {"p3": DATA / "p3-trace.csv", "g4dn": DATA / "g4dn-trace.csv"}


def read_spot(path: Path) -> list[tuple[float, int]]:
    """Pairs of seconds and the number of machines available from then on."""
    alive: set[str] = set()
    counts = []
    try:
        for line in path.read_text().split():
            milliseconds, change, node = line.split(",")
            if change not in ("add", "remove"):
                raise ValueError(line)
            alive = alive | {node} if change == "add" else alive - {node}
            counts.append((float(milliseconds) / 1000, len(alive)))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a trace of spot machines: {error}", code="trace-invalid"
        ) from error
    if not any(count for _, count in counts):
        raise UsageError(f"{path} contains no machines; give another trace", code="trace-empty")
    return counts


def draw_spot(
    nodes: range, horizon: float, path: Path, *, notice: float = 120.0, offset: float = 0.0
) -> list[Outage]:
    """The outages of these nodes; the trace is repeated up to the horizon."""
    counts = read_spot(path)
    largest, span = max(count for _, count in counts), counts[-1][0] or 1.0
    outages: list[Outage] = []
    away_since: dict[int, float] = {}
    for turn in range(int((horizon + offset) / span) + 1):
        for at, count in counts:
            now = at + turn * span - offset
            available = round(len(nodes) * count / largest)
            for index, node in enumerate(nodes):
                if index >= available:
                    away_since.setdefault(node, now)
                elif node in away_since:
                    outages.append(Outage(node, max(away_since.pop(node), 0.0), now, notice))
    outages += [Outage(node, at, max(horizon, at), notice) for node, at in away_since.items()]
    selected = [
        outage for outage in outages if outage.start < horizon and outage.end > outage.start
    ]
    return sorted(selected, key=lambda outage: (outage.start, outage.node))
