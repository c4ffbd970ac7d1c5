"""The balanced account of a run: journals in, ledger out. No clock, no files, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway.journal.reader import Journal
from headway.ledger import (
    archives,
    behind,
    causes,
    checkpoints,
    communication,
    compiles,
    faults,
    figures,
    notes,
    notice,
    progress,
    publish,
    stages,
    timeline,
)
from headway.ledger.attempts import Draft, Launch, find_attempts, find_launches
from headway.ledger.clocks import Axis, align
from headway.ledger.durable import durable
from headway.ledger.leaves import DOWNTIME, UNKNOWN
from headway.ledger.lived import Lived, live
from headway.ledger.model import (
    Attempt,
    Checkpoint,
    Failure,
    Ledger,
    RankLedger,
    Segment,
    shell_code,
)


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
    lived = [live(index, draft) for index, draft in enumerate(drafts)]
    zero, end = _bounds(launches)
    segments = _run_segments(drafts, resumes, lived, zero, end)
    ranks = _rank_ledgers(drafts, resumes, lived, zero, end)
    failures = _failures(drafts, lived, axis)
    saves = tuple(_shift_save(s, zero) for s in progress.checkpoints(drafts, resumes))
    told = checkpoints.saved(drafts, zero)
    buckets = timeline.total(segments)
    count, interval = figures.save_rhythm(saves)
    rhythms = checkpoints.rhythms(drafts)
    to_disk = next((one for one in rhythms if one.level == "disk"), None)
    recommended = figures.recommended_interval(buckets, count, len(failures), end - zero)
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
        failures=tuple(replace(f, at=f.at - zero) for f in failures),
        time_to_start=figures.time_to_start(lived, zero),
        time_to_recover=figures.times_to_recover(lived),
        hidden=figures.hidden(lived),
        queue_capacity=figures.queued(launches),
        checkpoints=saves,
        saves=count,
        save_interval=to_disk.interval if to_disk else interval,
        recommended_interval=to_disk.recommended if to_disk else recommended,
        compiles=compiles.compiles(drafts, zero),
        compile_parts=compiles.parts(drafts, lived),
        rank_compiles=compiles.by_rank(drafts, lived),
        gave_up=compiles.gave_up(drafts, zero),
        gaps=figures.gaps(lived, zero),
        notes=notes.collect(problems, axis, launches, drafts, ordered),
        started_at=_started_at(ordered, axis, zero),
        running=bool(drafts) and drafts[-1].outcome == "running",
        command=_command(launchers),
        exit_code=_exit_code(launches),
        batches_per_step=figures.batches_per_step(drafts),
        facts=dict(facts or {}),
        archives=archives.archives(drafts),
        stages=stages.graphs(drafts, zero),
        archived=archives.kept(drafts),
        groups_made=communication.groups_made(drafts),
        early_calls=communication.early_calls(drafts),
        behind=behind.behind(drafts),
        notices=notice.notices(drafts, resumes, lived, durable(told, saves), zero),
        faults=tuple(replace(f, at=f.at - zero) for f in faults.find(drafts, failures, axis)),
        saved=told,
        rhythms=rhythms,
        publishes=publish.told(drafts),
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
    drafts: Sequence[Draft],
    resumes: Sequence[progress.Resume],
    lived: Sequence[Lived],
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
    lived: Sequence[Lived],
    zero: int,
    end: int,
) -> tuple[RankLedger, ...]:
    numbers = sorted({life.rank for draft in drafts for life in draft.lives})
    out = []
    for rank in numbers:
        pieces: list[list[Segment]] = []
        steps = 0
        hosts: dict[int, str] = {}
        for index, (draft, resume, lives) in enumerate(zip(drafts, resumes, lived, strict=True)):
            mine = [x for x in draft.lives if x.rank == rank]
            theirs = [x for x in lives.lives if x.rank == rank]
            if not mine or not theirs:
                pieces.append([Segment(draft.begin, draft.end, UNKNOWN)])
                continue
            since = progress.kept_until(mine, resume)
            pieces.append(progress.move_lost(theirs[0].segments, since))
            steps += mine[0].steps
            hosts[index] = mine[0].journal.host
        segments = _compose(drafts, pieces, zero, end)
        out.append(
            RankLedger(
                rank,
                _from(zero, segments),
                timeline.total(segments),
                steps,
                tuple(dict.fromkeys(hosts.values())),
                hosts,
            )
        )
    return tuple(out)


def _from(zero: int, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    return tuple(Segment(s.start - zero, s.end - zero, s.leaf) for s in segments)


def _attempt(index: int, draft: Draft, resume: progress.Resume, zero: int) -> Attempt:
    steps = min((life.steps for life in draft.trainers()), default=0)
    worlds = [life.journal.world for life in draft.lives if life.journal.world is not None]
    known = resume.base or (index and steps)  # before that it may still load something
    return Attempt(
        index=index,
        start=draft.begin - zero,
        end=draft.end - zero,
        outcome=draft.outcome,
        ranks=tuple(life.rank for life in draft.lives),
        world=max(worlds, default=None),
        first_step=resume.base + 1 if steps else None,
        last_step=resume.base + steps if steps else None,
        resumed_from=resume.base if known else None,
        resumed_by=checkpoints.resumed_by(draft),
    )


def _failures(drafts: Sequence[Draft], lived: Sequence[Lived], axis: Axis) -> list[Failure]:
    out = []
    for index, (draft, lives) in enumerate(zip(drafts, lived, strict=True)):
        if draft.outcome in ("failed", "preempted"):
            hung = [life.rank for life in lives.trainers if life.hung]
            out.append(causes.explain(draft, index, axis, hung))
    return out


def _shift_save(s: Checkpoint, zero: int) -> Checkpoint:
    durable = None if s.durable is None else s.durable - zero
    return replace(s, start=s.start - zero, end=s.end - zero, durable=durable)


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


def _exit_code(launches: Sequence[Launch]) -> int | None:
    status = launches[-1].exit_code if launches else None
    return None if status is None else shell_code(status)
