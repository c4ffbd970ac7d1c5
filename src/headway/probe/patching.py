"""Apply hooks to imported modules: wrap functions and methods, and turn calls into spans.

A hook gets a module whose body has just run. If this version of torch lacks what the hook needs,
only that hook is disabled, with a note.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from headway.probe import (
    ENV_ASYNC,
    ENV_CHAOS,
    ENV_COMPILE,
    ENV_OFF,
    ENV_STEPS,
    import_hook,
    step_clock,
)
from headway.probe.import_hook import (
    ASYNC_SAVE_HOOKS,
    AUTOTUNE_HOOKS,
    COMPILE_CACHE_HOOKS,
    HOOKS,
    PRECOMPILE_HOOKS,
)
from headway.probe.recorder import guard, guard_end, recorder

CACHE_METHODS = ("cache_clear", "cache_info")  # of `functools.cache`; they are not in `__dict__`


def apply_hooks(name: str, module: ModuleType) -> None:
    """Run the hooks of module `name`."""
    disabled = os.environ.get(ENV_OFF, "").split(",")
    for package, table in _hook_tables():
        hook = table.get(name)
        if hook is not None and hook.partition(":")[0] not in disabled:
            guard(name, _run_hook, f"{package}.{hook}", module)
    if os.environ.get(ENV_CHAOS):
        guard(f"chaos in {name}", _run_hook, "headway.chaos.probe_hooks:install", module)
    if os.environ.get(ENV_STEPS):
        guard(f"stop in {name}", _run_hook, "headway.probe.hooks.trial_stop:install", module)


def _run_hook(path: str, module: ModuleType) -> None:
    file, _, function = path.partition(":")
    getattr(importlib.import_module(file), function)(module)


def _hook_tables() -> Iterator[tuple[str, dict[str, str]]]:
    """The tables in use, with the package of their hooks."""
    if os.environ.get(ENV_ASYNC) == "1":  # first, so that only blocking time is measured
        yield "headway.checkpoint.async_save", ASYNC_SAVE_HOOKS
    yield "headway.probe.hooks", HOOKS
    yield "headway.probe.autotune", AUTOTUNE_HOOKS
    if os.environ.get(ENV_COMPILE):
        yield "headway.probe.hooks", COMPILE_CACHE_HOOKS
        if os.environ.get("TORCH_CACHING_PRECOMPILE") == "1":
            yield "headway.compile.precompile", PRECOMPILE_HOOKS


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace `owner.name` by a wrapper that calls `around(original, *args, **kwargs)`.

    Class methods and static methods remain so: `around` of a class method gets the class first.
    """
    original = getattr(owner, name)
    kind = type(_static_attribute(owner, name))
    if kind is classmethod:
        original = original.__func__

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing():
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    for method in CACHE_METHODS:
        if hasattr(original, method):
            setattr(wrapper, method, getattr(original, method))
    setattr(owner, name, kind(wrapper) if kind in (classmethod, staticmethod) else wrapper)
    if import_hook.installing_late and isinstance(owner, ModuleType):
        _replace_exports(owner, name, original, wrapper)


def _static_attribute(owner: Any, name: str) -> Any:
    """The attribute as defined in the class, not bound."""
    classes = owner.__mro__ if isinstance(owner, type) else ()
    return next((vars(cls)[name] for cls in classes if name in vars(cls)), None)


def _replace_exports(owner: ModuleType, name: str, original: Any, wrapper: Any) -> None:
    """Replace the original also in modules of the same package that have imported it.

    torch compares some of its functions by identity, so all its modules need the same object.
    """
    package = owner.__name__.partition(".")[0]
    for other, module in list(sys.modules.items()):
        if other.partition(".")[0] == package and vars(module).get(name) is original:
            setattr(module, name, wrapper)


def tracing() -> bool:
    """Whether dynamo is tracing this code; then nothing is recorded.

    Replaced by torch's own function when torch is imported. Dynamo knows its result and drops the
    hook from the graph, so that the graph is the same with and without hooks.
    """
    return False


def spanned(
    owner: Any, name: str, span: str, *, starts: bool = True, until_first_step: bool = False
) -> None:
    """Record every outermost call of `owner.name` as a span; `starts`: it opens the journal."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if inside(span) or (until_first_step and step_clock.steps):
            return original(*args, **kwargs)
        if starts:
            guard(span, recorder.start)
        span_id = guard(span, enter, span, name)
        try:
            return original(*args, **kwargs)
        finally:
            guard_end(span, leave, span, span_id)

    wrap(owner, name, around)


def is_in_loop() -> bool:
    """Whether this thread makes the steps, and has made one."""
    return step_clock.steps > 0 and recorder.thread() == step_clock.step_thread_in_journal


def after_sdk_steps(callback: Callable[[], object]) -> None:
    """Call `callback` after every `headway.step()`."""
    original = step_clock.count_step

    @functools.wraps(original)
    def count_step() -> None:
        original()
        callback()

    step_clock.count_step = count_step


# (name, thread) -> open span. Spans of one name do not nest: only the outermost call counts.
_open_spans: dict[tuple[str, int], int] = {}


def inside(span: str) -> bool:
    """Whether this thread has an open span of this name."""
    return (span, recorder.thread()) in _open_spans


@contextlib.contextmanager
def within(span: str) -> Iterator[None]:
    """Do not record spans of this name in this thread: a larger span covers them."""
    key = span, recorder.thread()
    _open_spans[key] = 0
    try:
        yield
    finally:
        _open_spans.pop(key, None)


def enter(span: str, what: str, **fields: Any) -> int:
    """Open a span in which calls of the same name are not recorded."""
    span_id = recorder.begin(span, what=what, **fields)
    _open_spans[span, recorder.thread()] = span_id
    return span_id


def leave(span: str, span_id: int | None, **fields: Any) -> None:
    _open_spans.pop((span, recorder.thread()), None)
    if span_id is not None:
        recorder.end(span_id, **fields)
