"""Run the command on this node, attempt after attempt, until it is done or the policy says stop."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headway.errors import UsageError, with_code
from headway.journal.run_files import JOURNAL
from headway.journal.writer import now
from headway.launch import child_process, coordination, processes, pulse_pages, signals, verdict
from headway.launch.attempt import Attempt, AttemptResult, environment
from headway.launch.child_process import ChildProcess
from headway.launch.coordination import NodeCoordinator
from headway.launch.eviction_cost import EvictionCostReporter
from headway.launch.hang.detector import Hang, HangDetector
from headway.launch.hang.limits import FLOOR_S, StepTimingStats
from headway.launch.policy import SWAP_CODE, AttemptSummary, Decision
from headway.launch.process_watch import ProcessWatch
from headway.launch.progress import Progress
from headway.launch.run_folder import RunFolder
from headway.launch.warm.booster import WarmStart
from headway.probe import unfinished_saves
from headway.storage.atomic_write import write_atomically

if TYPE_CHECKING:
    from headway.chaos.injector import FaultInjector
    from headway.chaos.plan import FaultPlan

ORPHAN_GRACE_S = 5.0
SIGNAL_POLL_S = 0.1  # between two looks for a signal
WRITERS_LIMIT_S = 600.0  # for checkpoints that are still to be written
SIBLING_RUNS = 8  # that are looked at for checkpoints in pieces
SWAP_MARKER = "swap.json"  # in the run folder: which node a scheduler should leave out, and why


class Companion(Protocol):
    """Somebody who works beside the attempts, for the same job."""

    @property
    def env(self) -> Mapping[str, str]:
        """For the command."""

    def begin(self, write: Callable[[dict[str, Any]], object]) -> None:
        """An attempt begins; `write` puts an event into its journal."""

    def end(self) -> None:
        """It has ended, and its journal is about to be closed."""

    def close(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """There will be no other. `hurry`: whether the launcher was told to stop."""


class BoosterPolicy(Protocol):
    """Somebody who knows with which boosters an attempt runs: see headway/session/auto.py."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Those that may be to blame for the end of an attempt, and why."""

    def begin(self, write: Callable[[dict[str, Any]], object]) -> None:
        """An attempt begins; `write` puts an event into its journal."""

    def withheld(self) -> set[str]:
        """Variables that the attempt does not get."""

    def suspects(self, ended: AttemptResult) -> list[str]:
        """Who may be to blame for its end, as this node sees it."""

    def without(self, suspected: Sequence[str]) -> None:
        """These are left out from now on."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a command is supervised."""

    restarts: int = 0
    hang_watch: bool = True
    hang_after: float = FLOOR_S
    warm: bool = False
    chaos: FaultPlan | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # more of it, for the command
    companion: Companion | None = None
    pilot: BoosterPolicy | None = None


def _newest_journals(run: Path) -> list[str]:
    """Those of the runs beside this one, a few."""
    others = []
    with contextlib.suppress(OSError), os.scandir(run.parent) as entries:
        for entry in entries:
            if entry.name != run.name and entry.is_dir(follow_symlinks=False):
                others.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    return [os.path.join(path, JOURNAL) for _, path in sorted(others)[-SIBLING_RUNS:]]


def check_command(command: Sequence[str]) -> None:
    """One sentence for a command that cannot be started, before anything is made for it."""
    if shutil.which(command[0]):
        return
    if os.path.exists(command[0]):
        raise UsageError(
            f"{command[0]} cannot be executed; try `python {command[0]}`",
            code="command-not-executable",
        )
    raise UsageError(
        f"the command {command[0]} was not found; check its name and your PATH",
        code="command-not-found",
    )


class Supervisor:
    """Attempt after attempt of one command on this node."""

    def __init__(
        self,
        command: Sequence[str],
        target: RunFolder,
        options: Options | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.command = command
        self.target = target
        self.options = options = options or Options()
        self.say = say
        self.status: int | None = None  # of the last attempt, once it has ended
        self.attempt: Attempt | None = None  # the last one that began
        self.progress = Progress()
        self.pricing = EvictionCostReporter(target.journal, target.launch)
        self.learned = StepTimingStats(floor=options.hang_after)
        self.history: list[AttemptSummary] = []
        self.agreement: NodeCoordinator | None = None
        self.warm: WarmStart | None = None
        self.companion = options.companion
        self.env = {**(self.companion.env if self.companion else {}), **options.env}
        self.forked = False  # whether the attempt that is going on was forked from the zygote
        beats: list[Callable[[], None]] = [partial(coordination.refresh_marker, target.journal)]
        if options.restarts or options.warm:
            processes.adopt_orphans()
        if options.restarts:
            host = os.uname().nodename
            self.agreement = NodeCoordinator(target.journal, target.launch, host, os.getpid())
            beats.append(self.agreement.alive)
        self.heartbeat = coordination.Heartbeat(beats)
        self.pages = pulse_pages.make_pages(target.journal)
        if self.agreement:
            self.history = [AttemptSummary(**agreed["past"]) for agreed in self.agreement.past()]
            self._end_strays()
        self.injector: FaultInjector | None = None
        if options.chaos:
            from headway.chaos.injector import FaultInjector

            self.injector = FaultInjector(options.chaos, target)

    def run(self) -> int:
        """Until it is done, or the policy says stop; the status is negative for a death by signal.

        A fault of ours ends this, never the job: it runs to its end, and is not started again.
        """
        number = self.agreement.attempt() if self.agreement else 0
        again = True
        while again:
            try:
                again = self._one(number)
            except Exception as error:
                again = False
                self._warn(
                    f"internal fault, {type(error).__name__}: {error}; the job is not recorded "
                    "from here on and not started again",
                    code="launcher-fault",
                )
                if os.environ.get("HEADWAY_DEBUG"):
                    self.say("".join(traceback.format_exception(error)))
            if self.status is None:
                self.status = self._without_us()
            number += 1
        assert self.status is not None
        return self.status

    def _without_us(self) -> int:
        """The command to its end, after a fault of ours: what goes on, or a start of it."""
        attempt = self.attempt
        if attempt is not None and attempt.child is not None:
            status = child_process.wait(attempt.child)
        else:
            status = child_process.run(self.command, os.environ)
        if attempt is not None:
            attempt.guarded(attempt.writer.write, {"ev": "exit", "t": now(), "code": status})
        return status

    def _one(self, number: int) -> bool:
        """One attempt; whether there is to be another one."""
        self.status = self.attempt = None
        attempt = self.attempt = self._attempt(number)
        if self._may_fork():
            attempt.guarded(self._warm_up, attempt)
        try:
            ended = attempt.run(self.command, self._spawn)
        except OSError as error:  # it was there when the first attempt began
            if error.errno in child_process.LAUNCHER_ERRNOS:
                raise
            self._warn(
                f"{self.command[0]} could not be started: {error.strerror}",
                code="command-not-started",
            )
            self.status = 127
            return False
        finally:
            if self.injector:
                attempt.guarded(self.injector.end)
        self.status = ended.status
        attempt.guarded(self.pricing.end, ended.lives[-1])
        decision = self._conclude(attempt, ended)
        stopped = self._pause(attempt, decision)
        if decision is not None and decision.action == "swap":
            self.status = SWAP_CODE
        if decision is None or decision.action != "restart" or stopped:
            return False
        if self.companion:
            attempt.guarded(self.companion.end)
        attempt.writer.close()
        return True

    def closing(self, hurried: Callable[[], bool]) -> list[tuple[str, Callable[[], object]]]:
        """What is to be done when nothing more is to come, by name: all of it, one by one.

        `hurried`: whether the launcher was told to stop meanwhile; then nothing is waited for.
        """
        attempt = self.attempt

        def close_companion() -> None:
            if self.companion is None:
                return
            stopped = attempt is not None and attempt.told_to_stop is not None
            self.companion.close(lambda: stopped or hurried())
            self.companion.end()

        def leave() -> None:
            if attempt is not None:
                attempt.writer.close()
            if self.warm is not None:
                self.warm.close()
            self.heartbeat.stop()
            if self.pages is not None:
                self.pages.close()
            if self.agreement:
                self.agreement.leave()
            coordination.leave_launch(self.target.journal, self.target.launch)

        def dismiss() -> None:
            if left := processes.wait_for_writers(WRITERS_LIMIT_S, hurried):
                self._warn(
                    f"processes {sorted(left)} still write checkpoints", code="writers-not-ended"
                )

        parts: list[tuple[str, Callable[[], object]]] = [
            ("compile cache", close_companion),
            ("launcher", leave),
            ("checkpoint writers", dismiss),
        ]
        return [("output", attempt.output.hand_over), *parts] if attempt else parts

    def _pause(self, attempt: Attempt, decision: Decision | None) -> bool:
        """Wait as long as was decided; whether a signal to stop came first."""
        until = time.monotonic() + (decision.wait_s if decision else 0.0)
        while attempt.hear() is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SIGNAL_POLL_S))
        return attempt.told_to_stop is not None

    def _end_strays(self) -> None:
        """A launcher that was killed may have left its job behind, and the job writes on."""
        left = processes.orphans_of_run(self.target.absolute_journal, self.target.launch)
        if left:
            self._warn(
                f"ending {len(left)} processes that a killed launcher left behind",
                code="processes-left-behind",
            )
            processes.end_processes(left, ORPHAN_GRACE_S)
            processes.wait_gone(left, ORPHAN_GRACE_S)
        (self.target.folder / SWAP_MARKER).unlink(missing_ok=True)

    def _attempt(self, number: int) -> Attempt:
        agreement = self.agreement
        supervised = agreement is not None
        attempt = Attempt(self.target, number, supervised=supervised, pages=self.pages)
        attempt.guarded(self._remove_unfinished, attempt)
        attempt.env_extra.update(self._env())
        if self.companion:
            attempt.guarded(self.companion.begin, attempt.writer.write)
        if self.options.pilot:
            attempt.guarded(self.options.pilot.begin, attempt.writer.write)
        attempt.guarded(self.pricing.begin, attempt)
        if self.injector:
            attempt.guarded(self.injector.begin, attempt)
        if self.options.hang_watch:
            self._watch_for_hangs(attempt)
        if agreement is None:
            return attempt
        attempt.would_restart = lambda facts: verdict.would_restart(
            facts, self.history, self.options.restarts
        )

        def ended_elsewhere(watch: ProcessWatch) -> None:
            if agreement.over_elsewhere(number, watch.names):
                attempt.doom("it has ended on another node")

        def lost_a_node() -> None:
            if agreement.lost(attempt.watch.names):
                attempt.doom("a node is lost")

        attempt.watch.each_round.append(ended_elsewhere)
        attempt.watch.on_refresh.append(lost_a_node)
        return attempt

    def _remove_unfinished(self, attempt: Attempt) -> None:
        """Checkpoints that earlier attempts left in the middle, of this run or another."""
        removed = unfinished_saves.remove_dead_saves(
            self.target.absolute_journal, [attempt.launch, "0"]
        )
        if attempt.number == 0:
            for journal in _newest_journals(Path(self.target.absolute_journal).parent):
                removed += unfinished_saves.remove_dead_saves(journal)
        for folder in removed:
            text = f"removed {folder}, which a save that was killed had not finished"
            self._warn(text, code="unfinished-checkpoint-removed")

    def _env(self) -> dict[str, str]:
        """What is added to that of the next attempt."""
        if self.options.pilot is None:
            return self.env
        withheld = self.options.pilot.withheld()
        return {name: value for name, value in self.env.items() if name not in withheld}

    def _may_fork(self) -> bool:
        pilot = self.options.pilot
        return self.options.warm and (pilot is None or "warm" not in pilot.left_out)

    def _leave_out(self, suspected: Sequence[str]) -> None:
        """From now on; what was forked ahead has them still."""
        if self.options.pilot is None or not suspected:
            return
        self.options.pilot.without(suspected)
        if self.warm is not None:
            self.warm.close()
            self.warm = None

    def _watch_for_hangs(self, attempt: Attempt) -> None:
        folder = self.target.folder / "stacks" / attempt.launch

        def tell(hang: Hang) -> None:
            told = {"rank": hang.rank, "text": hang.evidence, "stacks": str(folder)}
            attempt.writer.write({"ev": "hang", "t": now(), **told})
            if self.agreement is None:
                self._warn(
                    f"hang, {hang.evidence}; stacks of all ranks are in {folder}", code="hang"
                )
                return
            evidence = attempt.evidence
            evidence.told.append(evidence.fact("hang", text=hang.evidence, rank=hang.rank))
            attempt.doom("it hangs")

        def all_late(late: bool) -> bool:
            if self.agreement is None:
                return late
            return self.agreement.all_late(attempt.number, late, attempt.watch.names)

        watch = HangDetector(str(folder), self.learned, tell, all_late)

        def round_(of: ProcessWatch) -> None:
            if attempt.told_to_stop is None:  # a last save may take all the time it is given
                watch.round(of)

        attempt.watch.each_round.append(round_)

    def _warm_up(self, attempt: Attempt) -> None:
        """The zygote: from an earlier launch's journals now, or once this attempt makes steps."""

        def note(text: str, code: str) -> None:
            event = {"ev": "note", "t": now(), "hook": "warm", "code": code, "text": text}
            attempt.writer.write(event)
            self._warn(text, code=code)

        if self.warm is None:
            env = {**environment(self.target, attempt.launch), **self._env()}
            self.warm = WarmStart(self.target.folder, self.command, env, note)
        warm = self.warm
        warm.note = note
        warm.prepare()

        def stepping() -> None:
            if any(rank.pulse().steps for rank in attempt.watch.ranks()):
                warm.prepare()
                warm.ready()
                if self.forked:
                    warm.stepped()

        attempt.on_wake.append(stepping)
        attempt.spare = warm.pids

    def _spawn(
        self,
        command: Sequence[str],
        env: dict[str, str],
        stdout: int | None,
        stderr: int | None,
    ) -> ChildProcess | None:
        self.forked = False
        if self.warm is None or not self._is_ready(self.warm):
            return None
        child = self.warm.spawn(
            command,
            env,
            own_group=not signals.has_terminal(),
            pdeathsig=signal.SIGTERM,
            stdout=stdout,
            stderr=stderr,
        )
        self.forked = child is not None
        return child

    def _is_ready(self, warm: WarmStart) -> bool:
        """Wait for a zygote that still imports, if it is worth that, but not past a signal."""
        until = time.monotonic() + warm.worth_waiting()
        while not warm.ready(min(max(until - time.monotonic(), 0.0), SIGNAL_POLL_S)):
            stopped = self.attempt is not None and self.attempt.hear() is not None
            if stopped or not warm.pids() or time.monotonic() >= until:
                return False
        return True

    # -- what is done after an attempt ------------------------------------------------------

    def _conclude(self, attempt: Attempt, ended: AttemptResult) -> Decision | None:
        """The verdict and the decision, in the journal and in one line; None if there is none."""
        if self.agreement is None:
            if ended.status:
                event = verdict.as_event(verdict.judge(ended.facts))
                attempt.writer.write({"ev": "verdict", "t": now(), **event})
                self._leave_out(self._suspects(ended))
            return None
        agreed = self._agree(self.agreement, attempt, ended)
        if agreed.get("done"):
            return None
        self.history.append(AttemptSummary(**agreed["past"]))
        decision = Decision(**agreed["decision"])
        attempt.writer.write({"ev": "verdict", "t": now(), **agreed["verdict"]})
        attempt.writer.write(
            {"ev": "decision", "t": now(), **agreed["decision"], "attempt": attempt.number}
        )
        self._tell(agreed["verdict"], decision)
        if ended.left:
            self._warn(
                f"processes {ended.left} of the dead attempt could not be ended",
                code="processes-not-ended",
            )
        if agreed["cold"] and self.warm is not None:
            self.warm.ended_before_step()
        self._leave_out(agreed.get("without", ()))
        if decision.action == "swap":
            attempt.guarded(self._mark_swap, agreed["verdict"])
        return decision

    def _agree(
        self, agreement: NodeCoordinator, attempt: Attempt, ended: AttemptResult
    ) -> dict[str, Any]:
        lives = [self.progress.conclude(ranks) for ranks in ended.lives]
        mine = {
            "done": ended.status == 0 and ended.signal is None,
            "told": ended.signal,
            "step": lives[-1][0],
            "progressed": verdict.any_progress([added for _, added in lives]),
            "stillborn": self.forked and not ended.stepped,
            "suspects": self._suspects(ended),
            "facts": [asdict(fact) for fact in ended.facts],
        }

        def waiting(missing: int) -> None:
            self.say(f"headway: attempt {attempt.number} is over here, {missing} node(s) to come")

        try:
            return agreement.conclude(
                attempt.number, mine, self._decide, waiting, told_to_stop=attempt.hear
            )
        except OSError as error:  # the folder is gone or full: then this node decides alone
            self._warn(f"cannot ask the other nodes: {error.strerror}", code="nodes-not-asked")
            return self._decide({agreement.me: mine}, set())

    def _warn(self, text: str, *, code: str) -> None:
        self.say(with_code(f"headway: {text}", code=code))

    def _suspects(self, ended: AttemptResult) -> list[str]:
        return self.options.pilot.suspects(ended) if self.options.pilot else []

    def _decide(self, said: dict[str, dict[str, Any]], gone: set[str]) -> dict[str, Any]:
        """For all nodes: from what each of them said."""
        return verdict.decide_for_all(
            said,
            [member.rpartition("-")[0] for member in sorted(gone)],
            self.history,
            restarts=self.options.restarts,
            seed=sum(self.target.launch.encode()),
        )

    def _tell(self, verdict: dict[str, Any], decision: Decision) -> None:
        then = {"restart": decision.why, "stop": f"stopped: {decision.why}"}
        what = then.get(decision.action, f"stopped for another node: {decision.why}")
        if decision.wait_s:
            what += f" in {decision.wait_s:.1f} s"
        self.say(f"headway: {verdict['category']}, {verdict['evidence']}; {what}")

    def _mark_swap(self, verdict: dict[str, Any]) -> None:
        """For the scheduler's epilogue: the node to leave out, and why."""
        content = {"node": verdict.get("node") or os.uname().nodename, "at": time.time()}
        content |= {"category": verdict["category"], "evidence": verdict["evidence"]}
        path = self.target.folder / SWAP_MARKER
        write_atomically(path, json.dumps(content, indent=1) + "\n")
        self.say(
            f"headway: exit code {SWAP_CODE} asks for another node than {content['node']}; "
            f"see {path}"
        )
