"""Builds the ledger of a run from its journals, without clock, files or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway.journal.reader import Journal
from headway.ledger import (
    checkpoints,
    communication,
    compile_cache,
    compiles,
    failures,
    fault_injection,
    notes,
    preemption,
    publish,
    startup_stages,
)
from headway.ledger.attempts import UncountedTime, find_attempts, find_launches, uncounted_time
from headway.ledger.buckets import DOWNTIME, SHUTDOWN, UNKNOWN
from headway.ledger.clocks import ClockAlignment, align_clocks
from headway.ledger.merge import AttemptTimeline, account_attempt
from headway.ledger.model import (
    Attempt,
    Checkpoint,
    Failure,
    Ledger,
    RankLedger,
    Recovery,
    shell_code,
)
from headway.ledger.record import AttemptRecord, Launch
from headway.ledger.resume import (
    Resume,
    durable_saves,
    find_checkpoints,
    lost_intervals,
    mark_lost,
    new_steps,
    resume_points,
    rolled_back_ranges,
)
from headway.ledger.segments import Segment, join, time_by_bucket


def build_ledger(
    journals: Sequence[Journal],
    *,
    run: str = "",
    problems: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Ledger:
    """Compute the ledger of one run. The order of `journals` does not matter."""
    ordered = sorted(journals, key=lambda j: (j.begin, j.name))
    launchers = sorted((j for j in ordered if j.role == "launcher"), key=_launch_order)
    processes = [j for j in ordered if j.role != "launcher"]
    alignment = align_clocks(launchers, processes)
    launches = find_launches(launchers, processes, alignment)
    attempts = find_attempts(launches, processes, alignment)
    outside = uncounted_time(launches, attempts)
    if outside:
        _remove_uncounted_time(outside, launches, ordered, alignment)
        launches = find_launches(launchers, processes, alignment)
        attempts = find_attempts(launches, processes, alignment)
    zero, end = _bounds(launches)
    resumes = resume_points(attempts)
    timelines = [account_attempt(index, attempt, zero) for index, attempt in enumerate(attempts)]
    recoveries = _recoveries(attempts, timelines)
    segments = _run_segments(attempts, resumes, timelines, zero, end)
    ranks = _rank_ledgers(attempts, resumes, timelines, zero, end)
    failures = _failures(attempts, timelines, alignment)
    saves = tuple(_shift_save(s, zero) for s in find_checkpoints(attempts, resumes))
    outcomes = checkpoints.checkpoint_outcomes(attempts, zero)
    buckets = time_by_bucket(segments)
    count, between = checkpoints.count_saves(saves)
    intervals = checkpoints.save_intervals(attempts)
    to_disk = next((interval for interval in intervals if interval.level == "disk"), None)
    recommended = to_disk.recommended if to_disk else None
    if recommended is None:
        recommended = checkpoints.recommended_interval(outcomes, saves, failures, end - zero)
    return Ledger(
        run=run,
        wall=end - zero,
        segments=_from_start(zero, segments),
        buckets=buckets,
        ranks=ranks,
        steps=new_steps(attempts, resumes),
        attempts=tuple(
            _attempt(i, d, r, zero) for i, (d, r) in enumerate(zip(attempts, resumes, strict=True))
        ),
        failures=tuple(replace(f, at=f.at - zero) for f in failures),
        time_to_start=_time_to_start(timelines, zero),
        time_to_recover=tuple(recovery.ns for recovery in recoveries),
        hidden=_hidden(timelines),
        queue_capacity=_queue_capacity(launches, outside),
        checkpoints=saves,
        saves=count,
        save_interval=between,
        recommended_interval=recommended,
        compiles=compiles.find_compiles(attempts, zero),
        compile_parts=compiles.compile_parts(attempts, timelines),
        rank_compiles=compiles.compiles_by_rank(attempts, timelines),
        recompile_limit_hits=compiles.recompile_limit_hits(attempts, zero),
        gaps=notes.longest_gaps(timelines, zero),
        notes=notes.collect_notes(problems, alignment, launches, attempts, ordered),
        started_at=_started_at(launches, ordered, alignment, zero),
        running=bool(attempts) and attempts[-1].outcome == "running",
        command=_command(launchers),
        exit_code=_exit_code(launches),
        batches_per_step=_batches_per_step(attempts),
        metadata=dict(metadata or {}),
        archives=compile_cache.compile_cache_loads(attempts),
        stages=startup_stages.stage_graphs(attempts, zero),
        archives_saved=compile_cache.count_archives_saved(attempts),
        process_groups=communication.process_groups(attempts),
        pre_step_collectives=communication.pre_step_collectives(attempts),
        async_save=checkpoints.async_saves(attempts),
        notices=preemption.notices(
            attempts, resumes, timelines, durable_saves(outcomes, saves), zero
        ),
        faults=tuple(
            replace(f, at=f.at - zero)
            for f in fault_injection.find_faults(attempts, failures, alignment)
        ),
        outcomes=outcomes,
        save_intervals=intervals,
        publishes_run=publish.publish_from_events(attempts),
        recovered=tuple((recovery.attempt, recovery.until) for recovery in recoveries),
        rolled_back=rolled_back_ranges(attempts, resumes),
        paused=sum(item.paused for item in outside),
        outside=_uncounted_stretches(outside, launches, zero),
    )


def _remove_uncounted_time(
    outside: Sequence[UncountedTime],
    launches: Sequence[Launch],
    journals: Sequence[Journal],
    alignment: ClockAlignment,
) -> None:
    """Move everything after uncounted time back to the start of that time."""
    before = {item.launch: item.length for item in outside}
    by = 0
    for launch in launches:
        by += before.get(launch.name, 0)
        alignment.move_earlier((j for j in journals if by and j.launch == launch.name), by)


def _uncounted_stretches(
    outside: Sequence[UncountedTime], launches: Sequence[Launch], zero: int
) -> tuple[tuple[int, int], ...]:
    """Return the start, in time without these stretches, and length of each stretch."""
    lengths = {item.launch: item.length for item in outside}
    return tuple(
        (
            (launch.begin if launch.allocated is None else launch.allocated) - zero,
            lengths[launch.name],
        )
        for launch in launches
        if launch.name in lengths
    )


def _launch_order(launcher: Journal) -> tuple[int, int, str]:
    index = launcher.facts.get("index")
    return (index if type(index) is int else 0, launcher.wall, launcher.name)


def _bounds(launches: Sequence[Launch]) -> tuple[int, int]:
    if not launches:
        return 0, 0
    first = launches[0]
    zero = first.allocated if first.allocated is not None else first.begin
    return zero, max(max(launch.end for launch in launches), zero)


def _run_segments(
    attempts: Sequence[AttemptRecord],
    resumes: Sequence[Resume],
    timelines: Sequence[AttemptTimeline],
    zero: int,
    end: int,
) -> list[Segment]:
    pieces = []
    for attempt, resume, timeline in zip(attempts, resumes, timelines, strict=True):
        lost = lost_intervals(attempt.trainers(), resume)
        pieces.append(mark_lost(timeline.segments, lost))
    return _compose(attempts, pieces, zero, end)


def _compose(
    attempts: Sequence[AttemptRecord], pieces: Sequence[Sequence[Segment]], zero: int, end: int
) -> list[Segment]:
    """Concatenate the attempts and the gaps between them."""
    out: list[Segment] = []
    at = zero
    for attempt, piece in zip(attempts, pieces, strict=True):
        out += _gap_before(attempt, at)
        out += piece
        at = max(at, attempt.end)
    out.append(Segment(at, end, SHUTDOWN))
    return join(out)


def _gap_before(attempt: AttemptRecord, at: int) -> list[Segment]:
    """Return the segments from the end of the previous attempt to the start of `attempt`."""
    if at >= attempt.begin:
        return []
    group, gap = ("recover", DOWNTIME) if attempt.recovers else ("start", SHUTDOWN)
    allocated = attempt.launch.allocated
    allocated = attempt.begin if allocated is None else min(max(allocated, at), attempt.begin)
    if attempt.begin > attempt.launch.begin:  # a restart in the launch allocates nothing
        allocated = attempt.begin
    return [
        Segment(at, allocated, gap),
        Segment(allocated, attempt.begin, f"{group}.hardware_setup"),
    ]


def _rank_ledgers(
    attempts: Sequence[AttemptRecord],
    resumes: Sequence[Resume],
    timelines: Sequence[AttemptTimeline],
    zero: int,
    end: int,
) -> tuple[RankLedger, ...]:
    numbers = sorted({record.rank for attempt in attempts for record in attempt.ranks})
    out = []
    for rank in numbers:
        pieces: list[list[Segment]] = []
        steps = 0
        hosts: dict[int, str] = {}
        absent = 0
        for index, (attempt, resume, timeline) in enumerate(
            zip(attempts, resumes, timelines, strict=True)
        ):
            records = [x for x in attempt.ranks if x.rank == rank]
            accounts = [x for x in timeline.ranks if x.rank == rank]
            if not records or not accounts:
                pieces.append([Segment(attempt.begin, attempt.end, UNKNOWN)])
                absent += (
                    attempt.end - attempt.begin if rank >= (_world(attempt) or rank + 1) else 0
                )
                continue
            lost = lost_intervals(records, resume)
            pieces.append(mark_lost(accounts[0].segments, lost))
            steps += records[0].steps
            hosts[index] = records[0].journal.host
        segments = _compose(attempts, pieces, zero, end)
        out.append(
            RankLedger(
                rank,
                _from_start(zero, segments),
                time_by_bucket(segments),
                steps,
                tuple(dict.fromkeys(hosts.values())),
                hosts,
                absent,
            )
        )
    return tuple(out)


def _from_start(zero: int, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    return tuple(Segment(s.start - zero, s.end - zero, s.bucket) for s in segments)


def _attempt(index: int, attempt: AttemptRecord, resume: Resume, zero: int) -> Attempt:
    steps = min((rank.steps for rank in attempt.trainers()), default=0)
    known = resume.resumed_step or (index and steps)  # before a step, it may yet load
    return Attempt(
        index=index,
        start=attempt.begin - zero,
        end=attempt.end - zero,
        outcome=attempt.outcome,
        ranks=tuple(rank.rank for rank in attempt.ranks),
        world=_world(attempt),
        first_step=resume.resumed_step + 1 if steps else None,
        last_step=resume.last_step(steps) if steps else None,
        resumed_from=resume.resumed_step if known else None,
        resumed_by=checkpoints.resume_level(attempt),
    )


def _world(attempt: AttemptRecord) -> int | None:
    worlds = [rank.journal.world for rank in attempt.ranks if rank.journal.world is not None]
    return max(worlds, default=None)


def _failures(
    attempts: Sequence[AttemptRecord],
    timelines: Sequence[AttemptTimeline],
    alignment: ClockAlignment,
) -> list[Failure]:
    out = []
    for index, (attempt, timeline) in enumerate(zip(attempts, timelines, strict=True)):
        if attempt.outcome in ("failed", "preempted"):
            hung = [account.rank for account in timeline.trainers if account.hung]
            out.append(failures.explain(attempt, index, alignment, hung))
    return out


def _shift_save(s: Checkpoint, zero: int) -> Checkpoint:
    durable = None if s.durable is None else s.durable - zero
    return replace(s, start=s.start - zero, end=s.end - zero, durable=durable)


def _started_at(
    launches: Sequence[Launch], journals: Sequence[Journal], alignment: ClockAlignment, zero: int
) -> int:
    """Return the start by the wall clock of the first launcher, else of the first process."""
    if not journals:
        return 0
    first = min(
        launches[0].journals or journals, key=lambda j: (alignment.to_run_time(j, j.opened), j.name)
    )
    return first.wall - (alignment.to_run_time(first, first.opened) - zero)


def _command(launchers: Sequence[Journal]) -> tuple[str, ...]:
    for launcher in launchers:
        for event in launcher.named("spawn"):
            if isinstance(event.get("command"), list):
                return tuple(str(word) for word in event["command"])
    return ()


def _exit_code(launches: Sequence[Launch]) -> int | None:
    status = launches[-1].exit_code if launches else None
    return None if status is None else shell_code(status)


def _time_to_start(timelines: Sequence[AttemptTimeline], zero: int) -> int | None:
    """Return the time from the allocation to the first training, over all attempts needed."""
    ready = next((timeline.ready for timeline in timelines if timeline.ready is not None), None)
    return None if ready is None else ready - zero


def _recoveries(
    attempts: Sequence[AttemptRecord], timelines: Sequence[AttemptTimeline]
) -> tuple[Recovery, ...]:
    """Return, for each interruption, the time from the last sign of progress to training again.

    An attempt that does not reach training extends the current recovery. Interruptions before the
    first training count toward the time to start instead.
    """
    out = []
    since: int | None = None  # the interrupted attempt
    for index, (attempt, timeline) in enumerate(zip(attempts, timelines, strict=True)):
        if timeline.ready is None:
            continue
        if since is not None:
            out.append(
                Recovery(since, index, max(timeline.ready - timelines[since].progress_until, 0))
            )
        since = index if attempt.outcome in ("failed", "preempted") else None
    return tuple(out)


def _hidden(timelines: Sequence[AttemptTimeline]) -> dict[str, int]:
    """Sum over the attempts the most that any rank hid of each leaf; ranks hide in parallel."""
    out: dict[str, int] = {}
    for timeline in timelines:
        most: dict[str, int] = {}
        for account in timeline.trainers:
            for bucket, ns in account.hidden.items():
                most[bucket] = max(most.get(bucket, 0), ns)
        for bucket, ns in most.items():
            out[bucket] = out.get(bucket, 0) + ns
    return out


def _queue_capacity(launches: Sequence[Launch], outside: Sequence[UncountedTime]) -> int | None:
    """Return the time that the run waited for capacity, by the records of the scheduler."""
    later = {item.launch: item.queued for item in outside}
    waits = [
        later.get(x.name, 0)
        if place
        else (x.allocated if x.allocated is not None else x.begin) - x.queued
        for place, x in enumerate(launches)
        if x.queued is not None
    ]
    return sum(max(wait, 0) for wait in waits) if waits else None


def _batches_per_step(attempts: Sequence[AttemptRecord]) -> float | None:
    """Above 1 if gradients are accumulated; None if no loader was recorded."""
    batches = steps = 0
    for attempt in attempts:
        for rank in attempt.trainers():
            batches += sum(rank.journal.windows.batches)
            steps += rank.steps
    return round(batches / steps, 2) if steps and batches else None
