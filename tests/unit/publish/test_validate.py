"""Every limit of a recipe, on its own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headway.errors import Reason
from headway.publish import validate
from headway.publish.recipe import Limits
from headway.publish.validate import CheckResult
from tests.support import Golden

WRONG = {
    "target-does-not-serve": CheckResult(error="it is gone"),
    "target-not-finite": CheckResult(finite=False),
    "target-differs": CheckResult(difference=0.02),
}
FAST, SLOW = CheckResult(latency_ms=2), CheckResult(latency_ms=6)


def codes(reasons: Iterable[Reason]) -> list[str]:
    return [reason.code for reason in reasons]


def test_a_target_that_is_right() -> None:
    assert list(validate.target_reasons("aoti", CheckResult(difference=1e-4), 1e-3)) == []


@pytest.mark.parametrize("code", WRONG)
def test_a_target_that_is_wrong(code: str) -> None:
    assert codes(validate.target_reasons("aoti", WRONG[code], 1e-3)) == [code]


def test_a_target_that_the_machine_had_no_room_for() -> None:
    answer = CheckResult(error="it was ended by SIGKILL", transient=True)
    assert codes(validate.target_reasons("aoti", answer, 1e-3)) == ["target-not-examined"]
    growth = Limits(latency_growth=2)
    assert codes(validate.latency_reasons(growth, {"a": FAST}, {"a": answer})) == [
        "target-not-examined"
    ]
    assert list(validate.latency_reasons(Limits(), {"a": FAST}, {"a": answer})) == []


def test_a_target_that_is_infinitely_wrong() -> None:
    answer = CheckResult(difference=float("inf"))
    assert codes(validate.target_reasons("aoti", answer, 1e-3)) == ["target-differs"]


def test_sizes() -> None:
    limits = Limits(size_mb=2, size_growth=1.5)
    assert list(validate.size_reasons(limits, 2_000_000, 1_500_000)) == []
    assert codes(validate.size_reasons(limits, 2_100_000, None)) == ["snapshot-too-large"]
    assert codes(validate.size_reasons(limits, 1_600_000, 1_000_000)) == ["snapshot-has-grown"]
    assert list(validate.size_reasons(Limits(), 10**12, 1)) == []


def test_latencies() -> None:
    limits = Limits(latency_ms=5, latency_growth=2)
    assert list(validate.latency_reasons(limits, {"a": FAST}, {"a": FAST})) == []
    both = ["target-too-slow", "target-has-slowed"]
    assert codes(validate.latency_reasons(limits, {"a": SLOW}, {"a": FAST})) == both
    gone = {"a": CheckResult(error="it is gone")}
    assert (
        list(validate.latency_reasons(Limits(latency_growth=2), {"a": SLOW, "b": SLOW}, gone)) == []
    )


def test_the_reasons_in_words(golden: Golden) -> None:
    limits = Limits(size_mb=2, size_growth=1.5, latency_ms=5, latency_growth=2)
    reasons = [
        reason
        for answer in WRONG.values()
        for reason in validate.target_reasons("aoti", answer, 1e-3)
    ]
    reasons += validate.size_reasons(limits, 2_100_000, 1_000_000)
    reasons += validate.latency_reasons(limits, {"aoti": SLOW}, {"aoti": FAST})
    golden("gates.txt", "".join(f"{reason}\n" for reason in reasons))
