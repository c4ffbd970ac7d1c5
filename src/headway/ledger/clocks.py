"""Aligns all journals to run time: the clock of the run's first launcher.

Journals of the same boot share the kernel's monotonic clock and need no correction. Between boots,
the file system's clock is used if both sides have it, else the wall clock. A process on another
host is then tied to its launcher by two constraints: all ranks leave the process group init at the
same instant, and a process lives between the launcher's start of the command and its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.errors import with_code
from headway.journal.reader import Journal

CLOCK_TOLERANCE = 1_000_000_000  # a larger difference between two hosts adds a note


@dataclass(frozen=True)
class ClockAlignment:
    """The shift of each journal: `run time = journal time + shift`."""

    shifts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settled_boots: set[str] = field(default_factory=set)  # boots whose shift is final

    def to_run_time(self, journal: Journal, t: int) -> int:
        """Convert a time of a journal to run time."""
        return t + self.shifts[journal.name]

    def move_earlier(self, journals: Iterable[Journal], by: int) -> None:
        """Shift journals back by time before them that does not count."""
        for journal in journals:
            self.shifts[journal.name] -= by


def align_clocks(launchers: Sequence[Journal], processes: Sequence[Journal]) -> ClockAlignment:
    """Align all journals; `launchers` are in the order in which they joined the run."""
    alignment = ClockAlignment()
    boots = Boots(_ties(launchers, processes))  # a boot has the same shift in every launch
    end: int | None = None
    for launcher in launchers:
        if launcher.name in alignment.shifts:
            continue
        end = _place_launcher(launcher, launchers[0], end, alignment, boots)
        # Launchers of the same launch on other nodes are placed with the ranks of their nodes.
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
    """The shift of each boot.

    The end of a process group init, in any launch, ties two boots to each other. The tie takes
    precedence over what another launch estimated for either of them.
    """

    def __init__(self, ties: Mapping[str, Mapping[str, int]]) -> None:
        self.shifts: dict[str, int] = {}
        self.ties = ties

    def place(self, boot: str, shift: int) -> None:
        """Set the shift of a boot and of all boots tied to it; the first value is final."""
        pending = [(boot, shift)]
        while pending:
            boot, shift = pending.pop()
            if boot not in self.shifts:
                self.shifts[boot] = shift
                pending += [(other, shift + tie) for other, tie in self.ties.get(boot, {}).items()]


def _ties(launchers: Sequence[Journal], processes: Sequence[Journal]) -> dict[str, dict[str, int]]:
    """Return, for each boot, the difference to the shift of each boot it shared a group with.

    All ranks leave init_process_group together, at the same instant on all hosts.
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
    """Return the last sign of life of this launcher and those before it."""
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
    """Set the shift of a host other than the launcher's, at its first occurrence."""
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
    """Correct `shift` so that the processes live between the command's start and its exit."""
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
    """Return the offset from `journal`'s times to `reference`'s, by their absolute clocks."""
    if journal.file_clock is not None and reference.file_clock is not None:
        theirs, ours = journal.file_clock, reference.file_clock
    else:
        theirs, ours = journal.wall, reference.wall
    return (theirs - journal.opened) - (ours - reference.opened)


def _first(journals: Iterable[Journal]) -> Journal:
    return min(journals, key=lambda j: (j.begin, j.name))
