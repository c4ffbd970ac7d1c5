"""Which processes were ranks, which lives they had, and how each life of the run ended."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headway.journal.reader import Journal
from headway.ledger.clocks import Axis
from headway.ledger.life import Life
from headway.ledger.model import Outcome

ELSEWHERE_STEPS = 10  # a rank without a step is no trainer once the others made so many


@dataclass(slots=True)
class Launch:
    """One invocation of the launcher, on the run's axis."""

    name: str
    begin: int
    end: int
    exit_code: int | None
    ended: bool
    journals: tuple[Journal, ...] = ()
    allocated: int | None = None
    queued: int | None = None
    stop_signal: int | None = None
    stopped_at: int | None = None


@dataclass(slots=True)
class Draft:
    """An attempt in the making."""

    launch: Launch
    lives: list[Life]
    begin: int
    end: int = 0
    outcome: Outcome = "running"
    told_to_stop: int | None = None
    last: bool = True  # of its launch: what the launcher says of the end is about this one
    agents: list[Journal] = field(default_factory=list)
    others: list[Journal] = field(default_factory=list)  # neither ranks nor agents

    def trainers(self) -> list[Life]:
        """The ranks that a second of training needs."""
        most = max((life.steps for life in self.lives), default=0)
        if most < ELSEWHERE_STEPS:
            return self.lives
        return [life for life in self.lives if life.steps]


def find_launches(
    launchers: Sequence[Journal], processes: Sequence[Journal], axis: Axis
) -> list[Launch]:
    """Every launch, in order; one is made up for processes whose launcher left no journal."""
    known = {x.launch for x in launchers}
    groups: dict[str, list[Journal]] = {}
    for launcher in launchers:
        groups.setdefault(launcher.launch, []).append(launcher)
    launches = [_launch(group, processes, axis) for group in groups.values()]
    for name in sorted({p.launch for p in processes} - known):
        members = [p for p in processes if p.launch == name]
        begin = min(axis.at(p, p.begin) for p in members)
        end = max(axis.at(p, p.last_sign()) for p in members)
        ended = all(any(True for _ in p.named("exit")) for p in members)
        raised = any(True for p in members for _ in p.named("error"))
        launches.append(Launch(name, begin, end, int(raised) if ended else None, ended))
    launches.sort(key=lambda launch: (launch.begin, launch.name))
    for earlier, later in pairwise(launches):
        earlier.ended = True  # another came after it
        earlier.end = min(earlier.end, later.begin)
    return launches


def _launch(group: Sequence[Journal], processes: Sequence[Journal], axis: Axis) -> Launch:
    """From the launchers of one launch: one, or one on each node."""
    members = [p for p in processes if p.launch == group[0].launch]
    exits = [(x, event) for x in group for event in list(x.named("exit"))[:1]]
    begin = min(axis.at(x, x.begin) for x in group)
    ends = [axis.at(x, event["t"]) for x, event in exits]
    over = len(exits) == len(group) or any(True for x in group for _ in x.named("decision"))
    if not over:
        ends += [axis.at(x, x.last_sign()) for x in (*group, *members)]
    codes = [event.get("code") for _, event in exits]
    launch = Launch(
        name=group[0].launch,
        begin=begin,
        end=max(*ends, begin),
        exit_code=next((code for code in codes if code), codes[0] if codes else None),
        ended=over,
        journals=tuple(group),
    )
    for key in ("allocated", "queued"):
        for launcher in group:
            value = launcher.facts.get(key)
            if type(value) is int and 0 < value <= launcher.wall:
                since = axis.at(launcher, launcher.opened) - (launcher.wall - value)
                setattr(launch, key, min(since, launch.begin, getattr(launch, key) or since))
    told = [
        (axis.at(x, e["t"]), str(x.name), e.get("signal")) for x in group for e in x.named("signal")
    ]
    if told:
        launch.stopped_at, _, launch.stop_signal = min(told)
    return launch


def find_attempts(
    launches: Sequence[Launch], processes: Sequence[Journal], axis: Axis
) -> list[Draft]:
    """Each life of the run, in order, with its start, its end and how it ended."""
    drafts: list[Draft] = []
    for launch in launches:
        members = [p for p in processes if p.launch == launch.name]
        agents = [p for p in members if any(True for _ in p.named("agent", "worker_failed"))]
        ranks = _ranks(members, agents)
        others = [p for p in members if p not in agents and p not in ranks]
        generations = _generations(ranks, axis) or [[]]
        for index, lives in enumerate(generations):
            draft = Draft(launch, lives, 0, agents=agents, others=others)
            draft.begin = launch.begin
            if index:
                born = min(life.begin for life in draft.lives)
                draft.begin = min(max(born, launch.begin), launch.end)
            drafts.append(draft)
    following: list[Draft | None] = [*drafts[1:], None]
    for draft, after in zip(drafts, following, strict=False):
        _settle_end(draft, after, axis)
    return drafts


def _ranks(members: Sequence[Journal], agents: Sequence[Journal]) -> list[Journal]:
    """Processes that train: told so by their environment, by their process group or by steps."""
    candidates = [p for p in members if p not in agents]
    ranks = [
        p
        for p in candidates
        if p.windows or (p.rank is not None and not p.helper) or any(True for _ in p.named("rank"))
    ]
    return ranks or [p for p in candidates if not p.helper]


def _generations(ranks: Sequence[Journal], axis: Axis) -> list[list[Life]]:
    """A rank that appears again, after its first process ended, is another life."""
    by_key: dict[tuple[int, int], list[Life]] = {}
    ordered = sorted(ranks, key=lambda p: (p.restart, axis.at(p, p.begin), p.name))
    last: dict[tuple[int, int], tuple[int, int]] = {}  # (restart, rank) -> (generation, end)
    nameless: dict[int, list[int]] = {}  # ends of those that never said which rank they are
    for journal in ordered:
        begin, end = axis.at(journal, journal.begin), axis.at(journal, journal.last_sign())
        rank = journal.rank
        if rank is None:
            rank = _free_slot(nameless.setdefault(journal.restart, []), begin, end)
        before = last.get((journal.restart, rank))
        generation = 0
        if before is not None:
            generation = before[0] + (1 if begin >= before[1] else 0)
            peers = by_key.get((journal.restart, generation), [])
            if any(peer.rank == rank for peer in peers):  # two claim one rank at one time
                rank = _unused(peers)
        last[journal.restart, rank] = (generation, end)
        life = Life(journal, rank, axis.shifts[journal.name])
        by_key.setdefault((journal.restart, generation), []).append(life)
    generations = list(by_key.values())
    for lives in generations:
        lives.sort(key=lambda life: life.rank)
    return sorted(generations, key=lambda lives: min(life.begin for life in lives))


def _free_slot(ends: list[int], begin: int, end: int) -> int:
    for slot, taken_until in enumerate(ends):
        if begin >= taken_until:
            ends[slot] = end
            return slot
    ends.append(end)
    return len(ends) - 1


def _unused(lives: Iterable[Life]) -> int:
    taken = {life.rank for life in lives}
    return next(rank for rank in range(len(taken) + 1) if rank not in taken)


def _settle_end(draft: Draft, after: Draft | None, axis: Axis) -> None:
    launch = draft.launch
    next_in_launch = after is not None and after.launch is launch
    if launch.stopped_at is not None and not next_in_launch:
        draft.told_to_stop = launch.stopped_at
    draft.last = not next_in_launch
    draft.outcome = _outcome(draft, next_in_launch)
    if draft.outcome in ("completed", "running"):
        draft.end = launch.end
    else:
        draft.end = min(max(_seen_dead(draft, axis, next_in_launch), draft.begin), launch.end)
    if after is not None:
        draft.end = min(draft.end, after.begin)
    draft.end = max(draft.end, draft.begin)


def _outcome(draft: Draft, next_in_launch: bool) -> Outcome:
    launch = draft.launch
    if next_in_launch:
        return "failed"
    if not launch.ended:
        return "running"
    if launch.stop_signal is None and _heeded_a_notice(draft):
        return "preempted"
    if launch.stop_signal is None and launch.exit_code == 0:
        return "completed"
    if launch.stop_signal is None:
        return "stopped" if _interrupted(draft) else "failed"
    return "stopped" if launch.stop_signal == signal.SIGINT else "preempted"


def _heeded_a_notice(draft: Draft) -> bool:
    """Every rank has left its loop as it was told to, also where the launcher was not."""
    trainers = draft.trainers()
    told = [any(True for _ in life.journal.named("preempted")) for life in trainers]
    return bool(told) and all(told)


def _interrupted(draft: Draft) -> bool:
    """A SIGINT that the launcher did not get: then only the job can tell."""
    if draft.launch.exit_code in (-signal.SIGINT, 128 + signal.SIGINT):
        return True
    journals = [*draft.agents, *(life.journal for life in draft.lives)]
    errors = [
        (str(e.get("type")), str(e.get("message"))) for j in journals for e in j.named("error")
    ]
    return any(
        kind == "KeyboardInterrupt"
        or (kind.endswith("SignalException") and text.endswith(f"signal: {signal.SIGINT.value}"))
        for kind, text in errors
    )


def _seen_dead(draft: Draft, axis: Axis, next_in_launch: bool) -> int:
    """When the first rank was seen to have died: by the launcher, by an agent, or by itself."""
    seen: list[int] = []
    told = [(x.boot, _deaths(x, axis, "death")) for x in draft.launch.journals]
    told += [(x.boot, _deaths(x, axis, "worker_failed")) for x in draft.agents]
    unclean = [life for life in draft.lives if not life.left_in_order]
    for life in unclean or draft.lives:
        who = life.journal
        times = [deaths[who.pid] for boot, deaths in told if boot == who.boot and who.pid in deaths]
        seen += [t for t in times if t >= life.begin]
    if seen:
        return min(seen)
    if draft.launch.exit_code is not None and not next_in_launch:
        return draft.launch.end
    return max((life.last_sign for life in draft.lives), default=draft.launch.end)


def _deaths(witness: Journal, axis: Axis, event: str) -> dict[int, int]:
    """When each process was seen to die; a pid used twice keeps its last death."""
    return {
        found["pid"]: axis.at(witness, found["t"])
        for found in witness.named(event)
        if type(found.get("pid")) is int
    }
