"""Autotuning of kernels that torch generates, and of the user's own kernels below torch.compile.

Such a kernel is compiled with all its configs, usually in another process, and benchmarked here at
its first launch. It is narrowed twice: before the compile, by the sizes in its source, and at the
first launch, by its arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.probe.autotune import advice
from headway.probe.autotune.kernel_identity import (
    config_text,
    config_values,
    generated_digest,
    has_pinned_sizes,
    launch_sizes,
)
from headway.probe.autotune.record import KernelInfo, Timing, tunings
from headway.probe.patching import wrap
from headway.probe.recorder import guard, recorder

HOOK = "autotune in inductor"
FILE = "autotune file in inductor"
OFFERED = "headway_offered"  # attribute of a narrowed kernel: its number of configs before


def install(module: ModuleType) -> None:
    """torch._inductor.runtime.triton_heuristics"""
    tuner = module.CachingAutotuner
    wrap(tuner, "benchmark_all_configs", _benchmark)
    if advice.is_enabled():
        wrap(module, "cached_autotune", _make)
        wrap(tuner, "precompile", _precompile)
        wrap(tuner, "autotune_to_one_config", _tune)


def _benchmark(original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
    start = monotonic_ns()
    timings = original(tuner, *args, **kwargs)
    guard(HOOK, _record_benchmarks, tuner, args, kwargs, timings, monotonic_ns() - start)
    return timings


def _record_benchmarks(
    tuner: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    timings: Mapping[Any, float],
    ns: int,
) -> None:
    if len(timings) < 2:
        return
    us = (getattr(tuner, "autotune_cache_info", None) or {}).get("compile_time_us")
    tunings.record(
        _kernel(tuner),
        _key(args, kwargs),
        "",
        [Timing(config_values(launcher.config), ms) for launcher, ms in timings.items()],
        seconds=ns / 1e9,
        offered=max(len(timings), getattr(tuner, OFFERED, 0)),
        compiled=None if us is None else us / 1e6,
    )


def _kernel(tuner: Any) -> KernelInfo:
    path = getattr(tuner, "filename", None)
    kernel = generated_digest(path, tuner.fn.src)
    return KernelInfo("inductor", kernel, tuner.fn.__name__, path or "")


def _key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    return launch_sizes([*args, *kwargs.values()])


def _find_kernel(tuner: Any) -> advice.TunedKernel | None:
    kernel = _kernel(tuner)
    return advice.find_kernel(kernel.kind, kernel.id, kernel.name)


def _make(
    original: Callable[..., Any], size_hints: Any, configs: Any, *args: Any, **kwargs: Any
) -> Any:
    """Create the kernel with fewer configs, unless torch has cached the result for all."""

    def decorator(function: Any) -> Any:
        # The call modifies the metadata: each call gets a copy.
        own_kwargs = {k: dict(v) if isinstance(v, dict) else v for k, v in kwargs.items()}
        tuner = original(size_hints, configs, *args, **own_kwargs)(function)
        fewer = guard(FILE, _fewer, tuner)
        if fewer is None:
            return tuner
        narrowed = original(size_hints, fewer, *args, **kwargs)(function)
        setattr(narrowed, OFFERED, len(tuner.configs))
        return narrowed

    return decorator


def _fewer(tuner: Any) -> list[Any] | None:
    if len(tuner.configs or ()) < 2:
        return None
    kernel = _find_kernel(tuner)
    if kernel is None:
        return None
    take = kernel.selected
    if _has_pinned_sizes(tuner) and len(kernel.keys) == 1:
        (use,) = kernel.keys.values()
        take = frozenset(use.take)
    return advice.narrow(tuner.configs, kernel.tried, tuple(take), config_values)


def _has_pinned_sizes(tuner: Any) -> bool:
    return has_pinned_sizes(tuner.fn.src, tuner.triton_meta.get("signature", {}))


def _precompile(original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
    only_warm = args[0] if args else kwargs.get("warm_cache_only", False)
    if only_warm or not hasattr(tuner, OFFERED):
        return original(tuner, *args, **kwargs)
    if kwargs.get("static_triton_bundle_key") is not None:
        # Bundled with the graph, later users would get the kernel without the other configs.
        kwargs["static_triton_bundle_key"] = None
    result = original(tuner, *args, **kwargs)
    guard(FILE, _after_precompile, tuner)
    return result


def _after_precompile(tuner: Any) -> None:
    if len(tuner.launchers) != 1:
        return
    if _has_pinned_sizes(tuner):
        _record_taken(tuner, [], tuner.launchers[0])
    else:  # with two launchers torch chooses at the first launch, when sizes are known
        tuner.launchers = tuner.launchers * 2


def _record_taken(tuner: Any, key: Sequence[int], launcher: Any) -> None:
    offered = max(len(tuner.launchers), getattr(tuner, OFFERED, 0))
    config = config_values(launcher.config)
    tunings.record(_kernel(tuner), key, "", [], seconds=0.0, offered=offered, taken=config)


def _tune(original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """At the first launch: use the recorded config for these sizes, or benchmark all configs."""
    launcher = guard(FILE, _take, tuner, args, kwargs)
    if launcher is None:
        return original(tuner, *args, **kwargs)
    tuner.launchers = [launcher]
    return None


def _take(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    kernel, key = _find_kernel(tuner), _key(args, kwargs)
    use = kernel.use(key) if kernel else None
    launchers = {
        config_text(config_values(launcher.config)): launcher for launcher in tuner.launchers
    }
    if use and use.tried.issuperset(launchers) and use.take[0] in launchers:
        launcher = launchers[use.take[0]]
        _record_taken(tuner, key, launcher)
        release = getattr(tuner, "_release_static_launchers_except", None)
        if release is not None:
            release(launcher)
        return launcher
    if hasattr(tuner, OFFERED):
        _restore(tuner)
    return None


def _restore(tuner: Any) -> None:
    """Compile all configs, for sizes that were not recorded."""
    tasks = sys.modules["torch._inductor.runtime.compile_tasks"]
    try:
        with advice.full_tuning():
            module = tasks._reload_python_module("headway", tuner.filename, set_sys_modules=False)
            full_tuner = getattr(module, tuner.fn.__name__)
            full_tuner.precompile()
    except Exception as error:  # of Triton, torch or the file system; the narrowed kernel works too
        recorder.note(FILE, error)
        return
    delattr(tuner, OFFERED)
    tuner.fn, tuner.save_cache_hook = full_tuner.fn, full_tuner.save_cache_hook
    tuner.compile_results, tuner.launchers = full_tuner.compile_results, full_tuner.launchers
