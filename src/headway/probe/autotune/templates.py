"""Templates of max_autotune: the kernels of matrix products, convolutions and attention."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.probe.autotune import advice
from headway.probe.autotune.kernel_identity import digest
from headway.probe.autotune.record import KernelInfo, Timing, tunings
from headway.probe.patching import wrap
from headway.probe.recorder import guard, recorder

HOOK = "autotune of templates"
FILE = "autotune file for templates"
# Arguments of selections that several ranks make together, or whose caller needs the choices.
EXCLUDED = ("is_collective", "return_choice", "best_config_future")
MAX_DESCRIPTION = 500  # characters of a choice


def install(module: ModuleType) -> None:
    """torch._inductor.select_algorithm"""
    selector = module.AlgorithmSelectorCache
    wrap(selector, "do_autotuning", _select_timed)
    wrap(selector, "autotune", _select_benchmark)
    if advice.is_enabled():
        wrap(selector, "__call__", _select)


def _select(
    original: Callable[..., Any],
    selector: Any,
    name: str,
    choices: Sequence[Any],
    input_nodes: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    fewer = None
    if not any(kwargs.get(word) for word in EXCLUDED):
        fewer = guard(FILE, _fewer_choices, selector, name, choices, input_nodes)
    return original(selector, name, fewer or choices, input_nodes, *args, **kwargs)


def _fewer_choices(
    selector: Any, name: str, choices: Sequence[Any], input_nodes: Any
) -> list[Any] | None:
    for filtered in selector.preprocessing_fns:
        choices = filtered(choices)
    kernel, key = _template(name), _inputs(input_nodes)
    tuned_kernel = advice.find_kernel(kernel.kind, kernel.id, kernel.name)
    use = tuned_kernel.use(key) if tuned_kernel else None
    fewer = use and advice.narrow(choices, use.tried, use.take, _describe_choice)
    if not use or not fewer:
        return None
    _narrowed[name, key[0]] = len(choices)
    if len(fewer) == 1:
        choice, offered = _describe_choice(fewer[0]), len(choices)
        tunings.record(kernel, key, "", [], seconds=0.0, offered=offered, taken=choice)
    return fewer


def _select_timed(
    original: Callable[..., Any],
    selector: Any,
    name: str,
    input_nodes: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Time a selection, from the wait for the compiles to the last benchmark."""
    offered = guard(HOOK, _offered_choices, original, selector, name, input_nodes, args, kwargs)
    thread = recorder.thread()
    before = _benchmarks.pop(thread, None)
    benchmarks = _benchmarks[thread] = []
    start = monotonic_ns()
    try:
        result = original(selector, name, input_nodes, *args, **kwargs)
    finally:
        _benchmarks.pop(thread, None)
        if before is not None:
            _benchmarks[thread] = before
    if benchmarks:
        took = monotonic_ns() - start
        guard(HOOK, _record_selection, name, input_nodes, offered or (), benchmarks, took)
    return result


def _select_benchmark(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    start = monotonic_ns()
    timings = original(*args, **kwargs)
    benchmarks = _benchmarks.get(recorder.thread())
    if benchmarks is not None:
        benchmarks.append((timings, monotonic_ns() - start))
    return timings


def _offered_choices(original: Callable[..., Any], *call: Any) -> list[Any]:
    """All choices, including those that torch drops because they do not compile."""
    selector, name, input_nodes, args, kwargs = call
    bound = inspect.signature(original).bind(selector, name, input_nodes, *args, **kwargs)
    return list(bound.arguments["choices"])


def _record_selection(
    name: str,
    input_nodes: Any,
    offered: Sequence[Any],
    benchmarks: list[tuple[Any, int]],
    ns: int,
) -> None:
    timings = dict.fromkeys(offered, math.inf)
    timings |= {choice: ms for result, _ in benchmarks for choice, ms in result.items()}
    benchmarked = sum(duration for _, duration in benchmarks)
    key = _inputs(input_nodes)
    tunings.record(
        _template(name),
        key,
        "",
        [Timing(_describe_choice(choice), ms) for choice, ms in timings.items()],
        seconds=benchmarked / 1e9,
        offered=max(len(timings), _narrowed.get((name, key[0]), 0)),
        compiled=max(ns - benchmarked, 0) / 1e9,
    )


def _template(name: str) -> KernelInfo:
    return KernelInfo("template", digest("template", name), name)


def _inputs(input_nodes: Any) -> list[str]:
    """Sizes, strides and types as in torch's cache, and the precision of products."""
    torch: Any = sys.modules["torch"]
    create = sys.modules["torch._inductor.select_algorithm"].create_inputs_key
    return [create(input_nodes), torch.get_float32_matmul_precision()]


def _describe_choice(choice: Any) -> dict[str, Any]:
    """Describe a choice without its number, which depends on earlier compiles."""
    kind = type(choice).__name__.removesuffix("Caller")
    name = re.sub(r"_\d+$", "", str(choice.name))
    description = str(getattr(choice, "description", ""))
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[:MAX_DESCRIPTION]}... {digest(description)}"
    return {"choice": name, "by": kind, **({"description": description} if description else {})}


_benchmarks: dict[int, list[tuple[Any, int]]] = {}
_narrowed: dict[tuple[str, str], int] = {}
