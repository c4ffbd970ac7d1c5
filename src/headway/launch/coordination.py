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
HEARTBEAT_S = 5.0  # seconds between two heartbeats of a launcher
MARKER_LIMIT_S = 0.5  # for a marker that others create and remove at the same time
HEARTBEAT_TIMEOUT_S = 20.0  # an older marker was left by launchers that have ended


class Heartbeat:
    """Updates heartbeat files from its own thread, independent of what the launcher waits for."""

    def __init__(self, beats: Sequence[Callable[[], None]], every_s: float | None = None) -> None:
        self._beats = beats
        self._every_s = HEARTBEAT_S if every_s is None else every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="headway-heartbeat", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started
            self._thread.start()

    def stop(self) -> None:
        """Stop without waiting, as a file system may block the last heartbeat."""
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
    own_id = uuid.uuid4().hex[:12]
    draft = journal / f"{MARKER}-{own_id}"
    draft.write_text(f"{own_id} {requeues}")
    until = time.monotonic() + MARKER_LIMIT_S
    try:
        while True:
            try:
                os.link(draft, marker)
                return own_id
            except OSError as error:
                if error.errno != errno.EEXIST:
                    return own_id  # no hard links here: each launcher is a launch of its own
            marker_content = _read_marker(marker)
            if marker_content is None:
                if time.monotonic() > until:
                    raise OSError(errno.EBUSY, f"{marker.name} cannot be read or replaced")
                continue  # just removed
            other_id, _, other_requeues = marker_content[0].partition(" ")
            age = draft.stat().st_mtime - marker_content[1]  # both by the file system's clock
            is_fresh = other_requeues == requeues and age < HEARTBEAT_TIMEOUT_S
            if (
                other_id
                and is_fresh
                and not _all_members_dead(journal, other_id)
                and not _is_over(journal, other_id)
            ):
                return other_id
            leave_launch(journal, other_id)
    finally:
        draft.unlink(missing_ok=True)


def _all_members_dead(journal: Path, launch: str) -> bool:
    """Whether all supervisors of that launch ran on this host and have ended."""
    prefix = f".member-{launch}-{os.uname().nodename}-"
    members = list(journal.glob(f".member-{launch}-*"))
    return bool(members) and all(
        path.name.startswith(prefix)
        and not os.path.exists(f"/proc/{path.name.removeprefix(prefix)}")
        for path in members
    )


def _is_over(journal: Path, launch: str) -> bool:
    """Whether its supervisors have agreed that it has ended, and are about to leave."""
    for path in journal.glob(f".decision-{launch}-*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            decision = json.loads(path.read_text())
            if decision.get("done") or decision["decision"]["action"] != "restart":
                return True
    return False


def has_live_launcher(journal: Path, fs_now: float) -> bool:
    """Whether launchers of a run are alive on any node; `fs_now`: the file system's time."""
    content = _read_marker(journal / MARKER)
    return content is not None and fs_now - content[1] < HEARTBEAT_TIMEOUT_S


def refresh_marker(journal: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(journal / MARKER)


def leave_launch(journal: Path, launch: str) -> None:
    """Remove the marker unless another launch has replaced it."""
    marker = journal / MARKER
    content = _read_marker(marker)
    if content is not None and content[0].partition(" ")[0] == launch:
        marker.unlink(missing_ok=True)


def _read_marker(marker: Path) -> tuple[str, float] | None:
    try:
        return file_access.read_file(marker).decode(), marker.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return None


MAX_LOOK_GAP_S = 1.5 * HEARTBEAT_S  # no gap between two checks of a member counts for more

STOPPING_S = 10.0  # to wait for the other nodes after a stop was requested: all of them stop

NodeReport = dict[str, Any]
AgreedDecision = dict[str, Any]


class MemberSighting(NamedTuple):
    """The result of one check of a member."""

    changed: float  # its last change, by the file system's clock
    at: float  # time of the check
    silence: float  # seconds without a change


class NodeCoordinator:
    """The part of one supervisor in the agreement between nodes."""

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
        self._sightings: dict[str, MemberSighting] = {}
        self._voted: set[int] = set()  # attempts that this node has voted to be hung
        self._member = self._path("member", self.me)
        # No other node will wait for this one, and it decides alone.
        with contextlib.suppress(OSError):
            self._member.write_text(_process_identity(pid))
            self._remove_dead_members()

    def _path(self, kind: str, *rest: object) -> Path:
        return self.journal / "-".join([f".{kind}", self.launch, *map(str, rest)])

    def _remove_dead_members(self) -> None:
        """Remove members of this host that were killed: a new start takes their place."""
        host = self.me.rpartition("-")[0]
        for member in self.members(os.listdir(self.journal)) - {self.me}:
            member_host, _, pid = member.rpartition("-")
            path = self._path("member", member)
            with contextlib.suppress(OSError):
                if member_host == host and path.read_text() not in (
                    "",
                    _process_identity(int(pid)),
                ):
                    path.unlink()

    def lost_neighbor(self, file_names: Iterable[str]) -> set[str]:
        """The neighbor of this member, if it has shown no sign of life for a while.

        Members watch each other in a ring sorted by name: of several lost members, at least one
        follows a member that is alive, and no node reads the files of all.
        """
        ring = sorted(self.members(file_names) | {self.me})
        following = ring[(ring.index(self.me) + 1) % len(ring)]
        return {following} if following != self.me and self._is_lost(following) else set()

    def decisions(self) -> list[dict[str, Any]]:
        """Earlier decisions of this launch, for a supervisor that joins late."""
        decisions = [self._read(self._path("decision", n).name) for n in range(self.attempt())]
        return [decision for decision in decisions if "past" in decision]

    def beat(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._member)

    def members(self, file_names: Iterable[str]) -> set[str]:
        """All members, by the names of files in the folder."""
        prefix = self._path("member").name + "-"
        return {name.removeprefix(prefix) for name in file_names if name.startswith(prefix)}

    def attempt(self) -> int:
        """The number of the current attempt."""
        prefix = self._path("decision").name + "-"
        try:
            return sum(name.startswith(prefix) for name in os.listdir(self.journal))
        except OSError:
            return 0

    def failed_on_other_node(self, attempt: int, file_names: Iterable[str]) -> bool:
        """Whether this attempt has already failed on another member."""
        prefix = self._path("ended", attempt).name + "-"
        others = {name for name in file_names if name.startswith(prefix)} - {prefix + self.me}
        reports = [report for report in map(self._read, others) if report]
        # A node that received a stop signal ended in order; this node will receive it too, or
        # notice.
        return any(not report.get("done") and report.get("told") is None for report in reports)

    def vote_hang(self, attempt: int, is_late: bool, file_names: Iterable[str]) -> bool:
        """Share whether the ranks of this node are late; return whether those of all nodes are."""
        own_file = self._path("late", attempt, self.me)
        with contextlib.suppress(OSError):
            if is_late:
                own_file.touch()
                self._voted.add(attempt)
            elif attempt in self._voted:
                own_file.unlink(missing_ok=True)
                self._voted.discard(attempt)
        voters = {*file_names, own_file.name} if is_late else set()
        not_voted = {
            member
            for member in self.members(file_names)
            if self._path("late", attempt, member).name not in voters
        }
        return is_late and all(self._is_lost(member) for member in not_voted)

    def decide_together(
        self,
        attempt: int,
        own_report: NodeReport,
        decide: Callable[[dict[str, NodeReport], set[str]], AgreedDecision],
        on_wait: Callable[[int], object] = lambda not_reported: None,
        stop_signal: Callable[[], int | None] = lambda: None,
    ) -> AgreedDecision:
        """Report how the attempt ended on this node, and return what all nodes do now.

        `decide` gets the reports by member and the lost members; it runs in one supervisor only.
        `on_wait` is called once with the number of missing reports; `stop_signal` is polled during
        the wait and shortens it.
        """
        self._write(self._path("ended", attempt, self.me), own_report)
        decision = self._path("decision", attempt)
        started, stopping = time.monotonic(), 0.0
        has_notified = False
        while True:
            number = stop_signal()
            if number is not None and not stopping:
                stopping = time.monotonic()
            if number is not None and own_report.get("told") is None:
                own_report = {**own_report, "told": number, "done": False}
                self._write(self._path("ended", attempt, self.me), own_report)
            if decision.exists():
                agreement = self._read(decision.name)
                if agreement:
                    return agreement
            file_names = set(os.listdir(self.journal))
            members = self.members(file_names) | {self.me}
            report_names = {m: self._path("ended", attempt, m).name for m in members}
            not_reported = {
                member for member, name in report_names.items() if name not in file_names
            }
            lost = {member for member in not_reported if self._is_lost(member)}
            is_overdue = bool(stopping) and time.monotonic() - stopping > STOPPING_S
            if not_reported == lost or is_overdue:
                reports = {
                    m: report
                    for m in members - not_reported
                    if (report := self._read(report_names[m]))
                }
                self._write(decision, decide(reports, lost), exclusive=True)
                continue
            if time.monotonic() - started > 5.0 and not has_notified:
                has_notified = True
                on_wait(len(not_reported - lost))
            time.sleep(0.01 if time.monotonic() - started < 1.0 else 0.1)

    def leave(self) -> None:
        """Leave the launch; the last member to leave removes its files."""
        with contextlib.suppress(OSError):
            self._member.unlink(missing_ok=True)
            file_names = os.listdir(self.journal)
            if self.members(file_names):
                return
            for name in file_names:
                if any(
                    name.startswith(self._path(kind).name) for kind in ("ended", "decision", "late")
                ):
                    (self.journal / name).unlink(missing_ok=True)

    def _is_lost(self, member: str) -> bool:
        """Whether a member has shown no sign of life for a while.

        What counts is how long this process has seen no change: the clock of the file system may be
        set, and after a pause of all nodes (`scontrol suspend`) all members look old at first.
        """
        try:
            changed = _touched_at(self._path("member", member))
            at, previous = self._clock(), self._sightings.get(member)
            if previous is None:  # it may have ended long ago
                self.beat()
                silence = max(_touched_at(self._member) - changed, 0.0)
            elif changed != previous.changed:
                silence = 0.0
            else:
                silence = previous.silence + min(at - previous.at, MAX_LOOK_GAP_S)
        except OSError:
            return True
        self._sightings[member] = MemberSighting(changed, at, silence)
        return silence > HEARTBEAT_TIMEOUT_S

    def _read(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(file_access.read_file(self.journal / name))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, path: Path, content: dict[str, Any], *, exclusive: bool = False) -> None:
        # If it exists, another member was faster.
        write = write_exclusively if exclusive else write_atomically
        write(path, json.dumps(content))


def _touched_at(path: Path) -> float:
    """Modification time. The file is opened, as NFS may answer a plain stat from its cache."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime


def _process_identity(pid: int) -> str:
    """Identity of the process that has this pid now: boot id and start time."""
    try:
        return f"{boot_id()} {processes.stat_fields(pid)[19].decode()}"
    except (OSError, IndexError):
        return "-"
