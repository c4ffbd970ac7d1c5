"""PT2 compiles: when, of what, why again, and whether a cache had it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.probe.hooks import enter, leave, wrap
from headway.probe.recorder import guard, recorder

SPAN = "compile"

PARTS = {
    "dynamo": "dynamo_cumulative_compile_time_us",
    "aot_autograd": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
    "triton": "triton_compile_time_us",
    "autotune": "runtime_triton_autotune_time_us",
}


class Compiles:
    """The outermost compile that is going on, and the last one of each frame."""

    def __init__(self) -> None:
        self.span: int | None = None
        self.last: dict[str, int] = {}  # compile id -> its newest span

    def begun(self, args: Any) -> None:
        """torch calls this at the start of an outermost compile."""
        recorder.start()
        trigger = getattr(getattr(args, "callback_trigger", None), "name", "")
        compile_id = str(getattr(args, "compile_id", ""))
        self.span = enter(SPAN, "dynamo", trigger=trigger, compile_id=compile_id)
        self.last[compile_id] = self.span

    def ended(self, args: Any) -> None:
        """And this at its end."""
        span, self.span = self.span, None
        leave(SPAN, span)

    def measured(self, metrics: Any) -> None:
        """Soon after that dynamo knows what it was; nested compiles are left out."""
        span = self.last.get(str(getattr(metrics, "compile_id", "")))
        if span is not None:
            recorder.emit("detail", id=span, **describe(metrics))


compiles = Compiles()


def describe(metrics: Any) -> dict[str, Any]:
    """What of dynamo's CompilationMetrics a reader of the journal wants."""
    found: dict[str, Any] = {}
    file = getattr(metrics, "co_filename", None)
    if file:
        name = getattr(metrics, "co_name", "")
        found["where"] = f"{file}:{getattr(metrics, 'co_firstlineno', 0)} {name}"
    reason = getattr(metrics, "recompile_reason", None)
    if reason:
        found["reason"] = str(reason)[:1000]
    hits = getattr(metrics, "inductor_fx_local_cache_hit_count", None) or 0
    hits += getattr(metrics, "aotautograd_local_cache_hit_count", None) or 0
    misses = getattr(metrics, "inductor_fx_local_cache_miss_count", None) or 0
    found["cached"] = bool(hits) and not misses
    parts = {name: getattr(metrics, key, None) for name, key in PARTS.items()}
    found["parts_us"] = {name: us for name, us in parts.items() if us}
    return found


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
        recorded = utils._compilation_metrics
        if recorded:
            guard("dynamo", compiles.measured, recorded[-1])
        return result

    wrap(utils, "record_compilation_metrics", record)
