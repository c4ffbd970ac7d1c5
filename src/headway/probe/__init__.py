"""The recorder that runs in every Python process below the launcher.

Standard library only; torch is used only if the job has imported it. A process without torch loads
this file and `import_hook` only.
"""

from __future__ import annotations

import atexit
import os

# Set by the launcher for its children; probe/boot/sitecustomize.py reads the first one.
ENV_FOLDER = "HEADWAY_DIR"  # folder of the journals; without it nothing is recorded
ENV_LAUNCH = "HEADWAY_LAUNCH"  # id of the launch that this process belongs to
# Folder of the pulse pages, if not next to the journals: launch/pulse_pages.py.
ENV_PAGES = "HEADWAY_PAGES"
ENV_OWNER = "HEADWAY_OWNER"  # the process that a helper process belongs to
ENV_OFF = "HEADWAY_OFF"  # hooks to leave out, by the name of their file: "compile,evaluation"
ENV_STRICT = "HEADWAY_STRICT"  # "1": raise the exceptions of hooks, for tests
ENV_CHAOS = "HEADWAY_CHAOS"  # faults planned for this process: chaos/probe_hooks.py
ENV_STEPS = "HEADWAY_STEPS"  # the number of steps of a trial: probe/hooks/trial_stop.py
ENV_AUTOTUNE = "HEADWAY_PROBE_AUTOTUNE"  # configs to try: probe/autotune/advice.py
ENV_ASYNC = "HEADWAY_PROBE_ASYNC_SAVE"  # "1": save in the background: checkpoint/async_save
ENV_COMPILE = "HEADWAY_COMPILE"  # folder of the compile cache: probe/hooks/compile_cache.py
# Variables that a launcher sets for the processes of one attempt. It removes them from its own
# environment first: there they belong to an outer launcher.
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

# Variables of the launcher at the start of this process: the program may clear its environment.
_launcher_env: dict[str, str] = {}


def launcher_variable(name: str) -> str:
    """The value of a variable that the launcher sets; empty if it is not set."""
    return os.environ.get(name) or _launcher_env.get(name, "")


def remember_environment() -> None:
    """Store the variables of the launcher from the current environment."""
    _launcher_env.clear()
    for name in (ENV_FOLDER, ENV_LAUNCH, ENV_PAGES):
        _launcher_env[name] = os.environ.get(name, "")


def install() -> None:
    """Start recording if the launcher asked for it; a second call does nothing."""
    from headway.probe import import_hook

    if os.environ.get(ENV_FOLDER):
        remember_environment()
        if os.environ.get(ENV_ASYNC) == "1":
            _finish_async_saves_last()
        import_hook.watch_imports()
        atexit.register(_record_early_error)


def _finish_async_saves_last() -> None:
    """Set the exit code after all other exit handlers, if a background save has failed.

    Handlers run in reverse order of registration, so this one is registered first.
    """
    import sys

    def last() -> None:
        watch = sys.modules.get("headway.checkpoint.async_save.file_guard")
        if watch is not None:
            watch.exit_if_failed()

    atexit.register(last)


def _record_early_error() -> None:
    """Record the exception that ended the job, or a rank, before torch was imported."""
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
    """Whether this process was started by the launcher (also through shells), or is a rank.

    The failure of any other child process does not need to end the job.
    """
    parent = os.getppid()
    try:
        while _process_name(parent) in SHELLS and not _is_new(ENV_LAUNCH, parent):
            parent = _parent_pid(parent)
        return _is_new(ENV_LAUNCH, parent) or _is_new("RANK", parent)
    except (OSError, ValueError):
        return False


def _is_new(name: str, parent: int) -> bool:
    """Whether this process has a variable that its parent was not started with."""
    with open(f"/proc/{parent}/environ", "rb") as file:
        variables = file.read().split(b"\0")
    value = os.environ.get(name)
    return value is not None and os.fsencode(f"{name}={value}") not in variables


def _process_name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().rstrip()


def _parent_pid(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
