"""PT2 compiles: when, of what, why again, and whether a cache had it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.probe import pace
from headway.probe.hooks import enter, leave, recompiled, wrap
from headway.probe.recorder import guard, recorder

SPAN = "compile"
AUTOTUNE = "compile_autotune"

# Cumulative, as torch measures them: each holds those below it.
PARTS = {
    "dynamo": "dynamo_cumulative_compile_time_us",
    "aot_autograd": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
    "triton": "triton_compile_time_us",
    "autotune": "compile_time_autotune_time_us",
}
CACHES = {"fx": "inductor_fx", "aot": "aotautograd"}
MAX_REASON = 1000  # characters of a guard that failed
MAX_BYPASSES = 4  # reasons that are kept of one compile
MAX_EXPLAINED = 500  # recompiles of a process that are told with all guards and values
MAX_REFUSED = 100  # places of a process that torch gave up on


class Compiles:
    """The outermost compile that is going on, and the last one of each frame."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing was compiled yet by this process."""
        self.pid = recorder.pid
        self.span: int | None = None
        self.last: dict[str, int] = {}  # compile id -> its newest span
        self.why: dict[int, dict[str, Any]] = {}  # thread -> the guards that have just failed
        self.explained = self.refused = 0
        self.bypassed: list[str] = []
        self.lattice = recompiled.ShapeHistory()
        self.told = False  # under which torch and settings it compiles

    def begun(self, args: Any) -> None:
        """torch calls this at the start of an outermost compile."""
        if self.pid != recorder.pid:  # what a zygote has compiled is not this process's
            self.forget()
        recorder.start()
        trigger = getattr(getattr(args, "callback_trigger", None), "name", "")
        compile_id = str(getattr(args, "compile_id", ""))
        self.span = enter(SPAN, "dynamo", trigger=trigger, compile_id=compile_id, step=pace.steps)
        self.last[compile_id] = self.span

    def ended(self, args: Any) -> None:
        """And this at its end."""
        span, self.span = self.span, None
        leave(SPAN, span)

    def guards_failed(self, reasons: Any, frame: Any) -> None:
        """Before a recompile: what every compiled version of the frame has against this call."""
        if self.explained < MAX_EXPLAINED:
            self.explained += 1
            self.why[recorder.thread()] = recompiled.explain_recompile(reasons, frame)

    def bypass(self, error: BaseException) -> None:
        """A cache is not asked, as what is compiled cannot be kept in it."""
        why = str(error)[:200]
        if why not in self.bypassed and len(self.bypassed) < MAX_BYPASSES:
            self.bypassed.append(why)

    def measured(self, metrics: Any) -> None:
        """Soon after that dynamo knows what it was; nested compiles are left out."""
        if getattr(metrics, "is_runtime", None) is True:
            self._ran(metrics)
            return
        reason = getattr(metrics, "recompile_reason", None)
        why = self.why.pop(recorder.thread(), {}) if reason else {}
        if reason and not getattr(metrics, "co_filename", None):
            self._gave_up(metrics, why)
            return
        span = self.last.get(str(getattr(metrics, "compile_id", "")))
        if span is not None:
            told = {**why, **describe_compile(metrics), **self._setting(), **self.lattice.changes()}
            if self.bypassed:
                told["bypassed"], self.bypassed = self.bypassed, []
            recorder.emit("detail", id=span, **told)

    def _gave_up(self, metrics: Any, why: dict[str, Any]) -> None:
        """The limit of recompiles: from now on torch runs the frame without compiling it."""
        said = re.search(r"Limit type: (\w+)", str(getattr(metrics, "fail_reason", "")))
        self.refused += 1
        if self.refused > MAX_REFUSED:
            return
        recorder.emit(
            "recompile_limit",
            limit=said[1] if said else "recompile_limit",
            reason=str(metrics.recompile_reason)[:MAX_REASON],
            step=pace.steps,
            **{**why, **self._setting()},
        )

    def _ran(self, metrics: Any) -> None:
        """Kernels were tuned while the compiled code ran: known only when that was over."""
        us = getattr(metrics, "runtime_triton_autotune_time_us", None)
        if us:
            end = time.monotonic_ns()
            recorder.span(AUTOTUNE, end - us * 1000, end)

    def _setting(self) -> dict[str, Any]:
        """Once: the version of torch, and what is marked dynamic already."""
        if self.told:
            return {}
        self.told = True
        return recompiled.dynamo_settings(sys.modules["torch"])


compiles = Compiles()


def describe_compile(metrics: Any) -> dict[str, Any]:
    """What of dynamo's CompilationMetrics a reader of the journal wants."""
    found: dict[str, Any] = {}
    file = getattr(metrics, "co_filename", None)
    if file:
        name = getattr(metrics, "co_name", "")
        found["where"] = f"{file}:{getattr(metrics, 'co_firstlineno', 0)} {name}"
    reason = getattr(metrics, "recompile_reason", None)
    if reason:
        found["reason"] = str(reason)[:MAX_REASON]
    failed = getattr(metrics, "fail_type", None)
    if failed:
        found["failed"] = str(failed)[:100]
    caches = {name: _cache_lookups(metrics, column) for name, column in CACHES.items()}
    hits, misses = (sum(counts[i] for counts in caches.values()) for i in (0, 1))
    found["cached"] = bool(hits) and not misses
    if hits or misses:
        found["cache"] = {name: counts for name, counts in caches.items() if any(counts)}
    parts = {name: getattr(metrics, key, None) for name, key in PARTS.items()}
    if not _uses_gpu():  # torch counts the C++ compiler's time there too
        parts["cpp"] = parts.pop("triton")
    found["parts_us"] = {name: us for name, us in parts.items() if us}
    return found


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, name, None) for name in ("cuda", "xpu"))
    return any(getattr(kind, "_initialized", False) for kind in kinds)


def _cache_lookups(metrics: Any, column: str) -> list[int]:
    """Hits and misses of one cache, the local and the remote part of it together."""
    return [
        sum(
            getattr(metrics, f"{column}_{place}_cache_{how}_count", None) or 0
            for place in ("local", "remote")
        )
        for how in ("hit", "miss")
    ]


def install(callback: ModuleType) -> None:
    """torch._dynamo.callback"""
    handler = callback.callback_handler

    def register() -> None:
        handler.register_start_callback(lambda args: guard("dynamo", compiles.begun, args))
        handler.register_end_callback(lambda args: guard("dynamo", compiles.ended, args))

    def clear(original: Callable[..., Any]) -> Any:
        result = original()  # torch._dynamo.reset() takes everybody's callbacks
        guard("dynamo", register)
        return result

    register()
    wrap(handler, "clear", clear)


def install_utils(utils: ModuleType) -> None:
    """torch._dynamo.utils"""

    def record(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        guard("dynamo", measured)
        return result

    def measured() -> None:
        recorded = utils._compilation_metrics
        if recorded:
            compiles.measured(recorded[-1])

    wrap(utils, "record_compilation_metrics", record)


def install_guards(guards: ModuleType) -> None:
    """torch._dynamo.guards"""

    def reasons(
        original: Callable[..., Any], entries: Any, frame: Any, *args: Any, **kwargs: Any
    ) -> Any:
        found = original(entries, frame, *args, **kwargs)
        guard("guards", compiles.guards_failed, found, frame)
        return found

    wrap(guards, "get_and_maybe_log_recompilation_reasons", reasons)


def install_fx_cache(codecache: ModuleType) -> None:
    """torch._inductor.codecache"""
    wrap(codecache.BypassFxGraphCache, "__init__", _bypass)


def install_aot_cache(autograd_cache: ModuleType) -> None:
    """torch._functorch._aot_autograd.autograd_cache"""
    wrap(autograd_cache.BypassAOTAutogradCache, "__init__", _bypass)


def _bypass(original: Callable[..., Any], error: BaseException, *args: Any) -> None:
    original(error, *args)
    guard("bypass", compiles.bypass, error)
