"""Processes that are forks of one that has imported the engine of a store."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

IMPORTED = (
    *("ibis", "ibis.backends.duckdb", "pyarrow.parquet", "pytest"),
    *("headway.cli.fleet", "headway.fleet.alerts.watcher", "headway.fleet.store.compaction"),
)


@contextlib.contextmanager
def forks() -> Iterator[ForkServerContext]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    yield context
    with contextlib.suppress(ChildProcessError):  # a test of the launcher may have collected it
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


def command(words: list[str], folder: Path, output: Path) -> None:
    """Run a verb in a folder, and write what it prints to a file; for the target of a process."""
    from headway.cli import main

    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.exit(main(words))
