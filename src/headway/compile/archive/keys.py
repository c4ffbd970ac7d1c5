"""What makes a hit possible: in which words two machines differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.probe.fingerprint import PLACE
from headway.probe.fingerprint import compile_key as compat

__all__ = ["PLACE", "Facts", "compat", "describe_difference", "differing_facts"]

Facts = Mapping[str, Any]  # of a process and its machine: see headway/probe/fingerprint.py

FACT_NAMES = {
    "torch": "torch",
    "git": "build of torch",
    "python": "Python",
    "cuda": "CUDA",
    "hip": "ROCm",
    "triton": "Triton",
    "driver": "driver",
    "gpu": "GPU",
    "machine": "processor",
    "isa": "instructions",
    "glibc": "glibc",
    "libstdcxx": "libstdc++",
    "env": "environment",
    "tier": "tier",
}


def describe_difference(here: Facts, there: Facts) -> str:
    """In what an archive's maker differed from this process."""
    return ", ".join(
        _difference_text(key, here.get(key), there.get(key)) for key in differing_facts(here, there)
    )


def differing_facts(here: Facts, there: Facts) -> list[str]:
    """The names of the facts that are not the same."""
    names = [*FACT_NAMES, *sorted({*here, *there} - {*FACT_NAMES, PLACE})]
    return [name for name in names if here.get(name) != there.get(name)]


def _difference_text(key: str, here: Any, there: Any) -> str:
    if isinstance(here, dict) and isinstance(there, dict):
        changed = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
        return ", ".join(
            _difference_text(name, here.get(name), there.get(name)) for name in changed
        )
    word = FACT_NAMES.get(key, key)
    if isinstance(here, list) and isinstance(there, list) and any(item in here for item in there):
        lost, new = _without(there, here), _without(here, there)
        told = [
            f"without {_value_text(lost)}" if lost else "",
            f"with {_value_text(new)}" if new else "",
        ]
        return f"{word} here are {' and '.join(filter(None, told))}"
    return f"{word} is {_value_text(here)} here and was {_value_text(there)}"


def _without(some: list[Any], others: list[Any]) -> list[Any]:
    return [item for item in some if item not in others]


def _value_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)
