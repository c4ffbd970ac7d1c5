"""Warm starts: a forkserver that has imported what the job imports, and forks its processes.

docs/warm.md describes how such a process differs from a cold one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.launch import linux, processes
from headway.launch.child_process import ChildProcess
from headway.launch.warm import interpreter_command as commands
from headway.launch.warm import preload_plan, spawn_request
from headway.launch.warm.client import ForkserverClient
from headway.launch.warm.compatibility import Compatibility
from headway.launch.warm.interpreter_command import ColdStartRequired
from headway.launch.warm.preload_plan import PreloadPlan, WarmState

MAX_FORKSERVERS = 4  # in one launch; after that, warm starts are given up
ENDED_S = 2.0  # for the kernel to end the idle children of a process that has ended
TORCHRUN_WAIT_S = 60.0  # for the imports of torchrun, which take a cold start as long


class WarmStart:
    """The launcher's side of warm starts: one forkserver, kept over the attempts of a run."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        env: Mapping[str, str],
        note: Callable[[str, str], None],  # text and code
    ) -> None:
        self.folder = folder
        self.command = list(command)
        self.env = dict(env)
        self.note = note
        self.state = WarmState.read(folder)
        self.compatibility: Compatibility | None = None
        self._forkserver: ForkserverClient | None = None
        self._plan = PreloadPlan()
        self._prepared_before = False  # `prepare` has been called
        self._forkserver_count = 0
        self._has_worked = False  # a forked attempt has made steps
        self._cold_next = False
        self._noted: set[str] = set()
        if self.state.off:
            self._note(
                f"warm starts are off for this run: {self.state.off}", code="warm-starts-off"
            )

    # -- the forkserver --------------------------------------------------------------------------

    def prepare(self) -> None:
        """Start the forkserver if it is known what to import. Returns at once.

        The first call comes before the first attempt, which must not be slowed by a forkserver that
        it will not wait for; in a new run, that forkserver is for torchrun and its ranks, which all
        import torch. The next call, when that attempt makes steps, starts the forkserver with the
        full plan.
        """
        is_first_call, self._prepared_before = not self._prepared_before, True
        is_complete = self._forkserver is not None and not self._has_torchrun_plan
        if self.state.off or is_complete or self._forkserver_count >= MAX_FORKSERVERS:
            return
        plan = preload_plan.find_plan(self.folder, os.uname().nodename)
        if plan is None:
            if is_first_call and self._is_torchrun():
                self._start(preload_plan.TORCHRUN_PLAN)
            return
        # A warm attempt does not show the full cost.
        self.state.cold = max(plan.seconds, self.state.cold)
        if not is_first_call or self._needed_seconds() < self.state.cold:
            if self._has_torchrun_plan:
                self._end_forkserver()
            self._start(plan)

    @property
    def _has_torchrun_plan(self) -> bool:
        """Whether the forkserver has imported only what torchrun needs."""
        return self._forkserver is not None and self._plan is preload_plan.TORCHRUN_PLAN

    def _is_torchrun(self) -> bool:
        try:
            return self._read_command(self.command, self.env).runs(*preload_plan.TORCHRUN_PROGRAM)
        except ColdStartRequired:
            return False

    def _needed_seconds(self) -> float:
        """CPU seconds that a forkserver needs: measured with the last one, or else estimated."""
        return self.state.seconds or self.state.cold

    def _start(self, plan: PreloadPlan) -> None:
        self._plan = plan
        self._forkserver_count += 1
        try:
            invocation = self._read_command(self.command, self.env)
            self._forkserver = ForkserverClient(invocation, self.env, plan, self.state)
        except (ColdStartRequired, OSError) as reason:
            self._give_up(str(reason), code=_code(reason))

    def _read_command(self, command: Sequence[str], env: Mapping[str, str]) -> commands.Invocation:
        path = env.get("PATH", os.defpath)
        return commands.read_command(commands.find_executable(command[0], path), command, path)

    def ready(self, wait_s: float = 0) -> bool:
        """Whether the forkserver can fork; waits at most `wait_s` for it."""
        until = time.monotonic() + wait_s
        while self._forkserver is not None and self.compatibility is None:
            try:
                self._read_report(
                    self._forkserver, self._forkserver.receive_report(until - time.monotonic())
                )
            except TimeoutError:
                return False
        return self.compatibility is not None

    def wait_limit_s(self) -> float:
        """Seconds to wait for a forkserver that is still importing.

        Zero unless it will be ready before a cold start has finished the imports of the agent and
        then of the ranks.
        """
        if self._forkserver is None or self.compatibility is not None:
            return 0.0
        if self._has_torchrun_plan:
            return TORCHRUN_WAIT_S
        remaining = self._needed_seconds() - self._forkserver.cpu_seconds()
        return 1.5 * self.state.cold if remaining <= self.state.cold else 0.0

    def _read_report(self, forkserver: ForkserverClient, report: dict[str, Any]) -> None:
        """Read the report of a forkserver that has finished its imports or has ended."""
        if not report:
            tail = forkserver.stderr_tail() or "no error output"
            self._give_up(f"the forkserver failed: {tail}", code="zygote-failed")
            return
        has_new_exclusions = report["left_out"] != self.state.left_out
        self.state.left_out, self.state.good = report["left_out"], report["good"]
        if self._has_torchrun_plan:
            self.state.cold = 2 * report["seconds"]  # by torchrun, then by its ranks
        else:
            self.state.seconds = report["seconds"]
        if not report["fault"]:
            self.compatibility = Compatibility(**report["kit"])
        elif (
            has_new_exclusions and self._forkserver_count < MAX_FORKSERVERS
        ):  # start again without the modules at fault
            text = f"fewer modules are preloaded: {report['fault']}"
            self._note(text, code="imports-left-out")
            self._end_forkserver()
            self._start(self._plan)
        else:
            self.state.off = f"the preloaded modules do not survive a fork: {report['fault']}"
            self._give_up(self.state.off, code="imports-not-forkable")
        self.state.write(self.folder)

    def _give_up(self, reason: str, *, code: str) -> None:
        """Disable warm starts for this launch; lasting reasons are in the state file."""
        self._forkserver_count = MAX_FORKSERVERS
        self._end_forkserver()
        self._note(f"started cold: {reason}", code=code)

    # -- the job ---------------------------------------------------------------------------------

    def spawn(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        own_group: bool,
        pdeathsig: int,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> ChildProcess | None:
        """Fork the command as a child of this process; None if it must be started cold."""
        if self._cold_next or not self.ready():
            self._cold_next = False
            return None
        try:
            pid = self._request_process(command, env, own_group, pdeathsig, stdout, stderr)
        except (ColdStartRequired, OSError) as reason:
            self._note(f"started cold: {reason}", code=_code(reason))
            if self._forkserver is not None and not self._forkserver.alive():
                self._end_forkserver()
            return None
        return ChildProcess(pid, command)

    def _request_process(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        own_group: bool,
        pdeathsig: int,
        stdout: int | None,
        stderr: int | None,
    ) -> int:
        assert self._forkserver is not None and self.compatibility is not None
        invocation = self._read_command(command, env)
        self.compatibility.check(invocation, env, os.getcwd())
        if linux.inherited_limits() != self._forkserver.inherited_limits:
            raise ColdStartRequired(
                "the launcher has changed its user, its limits or its namespaces",
                code="bonds-differ",
            )
        mapping = {fd: fd for fd in spawn_request.inheritable_descriptors()}
        mapping |= {
            fd: replacement
            for fd, replacement in ((1, stdout), (2, stderr))
            if replacement is not None
        }
        request = spawn_request.request_from_this_process(
            invocation,
            env,
            death_signal=pdeathsig,
            group=0 if own_group else os.getpgrp(),
            fds=list(mapping),
            mask=[],
        )
        with spawn_request.open_folder(None) as cwd:
            return spawn_request.request_process(
                self._forkserver.socket_fd, request, cwd, list(mapping.values())
            )

    def stepped(self) -> None:
        """A forked attempt has made a step: warm starts work for this job."""
        self._has_worked = True

    def ended_before_step(self) -> None:
        """The next start is cold, or all of them if no warm attempt has ever made a step."""
        reason = "a warm attempt ended before its first step"
        self._cold_next = True
        if self._has_worked:
            self._note(f"the next start will be cold: {reason}", code="next-start-cold")
            return
        self.state.off = reason
        self.state.write(self.folder)
        self._note(f"warm starts are off from now on: {reason}", code="warm-starts-off")
        self._end_forkserver()

    def pids(self) -> set[int]:
        """Processes of the launcher that do not belong to the job."""
        return {self._forkserver.process.pid} if self._forkserver is not None else set()

    def close(self) -> None:
        """End the forkserver; its idle children, and those of child forkservers, end with it."""
        own = {
            pid
            for pid in processes.descendants(os.getpid())
            if processes.process_name(pid).startswith(b"headway-")
        }
        for pid in self.pids():
            own |= processes.descendants(pid)
        own -= self.pids()
        self._end_forkserver()
        processes.reap_ended(own, ENDED_S)

    def _end_forkserver(self) -> None:
        self.compatibility = None
        if self._forkserver is not None:
            self._forkserver.end()
            self._forkserver = None

    def _note(self, text: str, *, code: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.note(text, code)


def _code(error: Exception) -> str:
    return error.code if isinstance(error, ColdStartRequired) else ColdStartRequired.code
