"""Runs the command, and runs it again by policy, until it is done or there is a reason to stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from headway.errors import TargetUnwritable, UsageError
from headway.journal.folder import write_atomically
from headway.journal.writer import now
from headway.launch import conclude, reap, signals, together, tree
from headway.launch.agree import Agreement
from headway.launch.attempt import Attempt, Ended, Process, environment
from headway.launch.chaos import Injector, Plan
from headway.launch.hang import FLOOR_S, Hang, HangWatch, Learned
from headway.launch.policy import SWAP_CODE, Decision, Past
from headway.launch.price import Pricing
from headway.launch.progress import Progress
from headway.launch.target import Target
from headway.launch.warm import Warm
from headway.launch.watch import Watch

STRAY_GRACE_S = 5.0
WRITERS_S = 600.0  # for checkpoints that are still to be written
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


class Pilot(Protocol):
    """Somebody who knows with which boosters an attempt runs: see headway/boosters/pilot.py."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Those that may be to blame for the end of an attempt, and why."""

    def begin(self, write: Callable[[dict[str, Any]], object]) -> None:
        """An attempt begins; `write` puts an event into its journal."""

    def withheld(self) -> set[str]:
        """Variables that the attempt does not get."""

    def suspects(self, ended: Ended) -> list[str]:
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
    chaos: Plan | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # more of it, for the command
    companion: Companion | None = None
    spare: Callable[[], set[int]] = set  # processes below the launcher that are not the job's
    pilot: Pilot | None = None


def check(command: Sequence[str]) -> None:
    """One sentence for a command that cannot be started, before anything is made for it."""
    if shutil.which(command[0]):
        return
    if os.path.exists(command[0]):
        raise UsageError(f"{command[0]} cannot be executed; try `python {command[0]}`")
    raise UsageError(f"the command {command[0]} was not found; check its name and your PATH")


def supervise(
    command: Sequence[str],
    target: Target,
    options: Options | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> int:
    """Run the command to its end; returns its status: negative for a death by signal."""
    supervisor = Supervisor(command, target, options or Options(), say)
    try:
        return supervisor.run()
    finally:
        supervisor.leave()


class Supervisor:
    """Attempt after attempt of one command on this node."""

    def __init__(
        self,
        command: Sequence[str],
        target: Target,
        options: Options,
        say: Callable[[str], object],
    ) -> None:
        self.command = command
        self.target = target
        self.options = options
        self.say = say
        self.progress = Progress()
        self.pricing = Pricing(target.journal, target.launch)
        self.learned = Learned(floor=options.hang_after)
        self.history: list[Past] = []
        self.agreement: Agreement | None = None
        self.warm: Warm | None = None
        self.companion = options.companion
        self.env = {**(self.companion.env if self.companion else {}), **options.env}
        self.forked = False  # whether the attempt that is going on was forked from the zygote
        if options.restarts or options.warm:
            reap.adopt_orphans()
        if options.restarts:
            host = os.uname().nodename
            try:
                self.agreement = Agreement(target.journal, target.launch, host, os.getpid())
            except OSError as error:
                raise TargetUnwritable(
                    f"cannot write to {target.journal}: {error.strerror}; give another -o"
                ) from None
            self.history = [Past(**agreed["past"]) for agreed in self.agreement.past()]
            self._end_strays()
        self.injector = Injector(options.chaos, target) if options.chaos else None

    def run(self) -> int:
        """Until it is done, or the policy says stop."""
        number = self.agreement.attempt() if self.agreement else 0
        while True:
            attempt = self._attempt(number)
            if self._may_fork():
                self._warm_up(attempt)
            try:
                ended = attempt.run(self.command, self._spawn)
            except OSError as error:  # it was there when the first attempt began
                self.say(f"headway: {self.command[0]} could not be started: {error.strerror}")
                return 127
            finally:
                if self.injector:
                    self.injector.end()
            self.pricing.end(ended.lives[-1])
            decision = self._conclude(attempt, ended)
            told = self._pause(attempt, decision)
            last = decision is None or decision.action != "restart" or told
            self._part(attempt, last=last)
            attempt.writer.close()
            if last:
                attempt.output.finish(None)
                return SWAP_CODE if decision and decision.action == "swap" else ended.status
            number += 1

    def _part(self, attempt: Attempt, *, last: bool) -> None:
        """The companion leaves the journal of an attempt; that of the last one when it is done."""
        if self.companion is None:
            return
        if last:
            self.companion.close(lambda: attempt.hear() is not None)
        self.companion.end()

    def _pause(self, attempt: Attempt, decision: Decision | None) -> bool:
        """Wait as long as was decided; whether a signal to stop came first."""
        until = time.monotonic() + (decision.wait_s if decision else 0.0)
        while attempt.hear() is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return attempt.told_to_stop is not None

    def _end_strays(self) -> None:
        """A launcher that was killed may have left its job behind, and the job writes on."""
        left = reap.strays(self.target.absolute_journal, self.target.launch)
        if left:
            self.say(f"headway: ending {len(left)} processes that a killed launcher left behind")
            reap.end(left, STRAY_GRACE_S)
            tree.wait_gone(left, STRAY_GRACE_S)
        (self.target.folder / SWAP_MARKER).unlink(missing_ok=True)

    def leave(self) -> None:
        """Nothing more is to come from this node."""
        reap.dismiss(WRITERS_S)
        if self.companion:
            self.companion.close()
        if self.warm is not None:
            self.warm.close()
        if self.agreement:
            self.agreement.leave()
        together.leave(self.target.journal, self.target.launch)

    def _attempt(self, number: int) -> Attempt:
        agreement = self.agreement
        attempt = Attempt(self.target, number, supervised=agreement is not None)
        attempt.env_extra.update(self._env())
        attempt.spare = self.options.spare
        if self.companion:
            self.companion.begin(attempt.writer.write)
        if self.options.pilot:
            self.options.pilot.begin(attempt.writer.write)
        self.pricing.begin(attempt)
        if self.injector:
            self.injector.begin(attempt)
        if self.options.hang_watch:
            self._watch_for_hangs(attempt)
        if agreement is None:
            return attempt
        attempt.would_restart = lambda facts: conclude.likely(
            facts, self.history, self.options.restarts
        )
        attempt.watch.on_refresh.append(agreement.alive)

        def ended_elsewhere(watch: Watch) -> None:
            if agreement.over_elsewhere(number, watch.names):
                attempt.doom("it has ended on another node")

        def lost_a_node() -> None:
            if agreement.lost(attempt.watch.names):
                attempt.doom("a node is lost")

        attempt.watch.each_round.append(ended_elsewhere)
        attempt.watch.on_refresh.append(lost_a_node)
        return attempt

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
                self.say(f"headway: hang, {hang.evidence}; stacks of all ranks are in {folder}")
                return
            evidence = attempt.evidence
            evidence.told.append(evidence.fact("hang", text=hang.evidence, rank=hang.rank))
            attempt.doom("it hangs")

        def all_late(late: bool) -> bool:
            if self.agreement is None:
                return late
            return self.agreement.all_late(attempt.number, late, attempt.watch.names)

        watch = HangWatch(str(folder), self.learned, tell, all_late)

        def round_(of: Watch) -> None:
            if attempt.told_to_stop is None:  # a last save may take all the time it is given
                watch.round(of)

        attempt.watch.each_round.append(round_)

    def _warm_up(self, attempt: Attempt) -> None:
        """The zygote: from an earlier launch's journals now, or once this attempt makes steps."""

        def note(text: str) -> None:
            attempt.writer.write({"ev": "note", "t": now(), "hook": "warm", "text": text})
            self.say(f"headway: {text}")

        if self.warm is None:
            env = {**environment(self.target, attempt.launch), **self._env()}
            self.warm = Warm(self.target.folder, self.command, env, note)
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
        attempt.spare = lambda: warm.pids() | self.options.spare()

    def _spawn(
        self,
        command: Sequence[str],
        env: dict[str, str],
        stdout: int | None,
        stderr: int | None,
    ) -> Process | None:
        self.forked = False
        if self.warm is None or not self.warm.ready(self.warm.worth_waiting()):
            return None
        child = self.warm.spawn(
            command,
            env,
            own_group=not signals.on_terminal(),
            pdeathsig=signal.SIGTERM,
            stdout=stdout,
            stderr=stderr,
        )
        self.forked = child is not None
        return child

    # -- what is done after an attempt ------------------------------------------------------

    def _conclude(self, attempt: Attempt, ended: Ended) -> Decision | None:
        """The verdict and the decision, in the journal and in one line; None if there is none."""
        if self.agreement is None:
            if ended.status:
                verdict = conclude.as_event(conclude.judge(ended.facts))
                attempt.writer.write({"ev": "verdict", "t": now(), **verdict})
                self._leave_out(self._suspects(ended))
            return None
        agreed = self._agree(self.agreement, attempt, ended)
        if agreed.get("done"):
            return None
        self.history.append(Past(**agreed["past"]))
        decision = Decision(**agreed["decision"])
        attempt.writer.write({"ev": "verdict", "t": now(), **agreed["verdict"]})
        attempt.writer.write(
            {"ev": "decision", "t": now(), **agreed["decision"], "attempt": attempt.number}
        )
        self._tell(agreed["verdict"], decision)
        if ended.left:
            self.say(f"headway: processes {ended.left} of the dead attempt could not be ended")
        if agreed["cold"] and self.warm is not None:
            self.warm.ended_before_step()
        self._leave_out(agreed.get("without", ()))
        if decision.action == "swap":
            self._mark_swap(agreed["verdict"])
        return decision

    def _agree(self, agreement: Agreement, attempt: Attempt, ended: Ended) -> dict[str, Any]:
        lives = [self.progress.conclude(ranks) for ranks in ended.lives]
        mine = {
            "done": ended.status == 0 and ended.signal is None,
            "told": ended.signal,
            "step": lives[-1][0],
            "progressed": conclude.any_progress([added for _, added in lives]),
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
            self.say(f"headway: cannot ask the other nodes: {error.strerror}")
            return self._decide({agreement.me: mine}, set())

    def _suspects(self, ended: Ended) -> list[str]:
        return self.options.pilot.suspects(ended) if self.options.pilot else []

    def _decide(self, said: dict[str, dict[str, Any]], gone: set[str]) -> dict[str, Any]:
        """For all nodes: from what each of them said."""
        return conclude.conclude(
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
