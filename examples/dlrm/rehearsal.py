"""What a rehearsal asks of a trainer: faults at its own steps, and a record of what it trained on.

A plan is JSON: `[{"step": 120, "rank": 1, "signal": "SIGKILL"}]`. Each fault comes once, whichever
attempt reaches its step first: marks in the folder of checkpoints say which have been.
"""

import argparse
import ctypes
import json
import os
import signal
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Rehearsal:
    """Of one rank; does nothing without `--faults` and `--trained`."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        planned = json.loads(args.faults.read_text()) if args.faults else []
        self.faults = {one["step"]: one["signal"] for one in planned if one["rank"] == rank}
        self.marks = args.checkpoint_dir
        self.log = None
        if args.trained:
            args.trained.mkdir(parents=True, exist_ok=True)
            path = args.trained / f"rank{rank}.txt"
            self.log = path.open("a", buffering=1)  # a line is there at once, whatever comes next

    def takes(self, step: int, index: int, ids: "Tensor") -> None:
        """The batch that a step trains on; a step that is made again has the last word."""
        if self.log:
            ids = ids.contiguous()
            checksum = zlib.crc32(ctypes.string_at(ids.data_ptr(), ids.nbytes))
            self.log.write(f"{step} {index} {checksum}\n")

    def stepped(self, step: int) -> None:
        """What the plan has for the end of this step."""
        if step not in self.faults:
            return
        try:
            (self.marks / f"fault-{step}").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), getattr(signal, self.faults[step]))


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("--faults", type=Path, help="a plan of faults by step: see rehearsal.py")
    flag("--trained", type=Path, help="folder for a record of the batches trained on")


def trained(folder: Path) -> dict[tuple[int, int], tuple[int, int]]:
    """By step and rank the number of the batch and its checksum, in the history that survived."""
    found = {}
    for path in sorted(folder.glob("rank*.txt")):
        rank = int(path.stem.removeprefix("rank"))
        for line in path.read_text().splitlines():
            step, index, checksum = map(int, line.split())
            found[step, rank] = index, checksum
    return found
