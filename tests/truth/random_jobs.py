"""Random jobs: what happened on the true clock, and the journals that its processes wrote of it.

`story(seed)` gives both; from the first, `tests.truth.reference` computes what a report of the
second must say. All times are whole milliseconds, so that no clock rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from headway.journal import pulse
from headway.testing import EPOCH, FakeJournal, FakeRun, Host
from tests.truth.reference import NS, Attempt, Job, Launch, Line, Load, Rank, Span

MS = 1_000_000
HOSTS = 3
MIDDLE = ("evaluation", "my_span", "blocked", "process_group_init", "import")
STAGE_NAMES = (
    "device_init",
    "preproc_creation",
    "train_module_creation",
    "init_plugins",
    "pre_train",
    "scheduling",
    "evaluation",
    "my_span",
    "checkpoint_save",
    "data_iter",
)


@dataclass
class Writer:
    """A process: its record and its journal, written side by side."""

    rank: Rank
    journal: FakeJournal
    now: int
    made: int = 0  # steps
    since: int = 0  # when the line began that is not written yet
    first: int = 1  # its first step
    wait: int = 0  # its short waits
    ends: dict[int, int] = field(default_factory=dict)  # when each step was done

    def span(self, name: str, start: int, end: int | None, th: int = 0, **fields: Any) -> Span:
        background = bool(fields.get("background"))
        th = th or self.rank.thread
        span = Span(name, start, end, th, background, failed="error" in fields)
        self.rank.spans.append(span)
        number = self.journal.open(name, start / NS, th=th, **fields)
        if end is not None:
            self.journal.close(number, end / NS)
        self.alive(max(start, end or 0))
        return span

    def alive(self, at: int) -> None:
        self.rank.alive = max(self.rank.alive, at)

    def step(self, end: int) -> None:
        self.made += 1
        self.now = end
        self.ends[self.made] = end
        self.alive(end)
        self.journal.cells[pulse.STEPS] = self.made
        self.journal.cells[pulse.LAST_STEP] = self.journal.at(end / NS)
        if self.made == 1 or end - self.since >= NS:
            self.line()

    def line(self, torn: bool = False) -> None:
        """Write the line of the steps since the last one."""
        if self.made < self.first:
            return
        start = self.since if self.first > 1 else 0
        line = Line(
            start, self.now if torn else self.ends[self.made], self.first, self.made, self.wait
        )
        line.end = self.ends[self.made]
        self.rank.lines.append(line)
        if torn:  # only the pulse page knows of it
            self.journal.cells |= {
                pulse.WINDOW: self.first - 1,
                pulse.WINDOW_AT: self.journal.at(start / NS) if start else 0,
                pulse.WAIT: self.wait,
            }
        else:
            self.journal.lines.append(
                {
                    "ev": "steps",
                    "t": self.journal.at(start / NS) if start else 0,
                    "end": self.journal.at(line.end / NS),
                    "first": line.first,
                    "last": line.last,
                    "wait": line.wait,
                    "batches": line.last - line.first + 1,
                }
            )
        self.since, self.first, self.wait = line.end, self.made + 1, 0


@dataclass
class SavedState:
    """A save that a later attempt may load."""

    path: str
    attempt: int
    own: int  # steps of its processes
    step: int  # of the run
    file: str = ""  # its identity


class RandomJob:
    """One job, told from a seed; `without` leaves kinds of events out, to find what is wrong."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        self.random = Random(seed)
        self.without = without
        self.job = Job()
        self.run = FakeRun()
        self.saves: list[SavedState] = []
        self.now = 0
        self.paths = 0
        self.pids = 100
        self.counted = [6, 6]
        self.boots = 0
        self.hosts = self._hosts()
        self._tell()

    # ---- chances

    def chance(self, what: str, probability: float) -> bool:
        hit = self.random.random() < probability
        return hit and what not in self.without

    def ms(self, low: float, high: float) -> int:
        """Between two numbers of seconds."""
        return self.random.randint(round(low * 1000), round(high * 1000)) * MS

    # ---- the job

    def _hosts(self) -> list[Host]:
        hosts = [Host()]
        count = self.random.choice([1, 1, 2, 3]) if "hosts" not in self.without else 1
        for number in range(1, count):
            off = self.random.choice([0, 0, 0, 47 * 60, -3600, 7])
            hosts.append(
                Host(
                    f"node{number}",
                    f"boot-{number}",
                    monotonic=float(self.random.randint(0, 5000)),
                    wall=float(off),
                )
            )
        self.pods = len(hosts) == 1 and self.chance("pods", 0.15)
        if self.pods:
            hosts.append(Host())
        return hosts

    def _tell(self) -> None:
        attempts = self.random.choice([1, 1, 2, 2, 3, 4])
        self.world = self.random.choice([1, 1, 2, 2, 3, 4])
        self.each = self.random.choice([10, 20, 50, 100, 250, 500, 1000, 2000, 2000]) * MS
        if self.chance("long", 0.03):
            self.each = 70 * NS
        self.sync = self.random.random() < 0.7
        self.multi = len(self.hosts) > 1 and self.world > 1
        self.grouped = self.world > 1 and (self.multi or self.random.random() < 0.7)
        self.ranked = self.world > 1 or self.random.random() < 0.7
        self.stepping = self.chance("stepping", 0.1)
        fresh = True
        for index in range(attempts):
            fresh = self._attempt(index, fresh, index == attempts - 1)
        if attempts == 1 and self.agent is None and self.chance("launcher lost", 0.15):
            self._lose_launcher()

    def _lose_launcher(self) -> None:
        """Its journal is gone: all that is known are the processes' own starts and ends."""
        (attempt,) = self.job.attempts
        if attempt.outcome not in ("completed", "failed"):
            return
        self.run.journals = [j for j in self.run.journals if j not in self.launchers]
        begin = min(rank.begin for rank in attempt.ranks)
        end = max(rank.alive for rank in attempt.ranks)
        self.job.launches[0] = Launch(begin, end)
        for rank in attempt.ranks:
            rank.seen = None
        attempt.owner = attempt.owner if attempt.owner != "ambiguous" else None

    def _nodes(self) -> list[Host]:
        return self.hosts[: max(1, min(len(self.hosts), self.world))]

    def _launch(self, index: int) -> None:
        launch = Launch(self.now, 0)
        number = len(self.job.launches)
        head: dict[str, Any] = {}
        if (self.chance("allocated", 0.25) and self.now > 30 * NS) or (
            not number and self.chance("allocated", 0.2)
        ):
            gap = self.now - self.ended if number else 10 * NS
            lead = self.random.randint(0, max(0, gap // MS // 2)) * MS
            launch.allocated = self.now - lead
            head["allocated"] = EPOCH * NS + launch.allocated
            if self.random.random() < 0.6:
                queued = self.ms(0, 20)
                launch.queued = launch.allocated - queued
                head["queued"] = EPOCH * NS + launch.queued
        self.launchers = []
        for node, host in enumerate(self._nodes()):
            begin = self.now + (self.ms(0, 0.5) if node else 0)
            spawn = begin + self.ms(0, 0.3)
            head = {**head, "pids": 1 + self.pods * node}
            journal = self.run.launcher(
                begin / NS,
                launch=f"L{number}",
                index=number,
                host=host,
                spawn=spawn / NS,
                **(head if node == 0 else {"pids": head["pids"]}),
            )
            journal.lines[0]["wall"] = EPOCH * NS + begin + round(host.wall) * NS
            self.launchers.append(journal)
        launch.spawn = spawn
        self.job.launches.append(launch)
        self.now = spawn
        self.restart = 0
        self.followed = False

    def _attempt(self, index: int, fresh: bool, last: bool) -> bool:
        """One start of the job; whether the next one is a new launch."""
        if index and fresh and self.chance("elastic", 0.1):
            self.world = max(1, min(4, self.world + self.random.choice([-1, 1])))
            self.grouped = self.world > 1 and (self.grouped or len(self.hosts) > 1)
            self.ranked = self.ranked or self.world > 1
        if fresh:
            self._launch(index)
        elif not self.followed:
            self.restart += 1
        self.followed = False
        attempt = Attempt(len(self.job.launches) - 1, "")
        self.job.attempts.append(attempt)
        end = self._ending(last, fresh)
        if fresh:
            self.agent = None
            if self.ranked and self.chance("agent", 0.3):
                self.agent = self._agent()
        self.writers = [self._process(number, fresh) for number in range(self.world)]
        attempt.begin = min(w.rank.begin for w in self.writers)
        steps = (
            0 if end != "completed" and self.chance("never", 0.12) else self.random.randint(1, 40)
        )
        self._start(index, steps)
        if steps:
            self._loop(index, steps, end)
        return self._end(index, end, last)

    def _agent(self) -> FakeJournal:
        """torchrun's own process, on the first node."""
        self.pids += 1
        head: dict[str, Any] = {"pids": 1}
        journal = self.run.process(
            self.now / NS,
            rank=None,
            world=None,
            launch=f"L{len(self.job.launches) - 1}",
            host=self.hosts[0],
            pid=self.pids,
            argv=["torchrun"],
            **head,
        )
        journal.lines[0]["wall"] = EPOCH * NS + self.now
        journal.event("agent", self.now / NS, state="rendezvous")
        return journal

    def _process(self, number: int, fresh: bool) -> Writer:
        host = self._nodes()[number % len(self._nodes())]
        pod = number % len(self._nodes())
        begin = self.now + self.ms(0, 1.0)
        ready = begin + self.ms(0, 0.3)
        self.pids += 1
        head: dict[str, Any] = {"t": round((ready / NS + host.monotonic) * NS)}
        pid = self.pids
        head["pids"] = 1 + self.pods * pod
        if self.pods:
            self.counted[pod] += 1
            pid = self.counted[pod]  # both count from the same number
        launch = len(self.job.launches) - 1
        journal = self.run.process(
            begin / NS,
            rank=number if self.ranked else None,
            world=self.world if self.ranked else None,
            restart=self.restart if self.ranked else 0,
            launch=f"L{launch}",
            host=host,
            pid=pid,
            argv=["train.py"],
            **head,
        )
        journal.lines[0]["wall"] = EPOCH * NS + ready + round(host.wall) * NS
        rank = Rank(number, begin, ready, alive=ready)
        if self.stepping:
            rank.thread = 3
            journal.event("stepping", ready / NS, th=3)
        self.job.attempts[-1].ranks.append(rank)
        return Writer(rank, journal, ready)

    # ---- its start

    def _start(self, index: int, steps: int) -> None:
        source = self._source(index)
        for w in self.writers:
            if self.chance("own work", 0.3):
                w.now += self.ms(0, 2)
            if self.chance("import", 0.7):
                self._import(w)
        if self.grouped:
            for w in self.writers:
                w.now += self.ms(0, 0.5)
            together = max(w.now for w in self.writers) + self.ms(0, 0.3)
            for w in self.writers:
                w.span("process_group_init", w.now, together)
                w.now = together
        names = self.random.sample(STAGE_NAMES, self.random.randint(0, 4))
        if source is not None:
            names.insert(self.random.randint(0, len(names)), "checkpoint_load")
        extra = self.chance("loads", 0.2)
        aside = self.chance("threads", 0.3)
        for w in self.writers:
            for name in names:
                if self.chance("gaps", 0.3):
                    w.now += self.ms(0, 1.5)
                self._stage(w, name, source, aside, extra)
            if self.chance("first batch", 0.6):
                length = self.ms(0, 2)
                w.span("data_wait", w.now, w.now + length)
                w.now += length
                if self.chance("wait then stage", 0.1):
                    length = self.ms(0, 2)
                    w.span("pre_train", w.now, w.now + length)
                    w.now += length

    def _import(self, w: Writer) -> None:
        length = self.ms(0, 3)
        start = w.now
        w.now += length
        if self.chance("nested import", 0.3) and length > 4 * MS:
            w.span("compile_import", start + length // 4 // MS * MS, start + length // 2 // MS * MS)
        w.span("import", start, w.now, module=self.random.choice(["torch", "numpy"]))

    def _stage(
        self, w: Writer, name: str, source: SavedState | None, aside: bool, extra: bool
    ) -> None:
        length = self.ms(0, 3)
        th = 0
        start = w.now
        if aside and self.random.random() < 0.5:
            th = self.random.choice([5, 6])
            start = max([start, *(s.end or 0 for s in w.rank.spans if s.th == th)])
        end = start + length
        fields: dict[str, Any] = {}
        if name == "checkpoint_load":
            assert source is not None
            older = [s for s in self.saves if self._latest(s) and s.step < source.step]
            if older and self.chance("uneven", 0.05):
                source = self.random.choice(older)
            self._load(w, source, start, end, th, extra)
        else:
            if name == "checkpoint_save":
                fields = {"path": "before.pt", "step": 0}
            if self.chance("nested stage", 0.3) and length > 4 * MS:
                inner = self.random.choice(["device_init", "compile_import", "compile", "import"])
                w.span(inner, start + length // 4 // MS * MS, start + length // 2 // MS * MS, th)
            w.span(name, start, end, th, **fields)
        if th == 0:
            w.now = end
        elif name == "checkpoint_load" or self.chance("join", 0.5):
            w.now = max(w.now, end)

    def _load(
        self, w: Writer, source: SavedState, start: int, end: int, th: int, extra: bool
    ) -> None:
        fields = {"path": source.path}
        if source.file:
            fields["file"] = source.file
            if self.random.random() < 0.5:
                fields["path"] = f"renamed-{source.path}"
        w.span("checkpoint_load", start, end, th, **fields)
        w.rank.loads.append(Load(end, w.made, (source.attempt, source.own)))
        if self.chance("failed load", 0.1):
            w.span("checkpoint_load", start, start, th, path="latest.pt", error="no")
        if extra:  # another one that is older, and one that nobody saved
            older = [s for s in self.saves if s.step <= source.step and s is not source]
            older = [s for s in older if self._latest(s)]
            if older:
                other = self.random.choice(older)
                w.span("checkpoint_load", end, end, th, path=other.path)
                w.rank.loads.append(Load(end, w.made, (other.attempt, other.own)))
            w.span("checkpoint_load", end, end, th, path="pretrained.pt")

    def _latest(self, save: SavedState) -> bool:
        """Whether its path has not been written again."""
        return [s for s in self.saves if s.path == save.path][-1] is save

    def _source(self, index: int) -> SavedState | None:
        saves = [s for s in self.saves if self._latest(s)]
        if not saves or self.chance("scratch", 0.15):
            return None
        return saves[-1] if self.random.random() < 0.7 else self.random.choice(saves)

    # ---- its loop

    def _loop(self, index: int, steps: int, end: str) -> None:
        base = self._base()
        self.offset = base  # step of the run - steps of the processes
        compiled = self.ms(0, 4) if self.chance("compile", 0.4) else 0
        slow = self.ms(0, 8) if self.chance("slow first step", 0.2) else 0
        waits = self.chance("short waits", 0.4)
        for w in self.writers:
            if compiled:
                length = compiled + self.ms(0, 1)
                if self.random.random() < 0.5:
                    w.span("compile_import", w.now + MS, w.now + length // 2 // MS * MS)
                w.span("compile", w.now, w.now + length)
                w.now += length
            w.now += slow
        self._step(waits)
        for number in range(2, steps + 1):
            self._between(index, number - 1)
            self._step(waits)
        for w in self.writers:
            torn = (
                w.first > 1
                and end in ("killed", "power", "launcher", "hang")
                and self.chance("torn", 0.5)
            )
            w.line(torn=torn)

    def _base(self) -> int:
        attempt = self.job.attempts[-1]
        best = None
        for rank in attempt.ranks:
            found = [
                s.step
                for load in rank.loads
                for s in self.saves
                if load.source == (s.attempt, s.own)
            ]
            if found:
                best = max(found) if best is None else min(best, max(found))
        base = best or 0
        if self.chance("progress", 0.1):
            base = self.random.randint(0, max([0, *(s.step for s in self.saves)]))
            attempt.declared = base
            for w in self.writers:
                w.journal.event("progress", w.now / NS, step=base)
                w.alive(w.now)
        return base

    def _step(self, waits: bool) -> None:
        lengths = [self.each for _ in self.writers]
        for k, w in enumerate(self.writers):
            if waits and w.made:
                wait = self.ms(0, 0.05)
                w.wait += wait
                lengths[k] += wait
        ends = [w.now + length for w, length in zip(self.writers, lengths, strict=True)]
        for w, end in zip(self.writers, ends, strict=True):
            w.step(max(ends) if self.sync else end)

    def _between(self, index: int, made: int) -> None:
        if self.chance("save", 0.08):
            self._save(index, made)
        elif self.chance("rollback", 0.01):
            self._rollback(index, made)
        for w in self.writers:
            if self.chance("stall", 0.02):
                self._pass(w, "data_wait", 0.1, 3)
            if self.chance("recompile", 0.01):
                start = w.now
                length = self.ms(0.1, 2)
                w.span("compile_import", start + 10 * MS, start + 60 * MS)
                w.span("compile", start, start + length)
                w.now += length
            if self.chance("middle", 0.01):
                self._pass(w, self.random.choice(MIDDLE), 0, 2)
            if self.chance("aside", 0.01):
                start = w.now - self.ms(0, 0.2) if w.made > 2 else w.now
                w.span(
                    self.random.choice(["checkpoint_load", "evaluation", "my_span"]),
                    start,
                    start + self.ms(0, 0.5),
                    7,
                )
        if self.chance("evaluation", 0.01):
            for w in self.writers:
                self._pass(w, "evaluation", 0.1, 5)

    def _pass(self, w: Writer, name: str, low: float, high: float) -> None:
        length = self.ms(low, high)
        w.span(name, w.now, w.now + length)
        loaded = any(load.after == w.made for load in w.rank.loads)  # that waits for the device
        if not loaded and self.chance("drain", 0.2):
            drained = self.ms(0, length / NS)
            w.journal.event("drain", w.now / NS, ns=drained)
            w.rank.drains.append((w.now, w.now + drained))
        w.now += length

    def _save(self, index: int, made: int) -> None:
        """By rank 0, or by all."""
        self.paths += 1
        path = "latest.pt" if self.random.random() < 0.3 else f"step-{self.paths}.pt"
        everyone = self.random.random() < 0.3
        background = self.chance("background", 0.3)
        failed = self.chance("failed save", 0.05)
        parts = 2 if self.chance("parts", 0.2) else 1
        identified = self.chance("file", 0.3)
        for w in self.writers if everyone else self.writers[:1]:
            w.line()
            name = path if not everyone else f"{path}/{w.rank.number}"
            for part in range(parts):
                length = self.ms(0, 1)
                fields: dict[str, Any] = {"path": name, "step": made}
                if part:
                    fields |= {"path": f"{name}.opt"}
                if failed:
                    fields["error"] = "OSError"
                elif identified and not part:
                    fields["file"] = f"{self.paths}:{w.rank.number}:{made}"
                if background and not part:
                    fields["save"] = self.paths
                w.span("checkpoint_save", w.now, w.now + length, **fields)
                w.now += length
            if background and not failed:
                self._behind(w, name, made)
        if not failed:
            if everyone:
                path = f"{path}/0"
            file = f"{self.paths}:0:{made}" if identified else ""
            self.saves.append(SavedState(path, index, made, self.offset + made, file))

    def _behind(self, w: Writer, path: str, made: int) -> None:
        """The rest of it is written while the loop goes on, and is durable at once or soon."""
        length = self.ms(0, min(3.0, self.each / NS))
        w.span(
            "checkpoint_save",
            w.now,
            w.now + length,
            9,
            background=True,
            path=path,
            step=made,
            save=self.paths,
        )

    def _rollback(self, index: int, made: int) -> None:
        saves = [s for s in self.saves if self._latest(s) and s.own < made]
        own = [s for s in saves if s.attempt == index and self.sync]
        if not own:
            return
        save = self.random.choice(own)
        for w in self.writers:
            length = self.ms(0, 1)
            w.line()
            w.span("checkpoint_load", w.now, w.now + length, path=save.path)
            w.now += length
            w.rank.loads.append(Load(w.now, made, (save.attempt, save.own)))
        self.offset = save.step - made

    # ---- its end

    def _ending(self, last: bool, fresh: bool) -> str:
        kinds = ["killed", "raises", "hang", "hang_raises", "segv", "launcher", "power"]
        kinds += ["preempted", "preempted_killed", "ctrl_c", "completed"]
        if last:
            kinds += ["completed"] * 6 + ["running"] * (not self.pods)
        kind = self.random.choice([k for k in kinds if k not in self.without])
        return kind

    def _interrupt(self, kind: str) -> None:
        """What the processes are in the middle of when they are killed."""
        if kind not in CUT_OFF:
            return
        for w in self.writers:
            roll = self.random.random()
            start = w.now + self.ms(0, 0.3)
            if roll < 0.1 and self.chance("open", 1):
                name = self.random.choice(["checkpoint_save", "evaluation", "compile", "data_wait"])
                fields = {"path": "latest.pt", "step": w.made} if "save" in name else {}
                w.span(name, start, None, **fields)
                w.alive(start + self.ms(0, 0.4))
            elif roll < 0.2 and self.chance("open wait", 1):
                w.rank.waiting = start
                w.journal.cells[pulse.WAITING] = w.journal.at(start / NS)
                w.alive(start)
            elif roll < 0.3 and w.made and self.chance("unfinished", 1):
                w.journal.event("saving", start / NS, path="latest.pt", step=w.made)
                fields = {"path": "latest.pt", "step": w.made}
                w.span("checkpoint_save", start, None, 9, background=True, **fields)
                w.alive(start)
            else:
                continue
            w.journal.cells[pulse.ALIVE] = w.journal.at(w.rank.alive / NS)

    def _end(self, index: int, kind: str, last: bool) -> bool:
        attempt = self.job.attempts[-1]
        launch = self.job.launches[-1]
        self._interrupt(kind)
        latest = max(max(w.now, w.rank.alive) for w in self.writers)
        restart = not last and self.world == 1 - self.ranked + self.ranked * self.world
        restart = restart and self.chance("restart", 0.4)
        done = getattr(self, f"_end_{kind}")(attempt, launch, latest, restart and kind in INNER)
        self.ended = done
        self.now = done + self.ms(0.1, 30)
        if restart and kind in INNER:
            self.now = done + self.ms(0, 2)
            return False
        return True

    def _death(self, w: Writer, at: int, code: int) -> None:
        """Its launcher sees it."""
        host = w.journal.host
        pids = w.journal.lines[0].get("pids")
        (launcher,) = [
            j for j in self.launchers if j.host is host and j.lines[0].get("pids") == pids
        ]
        pid = w.journal.lines[0]["pid"]
        if self.agent is not None and host is self.hosts[0] and code and not self.pods:
            # The agent is its parent, and the first to see it.
            self.agent.event("worker_failed", at / NS, pid=pid, code=code)
            launcher.event("death", (at + 3 * MS) / NS, pid=pid)
        else:
            launcher.event("death", at / NS, pid=pid, code=code)
        w.rank.seen = at

    def _close(self, launch: Launch, at: int, code: int) -> int:
        """The launchers end."""
        ends = []
        for journal in self.launchers:
            end = at + self.ms(0, 1)
            journal.exit(end / NS, code=code)
            ends.append(end)
        launch.end = max(ends)
        return launch.end

    def _leave(self, w: Writer, at: int, error: str = "") -> None:
        if error:
            w.journal.event("error", at / NS, type=error, message="no")
            w.rank.error = True
        w.journal.exit(at / NS)
        w.rank.told = at
        w.alive(at)

    def _end_completed(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        attempt.outcome = "completed"
        dead = []
        names = self.random.choice(LAST)
        for w in self.writers:
            for name in names:
                length = self.ms(0, 4)
                fields = {"last": True} if name == "data_wait" else {}
                if name == "checkpoint_save":
                    fields = {"path": f"final-{w.rank.number}.pt", "step": w.made}
                w.span(name, w.now, w.now + length, **fields)
                w.now += length
            w.now += self.ms(0, 1)
            self._leave(w, w.now)
            w.rank.in_order = True
            w.now += self.ms(0, 0.3)
            self._death(w, w.now, 0)
            dead.append(w.now)
        if names == ("checkpoint_save",):
            w = self.writers[0]
            made = w.made
            if made:
                self.saves.append(
                    SavedState("final-0.pt", len(self.job.attempts) - 1, made, self.offset + made)
                )
        if restart:
            self.followed = True
            return max(dead)
        return self._close(launch, max(dead), 0)

    def _fail(
        self, attempt: Attempt, launch: Launch, victim: Writer, at: int, code: int, restart: bool
    ) -> int:
        """The others are ended when one was seen dead."""
        attempt.outcome = "failed"
        seen = at + self.ms(0, 1)
        self._death(victim, seen, code)
        done = seen
        for w in self.writers:
            if w is not victim:
                done = max(done, seen + self.ms(0, 2))
                self._death(w, done, -15)
        if restart:
            return done
        return self._close(launch, done, 128 - code if code < 0 else code)

    def _victim(self) -> Writer:
        return self.random.choice(self.writers)

    def _end_killed(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        victim = self._victim()
        at += self.ms(0, min(0.9, self.each * 3 / NS))
        return self._fail(attempt, launch, victim, at, -9, restart)

    def _end_segv(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        attempt.owner = "ambiguous" if len(self.writers) == 1 else None
        at += self.ms(0, 0.5)
        return self._fail(attempt, launch, self._victim(), at, -11, restart)

    def _end_raises(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        victim = self._victim()
        at += self.ms(0, 1)
        kind = self.random.choice(["ValueError", "ConnectionError"])
        attempt.owner = "user" if kind == "ValueError" else "infra"
        self._leave(victim, at, kind)
        if self.random.random() < 0.2:
            at += self.ms(0, 40)  # what it has registered to do at its exit
        return self._fail(attempt, launch, victim, at, 1, restart)

    def _end_hang(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        at += self.ms(1, 150)
        return self._fail(attempt, launch, self._victim(), at, -9, restart)

    def _end_hang_raises(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        """One rank raises as another one makes no step."""
        victim = self.writers[0]
        at += self.ms(1, 150)
        self._leave(victim, at, "RuntimeError")
        return self._fail(attempt, launch, victim, at, 1, restart)

    def _end_launcher(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        """The launcher is killed; its job with it."""
        return self._gone(attempt, launch, at)

    def _end_power(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        done = self._gone(attempt, launch, at)
        if not self.pods and self.random.random() < 0.5:  # and boots again
            self.boots += 1
            self.hosts = [
                Host(h.name, f"boot-{n}-{self.boots}", 1.0 + n - done // NS, h.wall)
                for n, h in enumerate(self.hosts)
            ]
        return done

    def _gone(self, attempt: Attempt, launch: Launch, at: int) -> int:
        attempt.outcome = "failed"
        at += self.ms(0, 2)
        for journal in self.launchers:
            journal.cells[pulse.ALIVE] = journal.at(at / NS)
        launch.end = at
        return at

    def _signal(self, launch: Launch, at: int, number: int) -> None:
        for journal in self.launchers:
            journal.event("signal", at / NS, signal=number)
        launch.told = at

    def _end_preempted(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        """All ranks hear of it, one saves, and all leave in order."""
        attempt.outcome, attempt.owner = "preempted", "scheduler"
        self._signal(launch, at, 15)
        dead = []
        for w in self.writers:
            w.journal.event("signal", at / NS, signal=15)
            w.alive(at)
            w.now = max(at, w.now) + self.ms(0, 0.5)
            if w is self.writers[0] and self.random.random() < 0.7 and w.made:
                length = self.ms(0, 3)
                self.paths += 1
                path = f"notice-{self.paths}.pt"
                w.span("checkpoint_save", w.now, w.now + length, path=path, step=w.made)
                self.saves.append(
                    SavedState(path, len(self.job.attempts) - 1, w.made, self.offset + w.made)
                )
                w.now += length
            self._leave(w, w.now)
            w.rank.in_order = True
            w.now += self.ms(0, 0.2)
            self._death(w, w.now, 0)
            dead.append(w.now)
        return self._close(launch, max(dead), 143)

    def _end_preempted_killed(
        self, attempt: Attempt, launch: Launch, at: int, restart: bool
    ) -> int:
        at += self.ms(0, 1)
        self._signal(launch, at, 15)
        done = at
        for w in self.writers:
            if self.random.random() < 0.5:
                w.journal.event("signal", at / NS, signal=15)
                w.alive(at)
            done = max(done, at + self.ms(0, 5))
            self._death(w, done, -15)
        attempt.outcome, attempt.owner = "preempted", "scheduler"
        return self._close(launch, done, 143)

    def _end_ctrl_c(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        at += self.ms(0, 1) if self.random.random() < 0.7 else self.ms(1, 100)
        self._signal(launch, at, 2)
        done = at
        for w in self.writers:
            if self.random.random() < 0.6:
                self._leave(w, at + self.ms(0, 0.5), "KeyboardInterrupt")
                done = max(done, w.rank.alive)
            done = done + self.ms(0, 0.5)
            self._death(w, done, -2)
        attempt.outcome = "stopped"
        return self._close(launch, done, 130)

    def _end_running(self, attempt: Attempt, launch: Launch, at: int, restart: bool) -> int:
        attempt.outcome = "running"
        at += self.ms(0, 3)
        for journal in self.launchers:
            journal.cells[pulse.ALIVE] = journal.at(at / NS)
        launch.end = at
        self.job.running = True
        for journal in self.run.journals:
            journal.lines[0].pop("pids")  # or they would be looked up, and found to be gone
        return at


CUT_OFF = ("killed", "segv", "launcher", "power", "running", "preempted_killed", "hang")
LAST = ((), (), ("data_wait",), ("evaluation", "publish"), ("checkpoint_save",))
INNER = ("killed", "raises", "segv", "hang", "completed")
