"""Detect hung jobs: called in each round of the process watch, it counts silence.

Ranks wait for each other: while one of them has a reason to take long, here or on another node, the
others are healthy. So a job hangs when all its ranks are late, or when one is late that the others
do not wait for.

Silence is counted in rounds, not by the clock: a launcher that was stopped itself, or a laptop that
was suspended, has watched nothing meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.journal.writer import now
from headway.launch import processes
from headway.launch.hang import activity, stacks
from headway.launch.hang.activity import Sample
from headway.launch.hang.limits import STOPPED_S, StepTimingStats
from headway.launch.process_watch import ProcessWatch
from headway.launch.rank_tail import RankTail

ROUND_S = 0.5  # a longer round counts as this
CONFIRM_S = 2.0  # between two reads of the stacks
BUSY_FACTOR = 10.0  # a rank that works in one place gets its limit times this
NON_TRAINER_STEPS = 10  # steps of the others after which a rank without a step does not train
DEVICE_FACTOR = 2.0  # the same with a GPU, where waiting looks like work, unless bytes are moved


class Hang(NamedTuple):
    """A detected hang."""

    rank: int | None  # the rank that is behind, if known
    evidence: str
    silent_s: float
    limit_s: float


@dataclass
class _Rank:
    """State of one rank."""

    steps: int = 0
    last_step: int = 0
    silent_s: float = 0.0
    since_start: float = 0.0
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=120))
    next_sample: float = 1.0
    limit_factor: float = 1.0  # grows when its stacks show that it moves
    replaced: bool = False  # by another program, which does not record here


class HangDetector:
    """Reports a hang once per silence."""

    def __init__(
        self,
        folder: str,
        timing: StepTimingStats,
        report: Callable[[Hang], None],
        vote_hang: Callable[[bool], bool] = lambda late: late,
    ) -> None:
        """`vote_hang` gets whether this node's ranks are late; returns whether all ranks are."""
        self.folder = folder
        self.timing = timing
        self.report = report
        self.vote_hang = vote_hang
        self._ranks: dict[RankTail, _Rank] = {}
        self._last_ns = 0
        self._first_stacks: dict[int, tuple[str, ...]] = {}  # the first read of the stacks, by pid
        self._next_look_s = 0.0
        self._reported = False

    def round(self, watch: ProcessWatch) -> None:
        """Check all ranks of this host."""
        t = now()
        elapsed = min((t - self._last_ns) / 1e9, ROUND_S) if self._last_ns else 0.0
        self._last_ns = t
        ranks = watch.ranks()
        alive = [p for p in ranks if p.died is None and not p.exited_cleanly]
        table = processes.process_table() if self._sampling() else {}
        for process in alive:
            self._update(process, elapsed, table)
        alive = self._trainers([p for p in alive if not self._ranks[p].replaced])
        late = [p for p in alive if self._is_late(p)]
        if any(p.died is not None and p.failed for p in ranks):
            late = []  # a rank has failed, which its agent handles
        if not late or self._is_waited_for(late, alive):
            self._first_stacks, self._reported = {}, False
            self.vote_hang(False)
        elif not self._reported:
            self._confirm(late, alive, elapsed)

    def _sampling(self) -> bool:
        return any(rank.silent_s >= rank.next_sample for rank in self._ranks.values())

    def _trainers(self, alive: list[RankTail]) -> list[RankTail]:
        """The ranks without those that do not train: actors, evaluators, parameter servers."""
        max_steps = max((self._ranks[p].steps for p in alive), default=0)
        return [p for p in alive if self._ranks[p].steps or max_steps < NON_TRAINER_STEPS]

    def _is_waited_for(self, late: list[RankTail], alive: list[RankTail]) -> bool:
        """Whether another rank is not late yet and has not stepped on alone either."""
        silence = min(self._ranks[p].silent_s for p in late)
        stopped = any(activity.stopped(p.pid) for p in late)
        return not stopped and any(
            p not in late and self._ranks[p].silent_s > silence / 2 for p in alive
        )

    def _update(
        self, process: RankTail, elapsed: float, table: dict[int, processes.ProcInfo]
    ) -> None:
        pulse, rank = process.pulse(), self._ranks.setdefault(process, _Rank())
        rank.since_start += elapsed
        if pulse.steps != rank.steps:
            if rank.steps:
                steps_made = pulse.steps - rank.steps
                self.timing.add_gap((pulse.last_step - rank.last_step) / 1e9, steps_made)
            else:
                self.timing.longest_start = max(self.timing.longest_start, rank.since_start)
            rank.steps, rank.last_step = pulse.steps, pulse.last_step
            rank.silent_s, rank.limit_factor, rank.next_sample = 0.0, 1.0, 1.0
            rank.samples.clear()
        rank.silent_s += elapsed
        self.timing.add_spans(process.longest_spans)
        if rank.silent_s >= rank.next_sample and process.pid in table:
            rank.next_sample = rank.silent_s + max(1.0, rank.silent_s / 10)
            rank.samples.append(activity.sample(process.pid, rank.silent_s, table))
            rank.replaced = activity.replaced(process.pid, process.page)

    def _limit(self, process: RankTail) -> float:
        rank = self._ranks[process]
        inside = [str(span.get("name")) for span in process.open_spans.values()]
        if process.pulse().waiting:
            inside.append("data_wait")
        return self.timing.limit(rank.steps > 0, inside) * rank.limit_factor

    def _is_late(self, process: RankTail) -> bool:
        """Silent for too long without a reason that is visible from outside."""
        rank, limit = self._ranks[process], self._limit(process)
        if rank.silent_s < STOPPED_S or activity.traced(process.pid):
            return False
        if activity.stopped(process.pid):
            return True
        if rank.silent_s < limit:
            return False
        samples = self._samples(rank, limit)
        if samples and not activity.busy(*samples):
            return True
        moves = samples is not None and activity.moves(*samples)
        slow = not moves and activity.on_device(process.pid)
        return rank.silent_s >= (DEVICE_FACTOR if slow else BUSY_FACTOR) * limit

    def _samples(self, rank: _Rank, limit: float) -> tuple[Sample, Sample] | None:
        """The first and the last sample of the later half of its limit."""
        if len(rank.samples) < 2:
            return None
        last = rank.samples[-1]
        return next(s for s in rank.samples if last.at - s.at <= max(limit / 2, 2.0)), last

    def _confirm(self, late: list[RankTail], alive: list[RankTail], elapsed: float) -> None:
        """Read the stacks twice; a rank that is at the same place both times hangs."""
        stopped = [p for p in late if activity.stopped(p.pid)]
        if stopped:
            self._report(stopped[0], late, alive, "it is stopped by a signal (SIGSTOP)")
            return
        if not self._first_stacks:
            looked = {pid: stacks.main_thread(text) for pid, text in stacks.dump(late).items()}
            debugged = [p for p in late if stacks.in_debugger(looked[p.pid])]
            for process in debugged:
                self._ranks[process].limit_factor *= 2
            self._first_stacks = {} if debugged else looked
            self._next_look_s = CONFIRM_S
            return
        self._next_look_s -= elapsed
        if self._next_look_s > 0:
            return
        first, self._first_stacks = self._first_stacks, {}
        texts = stacks.dump(late)
        moved = False
        for process in late:
            if stacks.main_thread(texts[process.pid]) != first.get(process.pid):
                self._ranks[process].limit_factor *= 2
                moved = True
        if not moved and self.vote_hang(True):
            self._report(None, late, alive, "")

    def _report(
        self, straggler: RankTail | None, late: list[RankTail], alive: list[RankTail], reason: str
    ) -> None:
        self._reported = True
        texts = stacks.dump([p for p in alive if not activity.stopped(p.pid)])
        for process in alive:
            text = texts.get(process.pid) or _missing_stacks_text(process)
            name = f"rank{process.rank if process.rank is not None else ''}-{process.pid}.txt"
            stacks.save(self.folder, name, text)
        frames = {p.pid: stacks.main_thread(texts.get(p.pid, "")) for p in alive}
        straggler = straggler or self._straggler(late, frames)
        worst = straggler or late[0]
        rank = self._ranks[worst]
        place = stacks.user_frame(frames.get(worst.pid, ()))
        evidence = f"no step for {rank.silent_s:.0f} s, the limit is {self._limit(worst):.0f} s"
        if straggler is not None and straggler.rank is not None:
            evidence += f"; rank {straggler.rank} is behind"
        evidence += f": {reason}" if reason else (f" at {place}" if place else "")
        number = straggler.rank if straggler is not None else None
        self.report(Hang(number, evidence[:300], rank.silent_s, self._limit(worst)))

    def _straggler(
        self, late: list[RankTail], frames: dict[int, tuple[str, ...]]
    ) -> RankTail | None:
        steps = {p.pid: self._ranks[p].steps for p in late}
        if len(set(steps.values())) > 1:
            lowest = min(steps, key=lambda pid: steps[pid])
            return next(p for p in late if p.pid == lowest)
        if len(late) == 1:
            return late[0]
        outlier = stacks.odd_one_out({p.pid: frames[p.pid] for p in late if frames.get(p.pid)})
        return next((p for p in late if p.pid == outlier), None)


def _missing_stacks_text(process: RankTail) -> str:
    """The text for a process without stacks."""
    try:
        return f"no stacks: the process is in state {processes.process_info(process.pid).state}\n"
    except (OSError, ValueError, IndexError):
        return "no stacks: the process has ended\n"
