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
SIGNAL_POLL_S = 0.1  # seconds between two checks for a signal
WRITERS_LIMIT_S = 600.0  # limit for checkpoints that are still being written
SIBLING_RUNS = 8  # number of sibling runs that are searched for unfinished checkpoints
# In the run folder: the node that a scheduler should exclude, and the reason.
SWAP_MARKER = "swap.json"


class Companion(Protocol):
    """A component that runs next to the attempts of one job, such as the compile cache."""

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables for the command."""

    def begin(self, emit: Callable[[dict[str, Any]], object]) -> None:
        """Called when an attempt starts; `emit` writes an event to its journal."""

    def end(self) -> None:
        """Called when an attempt has ended, before its journal is closed."""

    def close(self, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Called when no attempt follows; `is_hurried` tells whether a stop was requested."""


class BoosterPolicy(Protocol):
    """Decides which boosters an attempt runs with; implemented in headway/session/auto.py."""

    @property
    def dropped(self) -> Mapping[str, str]:
        """Boosters that are suspected of having ended an attempt, with the reason."""

    def begin(self, emit: Callable[[dict[str, Any]], object]) -> None:
        """Called when an attempt starts; `emit` writes an event to its journal."""

    def dropped_env(self) -> set[str]:
        """Environment variables that the attempt does not get."""

    def suspects(self, result: AttemptResult) -> list[str]:
        """Boosters that may have caused this end, as seen from this node."""

    def drop(self, suspects: Sequence[str]) -> None:
        """Disable these boosters for all further attempts."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a command is supervised."""

    restarts: int = 0
    hang_watch: bool = True
    hang_after: float = FLOOR_S
    warm: bool = False
    chaos: FaultPlan | None = None
    # Additional environment variables for the command.
    env: Mapping[str, str] = field(default_factory=dict)
    companion: Companion | None = None
    policy: BoosterPolicy | None = None


def _newest_journals(run: Path) -> list[str]:
    """Journal folders of the most recent sibling runs."""
    siblings = []
    with contextlib.suppress(OSError), os.scandir(run.parent) as entries:
        for entry in entries:
            if entry.name != run.name and entry.is_dir(follow_symlinks=False):
                siblings.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    return [os.path.join(path, JOURNAL) for _, path in sorted(siblings)[-SIBLING_RUNS:]]


def check_command(command: Sequence[str]) -> None:
    """Raise UsageError for a command that cannot be started, before a run folder is created."""
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
    """Runs the attempts of one command on this node, one after the other."""

    def __init__(
        self,
        command: Sequence[str],
        run_folder: RunFolder,
        options: Options | None = None,
        log: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.command = command
        self.run_folder = run_folder
        self.options = options = options or Options()
        self.log = log
        self.status: int | None = None  # of the last attempt, once it has ended
        self.attempt: Attempt | None = None  # the most recent attempt
        self.progress = Progress()
        self.eviction_cost = EvictionCostReporter(run_folder.journal, run_folder.launch)
        self.timing = StepTimingStats(floor=options.hang_after)
        self.history: list[AttemptSummary] = []
        self.coordinator: NodeCoordinator | None = None
        self.warm: WarmStart | None = None
        self.companion = options.companion
        self.env = {**(self.companion.env if self.companion else {}), **options.env}
        self.forked = False  # whether the current attempt was forked from the forkserver
        beats: list[Callable[[], None]] = [partial(coordination.refresh_marker, run_folder.journal)]
        if options.restarts or options.warm:
            processes.adopt_orphans()
        if options.restarts:
            host = os.uname().nodename
            self.coordinator = NodeCoordinator(
                run_folder.journal, run_folder.launch, host, os.getpid()
            )
            beats.append(self.coordinator.beat)
        self.heartbeat = coordination.Heartbeat(beats)
        self.pages = pulse_pages.make_pages(run_folder.journal)
        if self.coordinator:
            self.history = [
                AttemptSummary(**decision["past"]) for decision in self.coordinator.decisions()
            ]
            self._kill_orphans_of_previous_launch()
        self.injector: FaultInjector | None = None
        if options.chaos:
            from headway.chaos.injector import FaultInjector

            self.injector = FaultInjector(options.chaos, run_folder)

    def run(self) -> int:
        """Run attempts until the command completes or the policy stops; return the exit status.

        The status is negative for a death by signal. An internal error ends the supervision, not
        the job: the job runs to its end and is not restarted.
        """
        number = self.coordinator.attempt() if self.coordinator else 0
        restarting = True
        while restarting:
            try:
                restarting = self._run_attempt(number)
            except Exception as error:
                restarting = False
                self._warn(
                    f"internal fault, {type(error).__name__}: {error}; the job is no longer "
                    "recorded and will not be restarted",
                    code="launcher-fault",
                )
                if os.environ.get("HEADWAY_DEBUG"):
                    self.log("".join(traceback.format_exception(error)))
            if self.status is None:
                self.status = self._run_unrecorded()
            number += 1
        assert self.status is not None
        return self.status

    def _run_unrecorded(self) -> int:
        """Wait for the running command, or start it, after an internal error."""
        attempt = self.attempt
        if attempt is not None and attempt.child is not None:
            status = child_process.wait(attempt.child)
        else:
            status = child_process.run(self.command, os.environ)
        if attempt is not None:
            attempt.guarded(attempt.writer.write, {"ev": "exit", "t": now(), "code": status})
        return status

    def _run_attempt(self, number: int) -> bool:
        """Run one attempt; return whether another one follows."""
        self.status = self.attempt = None
        attempt = self.attempt = self._new_attempt(number)
        if self._is_warm_allowed():
            attempt.guarded(self._prepare_warm_start, attempt)
        try:
            result = attempt.run(self.command, self._spawn)
        except OSError as error:  # the executable existed when the first attempt started
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
        self.status = result.status
        attempt.guarded(self.eviction_cost.attempt_ended, result.elastic_restarts[-1])
        decision = self._conclude(attempt, result)
        stopped = self._backoff(attempt, decision)
        if decision is not None and decision.action == "swap":
            self.status = SWAP_CODE
        if decision is None or decision.action != "restart" or stopped:
            return False
        if self.companion:
            attempt.guarded(self.companion.end)
        attempt.writer.close()
        return True

    def closing_steps(
        self, is_hurried: Callable[[], bool]
    ) -> list[tuple[str, Callable[[], object]]]:
        """The named steps that follow the last attempt; the caller runs all of them.

        `is_hurried` tells whether a stop was requested meanwhile; then nothing is waited for.
        """
        attempt = self.attempt

        def close_companion() -> None:
            if self.companion is None:
                return
            stopped = attempt is not None and attempt.stop_signal is not None
            self.companion.close(lambda: stopped or is_hurried())
            self.companion.end()

        def close() -> None:
            if attempt is not None:
                attempt.writer.close()
            if self.warm is not None:
                self.warm.close()
            self.heartbeat.stop()
            if self.pages is not None:
                self.pages.close()
            if self.coordinator:
                self.coordinator.leave()
            coordination.leave_launch(self.run_folder.journal, self.run_folder.launch)

        def wait_for_writers() -> None:
            if remaining := processes.wait_for_writers(WRITERS_LIMIT_S, is_hurried):
                self._warn(
                    f"processes {sorted(remaining)} are still writing checkpoints",
                    code="writers-not-ended",
                )

        steps: list[tuple[str, Callable[[], object]]] = [
            ("compile cache", close_companion),
            ("launcher", close),
            ("checkpoint writers", wait_for_writers),
        ]
        return [("output", attempt.stderr_tap.start_relay), *steps] if attempt else steps

    def _backoff(self, attempt: Attempt, decision: Decision | None) -> bool:
        """Wait as long as the decision says; return whether a stop signal came first."""
        until = time.monotonic() + (decision.wait_s if decision else 0.0)
        while attempt.poll_signals() is None and (remaining := until - time.monotonic()) > 0:
            time.sleep(min(remaining, SIGNAL_POLL_S))
        return attempt.stop_signal is not None

    def _kill_orphans_of_previous_launch(self) -> None:
        """End the job of a launcher that was killed, as it would continue to write."""
        orphans = processes.orphans_of_run(self.run_folder.absolute_journal, self.run_folder.launch)
        if orphans:
            self._warn(
                f"ending {len(orphans)} processes of a launcher that was killed",
                code="processes-left-behind",
            )
            processes.end_processes(orphans, ORPHAN_GRACE_S)
            processes.wait_gone(orphans, ORPHAN_GRACE_S)
        (self.run_folder.folder / SWAP_MARKER).unlink(missing_ok=True)

    def _new_attempt(self, number: int) -> Attempt:
        coordinator = self.coordinator
        supervised = coordinator is not None
        attempt = Attempt(self.run_folder, number, supervised=supervised, pages=self.pages)
        attempt.guarded(self._remove_unfinished_checkpoints, attempt)
        attempt.extra_env.update(self._attempt_env())
        if self.companion:
            attempt.guarded(self.companion.begin, attempt.writer.write)
        if self.options.policy:
            attempt.guarded(self.options.policy.begin, attempt.writer.write)
        attempt.guarded(self.eviction_cost.attempt_started, attempt)
        if self.injector:
            attempt.guarded(self.injector.begin, attempt)
        if self.options.hang_watch:
            self._watch_for_hangs(attempt)
        if coordinator is None:
            return attempt
        attempt.would_restart = lambda facts: verdict.would_restart(
            facts, self.history, self.options.restarts
        )

        def ended_elsewhere(watch: ProcessWatch) -> None:
            if coordinator.failed_on_other_node(number, watch.journal_files):
                attempt.request_end("the attempt has ended on another node")

        def lost_a_node() -> None:
            if coordinator.lost_neighbor(attempt.watch.journal_files):
                attempt.request_end("a node is lost")

        attempt.watch.on_round.append(ended_elsewhere)
        attempt.watch.on_refresh.append(lost_a_node)
        return attempt

    def _remove_unfinished_checkpoints(self, attempt: Attempt) -> None:
        """Remove unfinished checkpoints of earlier attempts, of this run or of sibling runs."""
        removed = unfinished_saves.remove_dead_saves(
            self.run_folder.absolute_journal, [attempt.launch, "0"]
        )
        if attempt.number == 0:
            for journal in _newest_journals(Path(self.run_folder.absolute_journal).parent):
                removed += unfinished_saves.remove_dead_saves(journal)
        for folder in removed:
            text = f"removed {folder}, an unfinished checkpoint of a process that was killed"
            self._warn(text, code="unfinished-checkpoint-removed")

    def _attempt_env(self) -> dict[str, str]:
        """Variables that are added to the environment of the next attempt."""
        if self.options.policy is None:
            return self.env
        dropped = self.options.policy.dropped_env()
        return {name: value for name, value in self.env.items() if name not in dropped}

    def _is_warm_allowed(self) -> bool:
        policy = self.options.policy
        return self.options.warm and (policy is None or "warm" not in policy.dropped)

    def _drop_boosters(self, suspects: Sequence[str]) -> None:
        """Disable boosters; the forkserver was started with them, so it ends too."""
        if self.options.policy is None or not suspects:
            return
        self.options.policy.drop(suspects)
        if self.warm is not None:
            self.warm.close()
            self.warm = None

    def _watch_for_hangs(self, attempt: Attempt) -> None:
        folder = self.run_folder.folder / "stacks" / attempt.launch

        def report(hang: Hang) -> None:
            fields = {"rank": hang.rank, "text": hang.evidence, "stacks": str(folder)}
            attempt.writer.write({"ev": "hang", "t": now(), **fields})
            if self.coordinator is None:
                self._warn(
                    f"hang, {hang.evidence}; stacks of all ranks are in {folder}", code="hang"
                )
                return
            evidence = attempt.evidence
            evidence.reported.append(evidence.fact("hang", text=hang.evidence, rank=hang.rank))
            attempt.request_end("it hangs")

        def vote_hang(late: bool) -> bool:
            if self.coordinator is None:
                return late
            return self.coordinator.vote_hang(attempt.number, late, attempt.watch.journal_files)

        detector = HangDetector(str(folder), self.timing, report, vote_hang)

        def check(watch: ProcessWatch) -> None:
            # A final save may use all the time that the scheduler grants.
            if attempt.stop_signal is None:
                detector.round(watch)

        attempt.watch.on_round.append(check)

    def _prepare_warm_start(self, attempt: Attempt) -> None:
        """Start the forkserver: now, by an earlier launch's journals, or at the first step."""

        def note(text: str, code: str) -> None:
            event = {"ev": "note", "t": now(), "hook": "warm", "code": code, "text": text}
            attempt.writer.write(event)
            self._warn(text, code=code)

        if self.warm is None:
            env = {**environment(self.run_folder, attempt.launch), **self._attempt_env()}
            self.warm = WarmStart(self.run_folder.folder, self.command, env, note)
        warm = self.warm
        warm.note = note
        warm.prepare()

        def tick() -> None:
            if any(rank.pulse().steps for rank in attempt.watch.ranks()):
                warm.prepare()
                warm.ready()
                if self.forked:
                    warm.stepped()

        attempt.ticks.append(tick)
        attempt.helper_pids = warm.pids

    def _spawn(
        self,
        command: Sequence[str],
        env: dict[str, str],
        stdout: int | None,
        stderr: int | None,
    ) -> ChildProcess | None:
        self.forked = False
        if self.warm is None or not self._wait_until_ready(self.warm):
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

    def _wait_until_ready(self, warm: WarmStart) -> bool:
        """Wait for a forkserver that still imports, if worthwhile, but not past a signal."""
        until = time.monotonic() + warm.wait_limit_s()
        while not warm.ready(min(max(until - time.monotonic(), 0.0), SIGNAL_POLL_S)):
            stopped = self.attempt is not None and self.attempt.poll_signals() is not None
            if stopped or not warm.pids() or time.monotonic() >= until:
                return False
        return True

    # -- after an attempt ----------------------------------------------------------------------

    def _conclude(self, attempt: Attempt, result: AttemptResult) -> Decision | None:
        """Record and log the verdict and the decision; None if there is no decision."""
        if self.coordinator is None:
            if result.status:
                event = verdict.as_event(verdict.judge(result.facts))
                attempt.writer.write({"ev": "verdict", "t": now(), **event})
                self._drop_boosters(self._suspects(result))
            return None
        agreement = self._coordinate(self.coordinator, attempt, result)
        if agreement.get("done"):
            return None
        self.history.append(AttemptSummary(**agreement["past"]))
        decision = Decision(**agreement["decision"])
        attempt.writer.write({"ev": "verdict", "t": now(), **agreement["verdict"]})
        attempt.writer.write(
            {"ev": "decision", "t": now(), **agreement["decision"], "attempt": attempt.number}
        )
        self._log_decision(agreement["verdict"], decision)
        if result.unkillable:
            self._warn(
                f"processes {result.unkillable} of the failed attempt could not be ended",
                code="processes-not-ended",
            )
        if agreement["cold"] and self.warm is not None:
            self.warm.ended_before_step()
        self._drop_boosters(agreement.get("without", ()))
        if decision.action == "swap":
            attempt.guarded(self._write_swap_marker, agreement["verdict"])
        return decision

    def _coordinate(
        self, coordinator: NodeCoordinator, attempt: Attempt, result: AttemptResult
    ) -> dict[str, Any]:
        restarts = [self.progress.conclude(ranks) for ranks in result.elastic_restarts]
        report = {
            "done": result.status == 0 and result.signal is None,
            "told": result.signal,
            "step": restarts[-1][0],
            "progressed": verdict.any_progress([added for _, added in restarts]),
            "stillborn": self.forked and not result.stepped,
            "suspects": self._suspects(result),
            "facts": [asdict(fact) for fact in result.facts],
        }

        def log_waiting(missing: int) -> None:
            self.log(
                f"headway: attempt {attempt.number} has ended on this node; "
                f"waiting for {missing} other node(s)"
            )

        try:
            return coordinator.decide_together(
                attempt.number, report, self._decide, log_waiting, stop_signal=attempt.poll_signals
            )
        except OSError as error:  # the folder is gone or full: this node decides alone
            self._warn(f"cannot reach the other nodes: {error.strerror}", code="nodes-not-asked")
            return self._decide({coordinator.me: report}, set())

    def _warn(self, text: str, *, code: str) -> None:
        self.log(with_code(f"headway: {text}", code=code))

    def _suspects(self, result: AttemptResult) -> list[str]:
        return self.options.policy.suspects(result) if self.options.policy else []

    def _decide(self, reports: dict[str, dict[str, Any]], lost_nodes: set[str]) -> dict[str, Any]:
        """The decision for all nodes, from the reports of each."""
        return verdict.decide_for_all(
            reports,
            [member.rpartition("-")[0] for member in sorted(lost_nodes)],
            self.history,
            restarts=self.options.restarts,
            seed=sum(self.run_folder.launch.encode()),
        )

    def _log_decision(self, verdict: dict[str, Any], decision: Decision) -> None:
        texts = {"restart": decision.why, "stop": f"stopped: {decision.why}"}
        text = texts.get(decision.action, f"stopped to move to another node: {decision.why}")
        if decision.wait_s:
            text += f" in {decision.wait_s:.1f} s"
        self.log(f"headway: {verdict['category']}, {verdict['evidence']}; {text}")

    def _write_swap_marker(self, verdict: dict[str, Any]) -> None:
        """Write the node to exclude, and the reason, for the epilogue of the scheduler."""
        content = {"node": verdict.get("node") or os.uname().nodename, "at": time.time()}
        content |= {"category": verdict["category"], "evidence": verdict["evidence"]}
        path = self.run_folder.folder / SWAP_MARKER
        write_atomically(path, json.dumps(content, indent=1) + "\n")
        self.log(
            f"headway: exit code {SWAP_CODE} requests another node than {content['node']}; "
            f"see {path}"
        )
