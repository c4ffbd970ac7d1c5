"""Notice of preemption, and the step at which all ranks stop.

The signal handler only records the signal. About once a second, at steps they have agreed on, the
ranks learn from rank 0 whether any of them was notified, so that all save at the same step.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.checkpoint.coordinator import RankCoordinator


SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # by a scheduler or torchrun; by Slurm's --signal
SAME_NOTICE_S = 5.0  # a scheduler and torchrun may both send one: within that time it is one notice
CHECK_S = 1.0  # between two looks of all ranks
EXIT_S = 1.0  # of the grace, for what comes after the last save; a tenth of a short one


class Notice:
    """Whether this process was told that it will be ended; a later signal ends it as usual."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.at: float | None = None
        self._clock = clock
        self._callbacks: list[Callable[[], object]] = []
        self._previous: dict[int, Any] = {}  # the handlers that were there
        self._listeners = 0
        self._pid = 0

    def install(self) -> None:
        """From now on the signals are a notice."""
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "the notice of a preemption can only be heard in the main thread",
                code="not-in-main-thread",
            )
        self._listeners += 1
        self._pid = os.getpid()
        for number in SIGNALS if self._listeners == 1 else ():
            self._previous[number] = signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        """Nobody listens any more: the handlers that were there before are back."""
        self._listeners -= 1
        if self._listeners:
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, _python_handler(previous))
        self._previous.clear()
        self.at = None

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Have it called once the notice comes, in the main thread; now, if it has come."""
        self.install()
        self._callbacks.append(callback)
        if self.at is not None:
            callback()

    def _on_signal(self, number: int, frame: Any) -> None:
        now = self._clock()
        again = self.at is not None and now - self.at > SAME_NOTICE_S
        previous = self._previous.get(number)
        if again or os.getpid() != self._pid:  # or a child, which has inherited this
            signal.signal(number, _python_handler(previous))
            os.kill(os.getpid(), number)
            return
        first, self.at = self.at is None, now if self.at is None else self.at
        for callback in self._callbacks if first else ():
            callback()
        if callable(previous):
            previous(number, frame)


notice = Notice()


def ignore_in_worker(worker: int) -> None:
    """A DataLoader's `worker_init_fn`: its rank ends it, not the signal that its rank gets too."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Preemption:
    """The notice as all ranks of a training heed it."""

    def __init__(
        self,
        ranks: RankCoordinator,
        grace_s: float,
        notice: Notice = notice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not grace_s > 0:
            raise UsageError(
                f"grace_s is the seconds from the notice to the end, not {grace_s!r}",
                code="grace-invalid",
            )
        self._ranks, self._grace_s, self._notice, self._clock = ranks, grace_s, notice, clock
        self._next = 0
        self._flag_set = False
        self._noticed_at: float | None = None
        self.in_time = True  # rank 0's word: there is time for a last save
        notice.install()

    @property
    def left_s(self) -> float:
        """What is left of the grace, without what it takes to leave."""
        noticed_at = self._noticed_at if self._noticed_at is not None else self._clock()
        reserve = min(EXIT_S, self._grace_s / 10)
        return self._grace_s - reserve - (self._clock() - noticed_at)

    def should_stop(
        self, step: int, step_s: Callable[[], float], save_s: Callable[[], float]
    ) -> bool:
        """Asked once a step: whether this is the one at which all ranks stop.

        What a step takes, 0 if nobody knows, and a save until it is durable; rank 0's counts.
        """
        if self._notice.at is not None and not self._flag_set:
            self._flag_set, self._noticed_at = True, self._notice.at
            self._ranks.raise_flag()
        alone = self._ranks.world == 1
        if (alone and not self._flag_set) or step < self._next:
            return False
        decision = self._ranks.from_rank0(
            self._decision(step_s(), save_s) if self._ranks.rank == 0 else None
        )
        self._next = step + decision["next"]
        if decision["stop"] and self._noticed_at is None:
            self._noticed_at = self._clock()
        self.in_time = decision["in_time"]
        return bool(decision["stop"])

    def _decision(self, step_s: float, save_s: Callable[[], float]) -> dict[str, Any]:
        stop = self._flag_set or self._ranks.flag_raised()
        steps = max(1, round(CHECK_S / step_s)) if step_s else 1
        return {"stop": stop, "in_time": not stop or save_s() <= self.left_s, "next": steps}

    def close(self) -> None:
        """The signals are what they were."""
        self._notice.uninstall()


def _python_handler(handler: Any) -> Any:
    return signal.SIG_DFL if handler is None else handler  # None: it was not set by Python
