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
        """Make it so there; what was changed, a sentence each. SchedulerUpdateFailed if refused."""


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
            told = cost_report.read_cost_report(run, now)
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


PRIORITY_LEVELS = (
    10  # between the limits: a priority that moves with every second makes queues flap
)
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class PriorityAdjustment:
    """From `least` for a run that loses nothing to `most` for one that loses `full` seconds."""

    least: int
    most: int
    full: float = 3600.0  # seconds of each accelerator

    def __post_init__(self) -> None:
        if not -MAX_PRIORITY <= self.least < self.most <= MAX_PRIORITY:
            raise UsageError(
                f"a nudge goes from --nudge-min up to --nudge-max, and {self.least} to {self.most} "
                "does not",
                code="value-out-of-range",
                option="--nudge-max",
            )
        if not self.full > 0:
            raise UsageError(
                f"--nudge-full is above 0 s, not {self.full:g}",
                code="value-out-of-range",
                option="--nudge-full",
            )

    def of(self, price: EvictionCost) -> int:
        """By what is lost for each accelerator that would be freed."""
        each = price.lost / max(price.accelerators, 1)
        level = round(min(each / self.full, 1.0) * PRIORITY_LEVELS)
        return self.least + round((self.most - self.least) * level / PRIORITY_LEVELS)


class PublishLoop:
    """Tells one place of the runs at one path. Values that it has left behind are taken back."""

    def __init__(
        self,
        path: Path,
        place: Publisher,
        *,
        grace: float,
        repeat: float,
        clock: Callable[[], float],
        say: Callable[[str], object],
    ) -> None:
        find_runs(path)
        self.path, self.place, self.clock, self.say = path, place, clock, say
        self.grace, self.repeat = grace, repeat
        self._single = (path / "journal").is_dir()
        self._told: dict[str, RunCost] = {}
        self._complaint = ""

    def once(self) -> bool:
        """Tell it as it is now; whether there may be more to tell, or SchedulerUpdateFailed."""
        found = list(run_costs(self.path, self.clock(), grace=self.grace, repeat=self.repeat))
        names = {one.run for one in found}
        # A folder that was removed: its run is over.
        found += [replace(old, price=None) for run, old in self._told.items() if run not in names]
        going = {one.run: one for one in found if one.price is not None}
        self._told |= going
        for line in self.place.tell(found):
            self.say(f"headway: {line}")
        self._told = going
        return not self._single or not found or any(one.price is not None for one in found)

    def follow(self, interval: float, wait: Callable[[float], bool]) -> None:
        """Until the run is over, or `wait` says that it was stopped; then take back what is told.

        What the scheduler refuses is said once, and tried again: it may be back.
        """
        while self._try():
            if wait(interval):
                self._withdraw()
                return

    def _try(self) -> bool:
        try:
            more = self.once()
        except SchedulerUpdateFailed as error:
            if str(error) != self._complaint:
                self.say(with_code(f"headway: {error}; tried again", code=error.code))
            self._complaint = str(error)
            return True
        self._complaint = ""
        return more

    def _withdraw(self) -> None:
        left = [replace(one, price=None) for one in self._told.values()]
        try:
            for line in self.place.tell(left):
                self.say(f"headway: {line}")
        except SchedulerUpdateFailed as error:
            text = f"headway: the last price stays behind: {error}"
            self.say(with_code(text, code="price-not-withdrawn"))
