"""Learn from finished runs which sources to mark as dynamic, and undo it if steps get slower.

Kept beside the runs, in `.learned/<job>.json`.
"""

from __future__ import annotations

import hashlib
import json
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headway import redact
from headway.compile.recompiles import sources
from headway.compile.recompiles.advice import Advice, advise
from headway.compile.recompiles.record import Record, collect
from headway.compile.recompiles.sources import SETTINGS, UNBACKED
from headway.errors import with_code
from headway.format import count
from headway.journal import reader, run_files
from headway.journal.reader import Journal
from headway.storage import atomic_write


@dataclass(frozen=True)
class RecordedRun:
    """What `run.json` and the journals say."""

    identity: dict[str, Any]
    command: list[str]
    record: Record
    advice: Advice


def load_run(path: str) -> RecordedRun:
    """Read a run; also one that is still going on."""
    if "://" in path:
        with tempfile.TemporaryDirectory() as copy:
            run_files.fetch_run(path, Path(copy))
            return _load_folder(Path(copy))
    return _load_folder(run_files.find_run(path))


def _load_folder(found: Path) -> RecordedRun:
    journals, _ = reader.read_journals(str(found / run_files.JOURNAL))
    record = collect(journals)
    return RecordedRun(
        run_files.read_identity(found), run_files.read_command(found), record, advise(record)
    )


MIN_STEPS = 20
MIN_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class StepTime:
    """The median step, and of how many."""

    ns: int
    steps: int


def step_time(journals: Iterable[Journal]) -> StepTime | None:
    """That of the slowest rank; None where no rank has made enough steps undisturbed."""
    times = [_journal_step_time(journal) for journal in journals if journal.role != "launcher"]
    return max((time for time in times if time is not None), key=lambda t: t.ns, default=None)


def _journal_step_time(journal: Journal) -> StepTime | None:
    clean = sorted(_undisturbed_windows(journal))
    steps = sum(window_steps for _, window_steps in clean)
    if steps < MIN_STEPS or len(clean) < MIN_WINDOWS:
        return None
    seen = 0
    for step_ns, window_steps in clean:
        seen += window_steps
        if 2 * seen >= steps:
            return StepTime(step_ns, steps)
    return None


def _undisturbed_windows(journal: Journal) -> Iterator[tuple[int, int]]:
    """Time of a step and number of steps, of every window that no span reaches into."""
    spans = sorted((s.start, s.end if s.end is not None else s.start) for s in journal.spans)
    place, busy_until = 0, 0
    for window in journal.windows:
        while place < len(spans) and spans[place][0] < window.end:
            busy_until = max(busy_until, spans[place][1])
            place += 1
        steps = window.last - window.first + 1
        if window.start and busy_until <= window.start:
            yield max(window.end - window.start - window.wait, 0) // steps, steps


SCHEMA = 1
LEARNED_FOLDER = ".learned"
MAX_SLOWDOWN = 1.05  # so much longer may a step be
MAX_COMMANDS = 20  # of one job whose steps are remembered
STOPPED_STATUSES = tuple(
    128 + one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
)
FAILED_BEFORE_FIRST_STEP = "with them the job failed before its first step"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps of one command, as it is and with the sources marked."""

    without: StepTime | None = None
    marked: StepTime | None = None
    off: str = ""  # why the sources are not marked any more

    def judged(self) -> StepTimes:
        """Taken back when both times are known and the marked one is clearly longer."""
        if self.off or self.marked is None or self.without is None:
            return self
        if self.marked.ns <= MAX_SLOWDOWN * self.without.ns:
            return self
        longer = 100 * (self.marked.ns / self.without.ns - 1)
        times = f"{self.marked.ns / 1e6:.2f} ms instead of {self.without.ns / 1e6:.2f} ms"
        return replace(self, off=f"with them a step took {times}, {longer:.0f} % longer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSources:
    """What is known of one job under one torch; `paces` by the command's mark."""

    torch: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    paces: Mapping[str, StepTimes] = field(default_factory=dict)

    def pace(self, command: str) -> StepTimes:
        """Of that command."""
        return self.paces.get(command, StepTimes())

    def with_pace(self, command: str, pace: StepTimes) -> LearnedSources:
        """The newest commands are kept."""
        others = [(name, one) for name, one in self.paces.items() if name != command]
        return replace(self, paces=dict([*others, (command, pace)][-MAX_COMMANDS:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """What a run that is over has shown."""

    torch: str | None  # None if nothing was compiled
    env: Mapping[str, str]  # what it had set, and what its recompiles ask for
    applied: bool  # whether it ran with what was learned
    marked: bool  # whether anything was marked, by us or by the user
    time: StepTime | None
    stillborn: bool  # it failed before its first step


def command_digest(command: Sequence[str]) -> str:
    """Times are compared between runs of the very same command only."""
    return hashlib.sha256("\0".join(redact.words(command)).encode(errors="replace")).hexdigest()[
        :16
    ]


def settings_to_apply(
    known: LearnedSources, command: str, env: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """What to set for the next run, and the line that says so; nothing that the user has set."""
    if not known.env:
        return {}, ""
    if off := known.pace(command).off:
        return {}, with_code(f"learned sources are not marked: {off}", code="learned-sources-off")
    taken = [name for name in SETTINGS if env.get(name)]
    if taken:
        text = f"learned sources are left to you, as {taken[0]} is set"
        return {}, with_code(text, code="learned-sources-not-applied")
    entries = [count(len(text.split(",")), "entry") for text in known.env.values()]
    told = ", ".join(f"{name} ({many})" for name, many in zip(known.env, entries, strict=True))
    return dict(known.env), f"set as earlier runs have taught: {told}"


def update_learned(known: LearnedSources, command: str, seen: RunEvidence) -> LearnedSources:
    """What is known once a run is over. Times of another torch say nothing of this one."""
    if seen.applied and seen.stillborn:
        return known.with_pace(command, replace(known.pace(command), off=FAILED_BEFORE_FIRST_STEP))
    if seen.torch is None:
        return known
    if known.torch != seen.torch:
        known = LearnedSources(torch=seen.torch)
    both = {
        name: sources.join(known.env.get(name, ""), seen.env.get(name, "").split(","))
        for name in SETTINGS
    }
    env = {name: text for name, text in sources.supported_entries(both, seen.torch).items() if text}
    pace = known.pace(command)
    if pace.off and env != known.env:  # there is more to mark than what was too slow
        pace = replace(pace, off="", marked=None)
    if seen.time is not None and seen.applied:
        pace = replace(pace, marked=seen.time)
    elif seen.time is not None and not seen.marked:
        pace = replace(pace, without=seen.time)
    return replace(known, env=env).with_pace(command, pace.judged())


def summary_lines(known: LearnedSources, before: LearnedSources, command: str) -> list[str]:
    """What to say at the end of a run: that something was learned, or taken back."""
    off = known.pace(command).off
    if off and not before.pace(command).off:
        text = f"learned sources will not be marked again: {off}"
        return [with_code(text, code="learned-sources-off")]
    if known.env != before.env and not off:
        return ["learned sources for the next run with --learn; `headway recompiles` shows them"]
    return []


class RecompileLearner:
    """One run with `--learn`: what it gets from those before it, and leaves for the next."""

    def __init__(
        self, runs: Path, job: str, command: Sequence[str], say: Callable[[str], object]
    ) -> None:
        self.path, self.job, self.say = runs / LEARNED_FOLDER / f"{job}.json", job, say
        self.command = command_digest(command)
        self.known = read_learned(self.path)
        self.applied: dict[str, str] = {}

    def begin(self, env: Mapping[str, str]) -> dict[str, str]:
        """What to add to the job's environment."""
        self.applied, line = settings_to_apply(self.known, self.command, env)
        if line:
            self.say(f"headway: {line}")
        return self.applied

    def end(self, run: Path, status: int) -> None:
        """Nothing here can cost the job its exit code."""
        try:
            known = update_learned(
                self.known, self.command, collect_evidence(run, self.applied, status)
            )
            if known != self.known:
                write_learned(self.path, self.job, known)
            for line in summary_lines(known, self.known, self.command):
                self.say(f"headway: {line}")
        except Exception as error:
            text = f"headway: nothing was learned ({type(error).__name__}: {error})"
            self.say(with_code(text, code="learning-failed"))


def collect_evidence(run: Path, applied: Mapping[str, str], status: int) -> RunEvidence:
    """What the run in that folder has shown."""
    journals, _ = reader.read_journals(str(run / run_files.JOURNAL))
    record = collect(journals)
    # Unbacked sizes can make torch refuse the code: only what a run had set is taken over.
    kept = record.marked.get(SETTINGS[UNBACKED], "")
    return RunEvidence(
        torch=record.torch if record.graphs else None,
        env=sources.as_dynamic(advise(record).env, keep=kept),
        applied=bool(applied),
        marked=bool(record.marked),
        time=step_time(journals),
        stillborn=_failed(status) and not record.steps and _tried_to_compile(journals),
    )


def _failed(status: int) -> bool:
    """By itself: a job that was ended, or ran out of memory, would have been without them too."""
    return status > 0 and status not in STOPPED_STATUSES


def _tried_to_compile(journals: Iterable[Journal]) -> bool:
    """Sources are marked when something is compiled; before that they change nothing."""
    return any(span.name == "compile" for journal in journals for span in journal.spans)


def read_learned(path: Path) -> LearnedSources:
    """What the file says; nothing where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            return LearnedSources()
        env = {name: str(found["env"][name]) for name in SETTINGS if found["env"].get(name)}
        paces = {str(name): _read_step_times(one) for name, one in found["paces"].items()}
        return LearnedSources(torch=found["torch"], env=env, paces=paces)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return LearnedSources()


def _read_step_times(told: Mapping[str, Any]) -> StepTimes:
    without, marked = (
        StepTime(**told[name]) if told[name] else None for name in ("without", "marked")
    )
    return StepTimes(without, marked, str(told["off"]))


def write_learned(path: Path, job: str, known: LearnedSources) -> None:
    """All of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": SCHEMA, "job": job, **asdict(known)}
    atomic_write.write_atomically(path, json.dumps(content, indent=1) + "\n")
