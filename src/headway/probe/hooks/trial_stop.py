"""End this process after a given number of steps, for a trial of a job. Loaded only on request.

The process ends at once and in order: its journal is complete, its exit code is 0, and nothing that
the job does at its own end (a last save, say) runs.
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
TIMEOUT_S = 10.0  # for ranks that are behind: what this one sent them must still arrive

_installed: set[str] = set()


def install(module: ModuleType) -> None:
    """torch.optim.optimizer, and the loop's own word for a step."""
    if module.__name__ == "torch.optim.optimizer" and "optimizer" not in _installed:
        _installed.add("optimizer")
        module.register_optimizer_step_post_hook(after_step)
    if "sdk" not in _installed:
        _installed.add("sdk")
        after_sdk_steps(after_step)


def after_step(*_: Any) -> None:
    """After every step that was counted."""
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
