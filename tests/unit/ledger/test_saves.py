"""Files that belong together, and how often to save."""

from __future__ import annotations

from typing import Any

import pytest

from headway.ledger.checkpoints import NONE_SEEN, IntervalInputs, interval_inputs
from headway.ledger.model import Checkpoint, CheckpointOutcome, Failure
from headway.ledger.resume import Save, merge_files
from headway.units import NS


def _file(start: float, end: float, *, rank: int = 0, step: int = 5, **others: Any) -> Checkpoint:
    durable = others.pop("durable", None)
    return Checkpoint(
        attempt=others.pop("attempt", 0), rank=rank, start=round(start * NS), end=round(end * NS),
        step=step, path=others.pop("path", None), **others,
        durable=None if durable is None else round(durable * NS),
    )  # fmt: skip


def _failure(retry: str) -> Failure:
    return Failure(
        attempt=0, at=0, category="x", owner="infra", retry=retry, root_rank=0, evidence=""
    )


def test_a_save_of_several_files_is_their_sum_on_the_slowest_rank() -> None:
    files = [_file(0, 1), _file(1, 3, path="b"), _file(0, 2.5, rank=1), _file(9, 10, step=6)]
    first, second = merge_files(files)
    assert first == Save(0, 5, 0, 3 * NS, None, "b")
    assert (second.step, second.at, second.blocked) == (6, 9 * NS, NS)


def test_files_of_several_threads_side_by_side_block_once() -> None:
    (save,) = merge_files([_file(0, 2), _file(1, 3)])
    assert save.blocked == 3 * NS


def test_files_of_another_attempt_are_another_save() -> None:
    assert [save.attempt for save in merge_files([_file(0, 1), _file(5, 6, attempt=1)])] == [0, 1]


def test_a_save_is_durable_when_its_last_file_is() -> None:
    (mixed,) = merge_files([_file(0, 1, durable=4), _file(1, 6)])
    assert mixed.written == 6 * NS
    (pending,) = merge_files([_file(0, 1, durable=4), _file(1, 2, not_durable=True)])
    assert pending.written is None


def test_what_a_checkpointer_tells_goes_before_what_was_seen() -> None:
    told = CheckpointOutcome(
        attempt=0, step=5, at=0, level="disk", blocked=NS, step_slowdown=NS, durable=7 * NS, size=1
    )
    seen = interval_inputs([told], [_file(0, 9)], [_failure("yes"), _failure("no")], 3600 * NS)
    assert seen == IntervalInputs(cost=2.0, durable=6.0, slowest=6.0, failures=1, hours=1.0)
    assert interval_inputs([], [], [], NS) is None and interval_inputs([told], [], [], 0) is None


def test_without_a_failure_the_rate_is_below_a_bound() -> None:
    none, some = (
        interval_inputs([], [_file(0, 2)], failures, 3600 * NS)
        for failures in ([], [_failure("swap")])
    )
    assert none is not None and some is not None
    assert none.per_hour == NONE_SEEN and some.per_hour == pytest.approx(1.5)
    assert none.best().interval == pytest.approx((2 * 2 * 3600 / 3) ** 0.5)


def test_no_interval_is_shorter_than_a_save_takes_to_be_durable() -> None:
    seen = interval_inputs([], [_file(0, 1, durable=900)], [_failure("yes")], 3600 * NS)
    assert seen is not None and seen.best().interval == 899.0
