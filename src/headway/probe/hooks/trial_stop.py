"""End this process after a given number of steps, for a trial of a job. Loaded only on request.

The process ends immediately, with a complete journal and exit code 0. Code that the job runs at its
end, such as a last save, does not run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from types import ModuleType
from typing import Any

from headway.probe import ENV_FOLDER, ENV_LAUNCH, ENV_STEPS, step_clock
from headway.probe.patching import after_sdk_steps
from headway.probe.recorder import guard, recorder

PREFIX = ".stopped"
TIMEOUT_S = 10.0  # of the wait for slower ranks, which may need data from this one

_installed: set[str] = set()


def install(module: ModuleType) -> None:
    """torch.optim.optimizer, and `headway.step()`."""
    if module.__name__ == "torch.optim.optimizer" and "optimizer" not in _installed:
        _installed.add("optimizer")
        module.register_optimizer_step_post_hook(after_step)
    if "sdk" not in _installed:
        _installed.add("sdk")
        after_sdk_steps(after_step)


def after_step(*_: Any) -> None:
    """Called after every counted step."""
    guard("stop", _check_limit)


after_step._torchdynamo_disable = True  # type: ignore[attr-defined]


def _check_limit() -> None:
    if step_clock.steps >= int(os.environ[ENV_STEPS]):
        _exit()


def _exit() -> None:
    recorder.finish()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _wait_for_others()
    os._exit(0)


def _wait_for_others() -> None:
    world, rank = recorder.world or 1, recorder.rank or 0
    folder, prefix = os.environ[ENV_FOLDER], f"{PREFIX}-{os.environ.get(ENV_LAUNCH, '')}-"
    with open(os.path.join(folder, f"{prefix}{rank}"), "w"):
        pass
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if sum(name.startswith(prefix) for name in os.listdir(folder)) >= world:
            return
        time.sleep(0.01)
