"""Supervisors of one job on several nodes agree: every attempt ends for all, and goes on for all.

They meet in the journal folder, which the nodes share. Each says there that it is a member, and
how an attempt ended for it; when all have said so, the first to come writes the decision, and all
follow it. A member that has not been heard of for a while is gone, and so is its node.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headway.journal.writer import boot_id
from headway.launch import tree
from headway.launch.together import FRESH_S

Ended = dict[str, Any]
Agreed = dict[str, Any]


class Agreement:
    """This supervisor's part in it."""

    def __init__(self, journal: Path, launch: str, host: str, pid: int) -> None:
        self.journal = journal
        self.launch = launch
        self.me = f"{host}-{pid}"
        self._member = self._path("member", self.me)
        self._member.write_text(_birth(pid))
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
                if theirs == host and path.read_text() not in ("", _birth(int(pid))):
                    path.unlink()

    def lost(self, names: Iterable[str]) -> set[str]:
        """Members that have not been heard of for a while."""
        return {m for m in self.members(names) - {self.me} if self._stale(m)}

    def past(self) -> list[dict[str, Any]]:
        """What was agreed on before, for a supervisor that comes late."""
        return [self._read(self._path("decision", n).name) for n in range(self.attempt())]

    def alive(self) -> None:
        """This supervisor lives; told every few seconds."""
        with contextlib.suppress(OSError):
            os.utime(self._member)

    def members(self, names: Iterable[str]) -> set[str]:
        """Everybody who takes part, by the names of files in the folder."""
        prefix = self._path("member").name + "-"
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def attempt(self) -> int:
        """The number of the attempt that is going on now."""
        prefix = self._path("decision").name + "-"
        return sum(name.startswith(prefix) for name in os.listdir(self.journal))

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
            elif mine.name in names:
                mine.unlink(missing_ok=True)
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
        mine: Ended,
        decide: Callable[[dict[str, Ended], set[str]], Agreed],
        waiting: Callable[[int], object] = lambda missing: None,
        told_to_stop: Callable[[], int | None] = lambda: None,
    ) -> Agreed:
        """Say how the attempt ended here, and learn what all do now.

        `decide` gets what each member said, and the members that are gone; it runs in one of the
        supervisors only. `waiting` is told once how many are still to come; `told_to_stop` is
        asked all the while.
        """
        self._write(self._path("ended", attempt, self.me), mine)
        decision = self._path("decision", attempt)
        since = time.monotonic()
        said_so = False
        while True:
            number = told_to_stop()
            if number is not None and mine.get("told") is None:
                mine = {**mine, "told": number, "done": False}
                self._write(self._path("ended", attempt, self.me), mine)
            if decision.exists():
                agreed = self._read(decision.name)
                if agreed:
                    return agreed
            names = os.listdir(self.journal)
            members = self.members(names) | {self.me}
            said = {m: self._read(self._path("ended", attempt, m).name) for m in members}
            missing = {member for member, ended in said.items() if not ended}
            gone = {member for member in missing if self._stale(member)}
            if missing == gone:
                heard = {member: ended for member, ended in said.items() if ended}
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
        """Not heard of for a while, by the file system's clock."""
        self.alive()
        try:
            theirs = _changed(self._path("member", member))
            return _changed(self._member) - theirs > FRESH_S
        except OSError:
            return True

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.journal / name).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, path: Path, content: dict[str, Any], *, exclusive: bool = False) -> None:
        aside = path.with_name(f".new-{self.me}{path.name}")
        aside.write_text(json.dumps(content))
        if not exclusive:
            aside.replace(path)
            return
        try:
            with contextlib.suppress(FileExistsError):  # another was faster
                os.link(aside, path)
                return
        except OSError:  # no hard links here
            with contextlib.suppress(FileExistsError), path.open("x") as file:
                file.write(json.dumps(content))
        finally:
            aside.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    """When a file was last touched. Opened, as NFS may answer a plain stat from memory."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime


def _birth(pid: int) -> str:
    """Which process has this number now: its boot and its start."""
    try:
        return f"{boot_id()} {tree.stat(pid)[19].decode()}"
    except (OSError, IndexError):
        return "-"
