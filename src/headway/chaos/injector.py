"""Inject the planned faults: from the launcher, and by orders to the ranks for their own part."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from headway.chaos import claims, corrupt, network
from headway.chaos.plan import Fault, FaultPlan
from headway.chaos.schedule import FaultHistory, Moment, applies_to, drawn_rank, plan_moments
from headway.journal.writer import now
from headway.launch import processes
from headway.launch.rank_tail import RankTail
from headway.probe import ENV_CHAOS

if TYPE_CHECKING:
    from headway.launch.attempt import Attempt
    from headway.launch.process_watch import ProcessWatch
    from headway.launch.run_folder import RunFolder


# What a rank needs to know about its own fault in addition to target and moment.
_ORDER_KEYS = {
    "raise": ("exception",),
    "disk": ("path", "mode", "delay_s", "errno", "for_s"),
    "data": ("delay_s", "for_s"),
    "stop": ("for_s",),
}


class FaultInjector:
    """The faults of one plan, over all attempts of one launch on this node."""

    def __init__(self, plan: FaultPlan, run_folder: RunFolder) -> None:
        self.plan = plan
        self.run_folder = run_folder
        self.folder = str(run_folder.journal)
        self.host = os.uname().nodename
        claimed = _claimed_keys(os.listdir(self.folder), plan.mark)
        self._earlier = {
            number: 1 + max(map(_occurrence, keys)) for number, keys in claimed.items()
        }
        self._ran: dict[int, float] = {}
        self._steps: dict[int, dict[int, int]] = {}
        self._answered = {n for n in os.listdir(self.folder) if claims.parse_claim(n, plan.mark)}
        self._pending: list[Moment] = []
        self._scheduled: list[tuple[int, Callable[[], object], bool]] = []
        self._start_ns = 0
        self._attempt: Attempt

    # -- attempts -----------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> None:
        """Plan the faults of an attempt, before it starts, and pass their orders to its ranks."""
        self._attempt = attempt
        self._start_ns = now()
        lines = [{"kind": fault.kind, "planned": fault.text} for fault in self.plan.faults]
        event = {"ev": "plan", "t": self._start_ns, "seed": self.plan.seed, "faults": lines}
        attempt.writer.write(event)
        history = FaultHistory(
            claimed=_claimed_keys(os.listdir(self.folder), self.plan.mark),
            earlier=self._earlier,
            ran_s=self._ran,
            steps=self._steps,
        )
        planned = plan_moments(self.plan, self._index(), history)
        launcher_moments = [m for m in planned if not m.fault.by_rank and not m.fault.by_step]
        self._pending = [m for m in launcher_moments if not m.fault.on_restart]
        orders: dict[int, dict[str, Any]] = {}
        for moment in planned:
            if moment.fault.by_rank or moment.fault.by_step:
                order = orders.setdefault(moment.fault.number, _order(moment.fault))
                order["moments"].append(self._moment_fields(moment))
        if orders:
            content: dict[str, Any] = {"mark": self.plan.mark, "launch": attempt.launch}
            content["orders"] = list(orders.values())
            attempt.extra_env[ENV_CHAOS] = json.dumps(content, separators=(",", ":"))
        attempt.watch.on_round.append(self.round)
        for moment in launcher_moments:
            if moment.fault.on_restart:
                self._guarded(self._inject_due, moment, attempt.watch)

    def round(self, watch: ProcessWatch) -> None:
        """Called ten times per second while the attempt runs."""
        self._guarded(self._answer_ranks, watch)
        self._guarded(self._look_at_clock, watch)

    def end(self) -> None:
        """Restore what is cut or stopped, and drop everything else, after the attempt."""
        for _, call, restores in self._scheduled:
            if restores:
                self._guarded(call)
        self._scheduled.clear()
        seconds = (now() - self._start_ns) / 1e9
        for fault in self.plan.faults:
            if not applies_to(fault, self._index()):
                continue
            self._ran[fault.number] = self._ran.get(fault.number, 0.0) + seconds
            steps = self._steps.setdefault(fault.number, {})
            for process in self._attempt.watch.processes.values():
                if process.rank is not None and not (process.agent or process.helper):
                    steps[process.rank] = steps.get(process.rank, 0) + process.pulse().steps

    def _index(self) -> int:
        return self.run_folder.index + self._attempt.number

    def _moment_fields(self, moment: Moment) -> dict[str, Any]:
        fields = {"keys": moment.keys, "step": moment.step, "draw": moment.draw}
        if moment.after_s is not None:
            fields["at"] = self._start_ns + round(moment.after_s * 1e9)
        return {key: value for key, value in fields.items() if value is not None}

    # -- what is due --------------------------------------------------------------------------

    def _look_at_clock(self, watch: ProcessWatch) -> None:
        elapsed = (now() - self._start_ns) / 1e9
        for moment in list(self._pending):
            if elapsed >= (moment.after_s or 0.0) and self._inject_due(moment, watch):
                self._pending.remove(moment)
        for entry in list(self._scheduled):
            if now() >= entry[0]:
                self._scheduled.remove(entry)
                entry[1]()

    def _inject_due(self, moment: Moment, watch: ProcessWatch) -> bool:
        """Inject a fault that is due; False while its target does not exist."""
        fault = moment.fault
        if fault.node not in (None, self.host):
            return True
        pids = self._targets(fault, moment.draw, watch)
        if pids is None:
            return False
        names = [claims.claim_name(self.plan.mark, fault.number, key) for key in moment.keys]
        content = {"host": self.host, "pid": os.getpid(), "by": "launcher"}
        name = claims.take_claim(self.folder, names, content)
        if name is not None:
            self._inject(fault, name, pids, moment.draw, watch)
        return True

    def _answer_ranks(self, watch: ProcessWatch) -> None:
        """Act for ranks that wait for the launcher, and follow up faults that ranks injected."""
        for name in watch.journal_files - self._answered:
            claim = claims.parse_claim(name, self.plan.mark)
            if claim is None:
                continue
            content = claims.read_claim(self.folder, name)
            if not content:
                continue  # incomplete
            self._answered.add(name)
            if content.get("by") == "launcher" or content.get("host") != self.host:
                continue
            fault = self.plan.faults[claim[0] - 1]
            if fault.by_rank:
                self._follow_up(fault, {int(content["pid"])})
                continue
            try:
                pids = self._targets(fault, None, watch)
                self._inject(fault, name, pids or set(), None, watch, step=content.get("step"))
            finally:
                claims.mark_done(self.folder, name)

    def _targets(self, fault: Fault, draw: float | None, watch: ProcessWatch) -> set[int] | None:
        """The processes that a fault hits; None while they do not exist."""
        alive = [p for p in list(watch.processes.values()) if p.died is None]
        if fault.who in ("launcher", "file", "device"):
            return set()
        if fault.who == "all":
            return self._everything() if alive else None
        if fault.who == "agent":
            return {p.pid for p in alive if p.agent} or None
        ranks = {p.rank: p.pid for p in alive if not (p.agent or p.helper)}
        rank = fault.who if draw is None else drawn_rank(draw, _world_size(watch.ranks()))
        return {ranks[int(rank)]} if rank in ranks else None

    def _everything(self) -> set[int]:
        table = processes.process_table()
        helpers: set[int] = set()
        for pid in self._attempt.helper_pids():
            helpers |= {pid, *processes.descendants(pid, table)}
        below = processes.descendants(os.getpid(), table) - helpers
        return processes.still_running(below | self._attempt.watch.recording())

    # -- actions --------------------------------------------------------------------------------

    def _inject(
        self,
        fault: Fault,
        name: str,
        pids: set[int],
        draw: float | None,
        watch: ProcessWatch,
        step: int | None = None,
    ) -> None:
        """Record the fault in the journal, then inject it."""
        _, key = claims.parse_claim(name, self.plan.mark) or (0, "")
        fields: dict[str, Any] = {"key": key} if step is None else {"key": key, "step": step}
        path: str | None = None
        if fault.kind == "corrupt":
            path = corrupt.newest_checkpoint(fault.path)
            if path is None:
                fields["missed"] = f"there is no checkpoint below {fault.path}"
        elif fault.kind in ("kill", "stop", "terminate") and fault.who != "launcher" and not pids:
            fields["missed"] = f"there is no {fault.who} on this node"
        event = {"ev": "fault", "t": now(), "fault": fault.number, "kind": fault.kind}
        event |= {"who": path or self._name(fault, draw, watch), "planned": fault.text, **fields}
        self._attempt.writer.write(event)
        if "missed" in fields:
            return
        if fault.kind == "corrupt":
            assert path is not None
            corrupt.damage_file(path, fault.how)
        elif fault.kind == "network":
            network.down(fault.device)
        elif fault.who == "launcher":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            _send_signal(pids, _SIGNALS[fault.kind])
        self._follow_up(fault, pids)

    def _follow_up(self, fault: Fault, pids: set[int]) -> None:
        """Schedule what follows: the end of the grace period, or of the fault."""
        if fault.kind == "terminate":
            self._schedule_later(
                fault.grace_s, lambda: self._kill_rest(fault, pids), restores=False
            )
        elif fault.kind == "stop" and fault.for_s is not None:
            self._schedule_later(
                fault.for_s, lambda: _send_signal(pids, signal.SIGCONT), restores=True
            )
        elif fault.kind == "network":
            seconds = 1e9 if fault.for_s is None else fault.for_s
            self._schedule_later(seconds, lambda: network.up(fault.device), restores=True)

    def _kill_rest(self, fault: Fault, pids: set[int]) -> None:
        everything = self._everything()
        remaining = everything if fault.who == "launcher" else pids & everything
        if remaining:
            event = {"ev": "fault", "t": now(), "fault": fault.number, "kind": "kill"}
            who = "all" if fault.who == "launcher" else self._name(fault, None, self._attempt.watch)
            event |= {"who": who, "planned": f"{fault.text}: the grace period is over"}
            self._attempt.writer.write(event)
            _send_signal(remaining, signal.SIGKILL)

    def _schedule_later(
        self, seconds: float, call: Callable[[], object], *, restores: bool
    ) -> None:
        self._scheduled.append((now() + round(seconds * 1e9), call, restores))

    def _name(self, fault: Fault, draw: float | None, watch: ProcessWatch) -> str:
        if fault.kind == "network":
            return fault.device
        if fault.kind == "corrupt":
            return fault.path
        if draw is not None:
            return f"rank {drawn_rank(draw, _world_size(watch.ranks()))}"
        return f"rank {fault.who}" if isinstance(fault.who, int) else fault.who

    def _guarded(self, call: Callable[..., object], *args: Any) -> None:
        """An internal error is recorded; the watch and the job continue."""
        try:
            call(*args)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            fields = {"hook": "chaos", "code": "fault-not-done", "text": text}
            self._attempt.writer.write({"ev": "note", "t": now(), **fields})


def _order(fault: Fault) -> dict[str, Any]:
    """A fault as the ranks read it; where the launcher acts, one of them waits for it."""
    order: dict[str, Any] = {
        "fault": fault.number,
        "kind": fault.kind if fault.by_rank else "hold",
        "who": fault.who if fault.by_rank else "first" if fault.node else 0,
        "planned": fault.text,
        "moments": [],
    }
    if fault.node is not None:
        order["node"] = fault.node
    if fault.steps_between is not None:
        order["over"] = True  # torchrun's own restarts
    if fault.by_rank:
        order |= {key: getattr(fault, key) for key in _ORDER_KEYS.get(fault.kind, ())}
    return order


_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}


def _send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _occurrence(key: str) -> int:
    """The number of the occurrence of a recurring fault."""
    return int(key[1:]) if key[1:].isdecimal() else 0


def _world_size(ranks: list[RankTail]) -> int:
    sizes = [rank.head.get("world") for rank in ranks]
    return max([world for world in sizes if type(world) is int], default=len(ranks)) or 1


def _claimed_keys(names: Iterable[str], mark: str) -> dict[int, frozenset[str]]:
    """The claimed occurrences, by fault number."""
    claimed: dict[int, set[str]] = {}
    for name in names:
        parts = claims.parse_claim(name, mark)
        if parts is not None:
            claimed.setdefault(parts[0], set()).add(parts[1])
    return {number: frozenset(keys) for number, keys in claimed.items()}
