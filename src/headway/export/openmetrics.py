"""Exports a ledger as OpenMetrics text, for a textfile collector or a push gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headway.format import printable
from headway.ledger.buckets import BUCKETS
from headway.ledger.model import Ledger
from headway.units import NS

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its samples; always a gauge, because a later export may correct its value."""

    name: str
    help: str
    samples: tuple[Sample, ...]
    unit: str = ""


def openmetrics_lines(ledger: Ledger, more: Iterable[Family] = ()) -> Iterator[str]:
    """Yield the metrics of a run and those in `more`; each sample has the run's name as label."""
    return format_families((*_families(ledger), *more), {"run": ledger.run})


def format_families(families: Iterable[Family], common: Mapping[str, str]) -> Iterator[str]:
    """Yield OpenMetrics text by line; the last line is `# EOF`."""
    for family in families:
        if not family.samples:
            continue
        yield f"# TYPE {family.name} gauge\n"
        if family.unit:
            yield f"# UNIT {family.name} {family.unit}\n"
        yield f"# HELP {family.name} {_escape(family.help)}\n"
        for labels, value in family.samples:
            yield f"{family.name}{_labels({**common, **labels})} {_number(value)}\n"
    yield "# EOF\n"


def _families(ledger: Ledger) -> Iterator[Family]:
    yield _percent(
        "ett", "Effective training time as a share of the wall time.", ledger.ett_percent
    )
    yield _percent(
        "idleness", "Start, waste, stop and unknown, of the wall time.", ledger.idleness_percent
    )
    yield _percent(
        "failure", "Lost training, hangs and recovery, of the wall time.", ledger.failure_percent
    )
    yield _seconds("wall", "Wall time of the run.", [({}, ledger.wall)])
    yield _seconds(
        "bucket",
        "Wall time by leaf; the leaves sum to the wall time.",
        [
            ({"leaf": bucket}, ledger.buckets[bucket])
            for bucket in BUCKETS
            if ledger.buckets.get(bucket)
        ],
    )
    yield _seconds(
        "rank_bucket",
        "Wall time of one rank by leaf.",
        [
            ({"rank": str(rank.rank), "leaf": bucket}, rank.buckets[bucket])
            for rank in ledger.ranks
            for bucket in BUCKETS
            if rank.buckets.get(bucket)
        ],
    )
    if ledger.time_to_start is not None:
        about = "From allocation to the first training step."
        yield _seconds("time_to_start", about, [({}, ledger.time_to_start)])
    yield _seconds(
        "time_to_recover",
        "From the last sign of progress to training again, by interruption.",
        [({"interruption": str(i)}, ns) for i, ns in enumerate(ledger.time_to_recover)],
    )
    yield from _counts(ledger)


def _counts(ledger: Ledger) -> Iterator[Family]:
    failures = Counter((f.category, f.owner) for f in ledger.failures)
    yield Family(
        "headway_failures",
        "Failures by category and owner; those of infra are the number of failures.",
        tuple(({"category": c, "owner": o}, n) for (c, o), n in sorted(failures.items())),
    )
    recompiles = sum(c.recompile for c in ledger.compiles)
    running = int(ledger.running)
    for name, help_text, number in (
        ("steps", "Training steps.", ledger.steps),
        ("ranks", "Ranks seen.", len(ledger.ranks)),
        ("attempts", "Lives of the run.", len(ledger.attempts)),
        ("saves", "Checkpoints saved.", ledger.saves),
        ("recompiles", "Recompiles over all ranks.", recompiles),
        ("running", "1 while the run is going on.", running),
    ):
        yield Family(f"headway_{name}", help_text, (({}, number),))
    about = "When the run began, in seconds since the epoch."
    yield _seconds("start_time", about, [({}, ledger.started_at)])


def _percent(name: str, help_text: str, value: float) -> Family:
    return Family(f"headway_{name}_percent", help_text, (({}, value),), "percent")


def _seconds(name: str, help_text: str, samples: Iterable[tuple[dict[str, str], int]]) -> Family:
    values = tuple((labels, ns / NS) for labels, ns in samples)
    return Family(f"headway_{name}_seconds", help_text, values, "seconds")


def _labels(labels: dict[str, str]) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{text}}}" if text else ""


def _escape(value: str) -> str:
    lines = [printable(line) for line in value.encode("utf-8", "replace").decode().split("\n")]
    return "\n".join(lines).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
