"""Launchers of one job on several nodes find each other: they share one launch.

The first one leaves its launch id in the run folder; one that comes while it is alive takes the
same id. The marker is kept fresh by all of them, so that one left by a dead node grows stale.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

MARKER = ".launch"
FRESH_S = 20.0  # a marker older than this was left by launchers that are gone


def take(journal: Path, env: Mapping[str, str]) -> str:
    """The id of this launch: a new one, or that of launchers that are running it now."""
    marker = journal / MARKER
    requeues = env.get("SLURM_RESTART_COUNT", "")
    mine = uuid.uuid4().hex[:12]
    aside = journal / f"{MARKER}-{mine}"
    aside.write_text(f"{mine} {requeues}")
    try:
        while True:
            try:
                os.link(aside, marker)
                return mine
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
                    return mine  # no hard links here: each launcher is a launch of its own
                if error.errno != errno.EEXIST:
                    raise
            found = _read(marker)
            if found is None:
                continue  # just taken away
            theirs, _, theirs_requeues = found[0].partition(" ")
            age = aside.stat().st_mtime - found[1]  # both by the file system's clock
            fresh = theirs_requeues == requeues and age < FRESH_S
            if theirs and fresh and not _all_dead(journal, theirs):
                return theirs
            leave(journal, theirs)
    finally:
        aside.unlink(missing_ok=True)


def _all_dead(journal: Path, launch: str) -> bool:
    """Whether all supervisors of that launch ran on this host, and are gone."""
    prefix = f".member-{launch}-{os.uname().nodename}-"
    members = list(journal.glob(f".member-{launch}-*"))
    return bool(members) and all(
        path.name.startswith(prefix)
        and not os.path.exists(f"/proc/{path.name.removeprefix(prefix)}")
        for path in members
    )


def refresh(journal: Path) -> None:
    """This launcher is alive."""
    with contextlib.suppress(OSError):
        os.utime(journal / MARKER)


def leave(journal: Path, launch: str) -> None:
    """The launch is over, unless another one has begun meanwhile."""
    marker = journal / MARKER
    found = _read(marker)
    if found is not None and found[0].partition(" ")[0] == launch:
        marker.unlink(missing_ok=True)


def _read(marker: Path) -> tuple[str, float] | None:
    try:
        return marker.read_text(), marker.stat().st_mtime
    except OSError:
        return None
