"""Texts on the cost of publishing: in the training run, and if it had run there."""

from __future__ import annotations

from headway.format import count, duration, one_line, truncate_left
from headway.ledger import publish
from headway.ledger.model import Ledger, Publish
from headway.units import NS


def publish_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Return label and value of each fact; empty if nothing was published."""
    facts: list[tuple[str, str]] = []
    if ledger.publishes_run is not None:
        facts.append(("training run", _run(ledger.publishes_run)))
        facts.append(_outcome(ledger.publishes_run))
    if ledger.published_by is not None:
        facts += _of_training(ledger, ledger.published_by)
    return facts


def _of_training(ledger: Ledger, published: Publish) -> list[tuple[str, str]]:
    held = publish.accelerators_held(ledger)
    paid = publish.time_after_training(ledger)
    facts = [("publish run", _run(published)), _outcome(published)]
    if published.took is not None:
        would = (
            f"{_cost(published.took, held)} ({duration(published.took)} x {count(held, 'rank')})"
        )
        facts.append(("cost if done here", f"{would}, for the time of the publish run"))
    after = f"{_cost(paid, held)} ({duration(paid)} x {count(held, 'rank')})"
    return [*facts, ("actual cost here", f"{after}, from the last step to the end")]


def _cost(ns: int, held: int) -> str:
    return f"{ns * held / NS:,.1f} accelerator-seconds"


def _run(published: Publish) -> str:
    where = f" ({truncate_left(published.folder, 80)})" if published.folder else ""
    return f"{one_line(published.run, 60) or 'unknown'}{where}"


def _outcome(published: Publish) -> tuple[str, str]:
    if published.error:
        return "not published", one_line(published.error, 300)
    if published.took is None:
        return (
            "not finished",
            f"see {truncate_left(published.log, 80)}" if published.log else "no status recorded",
        )
    return "snapshot", f"{one_line(published.snapshot, 60)} in {truncate_left(published.store, 80)}"
