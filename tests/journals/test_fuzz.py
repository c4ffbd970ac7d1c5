"""Journals of supervised runs, damaged: see fuzz.py, which tries 20,000 variants by itself."""

from __future__ import annotations

import pytest

from tests.journals import fuzz

AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, 6 * AT_ONCE, AT_ONCE))
def test_a_damaged_run_has_a_ledger_or_one_sentence(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        fuzz.check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100_000, 120_000, 2000))
def test_many_damaged_runs_have_a_ledger_or_one_sentence(first: int) -> None:
    for seed in range(first, first + 2000):
        fuzz.check(seed)


@pytest.mark.parametrize("name", fuzz.RUNS)
def test_a_run_that_is_not_damaged_balances(name: str) -> None:
    ledger = fuzz.load(name, dict(fuzz.recorded(name)))
    assert ledger.wall == sum(ledger.buckets.values()) > 0


# What the first 20,000 variants found.
@pytest.mark.parametrize(
    "line",
    [
        '{"ev":"checkpoint","t":5,"step":1,"level":"disk","blocked_s":1' + "0" * 400 + "}",
        '{"ev":"behind","t":5,"path":"a","bytes":1,"blocked":1' + "0" * 400 + "}",
        '{"ev":"behind","t":5,"path":"a","bytes":1,"blocked":1' + "0" * 5000 + "}",
        '{"ev":"fault","t":5,"fault":[],"key":{},"kind":[],"who":"rank 0"}',
        '{"ev":"verdict","t":5,"category":[],"owner":{},"rank":null}',
        '{"ev":"signal","t":5,"signal":[]}',
        '{"ev":"signal","t":5,"signal":{}}',
    ],
)
@pytest.mark.parametrize("ending", ["launcher-", "node-0-"])
def test_a_line_of_wrong_values_is_survived(line: str, ending: str) -> None:
    for name in ("warm_restart", "swap"):
        files = dict(fuzz.recorded(name))
        for file in files:
            if file.startswith(ending) and file.endswith(".jsonl"):
                files[file] += line.encode() + b"\n"
                files[file] = files[file].replace(b'"pids":', b'"pids":[],"was":')
        ledger = fuzz.load(name, files)
        assert ledger.wall == sum(ledger.buckets.values())
        ledger.to_dict()
