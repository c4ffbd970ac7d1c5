"""Reads of the environment, and counting devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.launch.warm.preload import DeviceCountStub, EnvironmentReads


def test_reads_of_the_environment() -> None:
    with EnvironmentReads() as reads:
        os.environ.get("ONE")
        os.getenv("TWO")
        "THREE" in os.environ  # noqa: B015
        os.environ.setdefault("PATH", "")
    assert reads.names == {"ONE", "TWO", "THREE", "PATH"} and not reads.all_by
    os.environ.get("AFTER")
    assert "AFTER" not in reads.names


@pytest.mark.parametrize(
    "how", [dict, list, lambda e: e.copy(), lambda e: [v for _, v in e.items()]]
)
def test_going_through_the_whole_environment(how: object) -> None:
    with EnvironmentReads() as reads:
        how(os.environ)  # type: ignore[operator]
        os.environ.get("AFTERWARDS")
    assert reads.all_by == {"tests"} and reads.names == {"AFTERWARDS"}


def test_what_the_probe_reads_is_not_the_package_s() -> None:
    own = {"__name__": "headway.probe.import_log", "environ": os.environ}
    with EnvironmentReads() as reads:
        exec("list(environ)", own)
    assert not reads.all_by


@pytest.mark.parametrize(
    ("shown", "count"), [(None, 2), ("0", 1), ("", 0), ("-1", 0), ("0,1,2", 2), ("GPU-ab", 1)]
)
def test_devices_are_counted_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip=None), cuda=1)
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(_device_count_nvml=lambda: -1))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    unasked, cuda = DeviceCountStub((str(tmp_path),)), sys.modules["torch.cuda"]
    unasked.begin()
    assert cuda._device_count_nvml() == count
    unasked.end()
    assert cuda._device_count_nvml() == -1
