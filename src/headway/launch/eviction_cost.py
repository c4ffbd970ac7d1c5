"""Report to the journal what an eviction would cost now, while a run is in progress.

One event every 30 seconds, one as soon as a checkpoint is durable, and one when a run resumes whose
earlier launches have reported. The launcher that has rank 0 on its node reports for the run; it
reads nothing for this that it does not follow anyway.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.eviction_cost import eviction_cost, recovery_time, save_time
from headway.journal import file_access
from headway.journal.writer import now, process_begin
from headway.launch.attempt import Attempt
from headway.launch.process_watch import ProcessWatch
from headway.launch.progress import DurableSave, durable_saves
from headway.launch.rank_tail import RankTail
from headway.units import NS

REPORT_EVERY_NS = 30_000_000_000
MIN_GAP_NS = 1_000_000_000  # saves that follow each other faster share an event


_EVENT_PREFIXES = tuple(
    f'{{"ev":"{name}"'.encode() for name in ("signal", "preempted", "price", "recovered")
)


@dataclass(frozen=True)
class EarlierLaunches:
    """What earlier launches of the run have reported."""

    preemptions: int = 0
    save_s: float | None = None
    recover_s: float | None = None
    recoveries: tuple[float, ...] = ()


@dataclass
class _Start:
    """The start of training that is in progress, or the last one; times in ns."""

    started: int  # of the attempt
    recovers: bool  # the run has trained before
    earlier_ns: int = 0  # spent by attempts since then that never trained
    trained: bool = False


class EvictionCostReporter:
    """One reporter for all attempts of a command on this node."""

    def __init__(self, journal: Path, launch: str) -> None:
        self._earlier = earlier_launches(journal, launch)
        self._save_s = self._earlier.save_s  # of the most recent earlier attempt that saved
        self._start_s = self._earlier.recover_s or 0.0
        self._recoveries = [*self._earlier.recoveries]
        self._start = _Start(0, recovers=bool(self._earlier.recover_s))
        self._due_at = self._reported_at = self._save_count = 0
        self._restart = 0  # of torchrun itself
        self._ranks: Sequence[RankTail] = ()
        self._attempt: Attempt | None = None

    def attempt_started(self, attempt: Attempt) -> None:
        """Report the eviction cost of this attempt from now on."""
        self._attempt = attempt
        self._start.started = now() if attempt.number else process_begin()
        self._due_at, self._save_count = self._start.started, 0
        if self._earlier == EarlierLaunches():  # else it has something to report at once
            self._due_at += REPORT_EVERY_NS
        self._restart = 0
        attempt.watch.on_round.append(self._on_round)

    def attempt_ended(self, ranks: Sequence[RankTail]) -> None:
        """Record a preemption that only the ranks know of, for later launches."""
        assert self._attempt is not None
        self._ranks_ended(ranks, now())
        if _reports_for_run(ranks) and all(rank.preempted for rank in ranks):
            step = ranks[0].preempted.get("step")
            self._attempt.writer.write({"ev": "preempted", "t": now(), "step": step})

    def _ranks_ended(self, ranks: Sequence[RankTail], t: int) -> None:
        """These ranks have ended; what follows is a recovery if any of them has trained."""
        saves = durable_saves(ranks)
        self._save_s = _typical_save_s(saves) if saves else self._save_s
        if not self._start.trained:
            alive = max((rank.pulse().alive for rank in ranks), default=0) or t
            self._start.earlier_ns += max(alive - self._start.started, 0)
            return
        self._start = _Start(t, recovers=True)

    def _on_round(self, watch: ProcessWatch) -> None:
        ranks = watch.ranks()
        if not _reports_for_run(ranks):
            return
        t = now()
        if ranks[0].restart != self._restart:  # new ranks in the same launch: a new start
            self._ranks_ended(self._ranks, t)
            self._restart, self._start.started = ranks[0].restart, t
        self._ranks = ranks
        if not self._start.trained and any(rank.pulse().steps for rank in ranks):
            self._training_started(t)
        save_count = sum(map(_count_saves, ranks))
        if t < self._due_at and (
            save_count == self._save_count or t < self._reported_at + MIN_GAP_NS
        ):
            return
        self._save_count, self._reported_at, self._due_at = save_count, t, t + REPORT_EVERY_NS
        saves = durable_saves(ranks)
        assert self._attempt is not None
        self._attempt.writer.write(self._cost_event(t, ranks, saves))

    def _training_started(self, t: int) -> None:
        """Called at the first step of an attempt."""
        self._start.trained = True
        took = round((self._start.earlier_ns + t - self._start.started) / NS, 3)
        if not self._start.recovers:
            self._start_s = took
            return
        self._recoveries.append(took)
        assert self._attempt is not None
        self._attempt.writer.write({"ev": "recovered", "t": t, "s": took})

    def _cost_event(
        self, t: int, ranks: Sequence[RankTail], saves: Sequence[DurableSave]
    ) -> dict[str, Any]:
        known_world = next(
            (world_size for rank in ranks if type(world_size := rank.world) is int), None
        )
        accelerators = known_world or len(ranks)
        since = max((start for start, _ in saves), default=self._start.started)
        recover = recovery_time(self._recoveries, self._start_s)
        return {
            "ev": "price",
            "t": t,
            "accelerators": accelerators,
            "since": since,
            "saved": bool(saves),
            "save_s": _typical_save_s(saves) if saves else self._save_s,
            "recover_s": round(recover, 3),
            "preemptions": self._earlier.preemptions,
            "lost_s": round(eviction_cost(accelerators, (t - since) / NS, recover), 3),
        }


def _typical_save_s(saves: Sequence[DurableSave]) -> float | None:
    took = save_time([(end - start) / NS for start, end in saves])
    return None if took is None else round(took, 3)


def _count_saves(rank: RankTail) -> int:
    return len(rank.saves) + len(rank.outcomes)


def _reports_for_run(ranks: Sequence[RankTail]) -> bool:
    """Whether rank 0 is on this node, or no process has a rank."""
    return bool(ranks) and any(not rank.rank for rank in ranks)


def earlier_launches(journal: Path, launch: str) -> EarlierLaunches:
    """Read the journals of earlier launchers, which are small."""
    preempted: set[str] = set()
    prices: dict[int, dict[str, Any]] = {}  # by wall clock
    recoveries: dict[int, float] = {}
    for path in journal.glob("launcher-*.jsonl"):
        name = path.name.split("-")[1].partition(".")[0]
        for record in _relevant_events(path) if name != launch else ():
            if record["ev"] == "price":
                prices[record["at"]] = record
            elif record["ev"] == "recovered":
                if type(record.get("s")) in (int, float):
                    recoveries[record["at"]] = float(record["s"])
            elif record.get("signal") != signal.SIGINT:
                preempted.add(name)
    last = prices[max(prices)] if prices else {}
    return EarlierLaunches(
        len(preempted), last.get("save_s"), last.get("recover_s"), tuple(recoveries.values())
    )


def _relevant_events(path: Path) -> Iterable[dict[str, Any]]:
    """Its cost and recovery events and preemption signals; `at` is their wall clock time."""
    try:
        lines = file_access.read_file(path, file_access.JOURNAL_LIMIT).split(b"\n")
        head = json.loads(lines[0])
        clock_offset = int(head["wall"]) - int(head["t"])
        for line in lines:
            if line.startswith(_EVENT_PREFIXES):
                record = json.loads(line)
                yield {**record, "at": record["t"] + clock_offset}
    except (OSError, ValueError, KeyError, TypeError):
        return  # a torn journal contributes less
