"""Warm starts: a zygote that has imported what the job imports, and forks its processes.

docs/warm.md says what is different in such a process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from headway.launch.warm import command as commands
from headway.launch.warm import kernel, recipe, request, wire
from headway.launch.warm.command import Unfit
from headway.launch.warm.kit import Kit
from headway.launch.warm.recipe import Memory, Recipe

BOOT = Path(__file__).parent / "boot"
NICE = 10  # of the imports, while a job is running


class Process:
    """A child of this process that was forked by the zygote."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = list(args)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its status once it has ended; negative for a death by signal."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has taken it
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Warm:
    """The launcher's side: one zygote, kept over the attempts of a run."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        env: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.command = list(command)
        self.env = dict(env)
        self.note = note
        self.memory = Memory.read(folder)
        self.kit: Kit | None = None
        self._zygote: subprocess.Popen[bytes] | None = None
        self._way: int = -1
        self._errors: IO[bytes] | None = None
        self._bonds = ""
        self._told: set[str] = set()
        if self.memory.off:
            self._note(f"warm starts are off for this run: {self.memory.off}")

    # -- the zygote -----------------------------------------------------------------------

    def prepare(self) -> None:
        """Start the zygote, if it is known what to import. Returns at once."""
        if self.memory.off or self._zygote is not None:
            return
        found = recipe.find(self.folder, os.uname().nodename)
        if found is None:
            return
        try:
            self._start(found)
        except (Unfit, OSError) as why:
            self._note(f"started cold: {why}")

    def _start(self, found: Recipe) -> None:
        invocation = self._read(self.command, self.env)
        ours, theirs = wire.pair()
        path = [str(BOOT), *filter(None, [self.env.get("PYTHONPATH")])]
        env = {
            **self.env,
            "PYTHONPATH": os.pathsep.join(path),
            "HEADWAY_WARM_FD": str(theirs),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **found.preset,
        }
        options = [f"-{letter}{value}" for letter, value in invocation.options]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._bonds = kernel.bonds()
        try:
            self._zygote = subprocess.Popen(
                [invocation.argv[0], *options, "-m", "headway.launch.warm.zygote"],
                executable=invocation.executable,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs],
            )
        finally:
            os.close(theirs)
        self._way = ours
        hello = {
            "env": self.env,
            "preset": found.preset,
            "modules": found.modules,
            "mains": found.mains,
            "ranked": found.ranked,
            "workers": found.workers,
            "executable": invocation.executable,
            "options": invocation.options,
            "left_out": self.memory.left_out,
            "good": self.memory.good,
            "launcher": os.getpid(),
            "with_launcher": threading.current_thread() is threading.main_thread(),
            "nice": NICE,
        }
        wire.send_large(ours, hello)

    def _read(self, command: Sequence[str], env: Mapping[str, str]) -> commands.Invocation:
        path = env.get("PATH", os.defpath)
        return commands.read(commands.find(command[0], path), command, path)

    def ready(self, wait_s: float = 0) -> bool:
        """Whether it can fork; waits so long for it."""
        if self.kit is None and self._zygote is not None and self._way >= 0:
            try:
                self._hear(wire.receive_large(self._way, wait_s))
            except TimeoutError:
                return False
        return self.kit is not None

    def worth_waiting(self) -> float:
        """Seconds that a zygote which still imports may take, as a cold start imports it all too."""
        return 1.2 * self.memory.seconds if self._zygote is not None else 0.0

    def _hear(self, told: dict[str, Any]) -> None:
        """The zygote has imported all it could, or it has ended."""
        if not told:
            self._note(f"started cold: the zygote has failed{self._last_words()}")
            self._end()
            return
        self.memory.left_out = told["left_out"]
        self.memory.good = told["good"]
        self.memory.seconds = told["seconds"]
        if told["fault"]:
            self._note(f"started cold: the zygote cannot be forked, {told['fault']}")
            self._end()
            self.memory.off = told["fault"]
        else:
            self.kit = Kit(**told["kit"])
        self.memory.write(self.folder)

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

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
    ) -> Process | None:
        """The command as a child of this process; None when it must be started cold."""
        if not self.ready() or self.kit is None:
            return None
        try:
            invocation = self._read(command, env)
            self.kit.check(invocation, env, os.getcwd())
            if kernel.bonds() != self._bonds:
                raise Unfit("the launcher has changed its user, its limits or its namespaces")
            mapping = {fd: fd for fd in request.inheritable()}
            mapping |= {1: stdout} if stdout is not None else {}
            mapping |= {2: stderr} if stderr is not None else {}
            asked = request.of_this_process(
                invocation,
                env,
                death_signal=pdeathsig,
                group=0 if own_group else os.getpgrp(),
                fds=list(mapping),
                mask=[],
            )
            with request.folder(None) as cwd:
                pid = request.ask(self._way, asked, cwd, list(mapping.values()))
        except Unfit as why:
            self._note(f"started cold: {why}")
            if self._zygote is not None and self._zygote.poll() is not None:
                self._end()
            return None
        return Process(pid, command)

    def stepped(self) -> None:
        """The attempt that was forked has made a step."""

    def ended_before_step(self) -> None:
        """It has not: the next one is started cold, and so are all others of this run."""
        self.memory.off = "a warm attempt ended before its first step"
        self.memory.write(self.folder)
        self._note("the warm attempt ended before its first step; from now on starts are cold")
        self.close()

    def pids(self) -> set[int]:
        """Processes of ours that are no part of the job."""
        return {self._zygote.pid} if self._zygote is not None else set()

    def close(self) -> None:
        """End the zygote; what waits below it ends with it."""
        self._end()

    def _end(self) -> None:
        self.kit = None
        if self._way >= 0:
            os.close(self._way)
            self._way = -1
        if self._zygote is not None:
            with contextlib.suppress(ProcessLookupError):
                self._zygote.kill()
            self._zygote.wait()
            self._zygote = None

    def _note(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.note(text)
