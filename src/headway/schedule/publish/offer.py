"""What is told of a run: its price by now, or that it has none any more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from headway.errors import NotARun, RunNotFound, SchedulerUpdateFailed, UsageError
from headway.ledger import price
from headway.schedule.cost import EvictionCost, from_cost_report


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """One run at one time. Without a price it is over, and nothing of it may stay behind."""

    run: str
    host: str  # of its launcher: in a pod, the pod's name
    job: str | None  # of the scheduler that its launcher saw
    at: float  # seconds since the epoch
    price: EvictionCost | None

    @property
    def labels(self) -> dict[str, str]:
        """By which its metrics are told apart."""
        return {"run": self.run, **({"scheduler_job": self.job} if self.job else {})}


class Publisher(Protocol):
    """Where a scheduler looks."""

    def tell(self, offers: list[RunCost]) -> Iterable[str]:
        """Make it so there; what was changed, a sentence each. NotTold where it was refused."""


class PerJobPublisher(ABC):
    """A place with a job or pod for each run: one that is refused holds up no other."""

    def __init__(self) -> None:
        self._over: set[str] = set()  # of which nothing is left there

    @abstractmethod
    def key(self, offer: RunCost) -> str | None:
        """The job or pod of a run; runs that share one are evicted together."""

    @abstractmethod
    def tell_one(self, key: str | None, offer: RunCost) -> Iterator[str]:
        """Make it so there."""

    def tell(self, offers: list[RunCost]) -> Iterator[str]:
        """All of them; then what was wrong with the first that was refused."""
        refused: SchedulerUpdateFailed | None = None
        for key, one in _merge_shared((self.key(one), one) for one in offers):
            if one.price is None and key in self._over:
                continue
            try:
                yield from self.tell_one(key, one)
            except SchedulerUpdateFailed as error:
                refused = refused or error
                continue
            if key is not None:
                self._over = self._over | {key} if one.price is None else self._over - {key}
        if refused is not None:
            raise refused


def _merge_shared(
    found: Iterable[tuple[str | None, RunCost]],
) -> Iterator[tuple[str | None, RunCost]]:
    """Those that share a job or pod as one, which is over when all of them are."""
    groups: dict[str, list[RunCost]] = {}
    for key, one in found:
        if key is None:
            yield None, one
        else:
            groups.setdefault(key, []).append(one)
    for key, group in groups.items():
        prices = [one.price for one in group if one.price is not None]
        yield key, replace(group[0], price=_sum_costs(prices) if prices else None)


def _sum_costs(prices: Sequence[EvictionCost]) -> EvictionCost:
    saves = [one.save for one in prices if one.save is not None]
    return EvictionCost(
        accelerators=sum(one.accelerators for one in prices),
        unsaved=max(one.unsaved for one in prices),
        save=max(saves) if len(saves) == len(prices) else None,
        recover=max(one.recover for one in prices),
        preemptions=max(one.preemptions for one in prices),
        lost=sum(one.lost for one in prices),
    )


def find_runs(path: Path) -> list[Path]:
    """The run at a path, or those in the folder there."""
    if not path.exists():
        raise RunNotFound(f"there is no run at {path}; type `ls headway` to see your runs")
    if (path / "journal").is_dir():
        return [path]
    if not path.is_dir():
        raise NotARun(f"{path} is neither the folder of a run nor one with runs in it")
    return sorted(one.parent for one in path.glob("*/journal") if one.is_dir())


def run_costs(path: Path, now: float, *, grace: float, repeat: float) -> Iterator[RunCost]:
    """Of all runs there that a launcher has written of."""
    for run in find_runs(path):
        try:
            told = price.read_cost_report(run, now)
        except UsageError:
            continue  # it was removed meanwhile
        if told is None:
            continue
        yield RunCost(
            run=told.run,
            host=told.host,
            job=told.job,
            at=now,
            price=None if told.over else from_cost_report(told, grace=grace, repeat=repeat),
        )
