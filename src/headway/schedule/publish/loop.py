"""The controller: look at the runs, tell the scheduler, again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headway.errors import SchedulerUpdateFailed, with_code
from headway.schedule.publish.offer import Publisher, RunCost, find_runs, run_costs


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
        """Tell it as it is now; whether there may be more to tell. NotTold if it was refused."""
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
