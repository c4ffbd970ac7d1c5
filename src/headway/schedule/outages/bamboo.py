"""Spot machines that are taken back, as the authors of Bamboo saw it; see data/NOTICE.md.

Only how many machines were there is taken from a trace: of so many spot nodes the same share is.
"""

from __future__ import annotations

from pathlib import Path

from headway.errors import UsageError
from headway.schedule.outages import Outage

DATA = Path(__file__).parent / "data"
SPOT_FILES = {"p3": DATA / "p3-trace.csv", "g4dn": DATA / "g4dn-trace.csv"}


def read_spot(path: Path) -> list[tuple[float, int]]:
    """Seconds, and the machines that are there from then on."""
    alive: set[str] = set()
    found = []
    try:
        for line in path.read_text().split():
            milliseconds, change, node = line.split(",")
            if change not in ("add", "remove"):
                raise ValueError(line)
            alive = alive | {node} if change == "add" else alive - {node}
            found.append((float(milliseconds) / 1000, len(alive)))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is no trace of spot machines: {error}", code="trace-invalid"
        ) from error
    if not any(count for _, count in found):
        raise UsageError(f"{path} has no machine in it; give another trace", code="trace-empty")
    return found


def draw_spot(
    nodes: range, horizon: float, path: Path, *, notice: float = 120.0, offset: float = 0.0
) -> list[Outage]:
    """When each of these nodes is away; the trace is repeated to the horizon."""
    counts = read_spot(path)
    most, span = max(count for _, count in counts), counts[-1][0] or 1.0
    found: list[Outage] = []
    gone: dict[int, float] = {}
    for turn in range(int((horizon + offset) / span) + 1):
        for at, count in counts:
            now = at + turn * span - offset
            here = round(len(nodes) * count / most)
            for place, node in enumerate(nodes):
                if place >= here:
                    gone.setdefault(node, now)
                elif node in gone:
                    found.append(Outage(node, max(gone.pop(node), 0.0), now, notice))
    found += [Outage(node, at, max(horizon, at), notice) for node, at in gone.items()]
    kept = [one for one in found if one.start < horizon and one.end > one.start]
    return sorted(kept, key=lambda outage: (outage.start, outage.node))
