"""The launcher's end of the connection to a forkserver."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.launch import linux, processes
from headway.launch.warm import spawn_request
from headway.launch.warm.interpreter_command import Invocation
from headway.launch.warm.preload_plan import TORCHRUN_PLAN, PreloadPlan, WarmState

BOOT = Path(__file__).parent / "boot"
KILLED_S = 2.0  # limit for the end of a process that got SIGKILL
NICE = 10  # of the imports while a job runs, where the priority can be restored
# For the imports only. Asking the CUDA runtime would make CUDA unusable in all children; OpenBLAS
# starts its threads at import.
IMPORT_ENV = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"}


class ForkserverClient:
    """A forkserver process and the connection to it; it ends with this process, or by `end`."""

    def __init__(
        self, invocation: Invocation, env: Mapping[str, str], plan: PreloadPlan, state: WarmState
    ) -> None:
        self.inherited_limits = linux.inherited_limits()
        self.socket_fd, child_end = spawn_request.socket_pair()
        path = [str(BOOT), *filter(None, [env.get("PYTHONPATH")])]
        own_env = {"PYTHONPATH": os.pathsep.join(path)}
        options = [f"-{letter}{value}" for letter, value in invocation.options]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                [
                    invocation.argv[0],
                    *options,
                    "-m",
                    "headway.launch.warm.forkserver",
                    str(child_end),
                ],
                executable=invocation.executable,
                env={**env, **plan.preset, **IMPORT_ENV, **own_env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[child_end],
            )
        except OSError:
            os.close(self.socket_fd)
            raise
        finally:
            os.close(child_end)
        hello = {
            "env": dict(env),
            "preset": plan.preset,
            "modules": plan.modules,
            "mains": plan.mains,
            "ranked": plan.ranked,
            "workers": plan.workers,
            "executable": invocation.executable,
            "options": invocation.options,
            "left_out": state.left_out,
            "good": state.good,
            "launcher": os.getpid(),
            # PDEATHSIG follows the thread that started it, not the process.
            "with_launcher": threading.current_thread() is threading.main_thread(),
            "nice": 0 if plan is TORCHRUN_PLAN else NICE,
        }
        with contextlib.suppress(OSError):  # it has ended already, which `receive_report` returns
            spawn_request.send_large(self.socket_fd, hello)

    def receive_report(self, wait_s: float) -> dict[str, Any]:
        """The report after its imports, empty if it has ended; TimeoutError while it imports."""
        return spawn_request.receive_large(self.socket_fd, wait_s)

    def alive(self) -> bool:
        """Whether it is running."""
        return self.process.poll() is None

    def cpu_seconds(self) -> float:
        """CPU time of the forkserver and its trial imports."""
        try:
            return sum(map(int, processes.stat_fields(self.process.pid)[11:15])) / os.sysconf(
                "SC_CLK_TCK"
            )
        except (OSError, ValueError):
            return 0.0

    def stderr_tail(self) -> str:
        """The last line of its standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def end(self) -> None:
        """Kill it; the kernel kills its idle children."""
        os.close(self.socket_fd)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may be in state D
            self.process.wait(KILLED_S)
        self._errors.close()
