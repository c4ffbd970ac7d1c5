"""Runs another script, and writes down who it is and when its first optimizer step was done.

    python stepping.py SCRIPT [ARGUMENTS]

The same in every launcher that is compared: one file per process in $STEPPING, whose name says
rank and process, and which holds the time of the first step (CLOCK_MONOTONIC, one for all).
"""

import os
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

NAME = os.path.join(os.environ["STEPPING"], f"{os.environ.get('RANK', 0)}-{os.getpid()}")


def first_step(*_: object) -> None:
    """Once, after the first step."""
    handle.remove()
    with open(f"{NAME}.new", "w") as file:
        file.write(str(time.monotonic()))
    os.replace(f"{NAME}.new", NAME)


handle = register_optimizer_step_post_hook(first_step)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
