"""Ranks without torchrun, forked from one process: ranks.py WORLD MODULE SCRIPT...

For tests that need no agent: the module, torch or a part of it, is imported once instead of once
in each rank and in torchrun.
"""

import importlib
import os
import runpy
import socket
import sys


def main() -> int:
    """Run the script in each rank; 0 if all of them have ended well."""
    world = int(sys.argv[1])
    importlib.import_module(sys.argv[2])
    sys.argv = sys.argv[3:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
    ranks = [_fork(rank) for rank in range(world)]
    statuses = [os.waitpid(pid, 0)[1] for pid in ranks]
    return int(any(statuses))


def _fork(rank: int) -> int:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))  # the probe reads them when it forks
    pid = os.fork()
    if pid == 0:
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    return pid


if __name__ == "__main__":
    sys.exit(main())
