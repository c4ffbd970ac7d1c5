"""Hooks in the parts of torch that make, load and use precompile packages."""

from __future__ import annotations

import atexit
import functools
import inspect
import itertools
import logging
import os
import shutil
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.compile.precompile.guards import PackageGuards, mismatch_reason, read_guards
from headway.errors import Reason
from headway.probe import step_clock
from headway.probe.patching import wrap
from headway.probe.recorder import guard, recorder


class Packages:
    """Those of this process."""

    def __init__(self) -> None:
        self.guards: dict[str, PackageGuards] = {}  # by package
        # What is being compiled: its guards, its module, whether it is the function itself.
        self.now: tuple[PackageGuards, str, bool] | None = None
        self.loaded: set[str] = set()
        self.changed = False

    def of(self, source_id: str) -> PackageGuards:
        """The guards of a package."""
        return self.guards.setdefault(source_id, PackageGuards())

    def save(self) -> None:
        """Let torch write its packages, and keep beside each what it lacks."""
        import torch
        from torch._dynamo.package import DynamoCache

        if not self.changed:
            return
        self.changed = False
        torch.compiler.save_cache_artifacts()
        for source_id, guards in self.guards.items():
            folder = os.path.join(DynamoCache.path_prefix(), source_id)
            if not os.path.isdir(folder):
                continue
            if guards.unknowable:
                shutil.rmtree(folder, ignore_errors=True)
                note(f"a package is not kept: {guards.unknowable}", code="package-not-kept")
            else:
                guards.write(folder)


packages = Packages()


def note(text: str, *, code: str) -> None:
    """Into the journal."""
    recorder.emit("note", hook="precompile", code=code, text=text)


def install_bytecode(module: ModuleType) -> None:
    """torch._dynamo.bytecode_transformation: names in a package must not be made again."""
    module._unique_id_counter = itertools.count(time.time_ns() // 1000)  # type: ignore[attr-defined]


def install_guards(module: ModuleType) -> None:
    """torch._dynamo.guards"""
    manager = module.CheckFunctionManager
    signature = inspect.signature(manager.__init__)

    def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if packages.now is None:
            return original(*args, **kwargs)
        guards, name, top = packages.now
        bound = signature.bind(*args, **kwargs)
        wanted = bound.arguments.get("guard_filter_fn")

        def keep(entries: Any) -> Any:
            guards.take(entries, name, top=top)
            return wanted(entries) if wanted else [True] * len(entries)

        bound.arguments["guard_filter_fn"] = keep
        return original(*bound.args, **bound.kwargs)

    wrap(manager, "__init__", init)
    told = logging.getLogger(module.__name__)  # a line for each of them, and we keep them all
    told.addFilter(lambda record: "is dropped with caching_precompile" not in str(record.msg))


def install_convert(module: ModuleType) -> None:
    """torch._dynamo.convert_frame"""

    def call(original: Callable[..., Any], self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        package = getattr(self, "_package", None)
        if package is None or not package.is_initialized():
            return original(self, frame, *args, **kwargs)
        before = packages.now
        top = getattr(package._innermost_fn, "__code__", None) is frame.f_code
        name = frame.f_globals.get("__name__", "")
        packages.now = (packages.of(package.source_id), name, top)
        packages.changed = True
        try:
            return original(self, frame, *args, **kwargs)
        finally:
            packages.now = before

    wrap(module.ConvertFrameAssert, "__call__", call)


def install_package(module: ModuleType) -> None:
    """torch._dynamo.package"""

    def load(original: Callable[..., Any], self: Any, fn: Any) -> Any:
        source_id = module.CompilePackage.source_id_from_fn(fn)
        folder = os.path.join(self.path_prefix(), source_id)
        if not os.path.isdir(folder):
            return original(self, fn)
        why = mismatch_reason(folder, fn)
        if why:
            note(f"a package is not used: {why}", code="package-guards-differ")
            return None
        found = original(self, fn)
        if found is not None:
            packages.loaded.add(source_id)
            packages.of(source_id).dropped.extend(read_guards(folder))
        return found

    wrap(module.DiskDynamoCache, "load", load)
    step_clock.on_first_step.append(lambda t: guard("precompile", packages.save))
    atexit.register(lambda: guard("precompile", packages.save))


def install_eval_frame(module: ModuleType) -> None:
    """torch._dynamo.eval_frame"""

    def call(original: Callable[..., Any], self: Any, fn: Any) -> Any:
        from headway.probe.hooks.compile_cache import cache_client

        guard("precompile", cache_client.wait)
        package = getattr(self, "_package", None)
        fresh = package is not None and not package.is_initialized()
        try:
            made = original(self, fn)
        except Exception as error:
            if package is None or not fresh or not package.is_initialized():
                raise
            text = f"a package could not be loaded: {type(error).__name__}: {error}"
            note(text, code="package-not-loaded")
            packages.loaded.discard(package.source_id)
            made = original(self, fn)
        if not fresh or package is None or not package.is_initialized():
            return made
        found = guard("precompile", _insert_canary, module, self, made, fn, package)
        return made if found is None else found

    signature = inspect.signature(module.OptimizeContext.__init__)

    def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["self"]._headway_again = bound.arguments["rebuild_ctx"]
        return original(*args, **kwargs)

    wrap(module.OptimizeContext, "__init__", init)
    wrap(module._TorchDynamoContext, "__call__", call)


def _insert_canary(module: ModuleType, context: Any, made: Any, fn: Any, package: Any) -> Any:
    """The compiled function behind its canary."""
    import torch

    from headway.compile.precompile.canary import Canary

    optimized = isinstance(made, module.OptimizedModule)
    top = fn.forward if isinstance(fn, torch.nn.Module) else fn
    owner = getattr(top, "__self__", None)

    plain = made._orig_mod.__call__ if optimized else fn

    def distrust(why: Reason) -> Callable[..., Any]:
        note(f"a package is given up: {why}", code=why.code)
        torch._dynamo.config.caching_precompile = False
        package.uninstall()
        torch._dynamo.reset()
        packages.changed = False
        packages.guards.clear()
        again: Callable[..., Any] = context._headway_again()(plain)
        return again

    canary = Canary(
        made.forward if optimized else made,
        plain,
        owner if isinstance(owner, torch.nn.Module) else None,
        loaded=package.source_id in packages.loaded,
        watch=lambda: packages.of(package.source_id).watch(top),
        distrust=distrust,
    )
    if optimized:
        made.forward = canary
        return made
    return functools.wraps(made)(lambda *args, **kwargs: canary(*args, **kwargs))
