"""The report in words."""

from __future__ import annotations

import re

from headway.compile.autotune.advice import KernelAdvice, advise
from headway.compile.autotune.show import report_lines
from tests.support import Golden
from tests.unit.compile.autotune.journals import kernel


def page(*advised: KernelAdvice, everything: bool = False) -> str:
    setup = advised[0].kernel.setup
    return "\n".join(report_lines(setup, list(advised), everything=everything)) + "\n"


def test_cost_winner_and_distances(golden: Golden) -> None:
    made = kernel({(1000, "torch.float32"): [1.0, 1.01, None], (5000,): [2.0, 1.0, 1.5]}, cost=0.05)
    golden("kernel.txt", page(advise(made, 0.02)))


def test_many_kernels_keys_and_configs_are_cut_and_all_are_there_on_demand(
    golden: Golden,
) -> None:
    times = {(n,): [1.0 + config for config in range(30)] for n in range(30)}
    advised = [advise(kernel(times), 0.02) for _ in range(7)]
    golden("many_kernels.txt", page(*advised))
    full = page(*advised, everything=True)
    assert {int(n) for n in re.findall(r"\bn=(\d+)", full)} == set(range(30))
    assert {int(n) for n in re.findall(r"\bBLOCK=(\d+)", full)} == {64 << n for n in range(30)}


def test_nothing_to_prune(golden: Golden) -> None:
    golden("nothing_to_prune.txt", page(advise(kernel({(1,): [None, None]}), 0.02)))
