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


SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # from a scheduler or torchrun; from Slurm's --signal
# signals within this time are one notice: a scheduler and torchrun may both send one
SAME_NOTICE_S = 5.0
CHECK_S = 1.0  # between two checks of all ranks
# of the grace period, reserved for the exit after the last save; a tenth of a short one
EXIT_S = 1.0


class Notice:
    """Whether this process was notified of its termination.

    A later signal terminates it as usual.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.at: float | None = None
        self._clock = clock
        self._callbacks: list[Callable[[], object]] = []
        self._previous: dict[int, Any] = {}  # the previous signal handlers
        self._listeners = 0
        self._pid = 0

    def install(self) -> None:
        """Handle the signals as a notice from now on."""
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "preemption notices can only be received in the main thread",
                code="not-in-main-thread",
            )
        self._listeners += 1
        self._pid = os.getpid()
        for number in SIGNALS if self._listeners == 1 else ():
            self._previous[number] = signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        """Restore the previous handlers once every user has uninstalled."""
        self._listeners -= 1
        if self._listeners:
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, _python_handler(previous))
        self._previous.clear()
        self.at = None

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call it once, in the main thread, when the notice arrives or if it has arrived."""
        self.install()
        self._callbacks.append(callback)
        if self.at is not None:
            callback()

    def _on_signal(self, number: int, frame: Any) -> None:
        now = self._clock()
        again = self.at is not None and now - self.at > SAME_NOTICE_S
        previous = self._previous.get(number)
        if again or os.getpid() != self._pid:  # or a child process that has inherited the handler
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
    """A `worker_init_fn` for DataLoader that ignores preemption signals.

    Workers receive the signals of their rank; the rank ends them.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Preemption:
    """The preemption notice, shared by all ranks of a training job."""

    def __init__(
        self,
        ranks: RankCoordinator,
        grace_s: float,
        notice: Notice = notice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not grace_s > 0:
            raise UsageError(
                "grace_s must be a positive number of seconds from the notice to the "
                f"end, not {grace_s!r}",
                code="grace-invalid",
            )
        self._ranks, self._grace_s, self._notice, self._clock = ranks, grace_s, notice, clock
        self._next = 0
        self._flag_set = False
        self._noticed_at: float | None = None
        self.in_time = True  # decided by rank 0: there is time for a last save
        notice.install()

    @property
    def left_s(self) -> float:
        """The rest of the grace period, without the time reserved for the exit."""
        noticed_at = self._noticed_at if self._noticed_at is not None else self._clock()
        reserve = min(EXIT_S, self._grace_s / 10)
        return self._grace_s - reserve - (self._clock() - noticed_at)

    def should_stop(
        self, step: int, step_s: Callable[[], float], save_s: Callable[[], float]
    ) -> bool:
        """Whether all ranks stop at this step. Call it once per step.

        `step_s` is the duration of a step, 0 if unknown; `save_s` the time until a save is durable.
        The values of rank 0 are used.
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
        """Restore the signal handlers."""
        self._notice.uninstall()


def _python_handler(handler: Any) -> Any:
    return signal.SIG_DFL if handler is None else handler  # None: not set by Python
