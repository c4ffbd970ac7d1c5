"""Node faults as StepFun had them: 584 of 400 servers in 348 days; see data/NOTICE.md."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from headway.errors import UsageError
from headway.schedule.outages import Outage

FAULT_FILE = Path(__file__).parent / "data" / "fault_trace.json.gz"
FAULT_SERVERS, FAULT_DAYS = 400, 348.0
DAY = 86400.0


def read_faults(path: Path = FAULT_FILE) -> list[list[tuple[float, float]]]:
    """The faults of each server, as days from and to; servers without any are empty."""
    try:
        with gzip.open(path, "rt") as file:
            events = sorted(json.load(file), key=lambda event: event["event_time"])
        found: dict[str, list[tuple[float, float]]] = {}
        begun: dict[str, float] = {}
        for event in events:
            node, at = event["node_id"], float(event["event_time"])
            if event["event_type"] == "fault_start":
                begun.setdefault(node, at)
            elif node in begun:
                found.setdefault(node, []).append((begun.pop(node), at))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no trace of faults: {error}", code="trace-invalid") from error
    for node, at in begun.items():
        found.setdefault(node, []).append((at, FAULT_DAYS))
    return [*found.values(), *([] for _ in range(FAULT_SERVERS - len(found)))]


def draw_faults(nodes: int, horizon: float, seed: int, path: Path = FAULT_FILE) -> list[Outage]:
    """Each node lives the year of some server, from some day on: bad servers stay bad."""
    servers, rng = read_faults(path), random.Random(f"faults {seed}")
    found = []
    for node in range(nodes):
        faults, offset = rng.choice(servers), rng.random() * FAULT_DAYS
        for turn in range(int(horizon / (FAULT_DAYS * DAY)) + 2):
            for start, end in faults:
                at = (start - offset + turn * FAULT_DAYS) * DAY
                if 0 <= at < horizon:
                    found.append(Outage(node, at, at + max(end - start, 0.0) * DAY))
    return sorted(found, key=lambda outage: (outage.start, outage.node))
