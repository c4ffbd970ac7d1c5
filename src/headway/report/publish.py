"""What publishing cost the training run, and what it would have cost, in words."""

from __future__ import annotations

from headway.format import count, duration, one_line, truncate_left
from headway.ledger import publish
from headway.ledger.model import Ledger, Publish
from headway.units import NS


def publish_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Name and value of each; none where nothing was published."""
    found: list[tuple[str, str]] = []
    if ledger.publishes is not None:
        found.append(("of the training", _run(ledger.publishes)))
        found.append(_outcome(ledger.publishes))
    if ledger.publish is not None:
        found += _of_training(ledger, ledger.publish)
    return found


def _of_training(ledger: Ledger, one: Publish) -> list[tuple[str, str]]:
    held = publish.accelerators_held(ledger)
    paid = publish.time_after_training(ledger)
    found = [("by the run", _run(one)), _outcome(one)]
    if one.took is not None:
        would = f"{_cost(one.took, held)} ({duration(one.took)} x {count(held, 'rank')})"
        found.append(("here it would cost", f"{would}, as long as that job took"))
    after = f"{_cost(paid, held)} ({duration(paid)} x {count(held, 'rank')})"
    return [*found, ("and it did cost", f"{after}, from the last step to the end")]


def _cost(ns: int, held: int) -> str:
    return f"{ns * held / NS:,.1f} accelerator-seconds"


def _run(one: Publish) -> str:
    where = f" ({truncate_left(one.folder, 80)})" if one.folder else ""
    return f"{one_line(one.run, 60) or 'unknown'}{where}"


def _outcome(one: Publish) -> tuple[str, str]:
    if one.error:
        return "not published", one_line(one.error, 300)
    if one.took is None:
        return (
            "not done yet",
            f"see {truncate_left(one.log, 80)}" if one.log else "nothing was heard of it",
        )
    return "snapshot", f"{one_line(one.snapshot, 60)} in {truncate_left(one.store, 80)}"
