"""Tuning events have a limited size and number."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from headway.probe.autotune import record
from headway.probe.autotune.record import KernelInfo, Timing, Tunings

KERNEL = KernelInfo("triton", "k1", "scale", "job.py:20", ("n",))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events that are written."""
    written: list[dict[str, Any]] = []
    fake = SimpleNamespace(
        pid=1, start=lambda: None, emit=lambda ev, **fields: written.append({"ev": ev, **fields})
    )
    monkeypatch.setattr(record, "recorder", fake)
    monkeypatch.setattr(record, "tuning_facts", lambda: {"gpu": "NVIDIA H200"})
    return written


def tune(tunings: Tunings, key: int, times: list[Any], kernel: KernelInfo = KERNEL) -> None:
    timings = [Timing({"BLOCK": number}, ms, 0.1) for number, ms in enumerate(times)]
    tunings.record(kernel, [key], "", timings, seconds=0.5, offered=len(times))


def test_a_kernel_is_told_once_and_its_configs_by_number(lines: list[dict[str, Any]]) -> None:
    tunings = Tunings()
    tune(tunings, 1, [1.0, 2.0])
    tune(tunings, 2, [1.0, 2.0])
    tune(tunings, 3, [1.0, 2.0, 3.0])
    assert [line["ev"] for line in lines] == [
        "autotune_kernel",
        "autotune",
        "autotune",
        "autotune_kernel",
        "autotune",
    ]
    assert (lines[3]["first"], lines[3]["configs"]) == (2, [{"BLOCK": 2}])
    assert lines[4]["c"] == [0, 1, 2]


def test_what_failed_has_no_time(lines: list[dict[str, Any]]) -> None:
    tune(Tunings(), 1, [math.inf, math.nan, None, "fast", 1.23456789])
    assert lines[1]["ms"] == [None, None, None, None, 1.23457]


def test_keys_over_the_limit_are_summed_up(lines: list[dict[str, Any]]) -> None:
    tunings = Tunings()
    for key in range(record.MAX_KEYS + record.MAX_SUMMED + 3):
        tune(tunings, key, [1.0])
    assert len(lines) == 1 + record.MAX_KEYS + 1
    assert (lines[-1]["more"], lines[-1]["seconds"]) == (record.MAX_SUMMED, 0.5 * record.MAX_SUMMED)
    tunings.finish()
    tunings.finish()
    assert lines[-1]["more"] == 3 and len(lines) == 1 + record.MAX_KEYS + 2


def test_kernels_and_timings_over_the_limits(
    lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MAX_KERNELS", 2)
    monkeypatch.setattr(record, "MAX_TIMINGS", 5)
    tunings = Tunings()
    for number in range(4):
        tune(tunings, 1, [1.0, 1.0], KernelInfo("triton", f"k{number}", "scale"))
    tune(tunings, 2, [1.0, 1.0], KernelInfo("triton", "k0", "scale"))
    tunings.finish()
    assert [line["kernel"] for line in lines] == ["k0", "k0", "k1", "k1", "k0"]
    assert lines[-1]["more"] == 1


def test_a_kernel_with_too_many_configs_tells_only_its_time(
    lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MAX_CONFIGS", 3)
    tunings = Tunings()
    tune(tunings, 1, [1.0, 2.0])
    tune(tunings, 2, [1.0, 2.0, 3.0, 4.0])
    tune(tunings, 3, [1.0, 2.0])
    tunings.finish()
    assert [(line["ev"], line.get("more")) for line in lines] == [
        ("autotune_kernel", None),
        ("autotune", None),
        ("autotune", 2),
    ]


def test_a_forked_process_has_a_journal_of_its_own(lines: list[dict[str, Any]]) -> None:
    tunings = Tunings()
    tune(tunings, 1, [1.0])
    record.recorder.pid = 2
    tune(tunings, 2, [1.0])
    assert [line["ev"] for line in lines] == ["autotune_kernel", "autotune"] * 2
