"""For any proposals and any run, no time is gained twice, and only lost time is gained."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.advise import rules
from headway.advise.gather import advise
from headway.advise.model import (
    CONFIDENCES,
    AdviceReport,
    Evidence,
    OtherRun,
    Proposal,
    Saving,
    Tuning,
)
from headway.advise.replay import accelerator_ns, replay, time_in
from headway.advise.resolve import resolve
from headway.ledger.buckets import EFFECTIVE
from headway.ledger.model import Ledger
from headway.ledger.segments import length, union
from headway.units import NS
from tests.support import examples
from tests.unit.advise.random_ledgers import ledgers
from tests.unit.report.ledgers import Line, ledger_of

QUICK = settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
moments = st.integers(-5 * NS, 900 * NS)
stretches = st.lists(st.tuples(moments, moments), max_size=4).map(union)
proposals = st.builds(
    Proposal,
    title=st.just("do it"),
    savings=st.lists(
        st.builds(Saving, intervals=stretches, hidden_behind=st.none() | stretches), max_size=3
    ).map(tuple),
    confidence=st.sampled_from(CONFIDENCES),
    why=st.just(""),
)


def balances(ledger: Ledger, report: AdviceReport) -> None:
    losses = ledger.wall - ledger.buckets.get(EFFECTIVE, 0)
    assert report.lost == losses
    assert all(
        advice.marginal > 0 and advice.points >= 0 and advice.standalone >= 0
        for advice in report.advice
    )
    assert sum(advice.marginal for advice in report.advice) == report.gain <= losses
    replayed = replay(ledger, union(*(advice.intervals for advice in report.advice)))
    assert replayed.wall == report.wall == ledger.wall - report.gain
    assert replayed.buckets.get(EFFECTIVE, 0) == ledger.buckets.get(EFFECTIVE, 0)
    assert sum(replayed.buckets.values()) == replayed.wall
    assert report.ett_percent == replayed.ett_percent
    gained = sum(advice.points for advice in report.advice)
    assert gained == pytest.approx(report.ett_percent - ledger.ett_percent, abs=1e-6)
    hours = sum(advice.accelerator_ns for advice in report.advice)
    assert hours <= accelerator_ns(ledger, ((0, ledger.wall),))


@QUICK
@given(ledgers(), st.lists(st.tuples(st.sampled_from("abc"), proposals), max_size=5))
def test_any_proposals(ledger: Ledger, proposed: list[tuple[str, Proposal]]) -> None:
    balances(ledger, resolve(ledger, proposed))


@QUICK
@given(ledgers(), st.lists(ledgers(), max_size=2), st.booleans())
def test_the_rules_over_any_run(ledger: Ledger, others: list[Ledger], warm: bool) -> None:
    evidence = Evidence(
        ledger=ledger,
        others=tuple(OtherRun(ledger=other, warm=warm) for other in others),
        tuning=Tuning(kernels=2, time_s=9.0, remaining_s=1.0),
        lemons={"node-0": 0.5} if warm else {},
    )
    report = advise(evidence)
    balances(ledger, report)
    assert {advice.rule for advice in (*report.advice, *report.superseded)} <= set(rules.OWN)


def overlapping(data: float, model: float, compiled: float) -> Ledger:
    line = Line().start(
        "start", train_module_creation=model, get_first_batch_data=data, pt2_compile=compiled
    )
    return ledger_of(line.add(EFFECTIVE, 10), steps=10)


@pytest.mark.parametrize(
    ("data", "model", "compiled"), [(5, 4, 4), (3, 4, 4), (20, 4, 4), (5, 4, 0), (5, 0, 4)]
)
def test_two_overlaps_give_the_critical_path(data: float, model: float, compiled: float) -> None:
    ledger = overlapping(data, model, compiled)
    waited = time_in(ledger, ("start.get_first_batch_data",))
    built = time_in(ledger, ("start.train_module_creation",))
    compiler = time_in(ledger, ("start.pt2_compile",))
    report = resolve(
        ledger,
        [
            ("stages", _proposal(Saving(intervals=waited, hidden_behind=built))),
            ("fast", _proposal(Saving(intervals=waited, hidden_behind=compiler))),
        ],
    )
    critical = max(data, model + compiled)
    assert report.wall == (critical + 10) * NS


@pytest.mark.parametrize("surer", ["cache", "fast"])
@pytest.mark.parametrize(("data", "compiled"), [(5, 4), (2, 9), (9, 9)])
def test_time_removed_by_another_change_hides_nothing(
    surer: str, data: float, compiled: float
) -> None:
    ledger = overlapping(data, 0, compiled)
    waited = time_in(ledger, ("start.get_first_batch_data",))
    compiler = time_in(ledger, ("start.pt2_compile",))
    report = resolve(
        ledger,
        [
            ("cache", _proposal(Saving(intervals=compiler), sure=surer == "cache")),
            (
                "fast",
                _proposal(Saving(intervals=waited, hidden_behind=compiler), sure=surer == "fast"),
            ),
        ],
    )
    # Without a compile the batch is waited for as before, whoever comes first.
    assert report.gain == length(compiler)


def test_shared_time_goes_to_the_more_certain_change() -> None:
    ledger = ledger_of(Line().add("waste.data_stall", 10).add(EFFECTIVE, 10), steps=1)
    take = time_in(ledger, ("waste.data_stall",))
    half = ((0, 4 * NS),)
    report = resolve(
        ledger,
        [
            ("all", _proposal(Saving(intervals=take))),
            ("some", _proposal(Saving(intervals=half), sure=True)),
        ],
    )
    assert [
        (advice.rule, advice.marginal // NS, advice.standalone // NS) for advice in report.advice
    ] == [
        ("all", 6, 10),
        ("some", 4, 4),
    ]
    report = resolve(
        ledger,
        [
            ("all", _proposal(Saving(intervals=take), sure=True)),
            ("some", _proposal(Saving(intervals=half))),
        ],
    )
    (covered,) = report.superseded
    assert (covered.rule, covered.superseded_by, covered.standalone) == ("some", "all", 4 * NS)


def _proposal(*cuts: Saving, sure: bool = False) -> Proposal:
    return Proposal(title="", savings=cuts, confidence="high" if sure else "low", why="")
