"""A step compiled ahead in a real job, and the ledger of the first real batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.ledger.build import build_ledger
from tests.support import Probed

pytestmark = pytest.mark.timeout(200)

JOB = Path(__file__).parents[1] / "e2e" / "jobs" / "ahead.py"
# One process for each case, forked from one that has imported everything.
CASES = f"""
import os, runpy, sys, torch, torch._dynamo
for words, env in (
    (["16", "24", "24", "40"], {{}}),  # the first real batch has another size
    (["16", "16", "24"], {{}}),  # it has the same, and the second has not
    (["16", "24", "40"], {{"MARKED": "1"}}),  # the size is marked as dynamic, as is advised
):
    pid = os.fork()
    if pid == 0:
        os.environ.update(env)
        sys.argv[1:] = words
        runpy.run_path({str(JOB)!r}, run_name="__main__")
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_the_first_real_batch_hits_or_is_told(forked: Probed) -> None:
    trained = [one for one in forked(CASES) if one.windows]
    ledgers = [build_ledger([one]) for one in sorted(trained, key=lambda one: one.begin)]
    assert [ledger.steps for ledger in ledgers] == [3, 2, 2]
    again = [[one.missed_precompile for one in run.compiles if one.recompile] for run in ledgers]
    assert again == [[True], [False], []]
    assert all(len(ledger.stages) == 1 for ledger in ledgers)
