"""Detect hung jobs: called in each round of the process watch, it counts silence.

Ranks wait for each other: while one of them has a reason to take long, here or on another node, the
others are well. So a job hangs when all its ranks are late, or when one is late that the others do
not wait for.

Silence is counted in rounds, not by the clock: a launcher that was stopped itself, or a laptop that
slept, has not watched anybody.
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

ROUND_S = 0.5  # no round counts for more
CONFIRM_S = 2.0  # between two looks at the stacks
BUSY_FACTOR = 10.0  # a rank that works, at one place, is given so much longer
NON_TRAINER_STEPS = 10  # steps of the others, after which a rank without any is no trainer
DEVICE_FACTOR = 2.0  # the same with a GPU, where waiting looks like work, unless bytes are moved


class Hang(NamedTuple):
    """What was found."""

    rank: int | None  # the one that is behind, if that can be told
    evidence: str
    quiet_s: float
    limit_s: float


@dataclass
class _Rank:
    """One rank under watch."""

    steps: int = 0
    last_step: int = 0
    quiet: float = 0.0
    since_start: float = 0.0
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=120))
    next_sample: float = 1.0
    patience: float = 1.0  # grows when a look at its stacks showed that it moves
    replaced: bool = False  # by another program, which records nothing here


class HangDetector:
    """Tells of a hang once per silence."""

    def __init__(
        self,
        folder: str,
        learned: StepTimingStats,
        tell: Callable[[Hang], None],
        all_late: Callable[[bool], bool] = lambda late: late,
    ) -> None:
        """`all_late` is told whether this node's ranks are, and says whether those of all are."""
        self.folder = folder
        self.learned = learned
        self.tell = tell
        self.all_late = all_late
        self._ranks: dict[RankTail, _Rank] = {}
        self._at = 0
        self._looked: dict[int, tuple[str, ...]] = {}  # first look at the stacks, by pid
        self._look_again = 0.0
        self._told = False

    def round(self, watch: ProcessWatch) -> None:
        """One look at all ranks of this host."""
        t = now()
        passed = min((t - self._at) / 1e9, ROUND_S) if self._at else 0.0
        self._at = t
        ranks = watch.ranks()
        alive = [p for p in ranks if p.died is None and not p.left]
        seen = processes.process_table() if self._sampling() else {}
        for process in alive:
            self._count(process, passed, seen)
        alive = self._trainers([p for p in alive if not self._ranks[p].replaced])
        late = [p for p in alive if self._late(p)]
        if any(p.died is not None and p.failing for p in ranks):
            late = []  # that is another matter, and its agent's
        if not late or self._waited_for(late, alive):
            self._looked, self._told = {}, False
            self.all_late(False)
        elif not self._told:
            self._confirm(late, alive, passed)

    def _sampling(self) -> bool:
        return any(rank.quiet >= rank.next_sample for rank in self._ranks.values())

    def _trainers(self, alive: list[RankTail]) -> list[RankTail]:
        """Without those that never step by design: actors, evaluators, parameter servers."""
        most = max((self._ranks[p].steps for p in alive), default=0)
        return [p for p in alive if self._ranks[p].steps or most < NON_TRAINER_STEPS]

    def _waited_for(self, late: list[RankTail], alive: list[RankTail]) -> bool:
        """Whether another rank is not late yet, and has not stepped on by itself either."""
        silence = min(self._ranks[p].quiet for p in late)
        stopped = any(activity.stopped(p.pid) for p in late)
        return not stopped and any(
            p not in late and self._ranks[p].quiet > silence / 2 for p in alive
        )

    def _count(self, process: RankTail, passed: float, seen: dict[int, processes.ProcInfo]) -> None:
        pulse, rank = process.pulse(), self._ranks.setdefault(process, _Rank())
        rank.since_start += passed
        if pulse.steps != rank.steps:
            if rank.steps:
                made = pulse.steps - rank.steps
                self.learned.gap((pulse.last_step - rank.last_step) / 1e9, made)
            else:
                self.learned.started_in = max(self.learned.started_in, rank.since_start)
            rank.steps, rank.last_step = pulse.steps, pulse.last_step
            rank.quiet, rank.patience, rank.next_sample = 0.0, 1.0, 1.0
            rank.samples.clear()
        rank.quiet += passed
        self.learned.spans(process.longest)
        if rank.quiet >= rank.next_sample and process.pid in seen:
            rank.next_sample = rank.quiet + max(1.0, rank.quiet / 10)
            rank.samples.append(activity.sample(process.pid, rank.quiet, seen))
            rank.replaced = activity.replaced(process.pid, process.page)

    def _limit(self, process: RankTail) -> float:
        rank = self._ranks[process]
        inside = [str(span.get("name")) for span in process.open.values()]
        if process.pulse().waiting:
            inside.append("data_wait")
        return self.learned.limit(rank.steps > 0, inside) * rank.patience

    def _late(self, process: RankTail) -> bool:
        """Silent for too long, and not for a reason that can be seen from outside."""
        rank, limit = self._ranks[process], self._limit(process)
        if rank.quiet < STOPPED_S or activity.traced(process.pid):
            return False
        if activity.stopped(process.pid):
            return True
        if rank.quiet < limit:
            return False
        samples = self._samples(rank, limit)
        if samples and not activity.busy(*samples):
            return True
        moves = samples is not None and activity.moves(*samples)
        slow = not moves and activity.on_device(process.pid)
        return rank.quiet >= (DEVICE_FACTOR if slow else BUSY_FACTOR) * limit

    def _samples(self, rank: _Rank, limit: float) -> tuple[Sample, Sample] | None:
        """The first and the last one of the later half of the time it was given."""
        if len(rank.samples) < 2:
            return None
        last = rank.samples[-1]
        return next(s for s in rank.samples if last.at - s.at <= max(limit / 2, 2.0)), last

    def _confirm(self, late: list[RankTail], alive: list[RankTail], passed: float) -> None:
        """Look at the stacks twice; who stands at the same place both times hangs."""
        halted = [p for p in late if activity.stopped(p.pid)]
        if halted:
            self._found(halted[0], late, alive, "it is stopped by a signal (SIGSTOP)")
            return
        if not self._looked:
            looked = {pid: stacks.main_thread(text) for pid, text in stacks.dump(late).items()}
            debugged = [p for p in late if stacks.in_debugger(looked[p.pid])]
            for process in debugged:
                self._ranks[process].patience *= 2
            self._looked = {} if debugged else looked
            self._look_again = CONFIRM_S
            return
        self._look_again -= passed
        if self._look_again > 0:
            return
        first, self._looked = self._looked, {}
        texts = stacks.dump(late)
        moved = False
        for process in late:
            if stacks.main_thread(texts[process.pid]) != first.get(process.pid):
                self._ranks[process].patience *= 2
                moved = True
        if not moved and self.all_late(True):
            self._found(None, late, alive, "")

    def _found(
        self, behind: RankTail | None, late: list[RankTail], alive: list[RankTail], why: str
    ) -> None:
        self._told = True
        texts = stacks.dump([p for p in alive if not activity.stopped(p.pid)])
        for process in alive:
            text = texts.get(process.pid) or _missing_stacks_text(process)
            name = f"rank{process.rank if process.rank is not None else ''}-{process.pid}.txt"
            stacks.save(self.folder, name, text)
        frames = {p.pid: stacks.main_thread(texts.get(p.pid, "")) for p in alive}
        behind = behind or self._behind(late, frames)
        worst = behind or late[0]
        rank = self._ranks[worst]
        place = stacks.where(frames.get(worst.pid, ()))
        words = f"no step for {rank.quiet:.0f} s, {self._limit(worst):.0f} s would be usual"
        if behind is not None and behind.rank is not None:
            words += f"; rank {behind.rank} is behind"
        words += f": {why}" if why else (f" at {place}" if place else "")
        number = behind.rank if behind is not None else None
        self.tell(Hang(number, words[:300], rank.quiet, self._limit(worst)))

    def _behind(self, late: list[RankTail], frames: dict[int, tuple[str, ...]]) -> RankTail | None:
        steps = {p.pid: self._ranks[p].steps for p in late}
        if len(set(steps.values())) > 1:
            least = min(steps, key=lambda pid: steps[pid])
            return next(p for p in late if p.pid == least)
        if len(late) == 1:
            return late[0]
        odd = stacks.odd_one_out({p.pid: frames[p.pid] for p in late if frames.get(p.pid)})
        return next((p for p in late if p.pid == odd), None)


def _missing_stacks_text(process: RankTail) -> str:
    """What can be said of a process that gives no stacks."""
    try:
        return f"no stacks: the process is in state {processes.process_info(process.pid).state}\n"
    except (OSError, ValueError, IndexError):
        return "no stacks: the process is gone\n"
