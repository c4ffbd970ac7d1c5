"""Warm starts: a forkserver that has imported what the job imports, and forks its processes.

docs/warm.md describes what is different in such a process.
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

MAX_FORKSERVERS = 4  # in one launch; one that is killed again and again is not wanted
ENDED_S = 2.0  # for the kernel to end what waited below a process that has ended
TORCHRUN_WAIT_S = 60.0  # for what torchrun imports: it would take the job itself as long


class WarmStart:
    """The launcher's side: one zygote, kept over the attempts of a run."""

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
        self.memory = WarmState.read(folder)
        self.kit: Compatibility | None = None
        self._zygote: ForkserverClient | None = None
        self._recipe = PreloadPlan()
        self._asked = False  # `prepare` was called before
        self._zygotes = 0
        self._worked = False  # an attempt that was forked has made steps
        self._cold_next = False
        self._told: set[str] = set()
        if self.memory.off:
            self._note(
                f"warm starts are off for this run: {self.memory.off}", code="warm-starts-off"
            )

    # -- the zygote -----------------------------------------------------------------------

    def prepare(self) -> None:
        """Start the zygote, if it is known what to import. Returns at once.

        The first call comes before the first attempt, which is not slowed by a zygote that it will
        not wait for; that of a new run is for torchrun and its ranks, which all import torch. The
        next call, when that attempt makes steps, starts the zygote that knows all.
        """
        early, self._asked = not self._asked, True
        there = self._zygote is not None and not self._first
        if self.memory.off or there or self._zygotes >= MAX_FORKSERVERS:
            return
        found = preload_plan.find_plan(self.folder, os.uname().nodename)
        if found is None:
            if early and self._is_torchrun():
                self._start(preload_plan.TORCHRUN_PLAN)
            return
        self.memory.cold = max(found.seconds, self.memory.cold)  # a warm attempt tells too little
        if not early or self._needed() < self.memory.cold:
            if self._first:
                self._end()
            self._start(found)

    @property
    def _first(self) -> bool:
        """Whether there is a zygote that knows what torchrun imports, and no more."""
        return self._zygote is not None and self._recipe is preload_plan.TORCHRUN_PLAN

    def _is_torchrun(self) -> bool:
        try:
            return self._read(self.command, self.env).runs(*preload_plan.TORCHRUN_PROGRAM)
        except ColdStartRequired:
            return False

    def _needed(self) -> float:
        """Seconds of work for a zygote, by the last one, or else by what it has to import."""
        return self.memory.seconds or self.memory.cold

    def _start(self, found: PreloadPlan) -> None:
        self._recipe = found
        self._zygotes += 1
        try:
            invocation = self._read(self.command, self.env)
            self._zygote = ForkserverClient(invocation, self.env, found, self.memory)
        except (ColdStartRequired, OSError) as why:
            self._give_up(str(why), code=_code(why))

    def _read(self, command: Sequence[str], env: Mapping[str, str]) -> commands.Invocation:
        path = env.get("PATH", os.defpath)
        return commands.read_command(commands.find_executable(command[0], path), command, path)

    def ready(self, wait_s: float = 0) -> bool:
        """Whether it can fork; waits so long for it."""
        until = time.monotonic() + wait_s
        while self._zygote is not None and self.kit is None:
            try:
                self._hear(self._zygote, self._zygote.hear(until - time.monotonic()))
            except TimeoutError:
                return False
        return self.kit is not None

    def worth_waiting(self) -> float:
        """Seconds for which a zygote that still imports is waited for: if it will be done before a
        cold start has made its imports, in the agent and then in the ranks."""
        if self._zygote is None or self.kit is not None:
            return 0.0
        if self._first:
            return TORCHRUN_WAIT_S
        left = self._needed() - self._zygote.worked()
        return 1.5 * self.memory.cold if left <= self.memory.cold else 0.0

    def _hear(self, zygote: ForkserverClient, told: dict[str, Any]) -> None:
        """The zygote has imported all it could, or it has ended."""
        if not told:
            words = zygote.last_words() or "without a word"
            self._give_up(f"the zygote has failed: {words}", code="zygote-failed")
            return
        blamed = told["left_out"] != self.memory.left_out
        self.memory.left_out, self.memory.good = told["left_out"], told["good"]
        if self._first:
            self.memory.cold = 2 * told["seconds"]  # by torchrun, and then by its ranks
        else:
            self.memory.seconds = told["seconds"]
        if not told["fault"]:
            self.kit = Compatibility(**told["kit"])
        elif blamed and self._zygotes < MAX_FORKSERVERS:  # again, without what was to blame
            text = f"fewer imports are made ahead: {told['fault']}"
            self._note(text, code="imports-left-out")
            self._end()
            self._start(self._recipe)
        else:
            self.memory.off = f"the imports cannot be forked, {told['fault']}"
            self._give_up(self.memory.off, code="imports-not-forkable")
        self.memory.write(self.folder)

    def _give_up(self, why: str, *, code: str) -> None:
        """For this launch; what is known to be hopeless is in the memory."""
        self._zygotes = MAX_FORKSERVERS
        self._end()
        self._note(f"started cold: {why}", code=code)

    # -- the job --------------------------------------------------------------------------

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
        """The command as a child of this process; None when it must be started cold."""
        if self._cold_next or not self.ready():
            self._cold_next = False
            return None
        try:
            pid = self._ask(command, env, own_group, pdeathsig, stdout, stderr)
        except (ColdStartRequired, OSError) as why:
            self._note(f"started cold: {why}", code=_code(why))
            if self._zygote is not None and not self._zygote.alive():
                self._end()
            return None
        return ChildProcess(pid, command)

    def _ask(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        own_group: bool,
        pdeathsig: int,
        stdout: int | None,
        stderr: int | None,
    ) -> int:
        assert self._zygote is not None and self.kit is not None
        invocation = self._read(command, env)
        self.kit.check(invocation, env, os.getcwd())
        if linux.inherited_limits() != self._zygote.bonds:
            raise ColdStartRequired(
                "the launcher has changed its user, its limits or its namespaces",
                code="bonds-differ",
            )
        mapping = {fd: fd for fd in spawn_request.inheritable_descriptors()}
        mapping |= {fd: given for fd, given in ((1, stdout), (2, stderr)) if given is not None}
        asked = spawn_request.request_from_this_process(
            invocation,
            env,
            death_signal=pdeathsig,
            group=0 if own_group else os.getpgrp(),
            fds=list(mapping),
            mask=[],
        )
        with spawn_request.open_folder(None) as cwd:
            return spawn_request.request_process(
                self._zygote.way, asked, cwd, list(mapping.values())
            )

    def stepped(self) -> None:
        """The attempt that was forked has made a step: warm starts work for this job."""
        self._worked = True

    def ended_before_step(self) -> None:
        """It has not: the next one is started cold; all of them, if no warm one ever worked."""
        why = "a warm attempt ended before its first step"
        self._cold_next = True
        if self._worked:
            self._note(f"the next start is cold: {why}", code="next-start-cold")
            return
        self.memory.off = why
        self.memory.write(self.folder)
        self._note(f"from now on starts are cold: {why}", code="warm-starts-off")
        self._end()

    def pids(self) -> set[int]:
        """Processes of ours that are no part of the job."""
        return {self._zygote.process.pid} if self._zygote is not None else set()

    def close(self) -> None:
        """End the zygote; what waits below it, or below a process of the job, ends with it."""
        ours = {
            pid
            for pid in processes.descendants(os.getpid())
            if processes.process_name(pid).startswith(b"headway-")
        }
        for pid in self.pids():
            ours |= processes.descendants(pid)
        ours -= self.pids()
        self._end()
        processes.reap_ended(ours, ENDED_S)

    def _end(self) -> None:
        self.kit = None
        if self._zygote is not None:
            self._zygote.end()
            self._zygote = None

    def _note(self, text: str, *, code: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.note(text, code)


def _code(why: Exception) -> str:
    return why.code if isinstance(why, ColdStartRequired) else ColdStartRequired.code
