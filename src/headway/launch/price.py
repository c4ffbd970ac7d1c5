"""What an eviction would cost now, told in the journal while a run goes on.

A line every half minute, and one as soon as a checkpoint is durable, or when a run comes back of
which earlier launches have told. The launcher that has rank 0 on its node speaks for the run; it
reads nothing for it that it does not follow anyway.
"""

from __future__ import annotations

import json
import signal
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.journal.writer import now, process_begin
from headway.launch.attempt import Attempt
from headway.launch.follow import Followed
from headway.launch.watch import Watch

EVERY_NS = 30_000_000_000
SOON_NS = 1_000_000_000  # saves that follow each other faster share a line
NS = 1_000_000_000

Save = tuple[int, int]  # when the state was taken, and when it was durable
_TOLD = tuple(f'{{"ev":"{name}"'.encode() for name in ("signal", "preempted", "price"))


@dataclass(frozen=True)
class Past:
    """What earlier launches of the run have told."""

    preemptions: int = 0
    save_s: float | None = None
    recover_s: float | None = None


class Pricing:
    """One for all attempts of a command on this node."""

    def __init__(self, journal: Path, launch: str) -> None:
        self._past = earlier(journal, launch)
        self._starts: list[int] = []  # ns, from the begin of each attempt to its first step
        self._began = self._due = self._last = self._known = 0
        self._restart = 0  # of torchrun itself
        self._stepped = False
        self._attempt: Attempt | None = None

    def begin(self, attempt: Attempt) -> None:
        """An attempt begins: tell its price from now on."""
        self._attempt = attempt
        self._began = now() if attempt.number else process_begin()
        self._due, self._known, self._stepped = self._began, 0, False
        if self._past == Past():  # else it has something to tell at once
            self._due += EVERY_NS
        self._restart = 0
        attempt.watch.each_round.append(self._round)

    def end(self, ranks: Sequence[Followed]) -> None:
        """It is over. Where only its ranks know that they were told to go, it is said for later."""
        assert self._attempt is not None
        if _speaks(ranks) and all(rank.preempted for rank in ranks):
            step = ranks[0].preempted.get("step")
            self._attempt.writer.write({"ev": "preempted", "t": now(), "step": step})

    def _round(self, watch: Watch) -> None:
        ranks = watch.ranks()
        if not _speaks(ranks):
            return
        t = now()
        if ranks[0].restart != self._restart:  # new ranks in the same launch: a start of its own
            self._restart, self._began, self._stepped = ranks[0].restart, t, False
        if not self._stepped and any(rank.pulse().steps for rank in ranks):
            self._stepped = True
            self._starts.append(t - self._began)
        known = sum(map(_told, ranks))
        if t < self._due and (known == self._known or t < self._last + SOON_NS):
            return
        self._known, self._last, self._due = known, t, t + EVERY_NS
        saves = durable(ranks)
        assert self._attempt is not None
        self._attempt.writer.write(self._event(t, ranks, saves))

    def _event(self, t: int, ranks: Sequence[Followed], saves: Sequence[Save]) -> dict[str, Any]:
        world = next((w for rank in ranks if type(w := rank.world) is int), None)
        held = world or len(ranks)
        since = max((start for start, _ in saves), default=self._began)
        recover = self._recover()
        return {
            "ev": "price",
            "t": t,
            "accelerators": held,
            "since": since,
            "saved": bool(saves),
            "save_s": self._save(saves),
            "recover_s": round(recover, 3),
            "preemptions": self._past.preemptions,
            "lost_s": round(held * ((t - since) / NS + recover), 3),
        }

    def _save(self, saves: Sequence[Save]) -> float | None:
        took = sorted(end - start for start, end in saves)
        if not took:
            return self._past.save_s
        return round(took[min(int(0.95 * len(took)), len(took) - 1)] / NS, 3)

    def _recover(self) -> float:
        """As the starts took; before the first one as earlier launches told."""
        if self._starts:
            return statistics.median(self._starts) / NS
        return self._past.recover_s or 0.0


def durable(ranks: Iterable[Followed]) -> list[Save]:
    """The checkpoints of these ranks that one could resume from, files of one step together."""
    found: dict[tuple[str, object], Save] = {}
    for rank in ranks:
        for save in rank.saves:
            if "level" in save or save.get("part") is True:
                continue  # a Checkpointer tells itself what became of it
            _add(found, ("span", save.get("step")), save["t"], save["end"])
        for told in rank.outcomes:
            if told.get("level") == "disk" and not told.get("error"):
                took = round(float(told.get("durable_s") or 0.0) * NS)
                _add(found, ("told", told.get("step")), told["t"] - took, told["t"])
    return sorted(found.values(), key=lambda save: save[1])


def _add(found: dict[tuple[str, object], Save], key: tuple[str, object], *times: int) -> None:
    start, end = found.get(key, times)
    found[key] = (min(start, times[0]), max(end, times[1]))


def _told(rank: Followed) -> int:
    return len(rank.saves) + len(rank.outcomes)


def _speaks(ranks: Sequence[Followed]) -> bool:
    """Rank 0 is here, or nobody has a rank."""
    return bool(ranks) and any(not rank.rank for rank in ranks)


def earlier(journal: Path, launch: str) -> Past:
    """From the journals of the launchers that came before; they are small."""
    told_to_go, last = set(), (0, Past())
    for path in journal.glob("launcher-*.jsonl"):
        name = path.name.split("-")[1].partition(".")[0]
        if name == launch:
            continue
        for record in _lines(path):
            if record["ev"] == "price" and record["at"] > last[0]:
                last = record["at"], Past(0, record.get("save_s"), record.get("recover_s"))
            elif record["ev"] != "price" and record.get("signal") != signal.SIGINT:
                told_to_go.add(name)
    return Past(len(told_to_go), last[1].save_s, last[1].recover_s)


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """Its prices and what told it to go, with `at`: when that was by the wall clock."""
    try:
        lines = path.read_bytes().split(b"\n")
        head = json.loads(lines[0])
        ahead = int(head["wall"]) - int(head["t"])
        for line in lines:
            if line.startswith(_TOLD):
                record = json.loads(line)
                yield {**record, "at": record["t"] + ahead}
    except (OSError, ValueError, KeyError, TypeError):
        return  # a torn one tells less
