"""What becomes of saves, and who hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from headway.checkpoint import schedule
from headway.checkpoint.schedule import SaveOutcomes, SaveSchedule

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was told to it."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(schedule, "note_save", lambda **told: found.append(told))
    return found


def outcomes(rank: int = 0) -> tuple[SaveSchedule, SaveOutcomes]:
    pacing = SaveSchedule({"memory": 3.0, "disk": 60.0}, lambda mine: mine)
    return pacing, SaveOutcomes(pacing, rank)


def test_a_save_is_durable_after_its_copy_and_its_write(journal: list[dict[str, Any]]) -> None:
    pacing, found = outcomes()
    pacing.save_started(7, "disk", 0.25)
    found.capture_ended(7, "disk", 0.5, good=True)
    assert found.collect([]) == []
    assert found.collect([{"step": 7, "seconds": 2.0, "bytes": 100}]) == []
    assert found.durable_s == 2.5 and not found.needs_full
    (told,) = journal
    assert told["level"] == "disk" and told["interval_s"] == 60.0
    assert (told["blocked_s"], told["durable_s"], told["bytes"]) == (0.25, 2.5, 100)


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_a_snapshot_ends_with_its_copy(
    rank: int, lines: int, journal: list[dict[str, Any]]
) -> None:
    pacing, found = outcomes(rank)
    pacing.save_started(7, "memory", 0.25)
    found.capture_ended(7, "memory", 0.5, good=True)
    assert found.collect([]) == [] and len(journal) == lines
    assert pacing.save_ended({"step": 7, "level": "memory", "seconds": 0.5}) is None  # it has heard
    assert found.durable_s == 0.0


def test_errors_are_given_back_and_break_what_deltas_build_on(
    journal: list[dict[str, Any]],
) -> None:
    pacing, found = outcomes()
    pacing.save_started(7, "memory", 0.0)
    found.capture_ended(7, "memory", 0.5, good=False)
    (error,) = found.collect([])
    assert (error.code, error.fields) == ("image-not-whole", {"step": 7}) and not found.needs_full
    pacing.save_started(8, "disk", 0.0)
    failed = {"error": "disk full", "code": "store-failed", "fields": {"errno": 28}}
    (full,) = found.collect([{"step": 8, "seconds": 1.0, **failed}])
    assert (str(full), full.code, full.fields) == ("disk full", "store-failed", {"errno": 28})
    assert found.needs_full and found.durable_s == 0.0
    assert [told["error"] for told in journal] == [str(error), "disk full"]
