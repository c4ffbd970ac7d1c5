"""Builds the ledger of a run from its journals. No clock, no files, no torch."""

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
from headway.ledger import segments as ledger_segments
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
from headway.ledger.segments import Segment


def build_ledger(
    journals: Sequence[Journal],
    *,
    run: str = "",
    problems: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
) -> Ledger:
    """Compute the ledger of one run. The order of `journals` does not matter."""
    ordered = sorted(journals, key=lambda j: (j.begin, j.name))
    launchers = sorted((j for j in ordered if j.role == "launcher"), key=_launch_order)
    processes = [j for j in ordered if j.role != "launcher"]
    axis = align_clocks(launchers, processes)
    launches = find_launches(launchers, processes, axis)
    drafts = find_attempts(launches, processes, axis)
    outside = uncounted_time(launches, drafts)
    if outside:
        _remove_uncounted_time(outside, launches, ordered, axis)
        launches = find_launches(launchers, processes, axis)
        drafts = find_attempts(launches, processes, axis)
    zero, end = _bounds(launches)
    resumes = resume_points(drafts)
    lived = [account_attempt(index, draft, zero) for index, draft in enumerate(drafts)]
    recoveries = _recoveries(drafts, lived)
    segments = _run_segments(drafts, resumes, lived, zero, end)
    ranks = _rank_ledgers(drafts, resumes, lived, zero, end)
    failures = _failures(drafts, lived, axis)
    saves = tuple(_shift_save(s, zero) for s in find_checkpoints(drafts, resumes))
    told = checkpoints.checkpoint_outcomes(drafts, zero)
    buckets = ledger_segments.time_by_bucket(segments)
    count, between = checkpoints.count_saves(saves)
    rhythms = checkpoints.save_intervals(drafts)
    to_disk = next((one for one in rhythms if one.level == "disk"), None)
    recommended = to_disk.recommended if to_disk else None
    if recommended is None:
        recommended = checkpoints.recommended_interval(told, saves, failures, end - zero)
    return Ledger(
        run=run,
        wall=end - zero,
        segments=_from_start(zero, segments),
        buckets=buckets,
        ranks=ranks,
        steps=new_steps(drafts, resumes),
        attempts=tuple(
            _attempt(i, d, r, zero) for i, (d, r) in enumerate(zip(drafts, resumes, strict=True))
        ),
        failures=tuple(replace(f, at=f.at - zero) for f in failures),
        time_to_start=_time_to_start(lived, zero),
        time_to_recover=tuple(recovery.ns for recovery in recoveries),
        hidden=_hidden(lived),
        queue_capacity=_queue_capacity(launches, outside),
        checkpoints=saves,
        saves=count,
        save_interval=between,
        recommended_interval=recommended,
        compiles=compiles.find_compiles(drafts, zero),
        compile_parts=compiles.compile_parts(drafts, lived),
        rank_compiles=compiles.compiles_by_rank(drafts, lived),
        gave_up=compiles.recompile_limit_hits(drafts, zero),
        gaps=notes.longest_gaps(lived, zero),
        notes=notes.collect_notes(problems, axis, launches, drafts, ordered),
        started_at=_started_at(launches, ordered, axis, zero),
        running=bool(drafts) and drafts[-1].outcome == "running",
        command=_command(launchers),
        exit_code=_exit_code(launches),
        batches_per_step=_batches_per_step(drafts),
        facts=dict(facts or {}),
        archives=compile_cache.compile_cache_loads(drafts),
        stages=startup_stages.stage_graphs(drafts, zero),
        archived=compile_cache.count_archives_saved(drafts),
        groups_made=communication.process_groups(drafts),
        early_calls=communication.pre_step_collectives(drafts),
        behind=checkpoints.async_saves(drafts),
        notices=preemption.notices(drafts, resumes, lived, durable_saves(told, saves), zero),
        faults=tuple(
            replace(f, at=f.at - zero) for f in fault_injection.find_faults(drafts, failures, axis)
        ),
        saved=told,
        rhythms=rhythms,
        publishes=publish.publish_from_events(drafts),
        recovered=tuple((recovery.attempt, recovery.until) for recovery in recoveries),
        rolled_back=rolled_back_ranges(drafts, resumes),
        paused=sum(one.paused for one in outside),
        outside=_uncounted_stretches(outside, launches, zero),
    )


def _remove_uncounted_time(
    outside: Sequence[UncountedTime],
    launches: Sequence[Launch],
    journals: Sequence[Journal],
    axis: ClockAlignment,
) -> None:
    """Move what comes after time that does not count to where that time began."""
    before = {one.launch: one.length for one in outside}
    by = 0
    for launch in launches:
        by += before.get(launch.name, 0)
        axis.earlier((j for j in journals if by and j.launch == launch.name), by)


def _uncounted_stretches(
    outside: Sequence[UncountedTime], launches: Sequence[Launch], zero: int
) -> tuple[tuple[int, int], ...]:
    """When, on the axis without that time, and how much."""
    lengths = {one.launch: one.length for one in outside}
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
    drafts: Sequence[AttemptRecord],
    resumes: Sequence[Resume],
    lived: Sequence[AttemptTimeline],
    zero: int,
    end: int,
) -> list[Segment]:
    pieces = []
    for draft, resume, life in zip(drafts, resumes, lived, strict=True):
        lost = lost_intervals(draft.trainers(), resume)
        pieces.append(mark_lost(life.segments, lost))
    return _compose(drafts, pieces, zero, end)


def _compose(
    drafts: Sequence[AttemptRecord], pieces: Sequence[Sequence[Segment]], zero: int, end: int
) -> list[Segment]:
    """Attempts one after the other, and what lies between them."""
    out: list[Segment] = []
    at = zero
    for draft, piece in zip(drafts, pieces, strict=True):
        out += _gap_before(draft, at)
        out += piece
        at = max(at, draft.end)
    out.append(Segment(at, end, SHUTDOWN))
    return ledger_segments.join(out)


def _gap_before(draft: AttemptRecord, at: int) -> list[Segment]:
    """From the end of the last attempt to the start of this one."""
    if at >= draft.begin:
        return []
    group, gap = ("recover", DOWNTIME) if draft.recovers else ("start", SHUTDOWN)
    given = draft.launch.allocated
    given = draft.begin if given is None else min(max(given, at), draft.begin)
    if draft.begin > draft.launch.begin:  # restarted within the launch, nothing was allocated
        given = draft.begin
    return [
        Segment(at, given, gap),
        Segment(given, draft.begin, f"{group}.hardware_setup"),
    ]


def _rank_ledgers(
    drafts: Sequence[AttemptRecord],
    resumes: Sequence[Resume],
    lived: Sequence[AttemptTimeline],
    zero: int,
    end: int,
) -> tuple[RankLedger, ...]:
    numbers = sorted({life.rank for draft in drafts for life in draft.lives})
    out = []
    for rank in numbers:
        pieces: list[list[Segment]] = []
        steps = 0
        hosts: dict[int, str] = {}
        absent = 0
        for index, (draft, resume, lives) in enumerate(zip(drafts, resumes, lived, strict=True)):
            mine = [x for x in draft.lives if x.rank == rank]
            theirs = [x for x in lives.lives if x.rank == rank]
            if not mine or not theirs:
                pieces.append([Segment(draft.begin, draft.end, UNKNOWN)])
                absent += draft.end - draft.begin if rank >= (_world(draft) or rank + 1) else 0
                continue
            lost = lost_intervals(mine, resume)
            pieces.append(mark_lost(theirs[0].segments, lost))
            steps += mine[0].steps
            hosts[index] = mine[0].journal.host
        segments = _compose(drafts, pieces, zero, end)
        out.append(
            RankLedger(
                rank,
                _from_start(zero, segments),
                ledger_segments.time_by_bucket(segments),
                steps,
                tuple(dict.fromkeys(hosts.values())),
                hosts,
                absent,
            )
        )
    return tuple(out)


def _from_start(zero: int, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    return tuple(Segment(s.start - zero, s.end - zero, s.leaf) for s in segments)


def _attempt(index: int, draft: AttemptRecord, resume: Resume, zero: int) -> Attempt:
    steps = min((life.steps for life in draft.trainers()), default=0)
    known = resume.base or (index and steps)  # before that it may still load something
    return Attempt(
        index=index,
        start=draft.begin - zero,
        end=draft.end - zero,
        outcome=draft.outcome,
        ranks=tuple(life.rank for life in draft.lives),
        world=_world(draft),
        first_step=resume.base + 1 if steps else None,
        last_step=resume.last_step(steps) if steps else None,
        resumed_from=resume.base if known else None,
        resumed_by=checkpoints.resume_level(draft),
    )


def _world(draft: AttemptRecord) -> int | None:
    worlds = [life.journal.world for life in draft.lives if life.journal.world is not None]
    return max(worlds, default=None)


def _failures(
    drafts: Sequence[AttemptRecord], lived: Sequence[AttemptTimeline], axis: ClockAlignment
) -> list[Failure]:
    out = []
    for index, (draft, lives) in enumerate(zip(drafts, lived, strict=True)):
        if draft.outcome in ("failed", "preempted"):
            hung = [life.rank for life in lives.trainers if life.hung]
            out.append(failures.explain(draft, index, axis, hung))
    return out


def _shift_save(s: Checkpoint, zero: int) -> Checkpoint:
    durable = None if s.durable is None else s.durable - zero
    return replace(s, start=s.start - zero, end=s.end - zero, durable=durable)


def _started_at(
    launches: Sequence[Launch], journals: Sequence[Journal], axis: ClockAlignment, zero: int
) -> int:
    """By the wall clock of the first launcher, else of the process that was there first."""
    if not journals:
        return 0
    first = min(launches[0].journals or journals, key=lambda j: (axis.at(j, j.opened), j.name))
    return first.wall - (axis.at(first, first.opened) - zero)


def _command(launchers: Sequence[Journal]) -> tuple[str, ...]:
    for launcher in launchers:
        for event in launcher.named("spawn"):
            if isinstance(event.get("command"), list):
                return tuple(str(word) for word in event["command"])
    return ()


def _exit_code(launches: Sequence[Launch]) -> int | None:
    status = launches[-1].exit_code if launches else None
    return None if status is None else shell_code(status)


def _time_to_start(lived: Sequence[AttemptTimeline], zero: int) -> int | None:
    """Allocation to the first training, over as many attempts as that took."""
    ready = next((life.ready for life in lived if life.ready is not None), None)
    return None if ready is None else ready - zero


def _recoveries(
    drafts: Sequence[AttemptRecord], lived: Sequence[AttemptTimeline]
) -> tuple[Recovery, ...]:
    """Of each interruption the way from the last sign of progress to training again.

    Attempts that did not come to train extend the recovery that they lie in. What was interrupted
    before anything was trained lies in the time to start.
    """
    out = []
    since: int | None = None  # the attempt that was interrupted
    for index, (draft, life) in enumerate(zip(drafts, lived, strict=True)):
        if life.ready is None:
            continue
        if since is not None:
            out.append(Recovery(since, index, max(life.ready - lived[since].progress_until, 0)))
        since = index if draft.outcome in ("failed", "preempted") else None
    return tuple(out)


def _hidden(lived: Sequence[AttemptTimeline]) -> dict[str, int]:
    """Per attempt the rank that hid most of each leaf; ranks hide in parallel."""
    out: dict[str, int] = {}
    for lives in lived:
        most: dict[str, int] = {}
        for life in lives.trainers:
            for leaf, ns in life.hidden.items():
                most[leaf] = max(most.get(leaf, 0), ns)
        for leaf, ns in most.items():
            out[leaf] = out.get(leaf, 0) + ns
    return out


def _queue_capacity(launches: Sequence[Launch], outside: Sequence[UncountedTime]) -> int | None:
    """How long the run waited for capacity, as the scheduler's records tell it."""
    later = {one.launch: one.queued for one in outside}
    waits = [
        later.get(x.name, 0)
        if place
        else (x.allocated if x.allocated is not None else x.begin) - x.queued
        for place, x in enumerate(launches)
        if x.queued is not None
    ]
    return sum(max(wait, 0) for wait in waits) if waits else None


def _batches_per_step(drafts: Sequence[AttemptRecord]) -> float | None:
    """Above 1 where gradients are accumulated; None when no loader was seen."""
    batches = steps = 0
    for draft in drafts:
        for life in draft.trainers():
            batches += sum(life.journal.windows.batches)
            steps += life.steps
    return round(batches / steps, 2) if steps and batches else None
