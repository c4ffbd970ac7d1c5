"""Tunings from journals, including incomplete and damaged ones."""

from __future__ import annotations

import math

from headway.compile.autotune.records import Key, collect
from headway.journal.reader import parse
from headway.testing import FakeRun
from tests.unit.compile.autotune.journals import H200, configs, kernel, tell, tell_kernel


def test_times_by_key_and_config() -> None:
    result = kernel({(1000, "torch.float32"): [1.0, 1.5, None], (5000, "torch.float32"): [3, 2, 4]})
    assert (result.name, result.names, result.setup.gpu) == ("scale", ("n",), "NVIDIA H200")
    assert [key.values for key in result.keys] == [
        [1000, "torch.float32"],
        [5000, "torch.float32"],
    ]
    first, second = result.keys.values()
    assert first.times() == {0: 1.0, 1: 1.5}
    assert second.times() == {0: 3.0, 1: 2.0, 2: 4.0}
    assert result.seconds == 1.0


def test_ranks_number_their_configs_differently() -> None:
    job = FakeRun()
    first_rank, second_rank = job.process(begin=1, rank=0), job.process(begin=1, rank=1)
    tell_kernel(first_rank, [64, 128])
    tell(first_rank, [1], [1.0, 2.0], seconds=4.0)
    tell_kernel(second_rank, [128, 64])
    tell(second_rank, [1], [2.2, 1.2], seconds=3.0)
    (result,) = collect(writer.journal() for writer in job.journals)
    assert result.configs == configs(64, 128)
    (tuned,) = result.keys.values()
    assert tuned.times() == {0: 1.1, 1: 2.1}
    assert result.seconds == 4.0  # they tune at the same time


def test_what_failed_anywhere_is_not_counted_on() -> None:
    job = FakeRun()
    for number, ms in enumerate([1.0, None, math.nan]):
        rank = job.process(begin=1, rank=number)
        tell_kernel(rank, [64, 128])
        tell(rank, [1], [ms, 2.0])
    (result,) = collect(writer.journal() for writer in job.journals)
    (tuned,) = result.keys.values()
    assert tuned.times() == {1: 2.0}


def test_configs_that_come_later_are_added() -> None:
    rank = FakeRun().process(begin=1)
    tell_kernel(rank, [64])
    tell(rank, [1], [1.0])
    tell_kernel(rank, [128], first=1)
    tell(rank, [2], [1.0, 0.5])
    (result,) = collect([rank.journal()])
    assert result.configs == configs(64, 128)
    assert result.keys[Key("[2]")].times() == {0: 1.0, 1: 0.5}


def test_a_journal_that_is_cut_in_the_middle() -> None:
    rank = FakeRun().process(begin=1)
    tell_kernel(rank, [64, 128])
    tell(rank, [1], [1.0, 2.0])
    tell(rank, [2], [1.0, 2.0])
    data = rank.data()
    for cut in range(len(data)):
        journal = parse(data[:cut], "cut")
        for result in collect([journal] if journal else []):
            assert all(len(tuned.times()) == 2 for tuned in result.keys.values())


def test_damaged_lines_are_passed_over() -> None:
    rank = FakeRun().process(begin=1)
    tell(rank, [1], [1.0])  # its kernel was never told
    tell_kernel(rank, [64, 128], first=7, kernel="k2")
    tell(rank, [1], [1.0, 2.0], kernel="k2")
    tell_kernel(rank, kind="cuda")
    tell_kernel(rank, [64, 128])
    tell(rank, [1], [1.0, 2.0], c=[0, 9])
    tell(rank, [2], [1.0, 2.0], seconds="long")
    tell(rank, [3], [1.0], c=[0, 1])
    tell(rank, [4], [1.0, -2.0])
    result = {item.id: item for item in collect([rank.journal()])}
    assert result["k2"].keys == {}
    (key,) = result["k1"].keys
    assert key == Key("[4]") and result["k1"].keys[key].times() == {0: 1.0}


def test_kernels_of_one_name_and_of_two_gpus_stay_apart() -> None:
    rank = FakeRun().process(begin=1)
    for name in ("k1", "k2"):
        tell_kernel(rank, kernel=name)
        tell(rank, [1], [1.0, 2.0, 3.0], kernel=name)
    other = FakeRun().process(begin=1)
    tell_kernel(other, setup={**H200, "gpu": "NVIDIA A100"})
    tell(other, [1], [1.0, 2.0, 3.0])
    result = collect([rank.journal(), other.journal()])
    assert sorted((item.id, item.setup.gpu) for item in result) == [
        ("k1", "NVIDIA A100"),
        ("k1", "NVIDIA H200"),
        ("k2", "NVIDIA H200"),
    ]


def test_what_was_pruned_or_over_the_limits_counts_only_its_time() -> None:
    rank = FakeRun().process(begin=1)
    tell_kernel(rank)
    tell(rank, [1], [1.0], of=3)
    tell(rank, [2], [], of=3, seconds=0.0)
    rank.event("autotune", 4, kernel="k1", kind="triton", more=100, seconds=12.5)
    (result,) = collect([rank.journal()])
    assert (result.keys, result.pruned, result.unrecorded, result.seconds) == ({}, 2, 100, 13.0)


def test_choices_that_cannot_be_told_apart_count_as_the_best_of_them() -> None:
    rank = FakeRun().process(begin=1)
    tell_kernel(rank, [64, 128])
    tell(rank, [1], [3.0, 1.0, None, 2.0], c=[0, 0, 0, 1], s=[1.0, 2.0, 3.0, 4.0])
    (result,) = collect([rank.journal()])
    (tuned,) = result.keys.values()
    assert (tuned.times(), tuned.seconds) == ({0: 1.0, 1: 2.0}, {0: [6.0], 1: [4.0]})
