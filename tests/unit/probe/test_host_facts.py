"""Facts that compiled code depends on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway.probe import host_facts

INTEL = "fpu sse sse2 pni ssse3 fma avx avx2 avx512f avx512_vbmi2 amx_tile md_clear ibrs_enhanced"


def torch(version: str = "2.13.0", **more: Any) -> ModuleType:
    module = ModuleType("torch")
    module.__version__ = version  # type: ignore[attr-defined]
    module.__file__ = "/opt/torch/__init__.py"
    module.version = ModuleType("torch.version")  # type: ignore[attr-defined]
    for name, value in more.items():
        setattr(module.version, name, value)
    return module


def facts(env: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return host_facts.compile_facts(torch(**more), env or {})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The content of files in /proc, by path."""
    contents: dict[str, str] = {}

    def lines(path: str) -> Iterator[str]:
        return iter(contents.get(path, "").splitlines(keepends=True))

    monkeypatch.setattr(host_facts, "_lines", lines)
    return contents


def test_the_facts_are_plain_and_the_same_each_time() -> None:
    first = facts()
    assert json.loads(json.dumps(first)) == first == facts()
    assert first["torch"] == "2.13.0" and first["python"] == sys.implementation.cache_tag
    assert first["place"] == ["/opt/torch", sys.base_prefix]
    assert first["isa"]


@pytest.mark.parametrize(
    "more",
    [{"version": "2.12.0"}, {"git_version": "abc"}, {"cuda": "12.8"}, {"hip": "6.2"}],
)
def test_another_torch_has_another_key(more: dict[str, Any]) -> None:
    assert host_facts.compile_key(facts(**more)) != host_facts.compile_key(facts())


def test_where_torch_lies_makes_no_other_key() -> None:
    local = facts()
    assert host_facts.compile_key(local | {"place": ["/x", "/y"]}) == host_facts.compile_key(local)


@pytest.mark.parametrize(
    "name",
    ["TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHDYNAMO_DYNAMIC_SHAPES", "TRITON_INTERPRET"],
)
def test_settings_that_choose_what_is_compiled(name: str) -> None:
    assert facts({name: "1"})["env"] == {name: "1"}
    assert host_facts.compile_key(facts({name: "1"})) != host_facts.compile_key(facts({name: "0"}))


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "RANK",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TORCH_COMPILE_JOB_ID",
        "TORCH_COMPILE_STICKY_PGO_KEY",
        "TORCHINDUCTOR_COMPILE_THREADS",
        "TORCHINDUCTOR_WORKER_START",
        "TORCH_COMPILE_DYNAMIC_SOURCES",
        "TORCH_COMPILE_DEBUG",
        "TORCHDYNAMO_DEBUG_FUNCTION",
        "TORCH_LOGS",
    ],
)
def test_settings_that_do_not(name: str) -> None:
    assert facts({name: "1"})["env"] == {}


def test_a_processor_that_can_do_more_has_another_key(machine: dict[str, str]) -> None:
    """inductor compiles for this processor, whose instructions must be present."""
    machine["/proc/cpuinfo"] = f"processor : 0\nflags\t\t: {INTEL}\n"
    local = facts()
    assert local["isa"] == sorted(INTEL.split()[1:-2])
    machine["/proc/cpuinfo"] = f"flags : {INTEL.replace(' avx512_vbmi2', '')}\n"
    assert host_facts.compile_key(facts()) != host_facts.compile_key(local)
    machine["/proc/cpuinfo"] = f"flags : {INTEL} spec_ctrl pti\n"
    assert host_facts.compile_key(facts()) == host_facts.compile_key(local)


def test_of_an_arm_processor_all_counts(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_facts, "_ARM", True)
    machine["/proc/cpuinfo"] = "Features\t: fp asimd sve2 bf16\n"
    assert facts()["isa"] == ["asimd", "bf16", "fp", "sve2"]


def test_a_gpu_and_its_driver(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [f"/proc/driver/nvidia/gpus/0000:{n}:00.0/information" for n in range(2)]
    for card in cards:
        machine[card] = "Model: \t\t NVIDIA H200\nIRQ: 1\n"
    machine["/proc/driver/nvidia/version"] = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    )
    monkeypatch.setattr(
        host_facts.glob, "glob", lambda pattern: cards if "nvidia" in pattern else []
    )
    host = facts()
    assert (host["gpu"], host["driver"]) == (["NVIDIA H200"], "580")


@pytest.mark.parametrize("name", ["triton", "pytorch_triton"])
def test_the_version_of_triton_is_seen_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"{name}-3.6.0.dist-info").mkdir()
    (tmp_path / "triton_kernels-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert facts()["triton"] == "3.6.0"


def test_where_nothing_is_told_nothing_is_known(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    host = facts()
    assert (host["isa"], host["gpu"], host["driver"]) == ([], [], None)
    assert (host["triton"], host["libstdcxx"]) == (None, None)
