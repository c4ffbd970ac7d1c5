"""PT2 compiles: when, of what, why again, and whether a cache had it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from headway.probe.recorder import guard, recorder

PARTS = {
    "dynamo": "dynamo_cumulative_compile_time_us",
    "aot_autograd": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
    "triton": "triton_compile_time_us",
    "autotune": "runtime_triton_autotune_time_us",
}


class Compiles:
    """The outermost compile that is going on, if any."""

    def __init__(self) -> None:
        self.span: int | None = None
        self.seen: Any = None  # the last metrics entry that was told already

    def begun(self, args: Any) -> None:
        """torch calls this at the start of an outermost compile."""
        recorder.start()
        trigger = getattr(getattr(args, "callback_trigger", None), "name", "")
        self.span = recorder.begin(
            "compile", trigger=trigger, compile_id=str(getattr(args, "compile_id", ""))
        )

    def ended(self, args: Any) -> None:
        """And this at its end; what it was stands in dynamo's metrics by then."""
        if self.span is None:
            return
        span, self.span = self.span, None
        recorder.end(span, **(guard("dynamo", self._metrics) or {}))

    def _metrics(self) -> dict[str, Any]:
        utils = sys.modules.get("torch._dynamo.utils")
        recorded = getattr(utils, "_compilation_metrics", None)
        if not recorded or recorded[-1] is self.seen:
            return {}
        self.seen = recorded[-1]
        return describe(self.seen)


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
    compiles = Compiles()
    handler = callback.callback_handler
    handler.register_start_callback(lambda args: guard("dynamo", compiles.begun, args))
    handler.register_end_callback(lambda args: guard("dynamo", compiles.ended, args))
