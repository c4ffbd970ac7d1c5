from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from headway.errors import UsageError
from headway.ledger.model import Attempt, Failure, Ledger, Outcome
from headway.report.compare import compare, parse_gate
from headway.units import NS
from tests.support import has_code
from tests.unit.report.ledgers import Line, killed, ledger_of, no_steps


def made(effective: float, stall: float = 0.0, tts: float = 10.0, **others: object) -> Ledger:
    line = Line().add("start.pt2_compile", tts).add("train.effective", effective)
    if stall:
        line.add("waste.data_stall", stall)
    return ledger_of(line, steps=100, **{"time_to_start": round(tts * NS), **others})


def broken(gate: str, before: Ledger, after: Ledger) -> bool:
    return compare(before, after, [parse_gate(gate)]).failed


def test_ett_in_points() -> None:
    before, after = made(90), made(90, stall=2)  # 90 % and 88.2 %
    assert broken("ett<-1", before, after)
    assert not broken("ett<-2", before, after)
    assert not broken("ett<-1", after, before)


def test_tts_in_percent_and_in_seconds() -> None:
    before, after = made(90, tts=10), made(90, tts=11.5)
    assert broken("tts>+10%", before, after)
    assert not broken("tts>+20%", before, after)
    assert broken("tts>+1s", before, after)
    assert broken("tts>1", before, after)
    assert not broken("tts>+2s", before, after)


def test_never_started_is_the_worst_time_to_start() -> None:
    before, after = made(90), no_steps()
    assert broken("tts>+1000%", before, after)
    assert not broken("tts>+1000%", after, before)
    assert not broken("tts>+0%", after, after)


def test_ttr_is_a_mean_and_none_is_zero() -> None:
    none = made(90)
    short, long = (made(90, time_to_recover=(s * NS, (s + 2) * NS)) for s in (10, 14))
    assert broken("ttr>+3.9s", short, long)
    assert not broken("ttr>+4s", short, long)
    assert broken("ttr>+5s", none, short)
    assert not broken("ttr>+5s", short, none)


def test_a_bucket_in_percent_of_itself_and_in_points_of_the_wall_time() -> None:
    before, after = made(80, stall=10), made(79, stall=11)
    assert broken("waste.data_stall>+2%", before, after)  # 10 % more than it was
    assert not broken("waste.data_stall>+2", before, after)  # 1 point more
    assert broken("waste.data_stall>+0.5", before, after)
    assert broken("waste>+0.9s", before, after)


def test_a_bucket_from_nothing_grows_without_bound() -> None:
    result = compare(made(90), made(90, stall=1), [parse_gate("waste.data_stall>+900%")])
    assert result.failed
    assert math.isinf(result.verdicts[0].change)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["gates"] == [
        {"gate": "waste.data_stall>+900%", "change": None, "failed": True}
    ]


def test_failures_by_their_number() -> None:
    failure = Failure(
        attempt=0, at=1, category="killed", owner="infra", retry="restart", root_rank=0,
        evidence="",
    )  # fmt: skip
    calm, rough = made(90), made(90, failures=(failure,))
    assert broken("failures>0", calm, rough)
    assert not broken("failures>0", rough, rough)
    of_user = made(90, failures=(replace(failure, owner="user"),))
    assert not broken("failures>0", calm, of_user)
    assert broken("failures_user>0", calm, of_user)


def test_a_run_that_never_recovered_took_forever() -> None:
    def ended(outcome: Outcome, *, again: int | None, times: tuple[int, ...]) -> Ledger:
        first = Attempt(index=0, start=0, end=5, outcome="failed", ranks=(0,), last_step=9)
        last = Attempt(index=1, start=5, end=9, outcome=outcome, ranks=(0,), last_step=again)
        return made(90, attempts=(first, last), time_to_recover=times)

    good = ended("completed", again=20, times=(60 * NS,))
    for bad in (
        ended("failed", again=None, times=()),
        ended("completed", again=None, times=()),
        ended("failed", again=20, times=(60 * NS,)),  # and nothing after that
    ):
        assert broken("ttr>+5s", good, bad)
        assert not broken("ttr>+5s", bad, bad)
    running = ended("running", again=None, times=())
    assert not broken("ttr>+5s", good, replace(running, running=True))


@pytest.mark.parametrize("text", ["", "ett", "ett<", "<-1", "ett=-1", "ett<-1pt", "ett<-1 ett<-1"])
def test_a_gate_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, check=has_code("gate-malformed")):
        parse_gate(text)


@pytest.mark.parametrize(
    ("text", "nearest"), [("waste.datastall>1", "waste.data_stall"), ("zzz>1", None)]
)
def test_a_measure_that_is_none_and_what_was_meant(text: str, nearest: str | None) -> None:
    with pytest.raises(UsageError, check=has_code("gate-measure-unknown")) as error:
        parse_gate(text)
    assert error.value.fields["nearest"] == nearest


@pytest.mark.parametrize("text", ["ett<-1s", "failures>1s"])
def test_seconds_of_what_has_none(text: str) -> None:
    with pytest.raises(UsageError, check=has_code("gate-unit-mismatch")):
        parse_gate(text)


def test_a_run_does_not_differ_from_itself() -> None:
    result = compare(killed(), killed())
    assert all(change.difference == change.growth == 0 for change in result.changes)
