"""Finds launches, attempts and ranks in the journals of a run, and how each attempt ended."""

from __future__ import annotations

import signal
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from headway.journal.reader import Journal
from headway.ledger.clocks import ClockAlignment
from headway.ledger.model import Outcome
from headway.ledger.record import AttemptRecord, Launch, RankRecord, exited_cleanly


def find_launches(
    launchers: Sequence[Journal], processes: Sequence[Journal], alignment: ClockAlignment
) -> list[Launch]:
    """Return all launches in order, also those whose launcher left no journal."""
    known = {x.launch for x in launchers}
    groups: dict[str, list[Journal]] = {}
    for launcher in launchers:
        groups.setdefault(launcher.launch, []).append(launcher)
    launches = [_launch(group, processes, alignment) for group in groups.values()]
    for name in sorted({p.launch for p in processes} - known):
        members = [p for p in processes if p.launch == name]
        begin = min(alignment.to_run_time(p, p.begin) for p in members)
        end = max(alignment.to_run_time(p, p.last_sign()) for p in members)
        silent = [p for p in members if not any(True for _ in p.named("exit"))]
        ended = all(p.ended for p in silent)
        raised = any(True for p in members for _ in p.named("error"))
        code = int(raised) if raised or not silent else None
        launches.append(Launch(name, begin, end, code if ended else None, ended))
    launches.sort(key=lambda launch: (launch.begin, launch.name))
    for earlier, later in pairwise(launches):
        earlier.ended = True  # a later launch exists
        earlier.end = min(earlier.end, later.begin)
    return launches


def _launch(
    group: Sequence[Journal], processes: Sequence[Journal], alignment: ClockAlignment
) -> Launch:
    """Return a launch from the journals of its launchers, one per node."""
    members = [p for p in processes if p.launch == group[0].launch]
    exits = [(x, event) for x in group for event in list(x.named("exit"))[:1]]
    begin = min(alignment.to_run_time(x, x.begin) for x in group)
    ends = [begin, *(alignment.to_run_time(x, event["t"]) for x, event in exits)]
    silent = [x for x in group if not any(True for _ in x.named("exit"))]
    decided = any(True for x in group for _ in x.named("decision"))
    over = decided or all(x.ended for x in silent)
    if (silent and not decided) or not exits:
        ends += [alignment.to_run_time(x, x.last_sign()) for x in (*group, *members)]
    codes = [event.get("code") for _, event in exits]
    launch = Launch(
        name=group[0].launch,
        begin=begin,
        end=max(ends),
        exit_code=next((code for code in codes if code), codes[0] if codes else None),
        ended=over,
        journals=tuple(group),
    )
    for key in ("allocated", "queued"):
        for launcher in group:
            value = launcher.facts.get(key)
            if type(value) is int and 0 < value <= launcher.wall:
                since = alignment.to_run_time(launcher, launcher.opened) - (launcher.wall - value)
                setattr(launch, key, min(since, launch.begin, getattr(launch, key) or since))
    signals = [
        (alignment.to_run_time(x, e["t"]), str(x.name), e.get("signal"))
        for x in group
        for e in x.named("signal")
    ]
    if signals:
        launch.stopped_at, _, launch.stop_signal = min(signals, key=lambda signal: signal[:2])
    spawns = [alignment.to_run_time(x, e["t"]) for x in group for e in x.named("spawn")]
    launch.spawned = min(spawns, default=None)
    return launch


class UncountedTime(NamedTuple):
    """Time between two launches that is not part of the wall time."""

    launch: str  # the later one
    length: int
    paused: int  # after an attempt that completed or was stopped by the user
    queued: int  # for capacity, by the records of the scheduler


def uncounted_time(
    launches: Sequence[Launch], attempts: Sequence[AttemptRecord]
) -> list[UncountedTime]:
    """Return the time before each launch that is not accounted for."""
    last = {attempt.launch.name: attempt for attempt in attempts}
    out = []
    end = launches[0].end if launches else 0
    for earlier, launch in pairwise(launches):
        end = max(end, earlier.end)
        start = max(launch.begin if launch.allocated is None else launch.allocated, end)
        queued = 0 if launch.queued is None else start - min(max(launch.queued, end), start)
        going_on = last[earlier.name].outcome in ("completed", "stopped")
        paused = start - end if going_on else 0
        if paused or queued:
            out.append(UncountedTime(launch.name, paused or queued, paused, queued))
    return out


def find_attempts(
    launches: Sequence[Launch], processes: Sequence[Journal], alignment: ClockAlignment
) -> list[AttemptRecord]:
    """Return all attempts in order, with start, end and outcome."""
    attempts: list[AttemptRecord] = []
    trained = {program(p) for p in processes if p.windows}
    for launch in launches:
        members = [p for p in processes if p.launch == launch.name]
        agents = [p for p in members if any(True for _ in p.named("agent", "worker_failed"))]
        ranks = _ranks(members, agents, trained, _failed_pids(launch))
        known = {id(p) for p in (*agents, *ranks)}
        others = [p for p in members if id(p) not in known]
        generations = _generations(ranks, alignment) or [[]]
        for index, generation in enumerate(generations):
            attempt = AttemptRecord(launch, generation, 0, agents=agents, others=others)
            attempt.begin = launch.begin
            if index:
                first_begin = min(rank.begin for rank in attempt.ranks)
                attempt.begin = min(max(first_begin, launch.begin), launch.end)
            attempts.append(attempt)
    following: list[AttemptRecord | None] = [*attempts[1:], None]
    for attempt, after in zip(attempts, following, strict=False):
        _settle_end(attempt, after, alignment)
        if after is not None:
            after.recovers = attempt.outcome in ("failed", "preempted")
    return attempts


def _ranks(
    members: Sequence[Journal],
    agents: Sequence[Journal],
    trained: Container[tuple[str, ...]],
    failed: Sequence[tuple[Journal, int]],
) -> list[Journal]:
    """Return the processes that train, by their environment, process group or steps.

    `trained` are the programs that made steps in the run. A process of such a program that failed
    before its first step, and did not run at the same time as another rank, is a rank too.
    """
    known = set(map(id, agents))
    candidates = [p for p in members if id(p) not in known]
    ranks = [
        p
        for p in candidates
        if p.windows or (p.rank is not None and not p.helper) or any(True for _ in p.named("rank"))
    ]
    known = set(map(id, ranks))
    plain = [p for p in candidates if not p.helper and id(p) not in known]
    same = [p for p in plain if program(p) in trained]
    if not ranks:
        return same or plain
    dead = [p for p in same if not exited_cleanly(p) or _is_among(p, failed)]
    return ranks + [p for p in dead if not any(_ran_together(p, rank) for rank in ranks)]


def program(journal: Journal) -> tuple[str, ...]:
    """Return the program of a process without arguments: `train.py` for `python -u train.py -x`."""
    return next(((word,) for word in journal.argv[1:] if not word.startswith("-")), ())


def _ran_together(journal: Journal, other: Journal) -> bool:
    """Whether two processes of one launch ran at the same time."""
    return journal.boot != other.boot or (
        journal.begin < other.last_sign() and other.begin < journal.last_sign()
    )


def _failed_pids(launch: Launch) -> list[tuple[Journal, int]]:
    """Return the processes of which a launcher recorded a nonzero exit code."""
    return [
        (launcher, event["pid"])
        for launcher in launch.journals
        for event in launcher.named("death")
        if event.get("code") and type(event.get("pid")) is int
    ]


def _is_among(journal: Journal, deaths: Iterable[tuple[Journal, int]]) -> bool:
    return any(pid == journal.pid and shares_pids(witness, journal) for witness, pid in deaths)


def shares_pids(witness: Journal, journal: Journal) -> bool:
    """Whether process ids are comparable: same host and same container."""
    spaces = {journal.pids, witness.pids} - {None}
    return witness.boot == journal.boot and len(spaces) < 2


def _generations(ranks: Sequence[Journal], alignment: ClockAlignment) -> list[list[RankRecord]]:
    """Group ranks by attempt; a rank that starts again after its process ended is in a new one."""
    by_key: dict[tuple[int, int], list[RankRecord]] = {}
    ordered = sorted(ranks, key=lambda p: (p.restart, alignment.to_run_time(p, p.begin), p.name))
    last: dict[tuple[int, int], tuple[int, int]] = {}  # (restart, rank) -> (generation, end)
    nameless: dict[int, list[int]] = {}  # ends of processes without a rank
    for journal in ordered:
        begin, end = (
            alignment.to_run_time(journal, journal.begin),
            alignment.to_run_time(journal, journal.last_sign()),
        )
        rank = journal.rank
        if rank is None:
            rank = _free_slot(nameless.setdefault(journal.restart, []), begin, end)
        before = last.get((journal.restart, rank))
        generation = 0
        if before is not None:
            generation = before[0] + (1 if begin >= before[1] else 0)
            peers = by_key.get((journal.restart, generation), [])
            if any(
                peer.rank == rank for peer in peers
            ):  # two processes with the same rank at the same time
                rank = _lowest_free_rank(peers)
        last[journal.restart, rank] = (generation, end)
        record = RankRecord(journal, rank, alignment.shifts[journal.name])
        by_key.setdefault((journal.restart, generation), []).append(record)
    generations = list(by_key.values())
    for records in generations:
        records.sort(key=lambda record: record.rank)
    return sorted(generations, key=lambda records: min(record.begin for record in records))


def _free_slot(ends: list[int], begin: int, end: int) -> int:
    for slot, taken_until in enumerate(ends):
        if begin >= taken_until:
            ends[slot] = end
            return slot
    ends.append(end)
    return len(ends) - 1


def _lowest_free_rank(records: Iterable[RankRecord]) -> int:
    used = {record.rank for record in records}
    return next(rank for rank in range(len(used) + 1) if rank not in used)


def _settle_end(
    attempt: AttemptRecord, after: AttemptRecord | None, alignment: ClockAlignment
) -> None:
    launch = attempt.launch
    next_in_launch = after is not None and after.launch is launch
    if launch.stopped_at is not None and not next_in_launch:
        attempt.stop_requested_at = launch.stopped_at
    attempt.is_last_of_launch = not next_in_launch
    attempt.outcome = _outcome(attempt, after if next_in_launch else None)
    if attempt.outcome in ("completed", "running"):
        attempt.end = launch.end
    else:
        attempt.end = min(
            max(_first_death_seen(attempt, alignment, next_in_launch), attempt.begin), launch.end
        )
    if after is not None:
        attempt.end = min(attempt.end, after.begin)
    attempt.end = max(attempt.end, attempt.begin)


def _outcome(attempt: AttemptRecord, following: AttemptRecord | None) -> Outcome:
    """Return the outcome; `following` is the next attempt of the same launch."""
    launch = attempt.launch
    if following is not None:
        return "completed" if _handed_over(attempt, following) else "failed"
    if not launch.ended:
        return "running"
    if launch.stop_signal is None and _all_ranks_acknowledged(attempt):
        return "preempted"
    if launch.stop_signal is None and launch.exit_code == 0:
        return "completed"
    if launch.stop_signal is None:
        return "stopped" if _interrupted(attempt) else "failed"
    return "stopped" if launch.stop_signal == signal.SIGINT else "preempted"


def _handed_over(attempt: AttemptRecord, following: AttemptRecord) -> bool:
    """Whether all ranks exited cleanly without a restart, so that another program follows."""
    failed = _failed_pids(attempt.launch)
    restarts = [
        max(rank.journal.restart for rank in record.ranks) for record in (attempt, following)
    ]
    return restarts[0] >= restarts[1] and all(
        rank.exited_cleanly and not _is_among(rank.journal, failed) for rank in attempt.ranks
    )


def _all_ranks_acknowledged(attempt: AttemptRecord) -> bool:
    """Whether every rank left its loop on a preemption notice, even if the launcher got none."""
    trainers = attempt.trainers()
    acknowledged = [any(True for _ in rank.journal.named("preempted")) for rank in trainers]
    return bool(acknowledged) and all(acknowledged)


def _interrupted(attempt: AttemptRecord) -> bool:
    """Whether the job recorded a SIGINT that the launcher did not receive."""
    if attempt.launch.exit_code in (-signal.SIGINT, 128 + signal.SIGINT):
        return True
    journals = [*attempt.agents, *(rank.journal for rank in attempt.ranks)]
    errors = [
        (str(e.get("type")), str(e.get("message"))) for j in journals for e in j.named("error")
    ]
    return any(
        kind == "KeyboardInterrupt"
        or (kind.endswith("SignalException") and text.endswith(f"signal: {signal.SIGINT.value}"))
        for kind, text in errors
    )


def _first_death_seen(
    attempt: AttemptRecord, alignment: ClockAlignment, next_in_launch: bool
) -> int:
    """Return when the launcher or an agent detected the first rank that did not exit cleanly.

    If all ranks exited cleanly, return when it detected the last one, because ranks may save until
    then.
    """
    seen_at: list[int] = []
    deaths = [*_deaths(attempt.launch.journals, alignment, "death")]
    deaths += _deaths(attempt.agents, alignment, "worker_failed")
    unclean = [rank for rank in attempt.ranks if not rank.exited_cleanly]
    for rank in unclean or attempt.ranks:
        journal = rank.journal
        times = sorted(t for x, pid, t in deaths if pid == journal.pid and shares_pids(x, journal))
        seen_at += [t for t in times if t >= rank.begin][
            :1
        ]  # later ones are of other processes with this pid
    if seen_at:
        return min(seen_at) if unclean else max(seen_at)
    if attempt.launch.exit_code is not None and not next_in_launch:
        return attempt.launch.end
    signs = [rank.last_sign for rank in attempt.ranks]
    if not next_in_launch:  # the launchers died without detecting it
        signs += [alignment.to_run_time(x, x.last_sign()) for x in attempt.launch.journals]
    return max(signs, default=attempt.launch.end)


def _deaths(
    witnesses: Iterable[Journal], alignment: ClockAlignment, event: str
) -> Iterable[tuple[Journal, int, int]]:
    """Yield the journal that recorded a death, the pid, and when."""
    for witness in witnesses:
        for fields in witness.named(event):
            if type(fields.get("pid")) is int:
                yield witness, fields["pid"], alignment.to_run_time(witness, fields["t"])
