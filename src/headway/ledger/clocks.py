"""Puts every journal on one axis: the clock of the run's first launcher.

Journals of one boot share the kernel's monotonic clock, so they need nothing. Between boots the
file system's clock counts where both sides have it, else the wall clock; a process on another
host is then tied to its launcher: by the end of the process-group init, which is one instant for
all ranks, and by having lived between the launcher's start of the command and its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.errors import with_code
from headway.journal.reader import Journal

CLOCK_TOLERANCE = 1_000_000_000  # clocks of two hosts may differ so much before a note is due


@dataclass(frozen=True)
class ClockAlignment:
    """How far each journal is shifted: `run time = journal time + shift`."""

    shifts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settled_boots: set[str] = field(default_factory=set)  # boots that are settled

    def to_run_time(self, journal: Journal, t: int) -> int:
        """A journal's own time on the axis of the run."""
        return t + self.shifts[journal.name]

    def move_earlier(self, journals: Iterable[Journal], by: int) -> None:
        """Move journals on the axis: something before them is no part of it."""
        for journal in journals:
            self.shifts[journal.name] -= by


def align_clocks(launchers: Sequence[Journal], processes: Sequence[Journal]) -> ClockAlignment:
    """Place all journals; `launchers` in the order in which they joined the run."""
    alignment = ClockAlignment()
    boots = Boots(_ties(launchers, processes))  # one shift for each, whichever launch it is in
    end: int | None = None
    for launcher in launchers:
        if launcher.name in alignment.shifts:
            continue
        end = _place_launcher(launcher, launchers[0], end, alignment, boots)
        # Launchers of the same launch on other nodes are placed with the ranks beside them.
        beside = [x for x in launchers if x.launch == launcher.launch and x is not launcher]
        members = [*beside, *_members(launcher.launch, processes)]
        _place_members(launcher, launcher, members, alignment, boots)
    for launch in sorted({p.launch for p in processes} - {x.launch for x in launchers}):
        members = _members(launch, processes)
        reference = _first(members)
        anchor = launchers[0] if launchers else _first(processes)
        boots.place(reference.boot, _offset(reference, anchor))
        _place_members(reference, None, members, alignment, boots)
    return alignment


class Boots:
    """How far each boot is shifted.

    The end of a process group's init, in any launch, ties two boots to each other, whatever was
    guessed of one of them in another launch.
    """

    def __init__(self, ties: Mapping[str, Mapping[str, int]]) -> None:
        self.shifts: dict[str, int] = {}
        self.ties = ties

    def place(self, boot: str, shift: int) -> None:
        """Settle a boot, and those that are tied to it; the first word counts."""
        pending = [(boot, shift)]
        while pending:
            boot, shift = pending.pop()
            if boot not in self.shifts:
                self.shifts[boot] = shift
                pending += [(other, shift + tie) for other, tie in self.ties.get(boot, {}).items()]


def _ties(launchers: Sequence[Journal], processes: Sequence[Journal]) -> dict[str, dict[str, int]]:
    """For each boot what to add to its shift to get that of each boot it shared a group with.

    All ranks leave init_process_group together: that is the same instant on all hosts.
    """
    ties: dict[str, dict[str, int]] = {}
    order = {launcher.launch: index for index, launcher in reversed([*enumerate(launchers)])}
    launches = sorted({p.launch for p in processes}, key=lambda x: (order.get(x, len(order)), x))
    for launch in launches:
        by_restart: dict[int, dict[str, int]] = {}
        for member in _members(launch, processes):
            end = _group_end(member)
            if end is not None:
                by_restart.setdefault(member.restart, {}).setdefault(member.boot, end)
        for _, ends in sorted(by_restart.items()):
            (first, own), *others = sorted(ends.items())
            for boot, theirs in others:
                ties.setdefault(first, {}).setdefault(boot, own - theirs)
                ties.setdefault(boot, {}).setdefault(first, theirs - own)
    return ties


def _by_boot(journals: Iterable[Journal]) -> dict[str, list[Journal]]:
    by_boot: dict[str, list[Journal]] = {}
    for journal in journals:
        by_boot.setdefault(journal.boot, []).append(journal)
    return by_boot


def _members(launch: str, processes: Sequence[Journal]) -> list[Journal]:
    return [p for p in processes if p.launch == launch]


def _place_launcher(
    launcher: Journal, first: Journal, end: int | None, alignment: ClockAlignment, boots: Boots
) -> int:
    """Returns until when this launcher and those before it lived."""
    if launcher.boot not in boots.shifts:
        shift = _offset(launcher, first)
        if end is not None and launcher.begin + shift < end:
            behind = (end - launcher.begin - shift) / 1e9
            alignment.notes.append(
                with_code(
                    f"the clock of {launcher.host} is at least {behind:.3f} s behind "
                    f"{first.host}; the downtime before its attempt is not known",
                    code="clock-behind",
                )
            )
            shift = end - launcher.begin
        boots.place(launcher.boot, shift)
    alignment.shifts[launcher.name] = boots.shifts[launcher.boot]
    lived_until = launcher.last_sign() + boots.shifts[launcher.boot]
    return lived_until if end is None else max(end, lived_until)


def _place_members(
    reference: Journal,
    launcher: Journal | None,
    members: Sequence[Journal],
    alignment: ClockAlignment,
    boots: Boots,
) -> None:
    alignment.settled_boots.add(reference.boot)
    home = boots.shifts[reference.boot]
    for boot, group in sorted(_by_boot(members).items()):
        if boot not in alignment.settled_boots:
            _place_foreign(boot, reference, launcher, group, home, alignment, boots)
        for member in group:
            alignment.shifts[member.name] = boots.shifts[boot]


def _place_foreign(
    boot: str,
    reference: Journal,
    launcher: Journal | None,
    group: Sequence[Journal],
    home: int,
    alignment: ClockAlignment,
    boots: Boots,
) -> None:
    """A host that is not the launcher's, when it is seen for the first time."""
    alignment.settled_boots.add(boot)
    guess = home + _offset(_first(group), reference)
    shift = boots.shifts.get(boot, guess)
    if launcher is not None and not any(member.role == "launcher" for member in group):
        shift = _within_launch(launcher, group, home, shift)
    boots.shifts.pop(boot, None)
    boots.place(boot, shift)
    if abs(shift - guess) > CLOCK_TOLERANCE:
        alignment.notes.append(
            with_code(
                f"the clock of {group[0].host} differs from {reference.host}'s by "
                f"{abs(shift - guess) / 1e9:.3f} s; its ranks were placed by the launcher's clock",
                code="clock-differs",
            )
        )


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
