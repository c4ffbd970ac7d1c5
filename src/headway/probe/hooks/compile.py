"""PT2 compiles: when, of what, whether a cache had the result, and why a frame was recompiled.

Guards that failed, the values they saw and the history of dynamic shapes are read only when a
compile happens, and without running any code of the job.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from headway.probe import stacks, step_clock
from headway.probe.patching import enter, leave, wrap
from headway.probe.recorder import guard, recorder

MAX_GUARDS = 8  # per recompile; the default number of versions of a frame in torch
MAX_GUARD = 200  # characters
MAX_VALUES = 16
MAX_EVENT_SOURCES = 64  # entries of `lattice` per event
MAX_SOURCES = 4096  # and per process
SPAN = "compile"
AUTOTUNE = "compile_autotune"

# Cumulative, as torch measures them: each includes the following ones.
PARTS = {
    "dynamo": "dynamo_cumulative_compile_time_us",
    "aot_autograd": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
    "triton": "triton_compile_time_us",
    "autotune": "compile_time_autotune_time_us",
}
CACHES = {"fx": "inductor_fx", "aot": "aotautograd"}
MAX_REASON = 1000  # characters of a failed guard
MAX_BYPASSES = 4  # reasons per compile
MAX_EXPLAINED = 500  # recompiles per process with all guards and values
MAX_REFUSED = 100  # recorded frames per process that have reached the limit of recompiles

# A path in a guard, into the locals or the globals of a frame.
PATH = re.compile(
    r"""(?:\bG\[['"](\w+)['"]\]|(?<![\w.'"])([A-Za-z_]\w*))"""
    r"""((?:\.\w+(?!\()|\[\d+\]|\['[^']*'\]|\["[^"]*"\])*)"""
)
PIECE = re.compile(r"""\.(\w+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
TENSOR = re.compile(r"tensor '(.+)' (?:[\w ]+) mismatch")
MISSING = object()


def explain_recompile(reasons: Any, frame: Any) -> dict[str, Any]:
    """The failed guard of each version, the values that it checked, and the line of the call."""
    texts = [re.sub(" {4,}", "   ", str(text).partition("\n")[0])[:MAX_GUARD] for text in reasons]
    code = frame.f_code
    fields: dict[str, Any] = {
        "where": f"{code.co_filename}:{code.co_firstlineno} {code.co_name}",
        "reasons": list(dict.fromkeys(texts))[:MAX_GUARDS],
    }
    values = _values(fields["reasons"], frame)
    if values:
        fields["seen"] = values
    caller = stacks.calling_line(code)
    if caller:
        fields["caller"] = caller
    return fields


def dynamo_settings(torch: ModuleType) -> dict[str, Any]:
    """The version of torch, and the sources that settings mark as dynamic."""
    config = getattr(torch.compiler, "config", None)
    names = ("dynamic_sources", "unbacked_sources", "dynamic_values")
    marked = {name: getattr(config, name, "") for name in names}
    marked = {name: str(text)[:20_000] for name, text in marked.items() if text}
    return {"torch": str(torch.__version__), **({"marked": marked} if marked else {})}


class ShapeHistory:
    """The sizes of each source over all compiles, as torch merges them."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[str, str], Any] = {}

    def changes(self) -> dict[str, Any]:
        """New and changed entries, dynamic ones first; `?` stands for a dynamic size."""
        state = getattr(sys.modules.get("torch._dynamo.pgo"), "_CODE_STATE", None)
        changed: list[tuple[str, str, Any]] = []
        for code, frame in list((state or {}).items()):
            code_id = str(code)
            for source, entry in list(frame.automatic_dynamic.items()):
                shape = _shape(entry)
                if self.shapes.get((code_id, source), MISSING) != shape:
                    changed.append((code_id, source, shape))
        changed.sort(key=lambda entry: not _is_dynamic(entry[2]))
        limit = min(MAX_EVENT_SOURCES, MAX_SOURCES - len(self.shapes))
        reported = changed[: max(limit, 0)]
        self.shapes.update({(code, source): shape for code, source, shape in reported})
        if not reported:
            return {}
        return {"lattice": [[source[:300], shape] for _, source, shape in reported]}


def _shape(entry: Any) -> Any:
    """The sizes of a tensor, with its strides if only those are dynamic; or a scalar."""
    if not isinstance(entry.size, tuple):
        return _plain(entry.scalar)
    size = [_plain(length) for length in entry.size[:16]]
    if "?" in size or not isinstance(entry.stride, tuple):
        return size
    stride = [_plain(length) for length in entry.stride[:16]]
    return {"size": size, "stride": stride} if "?" in stride else size


def _plain(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return _scalar(value)
    return "?" if type(value).__name__ == "AutoDynamic" else type(value).__name__


def _is_dynamic(shape: Any) -> bool:
    return shape == "?" or isinstance(shape, dict) or (isinstance(shape, list) and "?" in shape)


def _values(reasons: list[str], frame: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for reason in reasons:
        for path, value in _named_values(reason, frame):
            if len(values) < MAX_VALUES and value is not MISSING:
                values.setdefault(path[:300], _describe_value(value))
    return values


def _named_values(reason: str, frame: Any) -> Iterator[tuple[str, Any]]:
    """The paths in a guard that can be followed, and their values."""
    text = reason.partition(": ")[2].partition("  #")[0]
    tensor = TENSOR.match(text)
    if tensor:
        text = tensor[1]
    for match in PATH.finditer(re.sub(r"\.(?:size|stride)\(\)\[\d+\]", " ", text)):
        scope, first = (frame.f_globals, match[1]) if match[1] else (frame.f_locals, match[2])
        try:
            start = scope[first]
        except (KeyError, TypeError):
            continue
        yield match[0], _follow(start, match[3])


def _follow(value: Any, path: str) -> Any:
    """Follow plain containers and stored attributes only, so that no code of the job runs."""
    for attribute, number, single, double in PIECE.findall(path):
        try:
            if attribute:
                value = vars(value)[attribute]
            elif number and type(value) in (list, tuple, dict):
                value = value[int(number)]
            elif type(value) is dict:
                value = value[single or double]
            else:
                return MISSING
        except (KeyError, IndexError, TypeError):
            return MISSING
    return value


def _describe_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return _scalar(value)
    if type(value) is str:
        return repr(value)[:40]
    torch: Any = sys.modules["torch"]
    if type(value) in (torch.Tensor, torch.nn.Parameter):  # a subclass may run other code
        return [int(size) for size in value.shape[:16]]
    if type(value) in (list, tuple, dict, set):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 62:
        return str(value)[:40]
    return value


class Compiles:
    """The outermost compile in progress, and the last one of each frame."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.pid = recorder.pid
        self.span: int | None = None
        self.newest_span: dict[str, int] = {}  # compile id -> its newest span
        self.failed_guards: dict[int, dict[str, Any]] = {}  # thread -> guards that have just failed
        self.explained = self.limits_reached = 0
        self.bypass_reasons: list[str] = []
        self.shape_history = ShapeHistory()
        self.settings_recorded = False

    def on_start(self, args: Any) -> None:
        """Called by torch at the start of an outermost compile."""
        if self.pid != recorder.pid:  # forked: compiles of the fork server are not recorded
            self.reset()
        recorder.start()
        trigger = getattr(getattr(args, "callback_trigger", None), "name", "")
        compile_id = str(getattr(args, "compile_id", ""))
        self.span = enter(
            SPAN, "dynamo", trigger=trigger, compile_id=compile_id, step=step_clock.steps
        )
        self.newest_span[compile_id] = self.span

    def on_end(self, args: Any) -> None:
        """Called by torch at its end."""
        span, self.span = self.span, None
        leave(SPAN, span)

    def guards_failed(self, reasons: Any, frame: Any) -> None:
        """Before a recompile: record why no compiled version of the frame fits this call."""
        if self.explained < MAX_EXPLAINED:
            self.explained += 1
            self.failed_guards[recorder.thread()] = explain_recompile(reasons, frame)

    def bypass(self, error: BaseException) -> None:
        """A cache is not used, as it cannot store this result."""
        reason = str(error)[:200]
        if reason not in self.bypass_reasons and len(self.bypass_reasons) < MAX_BYPASSES:
            self.bypass_reasons.append(reason)

    def on_metrics(self, metrics: Any) -> None:
        """Record the metrics of dynamo after a compile; nested compiles are omitted."""
        if getattr(metrics, "is_runtime", None) is True:
            self._runtime_autotune(metrics)
            return
        reason = getattr(metrics, "recompile_reason", None)
        guards = self.failed_guards.pop(recorder.thread(), {}) if reason else {}
        if reason and not getattr(metrics, "co_filename", None):
            self._limit_reached(metrics, guards)
            return
        span = self.newest_span.get(str(getattr(metrics, "compile_id", "")))
        if span is not None:
            fields = {
                **guards,
                **describe_compile(metrics),
                **self._settings_once(),
                **self.shape_history.changes(),
            }
            if self.bypass_reasons:
                fields["bypassed"], self.bypass_reasons = self.bypass_reasons, []
            recorder.emit("detail", id=span, **fields)

    def _limit_reached(self, metrics: Any, guards: dict[str, Any]) -> None:
        """Record the limit of recompiles: from now on, torch runs the frame in eager mode."""
        limit = re.search(r"Limit type: (\w+)", str(getattr(metrics, "fail_reason", "")))
        self.limits_reached += 1
        if self.limits_reached > MAX_REFUSED:
            return
        recorder.emit(
            "recompile_limit",
            limit=limit[1] if limit else "recompile_limit",
            reason=str(metrics.recompile_reason)[:MAX_REASON],
            step=step_clock.steps,
            **{**guards, **self._settings_once()},
        )

    def _runtime_autotune(self, metrics: Any) -> None:
        """Record tuning of kernels at run time; it is known only after it has ended."""
        us = getattr(metrics, "runtime_triton_autotune_time_us", None)
        if us:
            end = time.monotonic_ns()
            recorder.span(AUTOTUNE, end - us * 1000, end)

    def _settings_once(self) -> dict[str, Any]:
        """The version of torch and the dynamic sources, for the first event only."""
        if self.settings_recorded:
            return {}
        self.settings_recorded = True
        return dynamo_settings(sys.modules["torch"])


compiles = Compiles()


def describe_compile(metrics: Any) -> dict[str, Any]:
    """The fields of the journal from dynamo's CompilationMetrics."""
    fields: dict[str, Any] = {}
    file = getattr(metrics, "co_filename", None)
    if file:
        name = getattr(metrics, "co_name", "")
        fields["where"] = f"{file}:{getattr(metrics, 'co_firstlineno', 0)} {name}"
    reason = getattr(metrics, "recompile_reason", None)
    if reason:
        fields["reason"] = str(reason)[:MAX_REASON]
    failed = getattr(metrics, "fail_type", None)
    if failed:
        fields["failed"] = str(failed)[:100]
    caches = {name: _cache_lookups(metrics, column) for name, column in CACHES.items()}
    hits, misses = (sum(counts[i] for counts in caches.values()) for i in (0, 1))
    fields["cached"] = bool(hits) and not misses
    if hits or misses:
        fields["cache"] = {name: counts for name, counts in caches.items() if any(counts)}
    parts = {name: getattr(metrics, key, None) for name, key in PARTS.items()}
    if not _uses_gpu():  # torch counts the C++ compiler there too
        parts["cpp"] = parts.pop("triton")
    fields["parts_us"] = {name: us for name, us in parts.items() if us}
    return fields


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, name, None) for name in ("cuda", "xpu"))
    return any(getattr(kind, "_initialized", False) for kind in kinds)


def _cache_lookups(metrics: Any, column: str) -> list[int]:
    """Hits and misses of a cache, local and remote summed up."""
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
        handler.register_start_callback(lambda args: guard("dynamo", compiles.on_start, args))
        handler.register_end_callback(lambda args: guard("dynamo", compiles.on_end, args))

    def clear(original: Callable[..., Any]) -> Any:
        result = original()  # torch._dynamo.reset() removes all callbacks
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
            compiles.on_metrics(recorded[-1])

    wrap(utils, "record_compilation_metrics", record)


def install_guards(guards: ModuleType) -> None:
    """torch._dynamo.guards"""

    def reasons(
        original: Callable[..., Any], entries: Any, frame: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(entries, frame, *args, **kwargs)
        guard("guards", compiles.guards_failed, result, frame)
        return result

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
