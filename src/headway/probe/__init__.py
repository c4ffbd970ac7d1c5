"""Gets into every Python process below the launcher and notes what happens there.

Standard library only; torch is touched only where the user has imported it. This file and
`imports` are all that a process without torch ever loads.
"""

from __future__ import annotations

import os

# The launcher sets these for its children; probe/boot/sitecustomize.py looks at the first.
ENV_FOLDER = "HEADWAY_DIR"  # where journals go; nothing is recorded without it
ENV_LAUNCH = "HEADWAY_LAUNCH"  # which launch of the run this process belongs to
ENV_OWNER = "HEADWAY_OWNER"  # the process that a helper process works for
ENV_OFF = "HEADWAY_OFF"  # hooks that are not wanted, by their file's name: "dynamo,evaluation"
ENV_STRICT = "HEADWAY_STRICT"  # faults in hooks are raised, for tests
ENV_CHAOS = "HEADWAY_CHAOS"  # faults that this process is ordered to have: probe/hooks/chaos.py
ENV_STEPS = "HEADWAY_STEPS"  # after so many steps a trial of the job is over: probe/hooks/stop.py
ENV_AUTOTUNE = "HEADWAY_AUTOTUNE"  # which configs are worth trying: probe/tuning/advice.py
ENV_ASYNC = "HEADWAY_ASYNC_SAVE"  # "1": saves are written behind the loop: checkpoint/behind
ENV_COMPILE = "HEADWAY_COMPILE"  # where the launcher fills a compile cache: probe/hooks/cached.py


def install() -> None:
    """Watch this process's imports; everything else follows from them. Twice is once."""
    from headway.probe import imports

    if os.environ.get(ENV_FOLDER):
        if os.environ.get(ENV_ASYNC) == "1":
            _run_last()
        imports.watch()


def _run_last() -> None:
    """What is registered first runs last: then the exit code can still tell of a failed write."""
    import atexit
    import sys

    def last() -> None:
        watch = sys.modules.get("headway.checkpoint.behind.watch")
        if watch is not None:
            watch.last()

    atexit.register(last)
