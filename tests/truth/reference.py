"""A reference account of a job from docs/metric.md alone, in the most direct way.

It imports nothing of Headway and reads no journal: its input is what happened (`Job`), on the true
clock in nanoseconds, with what each load really read. So it depends on neither clocks, nor torn
lines, nor file names, and cannot repeat a reader's mistakes. Every rank's time is cut into
elementary intervals; each gets its bucket by the rules, and the ranks are merged per interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from statistics import median

NS = 1_000_000_000

STAGES = {
    "import": "launcher_init",
    "compile_import": "pt2_compile",
    "compile": "pt2_compile",
    "compile_cache": "pt2_compile",
    "compile_turn": "pt2_compile",
    "compile_autotune": "pt2_compile",
    "data_iter": "get_first_batch_data",
    "data_wait": "get_first_batch_data",
    **{
        name: name
        for name in (
            "scheduling",
            "hardware_setup",
            "launcher_init",
            "device_init",
            "process_group_init",
            "preproc_creation",
            "train_module_creation",
            "init_plugins",
            "pre_train",
            "checkpoint_load",
        )
    },
}
COMPILES = ("compile", "compile_import", "compile_cache", "compile_turn", "compile_autotune")
LATER = {
    **dict.fromkeys(COMPILES, "waste.recompile"),
    "data_iter": "waste.data_stall",
    "data_wait": "waste.data_stall",
    "checkpoint_save": "waste.checkpoint_block",
    "evaluation": "waste.evaluation",
    "publish": "stop.publish",
}
OPAQUE = ("checkpoint_save", "checkpoint_load", "publish", "data_wait")
WAITS = ("data_wait", "data_iter")
EFFECTIVE = "train.effective"
HANG = "failure.hang"
DETECTION = "recover.detection"
DOWNTIME = "recover.downtime"
SHUTDOWN = "stop.shutdown"
UNKNOWN = "unknown"

Piece = tuple[int, int, str]  # from, to, bucket


@dataclass
class Span:
    """`end` None: it was still open when the process ended."""

    name: str
    start: int
    end: int | None
    th: int = 0
    background: bool = False
    failed: bool = False


@dataclass
class Line:
    """One `steps` line."""

    start: int  # 0: not known
    end: int
    first: int
    last: int
    wait: int = 0


@dataclass
class Load:
    """A load: when it ended, after how many steps of the process, and the save that it read."""

    end: int
    after: int
    source: tuple[int, int] | None  # attempt and steps that its processes had made at the save


@dataclass
class Rank:
    """One process of an attempt."""

    number: int
    begin: int
    ready: int  # the head of its journal
    spans: list[Span] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    drains: list[tuple[int, int]] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    alive: int = 0  # last sign of life
    told: int | None = None  # the process wrote its own end: `exit` or `error`
    error: bool = False
    seen: int | None = None  # the launcher or the agent saw its death
    in_order: bool = False
    thread: int = 0  # that makes the steps
    waiting: int | None = None  # since when it waits for a batch, by its pulse page


@dataclass
class Attempt:
    """One start of the job."""

    launch: int
    outcome: str
    ranks: list[Rank] = field(default_factory=list)
    declared: int | None = None  # headway.progress(step=...) before the first step
    owner: str | None = None  # of its failure, where it can be said
    begin: int = 0  # of its first process


@dataclass
class Launch:
    """One `headway run`, on all its nodes."""

    begin: int
    end: int  # the last launcher's
    spawn: int = 0
    told: int | None = None  # when the first signal came
    queued: int | None = None
    allocated: int | None = None


@dataclass
class Job:
    """What happened."""

    launches: list[Launch] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    running: bool = False


@dataclass
class Result:
    """What the report must say."""

    wall: int = 0
    buckets: dict[str, Fraction] = field(default_factory=dict)
    ranks: dict[int, dict[str, Fraction]] = field(default_factory=dict)
    tts: int | None = None
    ttr: list[int] = field(default_factory=list)
    hidden: dict[str, int] = field(default_factory=dict)
    paused: int = 0
    queue: int | None = None
    steps: int = 0
    owners: list[str | None] = field(default_factory=list)  # of the failures; None: any
    attempts: list[tuple[str, int | None, int | None, int | None]] = field(default_factory=list)
    bounds: list[tuple[int, int]] = field(default_factory=list)
    timelines: dict[int | None, list[Piece]] = field(default_factory=lambda: defaultdict(list))

    @property
    def ett_percent(self) -> float:
        return float(100 * self.buckets.get(EFFECTIVE, Fraction(0)) / self.wall)


def interrupted(attempt: Attempt) -> bool:
    return attempt.outcome in ("failed", "preempted")


def is_last_of_launch(job: Job, index: int) -> bool:
    """Whether it is the last attempt of its launch: that one is told to stop."""
    following = job.attempts[index + 1 : index + 2]
    return not following or following[0].launch != job.attempts[index].launch


def ended_early(attempt: Attempt) -> bool:
    return attempt.outcome in ("failed", "preempted", "stopped")


class Life:
    """One rank in one attempt, from `start` to `end` of the attempt."""

    def __init__(self, job: Job, index: int, rank: Rank, start: int, end: int, stages: str) -> None:
        self.attempt = job.attempts[index]
        self.launch = job.launches[self.attempt.launch]
        self.rank, self.start, self.end, self.group = rank, start, end, stages
        self.running = job.running and index == len(job.attempts) - 1
        self.lines = [line for line in rank.lines if line.end <= end]
        self.first = self.lines[0].end if self.lines else None
        self.last = self.lines[-1].end if self.lines else None
        self.alive = min(max([rank.alive, *(line.end for line in self.lines)]), end)
        opened = [*rank.spans]
        if rank.waiting is not None:
            opened.append(Span("data_wait", rank.waiting, None, rank.thread))
        self.spans = [
            (s, max(s.start, start), min(self.alive if s.end is None else s.end, end))
            for s in opened
            if s.start < end
        ]
        self.median = self._median()
        self.hung = self._hung()
        told = self.launch.told
        last = is_last_of_launch(job, index)
        known = told is not None and last and not self.hung and rank.told is None
        if known and self.alive < told < end and ended_early(self.attempt):
            self.alive = told  # it was told to stop, too
        until = end if self.running else self.alive
        self.spans = [(s, a, until if s.end is None else b) for s, a, b in self.spans]
        self.train = self._train()
        self.ready = self._ready()
        self.hidden: dict[str, int] = defaultdict(int)
        self.pieces = self._pieces()

    # ---- the step

    def _median(self) -> int | None:
        found: list[int] = []
        rank_thread = self.rank.thread
        for line in self.lines[1:]:
            cover = self._covered(
                line.start, line.end, lambda s: s.th == rank_thread and not s.background
            )
            length = max(line.end - line.start - line.wait - cover, 0)
            count = line.last - line.first + 1
            found += [length // count] * count if length else []
        return int(median(found)) if found else None

    def _covered(self, start: int, end: int, wanted: Callable[[Span], bool]) -> int:
        cuts = sorted(
            {start, end} | {t for _, a, b in self.spans for t in (a, b) if start < t < end}
        )
        return sum(
            b - a
            for a, b in pairwise(cuts)
            if any(x <= a and b <= y and wanted(s) for s, x, y in self.spans)
        )

    # ---- the start of training

    def _stages(self) -> list[tuple[Span, int, int]]:
        assert self.first is not None
        compiles = [(s, a, b) for s, a, b in self.spans if s.name in COMPILES]
        return [
            (s, a, b)
            for s, a, b in self.spans
            if s.name not in COMPILES
            and s.name not in WAITS
            and not s.background
            and b <= self.first
            and s.start < self.first
            and not any(c.th == s.th and x <= a and b <= y for c, x, y in compiles)
        ]

    def _train(self) -> int | None:
        if self.first is None:
            return None
        last = max([self.rank.ready, *(b for _, _, b in self._stages())])
        waits = [
            b
            for s, _, b in self.spans
            if s.name == "data_wait" and s.th == self.rank.thread and last <= b <= self.first
        ]
        if waits:
            return min(waits)
        iterators = [
            b for s, _, b in self.spans if s.name == "data_iter" and s.th == self.rank.thread
        ]
        last = max([last, *(b for b in iterators if b <= self.first)])
        compile = self._covered(
            last, self.first, lambda s: s.name in COMPILES and s.th == self.rank.thread
        )
        left = self.first - last - compile
        if self.median is None or left <= 3 * self.median + NS // 5:
            return last
        return self._back(self.first, self.median, last)

    def _back(self, at: int, length: int, least: int) -> int:
        """Where `length` of time that no compile covers begins, if it ends at `at`."""
        left = length
        cuts = sorted({least, at} | {t for _, a, b in self.spans for t in (a, b) if least < t < at})
        for a, b in reversed(list(pairwise(cuts))):
            if any(
                x <= a and b <= y and s.name in COMPILES and s.th == self.rank.thread
                for s, x, y in self.spans
            ):
                continue
            if b - a >= left:
                return b - left
            left -= b - a
        return least

    def _ready(self) -> int | None:
        """From here on it does nothing but train."""
        if self.train is None or self.first is None:
            return None
        compiled = [b for s, _, b in self.spans if s.name in COMPILES and s.start < self.first]
        return max([self.train, *(min(b, self.first) for b in compiled)])

    # ---- whose second

    def _name(self, span: Span) -> str:
        if self.first is None or span.start < self.first:
            if span.name in WAITS and self.train is not None and span.start >= self.train:
                return "waste.data_stall"
            if span.background:
                return "waste.checkpoint_block"
            return f"{self.group}.{STAGES.get(span.name, 'pre_train')}"
        over = self.last is not None and span.start >= self.last
        if over and span.name == "data_wait" and self.attempt.outcome == "completed":
            return SHUTDOWN
        return LATER.get(span.name, "waste.blocked")

    def _innermost(self, at: int, th: int) -> Span | None:
        """Of a thread, the span that owns this instant."""
        active = [
            (s, a, b) for s, a, b in self.spans if s.th == th and not s.background and a <= at < b
        ]
        if not active:
            return None
        active.sort(key=lambda found: (found[1], -found[2]))
        for span, _, _ in active:
            if span.name in OPAQUE:
                return span
        return active[-1][0]

    def _pieces(self) -> list[Piece]:
        cuts = {self.start, self.end, self.rank.ready, self.alive}
        cuts |= {t for _, a, b in self.spans for t in (a, b)}
        cuts |= {t for line in self.lines for t in (line.start, line.end)}
        if self.train is not None:
            cuts.add(self.train)
        if self.launch.told is not None:
            cuts.add(self.launch.told)
        if self.rank.told is not None:
            cuts.add(self.rank.told)
        times = sorted(t for t in cuts if self.start <= t <= self.end)
        pieces = []
        for a, b in pairwise(times):
            bucket, owner = self._bucket(a)
            self._hide(a, b, owner)
            pieces.append((a, b, bucket))
        return pieces

    def _bucket(self, at: int) -> tuple[str, Span | None]:
        if at < self.rank.ready:
            return f"{self.group}.launcher_init", None
        if self.train is None or at < self.train:
            span = self._starting(at)
            if span is not None:
                return self._name(span), span
            if self.train is None and at >= self.alive:
                return self._after(at), None
            return UNKNOWN, None
        span = self._innermost(at, self.rank.thread)
        if span is not None:
            return self._name(span), span
        assert self.last is not None
        return (EFFECTIVE if at < self.last else self._after(at)), None

    def _starting(self, at: int) -> Span | None:
        """While the rank starts: of all threads, that whose last span ends last.

        The first step does not wait for what ends after it.
        """
        best: tuple[int, int, Span] | None = None
        for th in {s.th for s, _, _ in self.spans}:
            span = self._innermost(at, th)
            if span is None:
                continue
            ends = [
                b
                for s, a, b in self.spans
                if s.th == th
                and not s.background
                and (
                    self.train is None or self.first is None or (a < self.train and b <= self.first)
                )
            ]
            last = max(ends, default=0)
            if best is None or (last, -th) > best[:2]:
                best = (last, -th, span)
        return best[2] if best else None

    def _after(self, at: int) -> str:
        """What no span covers, after the last step or the last sign of life."""
        told = self.launch.told
        if self.hung and at >= self.alive and (told is None or at < told):
            return HANG
        if self.running or (self.attempt.outcome == "completed" and self.last is None):
            return UNKNOWN
        return SHUTDOWN if self.attempt.outcome in ("completed", "stopped") else DETECTION

    def _hung(self) -> bool:
        """Ended from outside, and silent for longer than its patience."""
        if self.rank.told is not None or self.attempt.outcome == "completed":
            return False
        until = self.end
        if self.launch.told is not None:
            until = min(until, max(self.launch.told, self.alive))
        busy = [s.name for s, _, _ in self.spans if s.end is None]
        if busy or self.median is None:
            known = [b - a for s, a, b in self.spans if s.end is not None and s.name in busy]
            patience = max(60 * NS, 10 * max([*known, self.median or 0]))
        else:
            patience = max(NS, 10 * self.median)
        raised = [r.told for r in self.attempt.ranks if r.error and r.told is not None]
        if raised and min(raised) - self.alive <= patience:
            return False  # it waits for a rank that is dead
        return until - self.alive > patience

    def _hide(self, a: int, b: int, owner: Span | None) -> None:
        if a < self.rank.ready:
            return
        for s, x, y in self.spans:
            if s.background and x <= a and b <= y:
                self.hidden["waste.checkpoint_block"] += b - a
        for th in {s.th for s, _, _ in self.spans}:
            span = self._innermost(a, th)
            if span is not None and span is not owner:
                self.hidden[self._name(span)] += b - a

    # ---- short waits

    def stalled(self, zero: Callable[[int], int], cell: int) -> dict[int, tuple[Fraction, int]]:
        """Per cell of the run's clock: what was waited in it, and its training time."""
        waited: dict[int, Fraction] = defaultdict(Fraction)
        trained: dict[int, int] = defaultdict(int)
        pieces = [(a, b) for a, b, bucket in self.pieces if bucket == EFFECTIVE]
        assert self.train is not None
        for line in self.lines:
            start = max(line.start, self.train)
            parts: dict[int, int] = defaultdict(int)
            for a, b in pieces:
                a, b = max(a, start), min(b, line.end)
                while a < b:
                    number = zero(a) // cell
                    until = min(b, a + (number + 1) * cell - zero(a))
                    parts[number] += until - a
                    a = until
            total = sum(parts.values())
            for number, part in parts.items():
                trained[number] += part
                if total:
                    waited[number] += Fraction(min(line.wait, total) * part, total)
        return {number: (waited[number], trained[number]) for number in trained}

    def apply_stalls(self, zero: Callable[[int], int], cell: int) -> None:
        if self.train is None:
            return
        pieces = self.pieces
        for number, (wait, _) in self.stalled(zero, cell).items():
            left = round(wait)
            done = []
            for a, b, bucket in reversed(pieces):
                if bucket != EFFECTIVE or not left:
                    done.append((a, b, bucket))
                    continue
                low = max(a, a + number * cell - zero(a))
                high = min(b, a + (number + 1) * cell - zero(a))
                if low >= high or low > b or high < a:
                    done.append((a, b, bucket))
                    continue
                taken = min(left, high - low)
                left -= taken
                if high < b:
                    done.append((high, b, bucket))
                done.append((high - taken, high, "waste.data_stall"))
                if a < high - taken:
                    done.append((a, high - taken, bucket))
            pieces = done[::-1]
        self.pieces = pieces

    def apply_drains(self) -> None:
        """The device still worked off queued steps, whatever the host did."""
        if self.first is None:
            return
        for low, high in self.rank.drains:
            done = []
            for a, b, bucket in self.pieces:
                cuts = sorted({a, b} | {t for t in (max(low, self.first), high) if a < t < b})
                for x, y in pairwise(cuts):
                    drained = max(low, self.first) <= x and y <= high
                    done.append((x, y, EFFECTIVE if drained else bucket))
            self.pieces = done

    def step_end(self, step: int) -> int:
        """When this process had made so many steps."""
        if step <= 0:
            return self.start
        end = self.host_end(step)
        behind = [b for a, b in self.rank.drains if end <= a < self.host_end(step + 1)]
        return max([end, *behind])

    def host_end(self, step: int) -> int:
        for line in self.lines:
            if line.last == step:
                return line.end
            if line.first <= step < line.last:
                start = line.start or line.end
                count = line.last - line.first + 1
                return start + (line.end - start) * (step - line.first + 1) // count
        return self.end


def merge(lives: list[list[Piece]], start: int, end: int) -> list[Piece]:
    """Whose second it is, of all ranks."""
    cuts = sorted({start, end} | {t for pieces in lives for a, b, _ in pieces for t in (a, b)})
    lines = [_dense(pieces, cuts) for pieces in lives]
    back = [_back(line, cuts, end) for line in lines]
    merged = []
    for k, (a, b) in enumerate(pairwise(cuts)):
        busy = [
            (_asked(line[k]), -back[r][k], _order(line[k]), r)
            for r, line in enumerate(lines)
            if line[k] != EFFECTIVE
        ]
        merged.append((a, b, lines[min(busy)[3]][k] if busy else EFFECTIVE))
    return merged


def _asked(bucket: str) -> int:
    """`unknown` after all that is known, a rank that waits for the others last."""
    return 2 if bucket.endswith(".process_group_init") else int(bucket == UNKNOWN)


def _order(bucket: str) -> int:
    return 0 if bucket == HANG else 2 if bucket in (DETECTION, DOWNTIME) else 1


def _dense(pieces: list[Piece], cuts: list[int]) -> list[str]:
    line = []
    for a, b in pairwise(cuts):
        (bucket,) = [bucket for x, y, bucket in pieces if x <= a and b <= y]
        line.append(bucket)
    return line


def _back(line: list[str], cuts: list[int], end: int) -> list[int]:
    """When each interval's rank is next in training, or in a process group that it waits for."""
    back = []
    at = end
    for k in reversed(range(len(line))):
        if line[k] == EFFECTIVE or line[k].endswith(".process_group_init"):
            at = cuts[k]
        back.append(at)
    return back[::-1]


# ---- lineage


@dataclass
class Stretch:
    """Steps made one on the result of the other: `low` < own steps of the process <= `high`."""

    attempt: int
    low: int
    high: int
    parent: tuple[int, int] | None  # stretch and steps of its process
    base: int  # the step of the run at `low`
    kept: int = 0  # kept up to here


def lineage(job: Job) -> list[Stretch]:
    stretches: list[Stretch] = []

    def at(source: tuple[int, int]) -> tuple[int, int]:
        """The stretch in which an attempt had made so many steps."""
        number, own = source
        found = [
            i for i, s in enumerate(stretches) if s.attempt == number and s.low <= own <= s.high
        ]
        return found[0], own

    def step(place: tuple[int, int]) -> int:
        stretch, own = place
        return stretches[stretch].base + own - stretches[stretch].low

    for number, attempt in enumerate(job.attempts):
        made = min((r.lines[-1].last if r.lines else 0 for r in attempt.ranks), default=0)
        parent = None
        for rank in attempt.ranks:
            sources = [at(ld.source) for ld in rank.loads if ld.after == 0 and ld.source]
            if sources:
                best = max(sources, key=step)
                if parent is None or step(best) < step(parent):
                    parent = best
        base = step(parent) if parent else 0
        if attempt.declared is not None:
            if base != attempt.declared:
                parent = None
                for i, s in enumerate(stretches):
                    if s.base < attempt.declared <= s.base + s.high - s.low:
                        parent = (i, s.low + attempt.declared - s.base)
            base = attempt.declared
        stretches.append(Stretch(number, 0, made, parent, base))
        rollbacks = sorted(
            {
                (ld.after, ld.source)
                for r in attempt.ranks
                for ld in r.loads
                if ld.after and ld.source
            }
        )
        for after, source in rollbacks:
            assert source is not None
            if after >= made:
                continue
            parent = at(source)
            stretches[-1].high = after
            stretches.append(Stretch(number, after, made, parent, step(parent)))
    _keep(job, stretches)
    return stretches


def _keep(job: Job, stretches: list[Stretch]) -> None:
    trained = [i for i, s in enumerate(stretches) if s.high > s.low]
    if not trained:
        return

    def follow(i: int, own: int) -> list[int]:
        path = []
        place: tuple[int, int] | None = (i, own)
        while place is not None:
            i, own = place
            path.append(i)
            stretches[i].kept = max(stretches[i].kept, min(own, stretches[i].high))
            place = stretches[i].parent
        return path

    for s in stretches:
        s.kept = s.low
    used = set(follow(trained[-1], stretches[trained[-1]].high))
    for i in reversed(trained[:-1]):
        ended = job.attempts[stretches[i].attempt].outcome == "completed"
        final = i == max(k for k in trained if stretches[k].attempt == stretches[i].attempt)
        if ended and final and i not in used:
            used |= set(follow(i, stretches[i].high))


# ---- the run


def account(job: Job) -> Result:
    result = Result()
    spans = _attempt_bounds(job)
    run_start = job.launches[0].begin
    if job.launches[0].allocated is not None:
        run_start = min(run_start, job.launches[0].allocated)
    outside = _outside(job, spans, result)

    def zero(at: int) -> int:
        return at - run_start - sum(min(b, at) - a for a, b in outside if a < at)

    run_end = max([launch.end for launch in job.launches])
    result.wall = zero(run_end)
    stretches = lineage(job)
    everyone = {rank.number for attempt in job.attempts for rank in attempt.ranks}
    total: dict[str, Fraction] = defaultdict(Fraction)
    own: dict[int, dict[str, Fraction]] = {n: defaultdict(Fraction) for n in everyone}
    before = run_start
    ready: list[int | None] = []
    progress: list[int | None] = []
    for number, (start, end) in enumerate(spans):
        attempt = job.attempts[number]
        again = number > 0 and interrupted(job.attempts[number - 1])
        gap = _gap(job, spans, number, before, start, outside)
        group = "recover" if again else "start"
        lives = [Life(job, number, rank, start, end, group) for rank in attempt.ranks]
        cell = NS * max(1, -(-(end - start) // (2048 * NS)))
        everybody = lives
        for life in lives:
            life.apply_stalls(zero, cell)
            life.apply_drains()
        if max((life.lines[-1].last for life in lives if life.lines), default=0) >= 10:
            lives = [life for life in lives if life.lines]
        if interrupted(attempt):
            hung = any(life.hung for life in lives)
            result.owners.append("ambiguous" if hung else attempt.owner)
        most: dict[str, int] = defaultdict(int)
        for life in lives:
            for bucket, value in life.hidden.items():
                most[bucket] = max(most[bucket], value)
        for bucket, value in most.items():
            result.hidden[bucket] = result.hidden.get(bucket, 0) + value
        run_pieces = merge([life.pieces for life in lives], start, end)
        lost = [s for s in stretches if s.attempt == number]
        run_pieces = _mark(run_pieces, [_lost(lost, life) for life in lives])
        for a, b, bucket in [*gap, *run_pieces]:
            total[bucket] += b - a
            result.timelines[None].append((zero(a), zero(b), bucket))
        for n in everyone:
            mine = [life for life in everybody if life.rank.number == n]
            pieces = (
                _mark(mine[0].pieces, [_lost(lost, mine[0])]) if mine else [(start, end, UNKNOWN)]
            )
            for a, b, bucket in [*gap, *pieces]:
                own[n][bucket] += b - a
                result.timelines[n].append((zero(a), zero(b), bucket))
        instants = [life.ready for life in lives]
        stepped = bool(lives) and all(instant is not None for instant in instants)
        ready.append(max(t for t in instants if t is not None) if stepped else None)
        ends = [life.last for life in lives if life.last is not None]
        progress.append(max(ends) if ends else None)
        made = [life.lines[-1].last if life.lines else 0 for life in lives]
        least = min(made, default=0)
        mine_stretches = [s for s in stretches if s.attempt == number]
        base = mine_stretches[0].base
        tail = mine_stretches[-1]
        result.attempts.append(
            (
                "running" if job.running and number == len(spans) - 1 else attempt.outcome,
                base + 1 if least else None,
                tail.base + tail.high - tail.low if least else None,
                base if number > 0 and (least or base) else None,
            )
        )
        result.bounds.append((zero(start), zero(end)))
        before = end
    for a, b, bucket in _rest(job, before, run_end):
        total[bucket] += b - a
        for n in everyone:
            own[n][bucket] += b - a
    result.buckets = {k: v for k, v in total.items() if v}
    result.ranks = {n: {k: v for k, v in buckets.items() if v} for n, buckets in own.items()}
    result.steps = sum(max(s.kept - s.low, 0) for s in stretches)
    _times(job, result, ready, progress, zero)
    return result


def _attempt_bounds(job: Job) -> list[tuple[int, int]]:
    bounds = []
    for number, attempt in enumerate(job.attempts):
        launch = job.launches[attempt.launch]
        first = number == 0 or job.attempts[number - 1].launch != attempt.launch
        last = number + 1 == len(job.attempts) or job.attempts[number + 1].launch != attempt.launch
        start = launch.begin if first else attempt.begin
        deaths = [r.seen for r in attempt.ranks if r.seen is not None and not r.in_order]
        if deaths:
            end = min(deaths)
        elif all(r.seen is not None for r in attempt.ranks) and interrupted(attempt):
            end = max(r.seen for r in attempt.ranks)
        elif last:
            end = launch.end
        elif attempt.outcome == "completed":
            end = job.attempts[number + 1].begin
        else:
            end = max(r.seen or r.alive for r in attempt.ranks)
        bounds.append((start, end))
    return bounds


def _outside(job: Job, spans: list[tuple[int, int]], result: Result) -> list[tuple[int, int]]:
    outside = []
    queued: int | None = None
    first = job.launches[0]
    if first.queued is not None:
        queued = (first.begin if first.allocated is None else first.allocated) - first.queued
    for number in range(1, len(job.attempts)):
        before, attempt = job.attempts[number - 1], job.attempts[number]
        if before.launch == attempt.launch:
            continue
        old, new = job.launches[before.launch], job.launches[attempt.launch]
        resources = new.begin if new.allocated is None else min(new.begin, new.allocated)
        start = max(old.end, resources)
        if new.queued is not None:
            since = min(max(new.queued, old.end), start)
            queued = (queued or 0) + start - since
        if not interrupted(before):
            result.paused += start - old.end
            outside.append((old.end, start))
        elif new.queued is not None and since < start:
            outside.append((since, start))
    result.queue = queued
    return outside


def _gap(
    job: Job,
    spans: list[tuple[int, int]],
    number: int,
    before: int,
    start: int,
    outside: Iterable[tuple[int, int]],
) -> list[Piece]:
    """Between two attempts, without what is outside the wall time."""
    attempt = job.attempts[number]
    launch = job.launches[attempt.launch]
    first = number == 0 or job.attempts[number - 1].launch != attempt.launch
    came = launch.allocated if first and launch.allocated is not None else start
    old = job.attempts[number - 1] if number else None
    again = old is not None and interrupted(old)
    cuts = sorted(
        {before, start}
        | {t for t in (came, *(t for o in outside for t in o)) if before < t < start}
    )
    pieces = []
    for a, b in pairwise(cuts):
        if any(x <= a and b <= y for x, y in outside):
            continue
        if a >= came:
            pieces.append((a, b, f"{'recover' if again else 'start'}.hardware_setup"))
        else:
            pieces.append((a, b, DOWNTIME if again else SHUTDOWN))
    return pieces


def _rest(job: Job, before: int, end: int) -> list[Piece]:
    return [(before, end, SHUTDOWN)] if before < end else []


def _lost(stretches: list[Stretch], life: Life) -> list[tuple[int, int]]:
    """When this rank made steps that are not kept."""
    lost = []
    for k, s in enumerate(stretches):
        if s.high <= s.low and k + 1 < len(stretches):
            continue
        if s.kept > s.low:
            start = life.step_end(s.kept)
        else:
            start = life.host_end(s.low) if s.low else life.start
        end = life.host_end(s.high) if k + 1 < len(stretches) else life.end
        if start < end:
            lost.append((start, end))
    return lost


def _mark(pieces: list[Piece], lost: list[list[tuple[int, int]]]) -> list[Piece]:
    """Effective time after what is kept, of the rank that was last to make it."""
    if not lost or not all(lost):
        return pieces
    marked = []
    count = max(len(one) for one in lost)
    windows = [
        (max(one[k][0] for one in lost), max(one[k][1] for one in lost)) for k in range(count)
    ]
    for a, b, bucket in pieces:
        if bucket != EFFECTIVE:
            marked.append((a, b, bucket))
            continue
        cuts = sorted({a, b} | {t for w in windows for t in w if a < t < b})
        for x, y in pairwise(cuts):
            gone = any(low <= x and y <= high for low, high in windows)
            marked.append((x, y, "failure.lost_training" if gone else bucket))
    return marked


def _times(
    job: Job,
    result: Result,
    ready: list[int | None],
    progress: list[int | None],
    zero: Callable[[int], int],
) -> None:
    since: int | None = None  # last progress of something that trained and was interrupted
    for number, attempt in enumerate(job.attempts):
        instant = ready[number]
        if instant is not None:
            if result.tts is None:
                result.tts = zero(instant)
            if since is not None:
                result.ttr.append(zero(instant) - zero(since))
                since = None
        if interrupted(attempt):
            if progress[number] is not None:
                since = progress[number]
        elif progress[number] is not None:
            since = None
