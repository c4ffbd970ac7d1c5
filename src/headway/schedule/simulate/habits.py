"""How long jobs take to start, to recover and to save, as measured: from the ledgers of runs."""

from __future__ import annotations

from collections.abc import Iterable

from headway.errors import UsageError
from headway.ledger.model import NS
from headway.ledger.run import load
from headway.schedule.cost import from_ledger
from headway.schedule.simulate.setting import JobTimings


def timings_from_runs(paths: Iterable[str]) -> tuple[JobTimings, ...]:
    """One for each run; every job of a simulation draws one of them."""
    return tuple(_timings(path) for path in paths)


def _timings(path: str) -> JobTimings:
    ledger = load(path).ledger
    price = from_ledger(ledger)
    if price.save is None or ledger.time_to_start is None:
        what = "saved" if ledger.time_to_start is not None else "trained"
        raise UsageError(
            f"the run {path} never {what}, so it has no times to draw; leave it out",
            code="run-without-times",
        )
    return JobTimings(start=ledger.time_to_start / NS, recover=price.recover, save=price.save)
