"""Publish the eviction cost of runs to a scheduler, and map it to a bounded priority adjustment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from headway.errors import NotARun, RunNotFound, SchedulerUpdateFailed, UsageError, with_code
from headway.eviction_cost import EvictionCost
from headway.schedule import cost_report
from headway.schedule.cost import from_cost_report

PRIORITY_LEVELS = 10  # few levels, so that priorities do not change with every second
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The eviction cost of a run at one time; without a cost, the run is over."""

    run: str
    host: str  # of its launcher; in a pod, the name of the pod
    job: str | None  # scheduler job of its launcher
    at: float  # seconds since the epoch
    price: EvictionCost | None

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the run's metrics."""
        return {"run": self.run, **({"scheduler_job": self.job} if self.job else {})}


class Publisher(Protocol):
    """Writes eviction costs where a scheduler reads them."""

    def publish(self, costs: list[RunCost]) -> Iterable[str]:
        """Publish these costs and return a line for each change.

        Raises SchedulerUpdateFailed if the scheduler refuses.
        """


class PerJobPublisher(ABC):
    """A publisher that updates one job or pod per run; a refused one does not block the others."""

    def __init__(self) -> None:
        self._withdrawn: set[str] = set()  # keys whose values are withdrawn

    @abstractmethod
    def key(self, cost: RunCost) -> str | None:
        """The job or pod of a run; runs that share one are evicted together."""

    @abstractmethod
    def publish_one(self, key: str | None, cost: RunCost) -> Iterator[str]: ...

    def publish(self, costs: list[RunCost]) -> Iterator[str]:
        """Publish all costs, then raise the first error."""
        refused: SchedulerUpdateFailed | None = None
        for key, cost in _merge_shared((self.key(cost), cost) for cost in costs):
            if cost.price is None and key in self._withdrawn:
                continue
            try:
                yield from self.publish_one(key, cost)
            except SchedulerUpdateFailed as error:
                refused = refused or error
                continue
            if key is not None:
                self._withdrawn = (
                    self._withdrawn | {key} if cost.price is None else self._withdrawn - {key}
                )
        if refused is not None:
            raise refused


def _merge_shared(
    costs: Iterable[tuple[str | None, RunCost]],
) -> Iterator[tuple[str | None, RunCost]]:
    """Merge runs that share a job or pod; the merged run is over when all of them are."""
    groups: dict[str, list[RunCost]] = {}
    for key, cost in costs:
        if key is None:
            yield None, cost
        else:
            groups.setdefault(key, []).append(cost)
    for key, group in groups.items():
        eviction_costs = [cost.price for cost in group if cost.price is not None]
        yield key, replace(group[0], price=_sum_costs(eviction_costs) if eviction_costs else None)


def _sum_costs(costs: Sequence[EvictionCost]) -> EvictionCost:
    saves = [cost.save for cost in costs if cost.save is not None]
    return EvictionCost(
        accelerators=sum(cost.accelerators for cost in costs),
        unsaved=max(cost.unsaved for cost in costs),
        save=max(saves) if len(saves) == len(costs) else None,
        recover=max(cost.recover for cost in costs),
        preemptions=max(cost.preemptions for cost in costs),
        lost=sum(cost.lost for cost in costs),
    )


def find_runs(path: Path) -> list[Path]:
    """The run at a path, or the runs in the folder at this path."""
    if not path.exists():
        raise RunNotFound(f"there is no run at {path}; `ls headway` lists your runs")
    if (path / "journal").is_dir():
        return [path]
    if not path.is_dir():
        raise NotARun(f"{path} is neither a run folder nor a folder of runs")
    return sorted(journal.parent for journal in path.glob("*/journal") if journal.is_dir())


def run_costs(
    path: Path, now: float, *, grace: float, repeat_penalty_s: float
) -> Iterator[RunCost]:
    """The costs of all runs with a report of their launcher."""
    for run in find_runs(path):
        try:
            report = cost_report.read_cost_report(run, now)
        except UsageError:
            continue  # the run was removed in the meantime
        if report is None:
            continue
        yield RunCost(
            run=report.run,
            host=report.host,
            job=report.job,
            at=now,
            price=None
            if report.over
            else from_cost_report(report, grace=grace, repeat_penalty_s=repeat_penalty_s),
        )


@dataclass(frozen=True, kw_only=True)
class PriorityAdjustment:
    """Maps the loss per accelerator to a priority.

    From `minimum` for no loss to `maximum` for a loss of `full_loss_s` seconds or more.
    """

    minimum: int
    maximum: int
    full_loss_s: float = 3600.0  # seconds per accelerator

    def __post_init__(self) -> None:
        if not -MAX_PRIORITY <= self.minimum < self.maximum <= MAX_PRIORITY:
            raise UsageError(
                f"--nudge-min must be below --nudge-max, and both within ±{MAX_PRIORITY}, "
                f"not {self.minimum} and {self.maximum}",
                code="value-out-of-range",
                option="--nudge-max",
            )
        if not self.full_loss_s > 0:
            raise UsageError(
                f"--nudge-full must be above 0 s, not {self.full_loss_s:g}",
                code="value-out-of-range",
                option="--nudge-full",
            )

    def priority(self, cost: EvictionCost) -> int:
        per_accelerator = cost.lost / max(cost.accelerators, 1)
        level = round(min(per_accelerator / self.full_loss_s, 1.0) * PRIORITY_LEVELS)
        return self.minimum + round((self.maximum - self.minimum) * level / PRIORITY_LEVELS)


class PublishLoop:
    """Publishes the costs of the runs at a path, and withdraws them at the end."""

    def __init__(
        self,
        path: Path,
        publisher: Publisher,
        *,
        grace: float,
        repeat_penalty_s: float,
        clock: Callable[[], float],
        log: Callable[[str], object],
    ) -> None:
        find_runs(path)
        self.path, self.publisher, self.clock, self.log = path, publisher, clock, log
        self.grace, self.repeat_penalty_s = grace, repeat_penalty_s
        self._single = (path / "journal").is_dir()
        self._published: dict[str, RunCost] = {}
        self._last_error = ""

    def publish_once(self) -> bool:
        """Publish the current costs; whether there may be more to publish."""
        costs = list(
            run_costs(
                self.path, self.clock(), grace=self.grace, repeat_penalty_s=self.repeat_penalty_s
            )
        )
        names = {cost.run for cost in costs}
        # The run of a removed folder is over.
        costs += [
            replace(old, price=None) for run, old in self._published.items() if run not in names
        ]
        active = {cost.run: cost for cost in costs if cost.price is not None}
        self._published |= active
        for line in self.publisher.publish(costs):
            self.log(f"headway: {line}")
        self._published = active
        return not self._single or not costs or any(cost.price is not None for cost in costs)

    def run(self, interval: float, wait: Callable[[float], bool]) -> None:
        """Publish until the run is over or `wait` reports a stop; then withdraw the costs.

        A refusal by the scheduler is logged once and retried.
        """
        while self._try():
            if wait(interval):
                self._withdraw()
                return

    def _try(self) -> bool:
        try:
            more = self.publish_once()
        except SchedulerUpdateFailed as error:
            if str(error) != self._last_error:
                self.log(with_code(f"headway: {error}; retrying", code=error.code))
            self._last_error = str(error)
            return True
        self._last_error = ""
        return more

    def _withdraw(self) -> None:
        withdrawn = [replace(cost, price=None) for cost in self._published.values()]
        try:
            for line in self.publisher.publish(withdrawn):
                self.log(f"headway: {line}")
        except SchedulerUpdateFailed as error:
            text = f"headway: cannot withdraw the last eviction cost: {error}"
            self.log(with_code(text, code="price-not-withdrawn"))
