"""The GPU name, with and without CUDA."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headway.probe import host_facts as module
from headway.probe.host_facts import current_gpu, tuning_facts


class Nvml:
    """A fake libnvidia-ml with the functions that are called."""

    def __init__(self, names: list[str], broken: bool = False) -> None:
        self.names, self.broken, self.open = names, broken, 0

    def nvmlInit_v2(self) -> int:
        self.open += not self.broken
        return 9 if self.broken else 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.65.06"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: int) -> int:
        text.value = self.names[handle.value - 1].encode()
        return 0


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    caches = (module._query_nvml, module._device_name)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def with_gpus(monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    for name in ("torch.cuda", "torch.xpu"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_all_gpus_of_one_kind_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(["NVIDIA H200"] * 8)
    with_gpus(monkeypatch, nvml)
    assert (current_gpu(), tuning_facts()["driver"], nvml.open) == ("NVIDIA H200", "580.65.06", 0)


def test_gpus_of_two_kinds_have_none_until_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, Nvml(["NVIDIA H200", "NVIDIA T4"]))
    assert current_gpu() is None and tuning_facts()["gpu"].startswith("cpu")
    used = SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 1, get_device_name=lambda n: "T4"
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", used)
    assert current_gpu() == "T4"


@pytest.mark.parametrize("broken", [True, False])
def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    with_gpus(monkeypatch, Nvml([], broken=broken))
    assert current_gpu() is None
