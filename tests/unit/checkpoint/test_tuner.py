"""The tuner, fed with saves and failures as a run would."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.checkpoint.interval import FailureRate, wasted, young
from headway.checkpoint.tuner import SaveCost, Tuner
from headway.errors import UsageError
from tests.support import Golden, examples, has_code

PAGE = Path(__file__).parents[3] / "docs" / "checkpoint.md"
DAY = 86_400.0
THREE_A_DAY = FailureRate(300, 2400)  # well known


def fed(tuner: Tuner, save: SaveCost, times: int) -> Tuner:
    for _ in range(times):
        tuner.saved(save)
    return tuner


def test_it_comes_to_the_optimum_and_stays() -> None:
    tuner = fed(Tuner(first=60, prior=THREE_A_DAY), SaveCost(blocked_s=10, slowdown_s=5), 10)
    advice = tuner.advice()
    assert advice.interval_s == advice.target_s == pytest.approx(young(15, DAY / 3))
    assert advice.bound == "law" and advice.cost_s == 15
    assert advice.wasted_percent == pytest.approx(3.227, abs=5e-4)
    assert advice.failures_low < advice.failures_per_hour == 0.125 < advice.failures_high


def test_the_page_shows_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    live = PAGE.read_text().partition("### Tuned live")[2]
    code, shown = re.findall(r"```\w+\n(.*?)```", live, re.S)[:2]
    exec(code, {})
    assert capsys.readouterr().out == shown


def test_one_save_moves_it_by_the_factor_at_most() -> None:
    tuner = Tuner(first=60, prior=THREE_A_DAY)
    seen = []
    for _ in range(5):
        tuner.saved(SaveCost(blocked_s=15))
        seen.append((tuner.advice().interval_s, tuner.advice().bound))
    assert seen[:3] == [(120, "factor"), (240, "factor"), (480, "factor")]
    assert seen[3:] == [(pytest.approx(929.5, abs=0.05), "law")] * 2


def test_asking_moves_nothing() -> None:
    tuner = fed(Tuner(first=60, prior=THREE_A_DAY), SaveCost(blocked_s=15), 1)
    assert len({tuner.advice().interval_s for _ in range(5)}) == 1


def test_the_first_interval_holds_until_something_is_known() -> None:
    tuner = Tuner(first=600)
    assert (tuner.advice().bound, tuner.advice().wasted_percent) == ("first", None)
    tuner.saved(SaveCost(blocked_s=1))  # but no uptime, and no prior
    advice = tuner.advice()
    assert (advice.interval_s, advice.bound, advice.failures_per_hour) == (600, "first", math.inf)
    tuner.observed(failures=0, uptime_s=3600)
    tuner.saved(SaveCost(blocked_s=1))
    assert tuner.advice().bound == "factor"
    assert tuner.advice().target_s == pytest.approx(young(1, 7200))  # half a failure in an hour


def test_what_this_run_shows_outweighs_the_prior() -> None:
    tuner = Tuner(first=600, prior=FailureRate(1, 240))
    calm = fed(tuner, SaveCost(blocked_s=2), 12).advice()
    tuner.observed(failures=24, uptime_s=DAY)
    rough = fed(tuner, SaveCost(blocked_s=2), 12).advice()
    assert rough.failures_per_hour == pytest.approx(25 / 264)
    assert rough.interval_s == pytest.approx(calm.interval_s * math.sqrt((1 / 240) / (25 / 264)))
    tuner.observed(failures=24, uptime_s=DAY)  # totals, so saying it twice changes nothing
    assert fed(tuner, SaveCost(blocked_s=2), 1).advice() == rough


BOUNDS: list[tuple[dict[str, float], SaveCost, float, str]] = [
    ({}, SaveCost(blocked_s=0.1, durable_s=400), 400, "durable"),
    ({"bandwidth": 1e8}, SaveCost(blocked_s=0.1, size=20_000_000_000), 200, "bandwidth"),
    ({"shortest": 100}, SaveCost(blocked_s=0.01), 100, "shortest"),
    ({"longest": 120}, SaveCost(blocked_s=100), 120, "longest"),
    # A save that is not durable in time cannot be made more often.
    ({"longest": 120}, SaveCost(blocked_s=1, durable_s=500), 500, "durable"),
]


@pytest.mark.parametrize(("limits", "save", "interval", "bound"), BOUNDS)
def test_bounds(limits: dict[str, float], save: SaveCost, interval: float, bound: str) -> None:
    tuner = Tuner(first=110, prior=THREE_A_DAY, **limits)
    advice = fed(tuner, save, 12).advice()
    assert (advice.interval_s, advice.bound) == (interval, bound)


def test_reasons(golden: Golden) -> None:
    moving = fed(Tuner(first=60, prior=THREE_A_DAY), SaveCost(blocked_s=15), 1)
    suggestions = [Tuner(first=600).advice(), moving.advice()]
    for limits, save, _, _ in [({}, SaveCost(blocked_s=10, slowdown_s=5), 0, ""), *BOUNDS]:
        tuner = Tuner(first=110, prior=THREE_A_DAY, **limits)
        suggestions.append(fed(tuner, save, 12).advice())
    assert {advice.bound for advice in suggestions} == {
        *("first", "factor", "law", "durable", "bandwidth", "shortest", "longest")
    }
    golden("reasons.txt", "".join(f"{advice.bound}: {advice.reason}\n" for advice in suggestions))


def test_a_slow_store_is_heeded_at_once() -> None:
    tuner = fed(Tuner(first=10, prior=THREE_A_DAY), SaveCost(blocked_s=0.001, durable_s=2), 5)
    tuner.saved(SaveCost(blocked_s=0.001, durable_s=300))
    assert (tuner.advice().interval_s, tuner.advice().bound) == (300, "durable")


def test_an_odd_save_is_forgotten() -> None:
    tuner = Tuner(first=60, prior=THREE_A_DAY, recent=4)
    tuner.saved(SaveCost(blocked_s=60))  # the first one, on cold memory
    advice = fed(tuner, SaveCost(blocked_s=1), 12).advice()
    assert advice.cost_s == 1 and advice.saves == 4
    assert advice.interval_s == pytest.approx(young(1, DAY / 3))


def test_each_level_has_its_own() -> None:
    memory, disk = (Tuner(first=60) for _ in range(2))
    memory.observed(failures=9, uptime_s=DAY)  # of the process
    disk.observed(failures=1, uptime_s=DAY)  # of the machine
    fast = fed(memory, SaveCost(blocked_s=0.03, durable_s=0.3), 12).advice()
    slow = fed(disk, SaveCost(blocked_s=0.03, slowdown_s=0.4, durable_s=20), 12).advice()
    assert fast.interval_s < slow.interval_s


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, check=has_code("first-interval-out-of-range")):
        Tuner(first=10, shortest=20)
    with pytest.raises(UsageError, check=has_code("tuner-limits-invalid")):
        Tuner(first=10, factor=1)
    with pytest.raises(UsageError, check=has_code("save-cost-invalid")) as raised:
        SaveCost(blocked_s=1, durable_s=-1)
    assert raised.value.fields["name"] == "durable_s"
    with pytest.raises(UsageError, check=has_code("failures-invalid")):
        Tuner(first=10).observed(failures=0, uptime_s=-1)


@settings(derandomize=True, deadline=None, max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 500), st.integers(0, 10**12)),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 20),
    st.floats(1, 1e6),
)
def test_never_below_what_a_save_takes_nor_a_jump(
    saves: list[tuple[float, float, float, int]], failures: int, uptime: float
) -> None:
    tuner = Tuner(first=300, bandwidth=1e9, shortest=5, longest=7200, factor=1.5)
    tuner.observed(failures=failures, uptime_s=uptime)
    before = 300.0
    for blocked, slowdown, durable, size in saves:
        tuner.saved(SaveCost(blocked_s=blocked, slowdown_s=slowdown, durable_s=durable, size=size))
        advice = tuner.advice()
        floor = max(5, durable, size / 1e9)
        assert advice.interval_s >= floor
        assert before / 1.5001 <= advice.interval_s
        if advice.bound in ("law", "longest", "factor"):
            assert advice.interval_s <= before * 1.5001 and advice.interval_s <= 7200
        before = advice.interval_s


def test_a_simulated_run_loses_what_was_expected() -> None:
    """Failures drawn at random over many days, with the interval that the tuner gives."""
    draw, cost, durable, mtbf = random.Random(7), 3.0, 20.0, 4 * 3600.0
    tuner = fed(Tuner(first=60, prior=FailureRate(1, 4)), SaveCost(blocked_s=3, durable_s=20), 12)
    now = lost = 0.0
    for failure in range(1500):
        advice = tuner.advice()
        life, period = draw.expovariate(1 / mtbf), advice.interval_s
        saves = int(life // period)
        kept = max(0, int((life - durable) // period)) * period
        lost += saves * cost + life - kept
        now += life
        tuner.observed(failures=failure + 1, uptime_s=now)
        tuner.saved(SaveCost(blocked_s=cost, durable_s=durable))
    expected = wasted(young(cost, mtbf), cost=cost, mtbf=mtbf, durable=durable)
    assert tuner.advice().failures_low <= 0.25 <= tuner.advice().failures_high
    assert lost / now == pytest.approx(expected, rel=0.05)
    assert tuner.advice().wasted_percent == pytest.approx(100 * expected, rel=0.05)
