"""Gets into every Python process below the launcher and notes what happens there.

Standard library only; torch is touched only where the user has imported it. This file and
`import_hook` are all that a process without torch ever loads.
"""

from __future__ import annotations

import atexit
import os

# The launcher sets these for its children; probe/boot/sitecustomize.py looks at the first.
ENV_FOLDER = "HEADWAY_DIR"  # where journals go; nothing is recorded without it
ENV_LAUNCH = "HEADWAY_LAUNCH"  # which launch of the run this process belongs to
# Where pulse pages are, if not next to the journals: launch/pulse_pages.py.
ENV_PAGES = "HEADWAY_PAGES"
ENV_OWNER = "HEADWAY_OWNER"  # the process that a helper process works for
ENV_OFF = "HEADWAY_OFF"  # hooks to leave out, by the name of their file: "compile,evaluation"
ENV_STRICT = "HEADWAY_STRICT"  # faults in hooks are raised, for tests
ENV_CHAOS = "HEADWAY_CHAOS"  # faults that this process is ordered to have: chaos/probe_hooks.py
ENV_STEPS = "HEADWAY_STEPS"  # the number of steps of a trial: probe/hooks/trial_stop.py
ENV_AUTOTUNE = "HEADWAY_PROBE_AUTOTUNE"  # which configs are worth trying: probe/autotune/advice.py
ENV_ASYNC = "HEADWAY_PROBE_ASYNC_SAVE"  # "1": write saves behind the loop: checkpoint/async_save
ENV_COMPILE = "HEADWAY_COMPILE"  # folder of the compile cache: probe/hooks/compile_cache.py
# By which a launcher speaks to the processes of one attempt. A launcher takes them out of the
# environment that it was started with: there they are of another launcher, further out.
INTERNAL_ENV = (
    ENV_FOLDER,
    ENV_LAUNCH,
    ENV_PAGES,
    ENV_OWNER,
    ENV_CHAOS,
    ENV_AUTOTUNE,
    ENV_ASYNC,
    ENV_COMPILE,
)


SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash", "busybox")

# What the launcher said when this process began: the program may clear its environment.
_launcher_env: dict[str, str] = {}


def launcher_variable(name: str) -> str:
    """The value of a variable of the launcher's, empty if it has not set it."""
    return os.environ.get(name) or _launcher_env.get(name, "")


def remember_environment() -> None:
    """Take what the environment says now, and nothing else."""
    _launcher_env.clear()
    for name in (ENV_FOLDER, ENV_LAUNCH, ENV_PAGES):
        _launcher_env[name] = os.environ.get(name, "")


def install() -> None:
    """Watch this process's imports; everything else follows from them. Twice is once."""
    from headway.probe import import_hook

    if os.environ.get(ENV_FOLDER):
        remember_environment()
        if os.environ.get(ENV_ASYNC) == "1":
            _finish_async_saves_last()
        import_hook.watch_imports()
        atexit.register(_record_early_error)


def _finish_async_saves_last() -> None:
    """What is registered first runs last: then the exit code can still tell of a failed write."""
    import sys

    def last() -> None:
        watch = sys.modules.get("headway.checkpoint.async_save.file_guard")
        if watch is not None:
            watch.exit_if_failed()

    atexit.register(last)


def _record_early_error() -> None:
    """An exception has ended the job, or a rank of it, before it came to import torch."""
    import sys

    error = getattr(sys, "last_value", None)
    if error is None or "headway.probe.recorder" in sys.modules:
        return
    if isinstance(error, KeyboardInterrupt):  # imports now would change the exit code
        return
    try:
        if _is_job_or_rank():
            from headway.probe.recorder import recorder

            recorder.start()
            recorder.finish()
    except Exception:
        if os.environ.get(ENV_STRICT):
            raise


def _is_job_or_rank() -> bool:
    """Begun by the launcher, also through shells, or a rank: what else has begun another process
    may well live without it."""
    parent = os.getppid()
    try:
        while _process_name(parent) in SHELLS and not _is_new(ENV_LAUNCH, parent):
            parent = _parent_pid(parent)
        return _is_new(ENV_LAUNCH, parent) or _is_new("RANK", parent)
    except (OSError, ValueError):
        return False


def _is_new(name: str, parent: int) -> bool:
    """Whether this process has a variable that the other one was not begun with."""
    with open(f"/proc/{parent}/environ", "rb") as file:
        known = file.read().split(b"\0")
    value = os.environ.get(name)
    return value is not None and os.fsencode(f"{name}={value}") not in known


def _process_name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().rstrip()


def _parent_pid(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
