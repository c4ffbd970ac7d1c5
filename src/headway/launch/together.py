"""Launchers of one job on several nodes find each other: they share one launch.

The first one leaves its launch id in the run folder; one that comes while it is alive takes the
same id. The marker is kept fresh by all of them, so that one left by a dead node grows stale.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.journal import files

MARKER = ".launch"
HEARTBEAT_S = 5.0  # between two signs of life of a launcher
MARKER_LIMIT_S = 0.5  # for a marker that others take and leave at the same time
HEARTBEAT_TIMEOUT_S = 20.0  # a marker older than this was left by launchers that are gone


class Heartbeat:
    """Says from a thread of its own that this launcher lives, whatever it waits for meanwhile."""

    def __init__(self, beats: Sequence[Callable[[], None]], every_s: float | None = None) -> None:
        self._beats = beats
        self._every_s = HEARTBEAT_S if every_s is None else every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="headway-heartbeat", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started
            self._thread.start()

    def stop(self) -> None:
        """It is over; not waited for, as a file system may hold the last beat up."""
        self._stopped.set()

    def _loop(self) -> None:
        while not self._stopped.is_set():
            for beat in self._beats:
                beat()
            self._stopped.wait(self._every_s)


def join_or_create_launch(journal: Path, env: Mapping[str, str]) -> str:
    """The id of this launch: a new one, or that of launchers that are running it now."""
    marker = journal / MARKER
    requeues = env.get("SLURM_RESTART_COUNT", "")
    mine = uuid.uuid4().hex[:12]
    aside = journal / f"{MARKER}-{mine}"
    aside.write_text(f"{mine} {requeues}")
    until = time.monotonic() + MARKER_LIMIT_S
    try:
        while True:
            try:
                os.link(aside, marker)
                return mine
            except OSError as error:
                if error.errno != errno.EEXIST:
                    return mine  # no hard links here: each launcher is a launch of its own
            found = _read_marker(marker)
            if found is None:
                if time.monotonic() > until:
                    raise OSError(errno.EBUSY, f"{marker.name} can neither be read nor replaced")
                continue  # just taken away
            theirs, _, theirs_requeues = found[0].partition(" ")
            age = aside.stat().st_mtime - found[1]  # both by the file system's clock
            fresh = theirs_requeues == requeues and age < HEARTBEAT_TIMEOUT_S
            if (
                theirs
                and fresh
                and not _all_members_dead(journal, theirs)
                and not _is_over(journal, theirs)
            ):
                return theirs
            leave_launch(journal, theirs)
    finally:
        aside.unlink(missing_ok=True)


def _all_members_dead(journal: Path, launch: str) -> bool:
    """Whether all supervisors of that launch ran on this host, and are gone."""
    prefix = f".member-{launch}-{os.uname().nodename}-"
    members = list(journal.glob(f".member-{launch}-*"))
    return bool(members) and all(
        path.name.startswith(prefix)
        and not os.path.exists(f"/proc/{path.name.removeprefix(prefix)}")
        for path in members
    )


def _is_over(journal: Path, launch: str) -> bool:
    """Whether its supervisors have agreed that it has ended, and are just about to leave."""
    for path in journal.glob(f".decision-{launch}-*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            agreed = json.loads(path.read_text())
            if agreed.get("done") or agreed["decision"]["action"] != "restart":
                return True
    return False


def has_live_launcher(journal: Path, at: float) -> bool:
    """Whether launchers of a run are alive, on whatever node; `at`: now, by the file system."""
    found = _read_marker(journal / MARKER)
    return found is not None and at - found[1] < HEARTBEAT_TIMEOUT_S


def refresh_marker(journal: Path) -> None:
    """This launcher is alive."""
    with contextlib.suppress(OSError):
        os.utime(journal / MARKER)


def leave_launch(journal: Path, launch: str) -> None:
    """The launch is over, unless another one has begun meanwhile."""
    marker = journal / MARKER
    found = _read_marker(marker)
    if found is not None and found[0].partition(" ")[0] == launch:
        marker.unlink(missing_ok=True)


def _read_marker(marker: Path) -> tuple[str, float] | None:
    try:
        return files.read_file(marker).decode(), marker.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return None
