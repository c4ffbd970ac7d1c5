"""Decisions after a failure."""

from __future__ import annotations

import pytest

from headway.launch.policy import (
    MAX_IDLE_RETRIES,
    MAX_IDLE_RETRIES_EXTERNAL,
    AttemptSummary,
    decide,
)
from tests.support import Golden


def past(category: str = "unknown", retry: str = "bounded", **more: object) -> AttemptSummary:
    return AttemptSummary(category=category, retry=retry, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("retry", "action"),
    [
        ("yes", "restart"),
        ("bounded", "restart"),
        ("no", "stop"),
        ("resume", "stop"),
        ("swap", "swap"),
    ],
)
def test_the_cause_decides(retry: str, action: str) -> None:
    assert decide([past(retry=retry)], 3).action == action


def test_restarts_are_counted() -> None:
    history = [past(retry="yes", progressed=True, step=n) for n in range(3)]
    assert decide(history, 3).action == "restart"
    assert decide([*history, past(retry="yes", progressed=True)], 3).action == "stop"
    assert decide(history[:1], 0).action == "stop"


@pytest.mark.parametrize(
    ("retry", "most"), [("bounded", MAX_IDLE_RETRIES), ("yes", MAX_IDLE_RETRIES_EXTERNAL)]
)
def test_a_crash_loop_stops(retry: str, most: int) -> None:
    history = [past(retry=retry, step=n, fingerprint=str(n)) for n in range(most)]
    assert decide(history[:-1], 100).action == "restart"
    assert decide(history, 100).action == "stop"


def test_a_durable_step_ends_a_crash_loop() -> None:
    idle = [past(step=n, fingerprint=str(n)) for n in range(MAX_IDLE_RETRIES - 1)]
    added = past(step=50, progressed=True, fingerprint="x")
    assert decide([*idle, added], 100).action == "restart"
    later = [past(step=n, fingerprint="later") for n in range(60, 59 + MAX_IDLE_RETRIES)]
    assert decide([*idle, added, *later], 100).action == "restart"


def test_the_same_failure_at_the_same_step_is_data_or_code() -> None:
    first = past(fingerprint="f", step=70, progressed=True)
    again = past(fingerprint="f", step=70, progressed=True)
    assert decide([first, again], 9).action == "stop"
    assert decide([first, past(fingerprint="f", step=71, progressed=True)], 9).action == "restart"
    assert decide([first, past(fingerprint="g", step=70, progressed=True)], 9).action == "restart"
    # A temporary cause may occur at any step.
    gone = [past("network", "yes", fingerprint="f", step=70, progressed=True)] * 2
    assert decide(gone, 9).action == "restart"


def test_the_same_node_again_is_a_lemon() -> None:
    history = [
        past("cuda_fault", fingerprint="f", node="n7", step=step, progressed=True)
        for step in (10, 90)
    ]
    assert decide(history, 9, nodes=4).action == "swap"
    assert decide(history, 9, nodes=1).action == "restart"  # there is no other


def test_only_some_causes_wait_and_longer_each_time() -> None:
    waits = [decide([past("network", "yes")] * n, 99, seed=1).wait_s for n in range(1, 9)]
    assert waits[0] == 0
    assert all(0.5 * 2 ** (n - 2) <= waits[n - 1] <= 1.5 * 2 ** (n - 2) for n in range(2, 9))
    assert decide([past("preemption", "yes")] * 3, 99).wait_s == 0
    assert decide([past("network", "yes")] * 2, 99, seed=1) != decide(
        [past("network", "yes")] * 2, 99, seed=2
    )


def test_reasons(golden: Golden) -> None:
    again = past(fingerprint="f", step=70, progressed=True)
    lemon = past("cuda_fault", fingerprint="f", node="n7", step=10, progressed=True)
    cases = {
        "no retry": decide([past("user_code", "no")], 3),
        "resume": decide([past("time_limit", "resume")], 3),
        "swap": decide([past("node_failure", "swap", node="n7")], 3),
        "swap without a name": decide([past("node_failure", "swap")], 3),
        "the same node": decide([lemon, lemon], 9, nodes=4),
        "the same step": decide([again, again], 9),
        "crash loop": decide(
            [past(step=n, fingerprint=str(n)) for n in range(MAX_IDLE_RETRIES)], 100
        ),
        "restarts used": decide([past(retry="yes", progressed=True)] * 4, 3),
        "restart": decide([past(retry="yes", progressed=True)] * 3, 3),
    }
    golden("decisions.txt", "".join(f"{k}: {d.action}, {d.why}\n" for k, d in cases.items()))
