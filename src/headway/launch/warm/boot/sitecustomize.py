"""Runs first in the forkserver. Do not import this file.

The forkserver runs in the last part of the interpreter's start: a process that it forks returns
from this file, and the interpreter continues as in any other start, with its `__main__`.
"""

import os
import sys


def _chain(here: str) -> None:
    """Import the sitecustomize that the job would have had, without this folder on the path."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path_importer_cache.pop(here, None)
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own  # the import machinery requires one


def _run_forkserver(root: str) -> None:
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
    _run_forkserver(root)


try:
    _boot()
except BaseException:  # the interpreter would continue with a program that it does not have
    import traceback

    traceback.print_exc()
    os._exit(70)
