"""Hooks in the modules of torch that create, load and use precompile packages."""

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
    """The packages of this process."""

    def __init__(self) -> None:
        self.guards: dict[str, PackageGuards] = {}  # by package
        # What is being compiled: its guards, its module, whether it is the function itself.
        self.compiling: tuple[PackageGuards, str, bool] | None = None
        self.loaded_ids: set[str] = set()
        self.has_changes = False

    def guards_of(self, source_id: str) -> PackageGuards:
        return self.guards.setdefault(source_id, PackageGuards())

    def save(self) -> None:
        """Let torch write its packages, and add the dropped guards to each."""
        import torch
        from torch._dynamo.package import DynamoCache

        if not self.has_changes:
            return
        self.has_changes = False
        torch.compiler.save_cache_artifacts()
        for source_id, guards in self.guards.items():
            folder = os.path.join(DynamoCache.path_prefix(), source_id)
            if not os.path.isdir(folder):
                continue
            if guards.unportable_reason:
                shutil.rmtree(folder, ignore_errors=True)
                note(f"package not stored: {guards.unportable_reason}", code="package-not-kept")
            else:
                guards.write(folder)


packages = Packages()


def note(text: str, *, code: str) -> None:
    """Write a note to the journal."""
    recorder.emit("note", hook="precompile", code=code, text=text)


def install_bytecode(module: ModuleType) -> None:
    """torch._dynamo.bytecode_transformation: names of a loaded package must not be reused."""
    module._unique_id_counter = itertools.count(time.time_ns() // 1000)  # type: ignore[attr-defined]


def install_guards(module: ModuleType) -> None:
    """torch._dynamo.guards"""
    manager = module.CheckFunctionManager
    signature = inspect.signature(manager.__init__)

    def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if packages.compiling is None:
            return original(*args, **kwargs)
        guards, name, top = packages.compiling
        bound = signature.bind(*args, **kwargs)
        user_filter = bound.arguments.get("guard_filter_fn")

        def keep(entries: Any) -> Any:
            guards.add(entries, name, top=top)
            return user_filter(entries) if user_filter else [True] * len(entries)

        bound.arguments["guard_filter_fn"] = keep
        return original(*bound.args, **bound.kwargs)

    wrap(manager, "__init__", init)
    logger = logging.getLogger(module.__name__)  # one line per dropped guard, but none is lost
    logger.addFilter(lambda record: "is dropped with caching_precompile" not in str(record.msg))


def install_convert(module: ModuleType) -> None:
    """torch._dynamo.convert_frame"""

    def call(original: Callable[..., Any], self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        package = getattr(self, "_package", None)
        if package is None or not package.is_initialized():
            return original(self, frame, *args, **kwargs)
        previous = packages.compiling
        top = getattr(package._innermost_fn, "__code__", None) is frame.f_code
        name = frame.f_globals.get("__name__", "")
        packages.compiling = (packages.guards_of(package.source_id), name, top)
        packages.has_changes = True
        try:
            return original(self, frame, *args, **kwargs)
        finally:
            packages.compiling = previous

    wrap(module.ConvertFrameAssert, "__call__", call)


def install_package(module: ModuleType) -> None:
    """torch._dynamo.package"""

    def load(original: Callable[..., Any], self: Any, fn: Any) -> Any:
        source_id = module.CompilePackage.source_id_from_fn(fn)
        folder = os.path.join(self.path_prefix(), source_id)
        if not os.path.isdir(folder):
            return original(self, fn)
        reason = mismatch_reason(folder, fn)
        if reason:
            note(f"package not used: {reason}", code="package-guards-differ")
            return None
        package = original(self, fn)
        if package is not None:
            packages.loaded_ids.add(source_id)
            packages.guards_of(source_id).dropped.extend(read_guards(folder))
        return package

    wrap(module.DiskDynamoCache, "load", load)
    step_clock.on_first_step.append(lambda t: guard("precompile", packages.save))
    atexit.register(lambda: guard("precompile", packages.save))


def install_eval_frame(module: ModuleType) -> None:
    """torch._dynamo.eval_frame"""

    def call(original: Callable[..., Any], self: Any, fn: Any) -> Any:
        from headway.probe.hooks.compile_cache import cache_client

        guard("precompile", cache_client.wait)
        package = getattr(self, "_package", None)
        is_new = package is not None and not package.is_initialized()
        try:
            compiled = original(self, fn)
        except Exception as error:
            if package is None or not is_new or not package.is_initialized():
                raise
            text = f"cannot load a package: {type(error).__name__}: {error}"
            note(text, code="package-not-loaded")
            packages.loaded_ids.discard(package.source_id)
            compiled = original(self, fn)
        if not is_new or package is None or not package.is_initialized():
            return compiled
        with_canary = guard("precompile", _insert_canary, module, self, compiled, fn, package)
        return compiled if with_canary is None else with_canary

    signature = inspect.signature(module.OptimizeContext.__init__)

    def init(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["self"]._headway_again = bound.arguments["rebuild_ctx"]
        return original(*args, **kwargs)

    wrap(module.OptimizeContext, "__init__", init)
    wrap(module._TorchDynamoContext, "__call__", call)


def _insert_canary(module: ModuleType, context: Any, compiled: Any, fn: Any, package: Any) -> Any:
    """Wrap the compiled function in a canary."""
    import torch

    from headway.compile.precompile.canary import Canary

    optimized = isinstance(compiled, module.OptimizedModule)
    function = fn.forward if isinstance(fn, torch.nn.Module) else fn
    owner = getattr(function, "__self__", None)

    eager = compiled._orig_mod.__call__ if optimized else fn

    def on_mismatch(reason: Reason) -> Callable[..., Any]:
        note(f"package discarded: {reason}", code=reason.code)
        torch._dynamo.config.caching_precompile = False
        package.uninstall()
        torch._dynamo.reset()
        packages.has_changes = False
        packages.guards.clear()
        recompiled: Callable[..., Any] = context._headway_again()(eager)
        return recompiled

    canary = Canary(
        compiled.forward if optimized else compiled,
        eager,
        owner if isinstance(owner, torch.nn.Module) else None,
        loaded=package.source_id in packages.loaded_ids,
        make_id_reader=lambda: packages.guards_of(package.source_id).make_id_reader(function),
        on_mismatch=on_mismatch,
    )
    if optimized:
        compiled.forward = canary
        return compiled
    return functools.wraps(compiled)(lambda *args, **kwargs: canary(*args, **kwargs))
