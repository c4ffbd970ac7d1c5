"""The report in words."""

from __future__ import annotations

from headway.compile.autotune.advice import advise
from headway.compile.autotune.show import lines

from .journals import kernel


def test_cost_winner_and_distances() -> None:
    made = kernel({(1000, "torch.float32"): [1.0, 1.01, None], (5000,): [2.0, 1.0, 1.5]}, cost=0.05)
    advice = advise(made, 0.02)
    assert list(lines(made.setup, [advice])) == [
        "headway: 1.00 s of autotuning, 1 kernel, 2 keys; pruned at most 0.10 s (10%), "
        "kernels at most 1.0% slower",
        "  recorded on NVIDIA H200, Triton 3.6.0, torch 2.11.0, driver 580.65",
        "",
        "  kernel  kind      keys  configs  kept  seconds     then    loss",
        "  scale   triton       2        3     1     1.00     0.10    1.0%",
        "",
        "  scale  job.py:20",
        "    n=1000 torch.float32: BLOCK=64 num_warps=4 num_stages=3 num_ctas=1 won, 1 ms; "
        "BLOCK=128 num_warps=4 num_stages=3 num_ctas=1 is taken, 1.0% slower",
        "    n=5000: BLOCK=128 num_warps=4 num_stages=3 num_ctas=1 won, 1 ms",
        "    config                                          won   median    worst",
        "    BLOCK=128 num_warps=4 num_stages=3 num_ctas=1     1     0.5%     1.0%  kept",
        "    BLOCK=64 num_warps=4 num_stages=3 num_ctas=1      1    50.0%   100.0%",
        "    BLOCK=256 num_warps=4 num_stages=3 num_ctas=1     0    50.0%   failed",
    ]


def test_many_kernels_keys_and_configs_are_cut_and_all_are_there_on_demand() -> None:
    times = {(n,): [1.0 + config for config in range(30)] for n in range(30)}
    advised = [advise(kernel(times), 0.02) for _ in range(7)]
    setup = advised[0].kernel.setup
    short = list(lines(setup, advised))
    assert "    and 22 more keys" in short and "    and 22 more configs" in short
    assert short[-1] == "  and 2 more kernels: --all shows them"
    full = list(lines(setup, advised, everything=True))
    assert len(full) > 7 * 60 and not any(" more " in line for line in full)


def test_nothing_to_prune() -> None:
    made = kernel({(1,): [None, None]})
    said = list(lines(made.setup, [advise(made, 0.02)]))
    assert said[0] == "headway: 0.50 s of autotuning, 1 kernel, 0 keys; nothing to prune"
    assert said[-1].endswith("(1 keys without a config that works)")
