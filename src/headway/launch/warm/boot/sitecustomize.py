"""Runs first in the zygote. Do not import this file.

The zygote lives here, in the last part of the interpreter's start: a process that it forks returns
from this file, and the interpreter goes on with it as with any other start, to its `__main__`.
"""

import os
import sys


def _chain(here: str) -> None:
    """The sitecustomize that the job would have had, without us on its path."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path_importer_cache.pop(here, None)
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # the import machinery wants one


def _zygote(root: str) -> None:
    fresh = set(sys.modules)
    sys.path.insert(0, root)
    try:
        from headway.launch.warm import forkserver
    finally:
        sys.path.remove(root)
    forkserver.main(fresh)


def _boot() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    root = here
    for _ in range(4):  # headway/launch/warm/boot -> the folder that holds headway
        root = os.path.dirname(root)
    _chain(here)
    _zygote(root)


try:
    _boot()
except BaseException:  # the interpreter would go on, to a program that it has not
    import traceback

    traceback.print_exc()
    os._exit(70)
