"""Configs that `headway autotune` selected from an earlier run, looked up before a kernel is tuned.

Only recorded cases are narrowed: the same kernel with the same configs and the same key, on the
same GPU and Triton. Anything else is tuned in full.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from headway.probe import ENV_AUTOTUNE
from headway.probe.autotune.kernel_identity import config_text
from headway.probe.host_facts import tuning_facts
from headway.probe.recorder import recorder

T = TypeVar("T")
SCHEMA = 1
GUARDS = {"triton": ("gpu", "triton")}
ALL_GUARDS = ("gpu", "triton", "torch")  # what torch generates changes with torch too


class TunedKey(NamedTuple):
    """The configs tried for a key, those to use, and the time of the first of these."""

    tried: frozenset[str]
    take: tuple[str, ...]
    ms: float


class TunedKernel(NamedTuple):
    """A kernel in the file."""

    keys: dict[str, TunedKey]
    tried: frozenset[str]
    selected: frozenset[str]

    def use(self, key: Sequence[Any], rest: str = "") -> TunedKey | None:
        """The entry of a key; None if it was not recorded."""
        return self.keys.get(_key(key, rest))


def narrow(
    offered: Sequence[T], tried: frozenset[str], take: Sequence[str], values_of: Callable[[T], Any]
) -> list[T] | None:
    """The configs to try; None if an offered config was not recorded, or nothing is saved."""
    names = [config_text(values_of(config)) for config in offered]
    if not tried.issuperset(names) or not set(take) <= set(names):
        return None
    fewer = [config for config, name in zip(offered, names, strict=True) if name in take]
    return fewer if 0 < len(fewer) < len(offered) else None


def is_enabled() -> bool:
    """Whether there is a file with advice."""
    return bool(os.environ.get(ENV_AUTOTUNE))


def find_kernel(kind: str, kernel: str, name: str) -> TunedKernel | None:
    """The kernel in the file, if that fits this machine; otherwise a note gives the reason."""
    path = os.environ.get(ENV_AUTOTUNE)
    if not path or _full_tunings:
        return None
    if path not in _files:
        _files[path] = _AdviceFile(path)
    return _files[path].kernel(kind, kernel, name)


@contextlib.contextmanager
def full_tuning() -> Iterator[None]:
    """Tune kernels in full in this context."""
    _full_tunings.append(True)
    try:
        yield
    finally:
        _full_tunings.pop()


class _AdviceFile:
    def __init__(self, path: str) -> None:
        self.notes: set[str] = set()
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if content["schema"] > SCHEMA:
            raise ValueError(f"{path} has schema {content['schema']}, newer than {SCHEMA}")
        self.recorded_facts = {name: content.get(name) for name in ALL_GUARDS}
        self.kernels = {
            (entry["kind"], entry["id"]): _tuned_kernel(entry) for entry in content["kernels"]
        }
        self.names = {(entry["kind"], entry["name"]) for entry in content["kernels"]}

    def kernel(self, kind: str, kernel: str, name: str) -> TunedKernel | None:
        facts = tuning_facts()
        for guard in GUARDS.get(kind, ALL_GUARDS):
            if facts[guard] != self.recorded_facts[guard]:
                recorded = f"the advice was recorded with {guard} {self.recorded_facts[guard]}"
                self._note(
                    f"{recorded}, this is {facts[guard]}: all configs are tried",
                    code="autotune-machine-mismatch",
                )
                return None
        tuned_kernel = self.kernels.get((kind, kernel))
        if tuned_kernel is None and (kind, name) in self.names:
            self._note(
                f"{name} has changed since it was recorded: all configs are tried",
                code="autotune-kernel-changed",
            )
        return tuned_kernel

    def _note(self, text: str, *, code: str) -> None:
        if text not in self.notes and len(self.notes) < 20:
            self.notes.add(text)
            recorder.note("autotune", text, code)


def _key(key: Sequence[Any], rest: str) -> str:
    return json.dumps([list(key), rest])


def _tuned_kernel(content: dict[str, Any]) -> TunedKernel:
    names = [config_text(config) for config in content["configs"]]
    keys = {
        _key(entry["key"], entry["rest"]): TunedKey(
            frozenset(names[index] for index in entry["tried"]),
            tuple(names[index] for index in entry["use"]),
            float(entry["ms"]),
        )
        for entry in content["keys"]
    }
    return TunedKernel(keys, frozenset(names), frozenset(names[index] for index in content["kept"]))


_files: dict[str, _AdviceFile] = {}
_full_tunings: list[bool] = []
