"""Learn from finished runs which sources to mark as dynamic, and undo it if steps get slower.

Stored next to the runs, in `.learned/<job>.json`.
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

SCHEMA = 1
LEARNED_FOLDER = ".learned"
MIN_STEPS = 20
MIN_WINDOWS = 3
MAX_SLOWDOWN = 1.05  # ratio of step times that is still accepted
MAX_COMMANDS = 20  # per job whose step times are stored
STOPPED_STATUSES = tuple(
    128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)
)
FAILED_BEFORE_FIRST_STEP = "the job failed before its first step with them"


@dataclass(frozen=True)
class RecordedRun:
    """A run as its `run.json` and journals describe it."""

    identity: dict[str, Any]
    command: list[str]
    record: Record
    advice: Advice


def load_run(path: str) -> RecordedRun:
    """Read a run, finished or not."""
    if "://" in path:
        with tempfile.TemporaryDirectory() as copy:
            run_files.fetch_run(path, Path(copy))
            return _load_folder(Path(copy))
    return _load_folder(run_files.find_run(path))


def _load_folder(folder: Path) -> RecordedRun:
    journals, _ = reader.read_journals(str(folder / run_files.JOURNAL))
    record = collect(journals)
    return RecordedRun(
        run_files.read_identity(folder), run_files.read_command(folder), record, advise(record)
    )


@dataclass(frozen=True, slots=True)
class StepTime:
    """The median step time, and the number of steps it is from."""

    ns: int
    steps: int


def step_time(journals: Iterable[Journal]) -> StepTime | None:
    """The step time of the slowest rank; None if no rank has enough undisturbed steps."""
    times = [_journal_step_time(journal) for journal in journals if journal.role != "launcher"]
    return max((time for time in times if time is not None), key=lambda t: t.ns, default=None)


def _journal_step_time(journal: Journal) -> StepTime | None:
    windows = sorted(_undisturbed_windows(journal))
    steps = sum(window_steps for _, window_steps in windows)
    if steps < MIN_STEPS or len(windows) < MIN_WINDOWS:
        return None
    steps_so_far = 0
    for step_ns, window_steps in windows:
        steps_so_far += window_steps
        if 2 * steps_so_far >= steps:
            return StepTime(step_ns, steps)
    return None


def _undisturbed_windows(journal: Journal) -> Iterator[tuple[int, int]]:
    """Yield time per step and number of steps of each window that overlaps no span."""
    spans = sorted((s.start, s.end if s.end is not None else s.start) for s in journal.spans)
    index, busy_until = 0, 0
    for window in journal.windows:
        while index < len(spans) and spans[index][0] < window.end:
            busy_until = max(busy_until, spans[index][1])
            index += 1
        steps = window.last - window.first + 1
        if window.start and busy_until <= window.start:
            yield max(window.end - window.start - window.wait, 0) // steps, steps


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one command, without and with marked sources."""

    without: StepTime | None = None
    marked: StepTime | None = None
    off: str = ""  # why the sources are no longer marked

    def judge(self) -> StepTimes:
        """Turn the marks off if both times are known and steps are clearly slower with them."""
        if self.off or self.marked is None or self.without is None:
            return self
        if self.marked.ns <= MAX_SLOWDOWN * self.without.ns:
            return self
        percent = 100 * (self.marked.ns / self.without.ns - 1)
        times = f"{self.marked.ns / 1e6:.2f} ms instead of {self.without.ns / 1e6:.2f} ms"
        return replace(self, off=f"a step took {times} with them, {percent:.0f} % longer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSources:
    """What is known about a job under one version of torch; `paces` maps command digests."""

    torch: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    paces: Mapping[str, StepTimes] = field(default_factory=dict)

    def step_times(self, command: str) -> StepTimes:
        """The step times of a command."""
        return self.paces.get(command, StepTimes())

    def with_step_times(self, command: str, step_times: StepTimes) -> LearnedSources:
        """Set the step times of a command; only the newest MAX_COMMANDS commands are kept."""
        others = [(name, times) for name, times in self.paces.items() if name != command]
        return replace(self, paces=dict([*others, (command, step_times)][-MAX_COMMANDS:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """What a finished run showed."""

    torch: str | None  # version; None if nothing was compiled
    env: Mapping[str, str]  # what was set, and what its recompiles require
    applied: bool  # whether it ran with the learned settings
    marked: bool  # whether anything was marked, by Headway or by the user
    time: StepTime | None
    failed_before_first_step: bool


def command_digest(command: Sequence[str]) -> str:
    """A digest of a command: step times are compared only between runs of the same command."""
    return hashlib.sha256("\0".join(redact.words(command)).encode(errors="replace")).hexdigest()[
        :16
    ]


def settings_to_apply(
    learned: LearnedSources, command: str, env: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Settings for the next run and a line that names them; none if the user has set any."""
    if not learned.env:
        return {}, ""
    if off := learned.step_times(command).off:
        return {}, with_code(f"learned sources are off: {off}", code="learned-sources-off")
    already_set = [name for name in SETTINGS if env.get(name)]
    if already_set:
        text = f"learned sources are not used because {already_set[0]} is set"
        return {}, with_code(text, code="learned-sources-not-applied")
    entries = [count(len(text.split(",")), "entry") for text in learned.env.values()]
    listed = ", ".join(f"{name} ({size})" for name, size in zip(learned.env, entries, strict=True))
    return dict(learned.env), f"set from earlier runs: {listed}"


def update_learned(learned: LearnedSources, command: str, evidence: RunEvidence) -> LearnedSources:
    """Merge the evidence of a finished run; another version of torch starts over."""
    if evidence.applied and evidence.failed_before_first_step:
        return learned.with_step_times(
            command, replace(learned.step_times(command), off=FAILED_BEFORE_FIRST_STEP)
        )
    if evidence.torch is None:
        return learned
    if learned.torch != evidence.torch:
        learned = LearnedSources(torch=evidence.torch)
    both = {
        name: sources.join(learned.env.get(name, ""), evidence.env.get(name, "").split(","))
        for name in SETTINGS
    }
    env = {
        name: text for name, text in sources.supported_entries(both, evidence.torch).items() if text
    }
    step_times = learned.step_times(command)
    if step_times.off and env != learned.env:  # the marks that were too slow have changed
        step_times = replace(step_times, off="", marked=None)
    if evidence.time is not None and evidence.applied:
        step_times = replace(step_times, marked=evidence.time)
    elif evidence.time is not None and not evidence.marked:
        step_times = replace(step_times, without=evidence.time)
    return replace(learned, env=env).with_step_times(command, step_times.judge())


def summary_lines(learned: LearnedSources, before: LearnedSources, command: str) -> list[str]:
    """Lines to print at the end of a run if something was learned or turned off."""
    off = learned.step_times(command).off
    if off and not before.step_times(command).off:
        text = f"learned sources are off from now on: {off}"
        return [with_code(text, code="learned-sources-off")]
    if learned.env != before.env and not off:
        return ["learned sources to mark in the next run with --learn; see `headway recompiles`"]
    return []


class RecompileLearner:
    """Apply the settings that earlier runs learned, and learn from this run (`--learn`)."""

    def __init__(
        self, runs: Path, job: str, command: Sequence[str], log: Callable[[str], object]
    ) -> None:
        self.path, self.job, self.log = runs / LEARNED_FOLDER / f"{job}.json", job, log
        self.command = command_digest(command)
        self.learned = read_learned(self.path)
        self.applied: dict[str, str] = {}

    def begin(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what to add to the job's environment."""
        self.applied, line = settings_to_apply(self.learned, self.command, env)
        if line:
            self.log(f"headway: {line}")
        return self.applied

    def end(self, run: Path, status: int) -> None:
        """Learn from the finished run; an error here does not change the job's exit code."""
        try:
            learned = update_learned(
                self.learned, self.command, collect_evidence(run, self.applied, status)
            )
            if learned != self.learned:
                write_learned(self.path, self.job, learned)
            for line in summary_lines(learned, self.learned, self.command):
                self.log(f"headway: {line}")
        except Exception as error:
            text = f"headway: learning from the run failed ({type(error).__name__}: {error})"
            self.log(with_code(text, code="learning-failed"))


def collect_evidence(run: Path, applied: Mapping[str, str], status: int) -> RunEvidence:
    journals, _ = reader.read_journals(str(run / run_files.JOURNAL))
    record = collect(journals)
    # Unbacked sizes can make torch refuse the code: keep only those that the run had set.
    unbacked = record.marked.get(SETTINGS[UNBACKED], "")
    return RunEvidence(
        torch=record.torch if record.graphs else None,
        env=sources.as_dynamic(advise(record).env, keep=unbacked),
        applied=bool(applied),
        marked=bool(record.marked),
        time=step_time(journals),
        failed_before_first_step=_failed(status)
        and not record.steps
        and _tried_to_compile(journals),
    )


def _failed(status: int) -> bool:
    """Whether the job failed by itself: it was not stopped by a signal or killed."""
    return status > 0 and status not in STOPPED_STATUSES


def _tried_to_compile(journals: Iterable[Journal]) -> bool:
    """Whether any compile started: before that, marked sources have no effect."""
    return any(span.name == "compile" for journal in journals for span in journal.spans)


def read_learned(path: Path) -> LearnedSources:
    """Read the file; empty if it is missing or unreadable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            return LearnedSources()
        env = {name: str(content["env"][name]) for name in SETTINGS if content["env"].get(name)}
        paces = {str(name): _read_step_times(times) for name, times in content["paces"].items()}
        return LearnedSources(torch=content["torch"], env=env, paces=paces)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return LearnedSources()


def _read_step_times(content: Mapping[str, Any]) -> StepTimes:
    without, marked = (
        StepTime(**content[name]) if content[name] else None for name in ("without", "marked")
    )
    return StepTimes(without, marked, str(content["off"]))


def write_learned(path: Path, job: str, learned: LearnedSources) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema": SCHEMA, "job": job, **asdict(learned)}
    atomic_write.write_atomically(path, json.dumps(content, indent=1) + "\n")
