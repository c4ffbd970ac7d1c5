from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from headway.compile.recompiles import render
from headway.compile.recompiles.advice import Advice, advise
from headway.compile.recompiles.record import collect
from headway.compile.recompiles.sources import DYNAMIC
from headway.compile.recompiles.verify import Trial, best_trial
from headway.testing import FakeRun
from tests.support import Golden


def advice_of(recompiles: int, *, storm: bool = False) -> Advice:
    job = FakeRun()
    rank = job.process(0, torch="2.13.0+cpu")
    fields = {
        "trigger": "DYNAMO",
        "where": "/job/model.py:10 forward",
        "caller": "/job/train.py:3 m",
    }
    rank.span("compile", 1, 2, **fields)
    for number in range(recompiles):
        reason = f"0/{number}: tensor 'f{number}' size mismatch at index 0. expected 4, actual 5"
        rank.span("compile", 2 + number, 3 + number, reason=reason, **fields)
    if storm:
        reason = "0/7: len(xs) == 8"
        rank.event("recompile_limit", 30, reason=reason, step=9, **fields, limit="recompile_limit")
    return advise(collect(writer.journal() for writer in job.journals))


def text(advice: Advice, run: str = "headway/a b") -> str:
    return "".join(f"{line.plain}\n" for line in render.page(advice, run))


def test_the_page_says_what_why_and_what_to_set(golden: Golden) -> None:
    page = text(advice_of(2, storm=True))
    golden("page.txt", page)
    assert f"export {DYNAMIC}=\"L['f0']:0,L['f1']:0\"" in page


def test_nothing_to_say(golden: Golden) -> None:
    golden("nothing.txt", text(advice_of(0)))


def test_many_causes_are_cut(golden: Golden) -> None:
    page = text(advice_of(40))
    golden("many_causes.txt", page)
    assert len(page.splitlines()) < 60


@pytest.mark.parametrize(
    "entry",
    [
        "L['x']:0",
        r"L\['f\d+'\]\Z:0",
        "L['$HOME']",
        'L["it\'s"]',
        "L['`x`']",
        r"L\\['a']",
        "L['!x']",
    ],
)
def test_a_shell_reads_it_back(entry: str) -> None:
    quoted = render.shell_quoted(entry)
    done = subprocess.run(
        ["sh", "-c", f'X={quoted}; printf %s "$X"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == entry
    assert shlex.split(quoted) == [entry]


def trial(name: str, recompiles: int, code: int = 0) -> Trial:
    return Trial(name, {DYNAMIC: "L['x']:0"}, code, advice_of(recompiles), "boom" * bool(code))


def table(recorded: Advice, *trials: Trial) -> str:
    return "".join(f"{line.plain}\n" for line in render.trials_table(recorded, list(trials), 6))


def test_trials_side_by_side(golden: Golden) -> None:
    page = table(advice_of(3), trial("unchanged", 3), trial("with the settings", 0))
    golden("trials.txt", page)
    assert f"export {DYNAMIC}=\"L['x']:0\"" in page


def test_a_trial_that_fails_shows_how(golden: Golden) -> None:
    trials = [trial("unchanged", 3), trial("with the settings", 0, code=1), trial("without", 2)]
    golden("trial_failed.txt", table(advice_of(3), *trials))
    assert best_trial(trials) is trials[2]


def test_settings_that_do_not_help(golden: Golden) -> None:
    trials = [trial("unchanged", 3), trial("with the settings", 3)]
    assert best_trial(trials) is trials[0]
    tables = {
        "settings that change nothing": table(advice_of(3), *trials),
        "no settings": table(advice_of(0), trial("unchanged", 1)),
        "a job that fails anyway": table(advice_of(3), trial("unchanged", 1, code=3)),
    }
    golden(
        "trials_without_gain.txt", "\n".join(f"# {name}\n{page}" for name, page in tables.items())
    )


def test_torch_is_not_needed() -> None:
    names = ("render", "learning", "verify")
    modules = ", ".join(f"headway.compile.recompiles.{name}" for name in names)
    script = f"import sys; sys.path[:0] = {sys.path!r}; import {modules}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-I", "-c", script], text=True, timeout=60)
    assert "torch" not in loaded.split()
