"""How often somebody may ask. The clock is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MAX_CALLERS = 10_000  # that are remembered


class RateLimit:
    """A bucket of `burst` for each caller that fills again at `per_second`."""

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str, cost: float = 1.0) -> bool:
        """Whether a caller may; if so it is counted."""
        now = self._clock()
        left, at = self._callers.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        allowed = left >= cost
        self._callers[caller] = (left - cost if allowed else left, now)
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return allowed
