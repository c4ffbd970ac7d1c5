"""Puts every journal on one axis: the clock of the run's first launcher.

Journals of one boot share the kernel's monotonic clock, so they need nothing. Between boots the
file system's clock counts where both sides have it, else the wall clock; a process on another
host is then tied to its launcher: by the end of the process-group init, which is one instant for
all ranks, and by having lived between the launcher's start of the command and its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headway.journal.reader import Journal

SLACK = 1_000_000_000  # clocks of two hosts may differ so much before a note is due


@dataclass(frozen=True)
class Axis:
    """How far each journal is shifted: `run time = journal time + shift`."""

    shifts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def at(self, journal: Journal, t: int) -> int:
        """A journal's own time on the axis of the run."""
        return t + self.shifts[journal.name]


def align(launchers: Sequence[Journal], processes: Sequence[Journal]) -> Axis:
    """Place all journals; `launchers` in the order in which they joined the run."""
    axis = Axis()
    boots: dict[str, int] = {}  # one shift for each boot, whichever launch it is seen in
    end: int | None = None
    for launcher in launchers:
        if launcher.name in axis.shifts:
            continue
        end = _place_launcher(launcher, launchers[0], end, axis, boots)
        # Launchers of the same launch on other nodes are placed with the ranks beside them.
        beside = [x for x in launchers if x.launch == launcher.launch and x is not launcher]
        members = [*beside, *_members(launcher.launch, processes)]
        _place_members(launcher, launcher, members, axis, boots)
    for launch in sorted({p.launch for p in processes} - {x.launch for x in launchers}):
        members = _members(launch, processes)
        reference = _first(members)
        anchor = launchers[0] if launchers else _first(processes)
        boots.setdefault(reference.boot, _offset(reference, anchor))
        _place_members(reference, None, members, axis, boots)
    return axis


def _members(launch: str, processes: Sequence[Journal]) -> list[Journal]:
    return [p for p in processes if p.launch == launch]


def _place_launcher(
    launcher: Journal, first: Journal, end: int | None, axis: Axis, boots: dict[str, int]
) -> int:
    """Returns until when this launcher and those before it lived."""
    if launcher.boot not in boots:
        shift = _offset(launcher, first)
        if end is not None and launcher.begin + shift < end:
            behind = (end - launcher.begin - shift) / 1e9
            axis.notes.append(
                f"the clock of {launcher.host} is at least {behind:.3f} s behind "
                f"{first.host}; the downtime before its attempt is not known"
            )
            shift = end - launcher.begin
        boots[launcher.boot] = shift
    axis.shifts[launcher.name] = boots[launcher.boot]
    lived_until = launcher.last_sign() + boots[launcher.boot]
    return lived_until if end is None else max(end, lived_until)


def _place_members(
    reference: Journal,
    launcher: Journal | None,
    members: Sequence[Journal],
    axis: Axis,
    boots: dict[str, int],
) -> None:
    by_boot: dict[str, list[Journal]] = {}
    for member in members:
        by_boot.setdefault(member.boot, []).append(member)
    local = by_boot.get(reference.boot, [])
    for boot in sorted(by_boot):
        group = by_boot[boot]
        if boot not in boots:
            home = boots[reference.boot]
            boots[boot] = _foreign(reference, launcher, local, group, home, axis)
        for member in group:
            axis.shifts[member.name] = boots[boot]


def _foreign(
    reference: Journal,
    launcher: Journal | None,
    local: Sequence[Journal],
    group: Sequence[Journal],
    home: int,
    axis: Axis,
) -> int:
    """The shift of a host that is not the launcher's."""
    guess = home + _offset(_first(group), reference)
    tied = _by_process_group(local, group)
    shift = guess if tied is None else home + tied
    if launcher is not None and not any(member.role == "launcher" for member in group):
        shift = _within_launch(launcher, group, home, shift)
    if abs(shift - guess) > SLACK:
        axis.notes.append(
            f"the clock of {group[0].host} differs from {reference.host}'s by "
            f"{abs(shift - guess) / 1e9:.3f} s; its ranks were placed by the launcher's clock"
        )
    return shift


def _by_process_group(local: Sequence[Journal], group: Sequence[Journal]) -> int | None:
    """All ranks leave init_process_group together: the same instant on both hosts."""
    for mine in local:
        for theirs in group:
            if mine.restart != theirs.restart:
                continue
            ends = _group_end(mine), _group_end(theirs)
            if ends[0] is not None and ends[1] is not None:
                return ends[0] - ends[1]
    return None


def _group_end(journal: Journal) -> int | None:
    ends = [s.end for s in journal.spans if s.name == "process_group_init" and s.end is not None]
    return ends[0] if ends else None


def _within_launch(launcher: Journal, group: Sequence[Journal], home: int, shift: int) -> int:
    """No process lived before its launcher started the command, or after it saw the end."""
    spawns = [event["t"] for event in launcher.named("spawn")]
    ends = [event["t"] for event in launcher.named("exit")]
    born = min(member.begin for member in group) + shift
    died = max(member.last_sign() for member in group) + shift
    if spawns and born < min(spawns) + home:
        shift += min(spawns) + home - born
    elif ends and died > max(ends) + home:
        shift -= died - max(ends) - home
    return shift


def _offset(journal: Journal, reference: Journal) -> int:
    """What to add to `journal`'s times to get `reference`'s, by their absolute clocks."""
    if journal.file_clock is not None and reference.file_clock is not None:
        theirs, ours = journal.file_clock, reference.file_clock
    else:
        theirs, ours = journal.wall, reference.wall
    return (theirs - journal.opened) - (ours - reference.opened)


def _first(journals: Iterable[Journal]) -> Journal:
    return min(journals, key=lambda j: (j.begin, j.name))
