"""`@triton.autotune`: record the time of every config, or try only the advised ones.

Only new keys take this path; launches with a tuned key are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from headway.probe.autotune import advice
from headway.probe.autotune.kernel_identity import (
    config_values,
    digest,
    jit_function,
    launch_key,
    source_texts,
)
from headway.probe.autotune.record import KernelInfo, Timing, tunings
from headway.probe.patching import wrap
from headway.probe.recorder import guard

HOOK = "autotune"
FILE = "autotune file"


class Tuning:
    """A new key of a tuner, from the pruning of its configs to the last benchmark."""

    def __init__(self, tuner: Any, kwargs: Mapping[str, Any], offered: Sequence[Any]) -> None:
        self.kernel = _kernel(tuner)
        self.triton_key, self.key, self.rest = launch_key(tuner, kwargs)
        self.offered = len(offered)
        self.configs = offered
        self.known_ms: float | None = None  # of the only config left: no benchmark is needed
        self.timings: list[Timing] = []
        guard(FILE, self.narrow, tuner)
        self.started = monotonic_ns()

    def narrow(self, tuner: Any) -> None:
        """Keep only the advised configs, if this key was recorded."""
        if not advice.is_enabled() or self.offered < 2:
            return
        kernel = advice.find_kernel(self.kernel.kind, self.kernel.id, self.kernel.name)
        use = kernel.use(self.key, self.rest) if kernel else None
        fewer = use and advice.narrow(self.configs, use.tried, use.take, config_values)
        if not use or not fewer or _on_disk(tuner, self.triton_key, self.configs):
            return
        self.configs = fewer
        if len(fewer) == 1:
            self.known_ms = use.ms
            self._record(0.0, taken=config_values(fewer[0]))

    def add_timing(self, config: Any, result: Any, ns: int) -> None:
        """Add the time of a config; the last one ends the tuning."""
        ms = result[0] if isinstance(result, (list, tuple)) and result else result
        self.timings.append(Timing(config_values(config), ms, ns / 1e9))
        if len(self.timings) == len(self.configs):
            self._record((monotonic_ns() - self.started) / 1e9)

    def _record(self, seconds: float, taken: dict[str, Any] | None = None) -> None:
        tunings.record(
            self.kernel,
            self.key,
            self.rest,
            self.timings,
            seconds=seconds,
            offered=self.offered,
            taken=taken,
        )


def install(autotuner: ModuleType) -> None:
    """triton.runtime.autotuner"""
    wrap(autotuner.Autotuner, "prune_configs", _prune)
    wrap(autotuner.Autotuner, "_bench", _bench)


def _prune(original: Callable[..., Any], tuner: Any, kwargs: dict[str, Any]) -> Any:
    offered = original(tuner, kwargs)
    tuning = guard(HOOK, _begin, tuner, kwargs, offered)
    return offered if tuning is None else tuning.configs


def _begin(tuner: Any, kwargs: dict[str, Any], offered: Sequence[Any]) -> Tuning | None:
    _open_tunings.pop(tuner, None)
    if kwargs.get("warmup") is not False:  # compiled ahead of time, without a run
        return None
    tuning = _open_tunings[tuner] = Tuning(tuner, kwargs, offered)
    return tuning


def _bench(original: Callable[..., Any], tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
    tuning = guard(HOOK, _open_tunings.get, tuner)
    if tuning is None:
        return original(tuner, *args, config=config, **meta)
    if tuning.known_ms is not None:  # Triton 3.8 and later does not call this
        return [tuning.known_ms] * 3
    start = monotonic_ns()
    result = original(tuner, *args, config=config, **meta)
    guard(HOOK, tuning.add_timing, config, result, monotonic_ns() - start)
    return result


def _kernel(tuner: Any) -> KernelInfo:
    kernel = _kernels.get(tuner)
    if kernel is None:
        function = jit_function(tuner)
        code = function.fn.__code__
        where = f"{code.co_filename}:{code.co_firstlineno}"
        name = digest(source_texts(function), list(tuner.keys), list(tuner.arg_names))
        kernel = KernelInfo("triton", name, function.fn.__qualname__, where, tuple(tuner.keys))
        _kernels[tuner] = kernel
    return kernel


class _NotCached(Exception):
    pass


def _on_disk(tuner: Any, key: tuple[Any, ...], configs: Sequence[Any]) -> bool:
    """Whether Triton has cached the result of all configs (TRITON_CACHE_AUTOTUNING)."""
    if not getattr(tuner, "cache_results", False):
        return False

    def absent() -> None:
        raise _NotCached

    try:
        return bool(tuner.check_disk_cache(key, configs, absent))
    except Exception:
        return False


_open_tunings: WeakKeyDictionary[Any, Tuning] = WeakKeyDictionary()
_kernels: WeakKeyDictionary[Any, KernelInfo] = WeakKeyDictionary()
