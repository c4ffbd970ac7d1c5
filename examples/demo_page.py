"""Three ledgers side by side: a table for the terminal, and one HTML page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway import __version__
from headway.format import duration
from headway.ledger.buckets import BUCKETS, MEANING
from headway.ledger.model import Ledger
from headway.ledger.segments import Segment
from headway.units import NS
from headway.web.page import template_environment
from headway.web.theme import bucket_color

COLUMNS = 1500  # of a timeline; each has the colour of the leaf that has most of it


def table(ledgers: dict[str, Ledger]) -> Iterator[tuple[str, list[str]]]:
    """Every bucket that one of them has, and what they come to."""
    for leaf in BUCKETS:
        cells = [ledger.buckets.get(leaf, 0) for ledger in ledgers.values()]
        if max(cells) >= NS // 1000:
            yield leaf, [duration(cell) if cell else "-" for cell in cells]
    yield "wall time", [duration(ledger.wall) for ledger in ledgers.values()]
    yield "ETT", [f"{ledger.ett_percent:.1f} %" for ledger in ledgers.values()]
    first = next(iter(ledgers.values()))
    lost = [100 - ledger.ett_percent for ledger in ledgers.values()]
    yield "lost", [f"{share:.1f} %" for share in lost]
    yield "of plain's", ["1", *(f"1/{lost[0] / share:.1f}" for share in lost[1:])]
    seconds = [lost_seconds(ledger) for ledger in ledgers.values()]
    yield "lost seconds", [f"{one:.1f} s" for one in seconds]
    yield "of plain's", ["1", *(f"1/{lost_seconds(first) / one:.1f}" for one in seconds[1:])]


def lost_seconds(ledger: Ledger) -> float:
    """All that is not effective."""
    return ledger.wall / NS * (100 - ledger.ett_percent) / 100


def write(path: Path, ledgers: dict[str, Ledger], told: list[str]) -> None:
    """The page: no network, no script."""
    longest = max(ledger.wall for ledger in ledgers.values())
    used = {leaf for ledger in ledgers.values() for leaf in ledger.buckets}
    template = Path(__file__).with_name("demo_page.html").read_text(encoding="utf-8")
    page = (
        template_environment()
        .from_string(template)
        .render(
            version=__version__,
            ways=[_way(name, ledger, longest) for name, ledger in ledgers.items()],
            rows=list(table(ledgers)),
            told=told,
            leaves=[
                (leaf, bucket_color(leaf, dark=False), MEANING[leaf])
                for leaf in BUCKETS
                if leaf in used
            ],
        )
    )
    path.write_text(page, encoding="utf-8")


def _way(name: str, ledger: Ledger, longest: int) -> dict[str, Any]:
    tracks = [("run", ledger.segments), *((f"rank {r.rank}", r.segments) for r in ledger.ranks)]
    return {
        "name": name,
        "ett": f"{ledger.ett_percent:.1f} %",
        "wall": duration(ledger.wall),
        "tracks": [
            {"name": label, "pieces": list(_pieces(segments, longest))}
            for label, segments in tracks
        ],
        "failures": [
            {"left": 100 * one.at / longest, "text": f"{one.category}: {one.evidence[:120]}"}
            for one in ledger.failures
        ],
    }


def _pieces(segments: tuple[Segment, ...], longest: int) -> Iterator[dict[str, Any]]:
    """Columns of one colour that stand together, in percent of the longest run."""
    begun, last = 0, ""
    for number, leaf in enumerate([*_columns(segments, longest), ""]):
        if leaf != last:
            if last:
                width = 100 * (number - begun) / COLUMNS
                shade = bucket_color(last, dark=False)
                yield {"left": 100 * begun / COLUMNS, "width": width, "leaf": last, "colour": shade}
            begun, last = number, leaf


def _columns(segments: tuple[Segment, ...], longest: int) -> list[str]:
    shares: list[dict[str, int]] = [{} for _ in range(COLUMNS)]
    for one in segments:
        first = one.start * COLUMNS // longest
        for number in range(first, min(-(-one.end * COLUMNS // longest), COLUMNS)):
            begin, end = number * longest // COLUMNS, (number + 1) * longest // COLUMNS
            within = min(one.end, end) - max(one.start, begin)
            shares[number][one.bucket] = shares[number].get(one.bucket, 0) + within
    return [max(share, key=lambda leaf: share[leaf]) if share else "" for share in shares]
