"""Launchers of one job on several nodes share one launch and decide together.

They meet in the journal folder, which the nodes share. The first launcher leaves its launch id
there; one that starts while it is alive takes the same id. Each launcher then registers as a member
and reports how an attempt ended on its node; when all have reported, the first to see that writes
the decision, and all follow it. A member without a sign of life for a while counts as lost, and so
does its node.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.journal import file_access
from headway.launch import processes
from headway.storage.atomic_write import write_atomically, write_exclusively
from headway.storage.process_identity import boot_id

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
        return file_access.read_file(marker).decode(), marker.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return None


MAX_LOOK_GAP_S = 1.5 * HEARTBEAT_S  # no time between two looks at a member counts for more

STOPPING_S = 10.0  # to wait for the other nodes once this one was told to stop: all of them stop

NodeReport = dict[str, Any]
AgreedDecision = dict[str, Any]


class MemberSighting(NamedTuple):
    """What a look at a member has shown."""

    changed: float  # when it was last heard of, by the file system's clock
    at: float  # when that was looked at
    silence: float  # seconds without a change


class NodeCoordinator:
    """This supervisor's part in it."""

    def __init__(
        self,
        journal: Path,
        launch: str,
        host: str,
        pid: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        self.launch = launch
        self.me = f"{host}-{pid}"
        self._clock = clock
        self._heard: dict[str, MemberSighting] = {}
        self._late: set[int] = set()  # attempts of which the others were told so
        self._member = self._path("member", self.me)
        with contextlib.suppress(OSError):  # nobody will wait for this node, and it decides alone
            self._member.write_text(_process_identity(pid))
            self._forget_dead()

    def _path(self, kind: str, *rest: object) -> Path:
        return self.journal / "-".join([f".{kind}", self.launch, *map(str, rest)])

    def _forget_dead(self) -> None:
        """Members of this host that were killed: whoever starts again takes their place."""
        host = self.me.rpartition("-")[0]
        for member in self.members(os.listdir(self.journal)) - {self.me}:
            theirs, _, pid = member.rpartition("-")
            path = self._path("member", member)
            with contextlib.suppress(OSError):
                if theirs == host and path.read_text() not in ("", _process_identity(int(pid))):
                    path.unlink()

    def lost(self, names: Iterable[str]) -> set[str]:
        """The member that this one looks after, if it has not been heard of for a while.

        In the order of their names each looks after the next one: of several that are lost, at
        least one comes after a member that is not, and nobody reads the files of all.
        """
        ring = sorted(self.members(names) | {self.me})
        following = ring[(ring.index(self.me) + 1) % len(ring)]
        return {following} if following != self.me and self._stale(following) else set()

    def past(self) -> list[dict[str, Any]]:
        """What was agreed on before, for a supervisor that comes late."""
        decisions = [self._read(self._path("decision", n).name) for n in range(self.attempt())]
        return [agreed for agreed in decisions if "past" in agreed]

    def alive(self) -> None:
        """This supervisor lives."""
        with contextlib.suppress(OSError):
            os.utime(self._member)

    def members(self, names: Iterable[str]) -> set[str]:
        """Everybody who takes part, by the names of files in the folder."""
        prefix = self._path("member").name + "-"
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def attempt(self) -> int:
        """The number of the attempt that is going on now."""
        prefix = self._path("decision").name + "-"
        try:
            return sum(name.startswith(prefix) for name in os.listdir(self.journal))
        except OSError:
            return 0

    def over_elsewhere(self, attempt: int, names: Iterable[str]) -> bool:
        """Whether this attempt has failed for another member already."""
        prefix = self._path("ended", attempt).name + "-"
        others = {name for name in names if name.startswith(prefix)} - {prefix + self.me}
        said = [ended for ended in map(self._read, others) if ended]
        # Who was told to stop has ended in order; this one will be told too, or notice itself.
        return any(not ended.get("done") and ended.get("told") is None for ended in said)

    def all_late(self, attempt: int, late: bool, names: Iterable[str]) -> bool:
        """Tell the others whether this node makes no step; whether none of them does."""
        mine = self._path("late", attempt, self.me)
        with contextlib.suppress(OSError):
            if late:
                mine.touch()
                self._late.add(attempt)
            elif attempt in self._late:
                mine.unlink(missing_ok=True)
                self._late.discard(attempt)
        told = {*names, mine.name} if late else set()
        missing = {
            member
            for member in self.members(names)
            if self._path("late", attempt, member).name not in told
        }
        return late and all(self._stale(member) for member in missing)

    def conclude(
        self,
        attempt: int,
        mine: NodeReport,
        decide: Callable[[dict[str, NodeReport], set[str]], AgreedDecision],
        waiting: Callable[[int], object] = lambda missing: None,
        told_to_stop: Callable[[], int | None] = lambda: None,
    ) -> AgreedDecision:
        """Say how the attempt ended here, and learn what all do now.

        `decide` gets what each member said, and the members that are gone; it runs in one of the
        supervisors only. `waiting` is told once how many are still to come; `told_to_stop` is
        asked all the while, and ends the wait soon.
        """
        self._write(self._path("ended", attempt, self.me), mine)
        decision = self._path("decision", attempt)
        since, stopping = time.monotonic(), 0.0
        said_so = False
        while True:
            number = told_to_stop()
            if number is not None and not stopping:
                stopping = time.monotonic()
            if number is not None and mine.get("told") is None:
                mine = {**mine, "told": number, "done": False}
                self._write(self._path("ended", attempt, self.me), mine)
            if decision.exists():
                agreed = self._read(decision.name)
                if agreed:
                    return agreed
            names = set(os.listdir(self.journal))
            members = self.members(names) | {self.me}
            ended = {m: self._path("ended", attempt, m).name for m in members}
            missing = {member for member, name in ended.items() if name not in names}
            gone = {member for member in missing if self._stale(member)}
            late = bool(stopping) and time.monotonic() - stopping > STOPPING_S
            if missing == gone or late:
                heard = {m: said for m in members - missing if (said := self._read(ended[m]))}
                self._write(decision, decide(heard, gone), exclusive=True)
                continue
            if time.monotonic() - since > 5.0 and not said_so:
                said_so = True
                waiting(len(missing - gone))
            time.sleep(0.01 if time.monotonic() - since < 1.0 else 0.1)

    def leave(self) -> None:
        """This supervisor is done; the last one to leave takes the papers along."""
        with contextlib.suppress(OSError):
            self._member.unlink(missing_ok=True)
            names = os.listdir(self.journal)
            if self.members(names):
                return
            for name in names:
                if any(name.startswith(self._path(k).name) for k in ("ended", "decision", "late")):
                    (self.journal / name).unlink(missing_ok=True)

    def _stale(self, member: str) -> bool:
        """Not heard of for a while.

        What counts is how long this process has seen no change: the clock of the file system may
        be set, and after a pause of all nodes (`scontrol suspend`) all of them look old at first.
        """
        try:
            changed = _touched_at(self._path("member", member))
            at, before = self._clock(), self._heard.get(member)
            if before is None:  # it may be long gone
                self.alive()
                silence = max(_touched_at(self._member) - changed, 0.0)
            elif changed != before.changed:
                silence = 0.0
            else:
                silence = before.silence + min(at - before.at, MAX_LOOK_GAP_S)
        except OSError:
            return True
        self._heard[member] = MemberSighting(changed, at, silence)
        return silence > HEARTBEAT_TIMEOUT_S

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(file_access.read_file(self.journal / name))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, path: Path, content: dict[str, Any], *, exclusive: bool = False) -> None:
        write = write_exclusively if exclusive else write_atomically  # else another was faster
        write(path, json.dumps(content))


def _touched_at(path: Path) -> float:
    """When a file was last touched. Opened, as NFS may answer a plain stat from memory."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime


def _process_identity(pid: int) -> str:
    """Which process has this number now: its boot and its start."""
    try:
        return f"{boot_id()} {processes.stat_fields(pid)[19].decode()}"
    except (OSError, IndexError):
        return "-"
