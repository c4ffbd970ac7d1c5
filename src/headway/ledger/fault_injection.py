"""Injected faults, each with the failure that it led to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headway.journal.reader import Journal
from headway.ledger.clocks import ClockAlignment
from headway.ledger.model import Failure, Fault
from headway.ledger.record import AttemptRecord

NON_FATAL = ("data", "corrupt")
NEVER_FIRED = "its moment did not come"

_FaultEvent = tuple[
    int, int, str, dict[str, Any]
]  # when, in which attempt, whose journal, the event


def find_faults(
    drafts: Sequence[AttemptRecord], failures: Sequence[Failure], axis: ClockAlignment
) -> tuple[Fault, ...]:
    """Every fault that was injected, in the order of time; then those whose moment never came."""
    found: list[_FaultEvent] = []
    for journal in _journals(drafts):
        for event in journal.named("fault"):
            at = axis.at(journal, event["t"])
            index = _attempt(drafts, journal.launch, at)
            found.append((at, index, journal.name, event))
    found = _merge_ranks(sorted(found, key=lambda entry: entry[:3]))
    led = _caused_failure(found, failures)
    return tuple(
        _fault(at, index, event, led.get(place), failures)
        for place, (at, index, _, event) in enumerate([*found, *_never_fired(drafts, found, axis)])
    )


def _never_fired(
    drafts: Sequence[AttemptRecord], found: Sequence[_FaultEvent], axis: ClockAlignment
) -> Iterator[_FaultEvent]:
    """Lines of the plan that have hit nothing, once the run is over."""
    if not drafts or drafts[-1].outcome == "running":
        return
    came = [event.get("fault") for _, _, _, event in found]
    told = [(x, e) for draft in drafts for x in draft.launch.journals for e in x.named("plan")]
    for journal, event in told[:1]:
        lines = event.get("faults")
        for number, line in enumerate(lines if isinstance(lines, list) else [], 1):
            if number not in came and isinstance(line, dict):
                left = {**line, "who": "nobody", "missed": NEVER_FIRED}
                yield axis.at(journal, event["t"]), len(drafts) - 1, journal.name, left


def _journals(drafts: Sequence[AttemptRecord]) -> Iterator[Journal]:
    """Each one once; launchers, agents and helpers are shared by the attempts of a launch."""
    seen: set[str] = set()
    for draft in drafts:
        ranks = [life.journal for life in draft.lives]
        for journal in (*draft.launch.journals, *draft.agents, *draft.others, *ranks):
            if journal.name not in seen:
                seen.add(journal.name)
                yield journal


def _merge_ranks(found: Sequence[_FaultEvent]) -> list[_FaultEvent]:
    """What several ranks did to themselves by one line of the plan is one fault."""
    out: dict[tuple[Any, ...], _FaultEvent] = {}
    for place, (at, index, name, event) in enumerate(found):
        known = event.get("fault"), event.get("key", place), event.get("kind")
        same = (index, *map(str, known))
        if same in out:
            first = out[same][3]
            out[same] = (*out[same][:3], {**first, "who": _joined(first, event)})
        else:
            out[same] = at, index, name, event
    return list(out.values())


def _joined(*events: dict[str, Any]) -> str:
    """`rank 0, 1` from `rank 0` and `rank 1`."""
    words = [str(event.get("who")).removeprefix("rank ") for event in events]
    ranks = sorted({word for text in words for word in text.split(", ")}, key=_in_order)
    return f"rank {', '.join(ranks)}"


def _in_order(word: str) -> tuple[int, str]:
    return (int(word), "") if word.isdecimal() else (0, word)


def _attempt(drafts: Sequence[AttemptRecord], launch: str, at: int) -> int:
    """The attempt of that launch which was going on."""
    own = [index for index, draft in enumerate(drafts) if draft.launch.name == launch]
    begun = [index for index in own if drafts[index].begin <= at]
    return begun[-1] if begun else own[0]


def _caused_failure(found: Sequence[_FaultEvent], failures: Sequence[Failure]) -> dict[int, int]:
    """Of each failure the last fault before it in its attempt, with those of the same plan line."""
    led: dict[int, int] = {}
    for number, failure in enumerate(failures):
        before = [
            place
            for place, (at, index, _, _) in enumerate(found)
            if index == failure.attempt and at <= failure.at
        ]
        if not before:
            continue
        last = max(before, key=lambda place: (not _is_non_fatal(found[place][3]), found[place][0]))
        line = found[last][3].get("fault")
        for place in before:
            if found[place][3].get("fault") == line:
                led[place] = number
    return led


def _is_non_fatal(event: dict[str, Any]) -> bool:
    """It holds a job up, and seldom ends it."""
    return event.get("kind") in NON_FATAL or event.get("mode") == "slow" or "missed" in event


def _fault(
    at: int, index: int, event: dict[str, Any], led: int | None, failures: Sequence[Failure]
) -> Fault:
    missed = event.get("missed")
    return Fault(
        attempt=index,
        at=at,
        kind=str(event.get("kind")),
        who=str(event.get("who")),
        planned=str(event.get("planned") or ""),
        step=event.get("step"),
        missed=None if missed is None else str(missed),
        failure=led,
        detected=None if led is None else failures[led].category,
        detected_after=None if led is None else failures[led].at - at,
    )
