"""Injected faults, each with the failure that it led to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headway.journal.reader import Journal
from headway.ledger.clocks import ClockAlignment
from headway.ledger.model import Failure, Fault
from headway.ledger.record import AttemptRecord

NON_FATAL = ("data", "corrupt")
NEVER_FIRED = "its trigger was never reached"

_FaultEvent = tuple[
    int, int, str, dict[str, Any]
]  # when, in which attempt, whose journal, the event


def find_faults(
    attempts: Sequence[AttemptRecord], failures: Sequence[Failure], alignment: ClockAlignment
) -> tuple[Fault, ...]:
    """Return all injected faults in order of time, then the planned ones that never fired."""
    events: list[_FaultEvent] = []
    for journal in _journals(attempts):
        for event in journal.named("fault"):
            at = alignment.to_run_time(journal, event["t"])
            index = _attempt(attempts, journal.launch, at)
            events.append((at, index, journal.name, event))
    events = _merge_ranks(sorted(events, key=lambda entry: entry[:3]))
    failure_of = _caused_failure(events, failures)
    return tuple(
        _fault(at, index, event, failure_of.get(place), failures)
        for place, (at, index, _, event) in enumerate(
            [*events, *_never_fired(attempts, events, alignment)]
        )
    )


def _never_fired(
    attempts: Sequence[AttemptRecord], events: Sequence[_FaultEvent], alignment: ClockAlignment
) -> Iterator[_FaultEvent]:
    """Yield the faults of the plan that never fired, once the run is over."""
    if not attempts or attempts[-1].outcome == "running":
        return
    fired = [event.get("fault") for _, _, _, event in events]
    plans = [
        (x, e) for attempt in attempts for x in attempt.launch.journals for e in x.named("plan")
    ]
    for journal, event in plans[:1]:
        lines = event.get("faults")
        for number, line in enumerate(lines if isinstance(lines, list) else [], 1):
            if number not in fired and isinstance(line, dict):
                fields = {**line, "who": "none", "missed": NEVER_FIRED}
                yield (
                    alignment.to_run_time(journal, event["t"]),
                    len(attempts) - 1,
                    journal.name,
                    fields,
                )


def _journals(attempts: Sequence[AttemptRecord]) -> Iterator[Journal]:
    """Yield each journal once; attempts of a launch share launchers, agents and helpers."""
    names: set[str] = set()
    for attempt in attempts:
        ranks = [rank.journal for rank in attempt.ranks]
        for journal in (*attempt.launch.journals, *attempt.agents, *attempt.others, *ranks):
            if journal.name not in names:
                names.add(journal.name)
                yield journal


def _merge_ranks(events: Sequence[_FaultEvent]) -> list[_FaultEvent]:
    """Merge the faults that several ranks injected by one line of the plan."""
    out: dict[tuple[Any, ...], _FaultEvent] = {}
    for place, (at, index, name, event) in enumerate(events):
        identity = event.get("fault"), event.get("key", place), event.get("kind")
        same = (index, *map(str, identity))
        if same in out:
            first = out[same][3]
            out[same] = (*out[same][:3], {**first, "who": _joined(first, event)})
        else:
            out[same] = at, index, name, event
    return list(out.values())


def _joined(*events: dict[str, Any]) -> str:
    """Return `rank 0, 1` for `rank 0` and `rank 1`."""
    words = [str(event.get("who")).removeprefix("rank ") for event in events]
    ranks = sorted({word for text in words for word in text.split(", ")}, key=_in_order)
    return f"rank {', '.join(ranks)}"


def _in_order(word: str) -> tuple[int, str]:
    return (int(word), "") if word.isdecimal() else (0, word)


def _attempt(attempts: Sequence[AttemptRecord], launch: str, at: int) -> int:
    """Return the index of the attempt of a launch that was active at an instant."""
    own = [index for index, attempt in enumerate(attempts) if attempt.launch.name == launch]
    started = [index for index in own if attempts[index].begin <= at]
    return started[-1] if started else own[0]


def _caused_failure(events: Sequence[_FaultEvent], failures: Sequence[Failure]) -> dict[int, int]:
    """Map faults to the failure that they caused.

    This is the last fault before the failure in its attempt, and those of the same plan line.
    """
    failure_of: dict[int, int] = {}
    for number, failure in enumerate(failures):
        before = [
            place
            for place, (at, index, _, _) in enumerate(events)
            if index == failure.attempt and at <= failure.at
        ]
        if not before:
            continue
        last = max(
            before, key=lambda place: (not _is_non_fatal(events[place][3]), events[place][0])
        )
        line = events[last][3].get("fault")
        for place in before:
            if events[place][3].get("fault") == line:
                failure_of[place] = number
    return failure_of


def _is_non_fatal(event: dict[str, Any]) -> bool:
    """Whether a fault delays a job and seldom ends it."""
    return event.get("kind") in NON_FATAL or event.get("mode") == "slow" or "missed" in event


def _fault(
    at: int, index: int, event: dict[str, Any], failure: int | None, failures: Sequence[Failure]
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
        failure=failure,
        detected=None if failure is None else failures[failure].category,
        detected_after=None if failure is None else failures[failure].at - at,
    )
