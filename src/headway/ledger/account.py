"""The balanced account of a run: journals in, ledger out. No clock, no files, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.journal.reader import Journal
from headway.ledger import causes, progress, timeline
from headway.ledger.attempts import Draft, Launch, find_attempts, find_launches
from headway.ledger.clocks import Axis, align
from headway.ledger.leaves import DOWNTIME, EFFECTIVE, UNKNOWN
from headway.ledger.life import Fate, Life, LifeLedger
from headway.ledger.life import account as account_life
from headway.ledger.model import (
    Attempt,
    Checkpoint,
    Compile,
    Failure,
    Gap,
    Ledger,
    RankLedger,
    Segment,
)

# A rank in one of these stands in a collective and waits for the others.
WAITING = frozenset({"start.process_group_init", "recover.process_group_init"})
NOTE_LIMIT = 40


def account(
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
    axis = align(launchers, processes)
    launches = find_launches(launchers, processes, axis)
    drafts = find_attempts(launches, processes, axis)
    resumes = progress.resume_points(drafts)
    lived = [_live(index, draft) for index, draft in enumerate(drafts)]
    zero, end = _bounds(launches)
    segments = _run_segments(drafts, resumes, lived, zero, end)
    ranks = _rank_ledgers(drafts, resumes, lived, zero, end)
    failures = _failures(drafts, lived, axis)
    saves = progress.checkpoints(drafts, resumes)
    buckets = timeline.total(segments)
    count, interval = _save_rhythm(saves)
    return Ledger(
        run=run,
        wall=end - zero,
        segments=_from(zero, segments),
        buckets=buckets,
        ranks=ranks,
        steps=progress.new_steps(drafts, resumes),
        attempts=tuple(
            _attempt(i, d, r, zero) for i, (d, r) in enumerate(zip(drafts, resumes, strict=True))
        ),
        failures=tuple(_shift_failure(f, zero) for f in failures),
        time_to_start=_time_to_start(lived, zero),
        time_to_recover=_times_to_recover(drafts, lived),
        hidden=_hidden(lived),
        queue_capacity=_queued(launches),
        checkpoints=tuple(_shift_save(s, zero) for s in saves),
        saves=count,
        save_interval=interval,
        recommended_interval=_young(buckets, count, len(failures), end - zero),
        compiles=_compiles(drafts, zero),
        gaps=_gaps(lived, zero),
        notes=_notes(problems, axis, launches, drafts, ordered),
        started_at=_started_at(ordered, axis, zero),
        running=bool(drafts) and drafts[-1].outcome == "running",
        command=_command(launchers),
        exit_code=launches[-1].exit_code if launches else None,
        batches_per_step=_batches_per_step(drafts),
        facts=dict(facts or {}),
    )


def _launch_order(launcher: Journal) -> tuple[int, int, str]:
    index = launcher.facts.get("index")
    return (index if type(index) is int else 0, launcher.wall, launcher.name)


@dataclass(frozen=True, slots=True)
class _Lived:
    """An attempt with its ranks' accounts."""

    lives: tuple[LifeLedger, ...]
    trainers: tuple[LifeLedger, ...]
    segments: tuple[Segment, ...]
    progress_until: int  # the last sign of progress
    ready: int | None


def _live(index: int, draft: Draft) -> _Lived:
    group = "recover" if index else "start"
    failed = draft.outcome not in ("completed", "running")
    fate = Fate(
        start=draft.begin,
        end=draft.end,
        group=group,
        failed=failed,
        running=draft.outcome == "running",
        told_to_stop=draft.told_to_stop,
    )
    trainers = draft.trainers()
    accounts = {id(life): account_life(life, fate, index) for life in draft.lives}
    merged = [accounts[id(life)] for life in trainers]
    if merged:
        timelines = [m.segments for m in merged if m.segments]
        segments = timeline.merge_ranks(timelines, WAITING) if timelines else []
    else:
        segments = _nobody(draft, group)
    steps = [life.last_step_end for life in trainers if life.last_step_end is not None]
    signs = [min(life.last_sign, draft.end) for life in draft.lives]
    ready = [m.ready for m in merged]
    return _Lived(
        lives=tuple(accounts.values()),
        trainers=tuple(merged),
        segments=tuple(segments),
        progress_until=max(steps or signs or [draft.begin]),
        ready=max(r for r in ready if r is not None) if ready and None not in ready else None,
    )


def _nobody(draft: Draft, group: str) -> list[Segment]:
    """No rank left a journal: what the launcher did is known, and nothing else."""
    launcher = draft.launch.journal
    spawned = draft.begin
    if launcher is not None:
        first = next(launcher.named("spawn"), None)
        if first is not None:
            spawned = draft.launch.begin + first["t"] - launcher.begin
    spawned = min(max(spawned, draft.begin), draft.end)
    return timeline.join(
        [
            Segment(draft.begin, spawned, f"{group}.launcher_init"),
            Segment(spawned, draft.end, UNKNOWN),
        ]
    )


def _bounds(launches: Sequence[Launch]) -> tuple[int, int]:
    if not launches:
        return 0, 0
    first = launches[0]
    zero = first.allocated if first.allocated is not None else first.begin
    return zero, max(max(launch.end for launch in launches), zero)


def _run_segments(
    drafts: Sequence[Draft],
    resumes: Sequence[progress.Resume],
    lived: Sequence[_Lived],
    zero: int,
    end: int,
) -> list[Segment]:
    pieces = []
    for draft, resume, life in zip(drafts, resumes, lived, strict=True):
        since = progress.kept_until(draft.trainers(), resume)
        pieces.append(progress.move_lost(life.segments, since))
    return _compose(drafts, pieces, zero, end)


def _compose(
    drafts: Sequence[Draft], pieces: Sequence[Sequence[Segment]], zero: int, end: int
) -> list[Segment]:
    """Attempts one after the other, and what lies between them."""
    out: list[Segment] = []
    at = zero
    for index, (draft, piece) in enumerate(zip(drafts, pieces, strict=True)):
        out += _before(draft, index, at)
        out += piece
        at = max(at, draft.end)
    out.append(Segment(at, end, DOWNTIME))
    return timeline.join(out)


def _before(draft: Draft, index: int, at: int) -> list[Segment]:
    """From the end of the last attempt to the start of this one."""
    if at >= draft.begin:
        return []
    group = "recover" if index else "start"
    given = draft.launch.allocated
    given = draft.begin if given is None else min(max(given, at), draft.begin)
    if draft.begin > draft.launch.begin:  # restarted within the launch, nothing was allocated
        given = draft.begin
    return [
        Segment(at, given, DOWNTIME),
        Segment(given, draft.begin, f"{group}.hardware_setup"),
    ]


def _rank_ledgers(
    drafts: Sequence[Draft],
    resumes: Sequence[progress.Resume],
    lived: Sequence[_Lived],
    zero: int,
    end: int,
) -> tuple[RankLedger, ...]:
    numbers = sorted({life.rank for draft in drafts for life in draft.lives})
    out = []
    for rank in numbers:
        pieces: list[list[Segment]] = []
        steps = 0
        hosts: dict[str, None] = {}
        for draft, resume, lives in zip(drafts, resumes, lived, strict=True):
            mine = [x for x in draft.lives if x.rank == rank]
            theirs = [x for x in lives.lives if x.rank == rank]
            if not mine or not theirs:
                pieces.append([Segment(draft.begin, draft.end, UNKNOWN)])
                continue
            since = progress.kept_until(mine, resume)
            pieces.append(progress.move_lost(theirs[0].segments, since))
            steps += mine[0].steps
            hosts[mine[0].journal.host] = None
        segments = _compose(drafts, pieces, zero, end)
        out.append(
            RankLedger(
                rank, _from(zero, segments), timeline.total(segments), steps, tuple(hosts)
            )
        )
    return tuple(out)


def _from(zero: int, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    return tuple(Segment(s.start - zero, s.end - zero, s.leaf) for s in segments)


def _attempt(index: int, draft: Draft, resume: progress.Resume, zero: int) -> Attempt:
    steps = min((life.steps for life in draft.trainers()), default=0)
    worlds = [life.journal.world for life in draft.lives if life.journal.world is not None]
    resumed = resume.base if index or resume.base else None
    return Attempt(
        index=index,
        start=draft.begin - zero,
        end=draft.end - zero,
        outcome=draft.outcome,
        ranks=tuple(life.rank for life in draft.lives),
        world=max(worlds, default=None),
        first_step=resume.base + 1 if steps else None,
        last_step=resume.base + steps if steps else None,
        resumed_from=resumed,
    )


def _failures(
    drafts: Sequence[Draft], lived: Sequence[_Lived], axis: Axis
) -> list[Failure]:
    out = []
    for index, (draft, lives) in enumerate(zip(drafts, lived, strict=True)):
        if draft.outcome in ("failed", "preempted"):
            hung = [life.rank for life in lives.trainers if life.hung]
            out.append(causes.explain(draft, index, axis, hung))
    return out


def _shift_failure(f: Failure, zero: int) -> Failure:
    return Failure(
        attempt=f.attempt,
        at=f.at - zero,
        category=f.category,
        owner=f.owner,
        retry=f.retry,
        root_rank=f.root_rank,
        evidence=f.evidence,
    )


def _shift_save(s: Checkpoint, zero: int) -> Checkpoint:
    return Checkpoint(
        attempt=s.attempt,
        rank=s.rank,
        start=s.start - zero,
        end=s.end - zero,
        step=s.step,
        path=s.path,
        durable=None if s.durable is None else s.durable - zero,
    )


def _time_to_start(lived: Sequence[_Lived], zero: int) -> int | None:
    """Allocation to the first training, over as many attempts as that took."""
    ready = next((life.ready for life in lived if life.ready is not None), None)
    return None if ready is None else ready - zero


def _times_to_recover(drafts: Sequence[Draft], lived: Sequence[_Lived]) -> tuple[int, ...]:
    """One per interruption: from the last sign of progress to training again.

    An attempt that failed before it trained ends one recovery and begins the next, so that no
    second is counted in two of them.
    """
    out = []
    for index in range(len(drafts) - 1):
        after = lived[index + 1]
        again = after.ready if after.ready is not None else after.progress_until
        out.append(max(again - lived[index].progress_until, 0))
    return tuple(out)


def _hidden(lived: Sequence[_Lived]) -> dict[str, int]:
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


def _queued(launches: Sequence[Launch]) -> int | None:
    waits = [
        (x.allocated if x.allocated is not None else x.begin) - x.queued
        for x in launches
        if x.queued is not None
    ]
    return sum(max(wait, 0) for wait in waits) if waits else None


def _save_rhythm(saves: Sequence[Checkpoint]) -> tuple[int, int | None]:
    """How many checkpoints (files of one step are one), and the mean time between two."""
    first: dict[tuple[int, int], int] = {}
    for save in saves:
        key = (save.attempt, save.step)
        first[key] = min(first.get(key, save.start), save.start)
    gaps = []
    ordered = sorted(first.items())
    for (before, start), (after, later) in zip(ordered, ordered[1:], strict=False):
        if before[0] == after[0]:
            gaps.append(later - start)
    return len(first), sum(gaps) // len(gaps) if gaps else None


def _young(buckets: Mapping[str, int], saves: int, failures: int, wall: int) -> int | None:
    """Young's interval: sqrt(2 x blocking per save x mean time between failures)."""
    blocked = buckets.get("waste.checkpoint_block", 0)
    if not saves or not failures or not blocked:
        return None
    return math.isqrt(2 * (blocked // saves) * (wall // failures))


def _compiles(drafts: Sequence[Draft], zero: int) -> tuple[Compile, ...]:
    out = []
    for index, draft in enumerate(drafts):
        for life in draft.lives:
            for span in life.journal.spans:
                if span.name != "compile" or span.end is None:
                    continue
                out.append(_compile(index, life, span.start, span.end, span.fields, zero))
    return tuple(sorted(out, key=lambda c: (c.start, c.rank)))


def _compile(
    index: int, life: Life, start: int, end: int, fields: Mapping[str, Any], zero: int
) -> Compile:
    started = life.first_step_end is not None and start + life.shift >= life.first_step_end
    reason = str(fields.get("reason") or "")
    return Compile(
        attempt=index,
        rank=life.rank,
        start=start + life.shift - zero,
        end=end + life.shift - zero,
        where=str(fields.get("where") or fields.get("compile_id") or "?"),
        trigger=str(fields.get("trigger") or ""),
        reason=reason or ("compiled after the first step" if started else ""),
        recompile=bool(reason) or started,
        cached=fields.get("cached") is True,
    )


def _gaps(lived: Sequence[_Lived], zero: int) -> tuple[Gap, ...]:
    found = [gap for lives in lived for life in lives.trainers for gap in life.gaps]
    found.sort(key=lambda g: (g.start - g.end, g.attempt, g.rank))
    return tuple(
        Gap(g.attempt, g.rank, g.start - zero, g.end - zero, g.after, g.before)
        for g in found[:20]
    )


def _batches_per_step(drafts: Sequence[Draft]) -> float | None:
    """Above 1 where gradients are accumulated; None when no loader was seen."""
    batches = steps = 0
    for draft in drafts:
        for life in draft.trainers():
            batches += sum(window.batches for window in life.windows)
            steps += life.steps
    return round(batches / steps, 2) if steps and batches else None


def _notes(
    problems: Sequence[str],
    axis: Axis,
    launches: Sequence[Launch],
    drafts: Sequence[Draft],
    journals: Sequence[Journal],
) -> tuple[str, ...]:
    notes = [*problems, *axis.notes]
    if not any(launch.journal for launch in launches) and launches:
        notes.append("no launcher's journal was found: starts and ends are the processes' own")
    for index, draft in enumerate(drafts):
        notes += _missing_ranks(index, draft)
    for journal in journals:
        who = f"rank {journal.rank}" if journal.rank is not None else f"process {journal.pid}"
        for event in journal.named("note"):
            notes.append(f"{who}: {event.get('hook', '')}: {event.get('text', '')}")
        for event in journal.named("lost"):
            notes.append(
                f"{who} could not write {event.get('lines')} line(s) of its journal: "
                f"{event.get('why')}"
            )
    unique = list(dict.fromkeys(str(note)[:300] for note in notes))
    if len(unique) > NOTE_LIMIT:
        unique[NOTE_LIMIT:] = [f"and {len(unique) - NOTE_LIMIT} more notes"]
    return tuple(unique)


def _missing_ranks(index: int, draft: Draft) -> list[str]:
    worlds = [life.journal.world for life in draft.lives if life.journal.world]
    if not worlds or not draft.lives:
        return []
    have = {life.rank for life in draft.lives}
    missing = max(worlds) - len(have)
    if missing <= 0:
        return []
    some = [r for r in range(min(max(worlds), len(have) + 8)) if r not in have][:8]
    named = ", ".join(map(str, some)) + (", ..." if missing > len(some) else "")
    return [f"attempt {index}: {missing} of {max(worlds)} ranks left no journal ({named})"]


def _started_at(journals: Sequence[Journal], axis: Axis, zero: int) -> int:
    if not journals:
        return 0
    first = journals[0]
    return first.wall - (axis.at(first, first.opened) - zero)


def _command(launchers: Sequence[Journal]) -> tuple[str, ...]:
    for launcher in launchers:
        for event in launcher.named("spawn"):
            if isinstance(event.get("command"), list):
                return tuple(str(word) for word in event["command"])
    return ()
