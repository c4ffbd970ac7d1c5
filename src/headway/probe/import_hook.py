"""Time imports, and pass each hooked module to its hook as soon as its body has run.

At that moment no other module has imported names from it, so all users get the wrappers; and
nothing is imported that the job does not import. This module is loaded in every interpreter of a
job: it imports only `sys` and `time`.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

TYPE_CHECKING = False  # `typing` would be imported in every interpreter of a job
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


# module of the job -> "file:function" of its hook, below headway.probe.hooks
HOOKS = {
    "torch": "loop:torch_loaded",
    "torch.autograd.grad_mode": "evaluation:install_grad_mode",
    "torch.cuda": "device:install",
    "torch.optim.optimizer": "loop:install_optimizer",
    "torch.nn.modules.module": "modules:install",
    "torch.nn.parallel.distributed": "modules:install_ddp",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "modules:install_fsdp",
    "torch.distributed.fsdp._fully_shard._fully_shard": "modules:install_fully_shard",
    "torch.utils.data.dataloader": "loop:install_dataloader",
    "torch.serialization": "checkpoint:install",
    "torch.distributed.checkpoint.state_dict_saver": "checkpoint:install_dcp_save",
    "torch.distributed.checkpoint.state_dict_loader": "checkpoint:install_dcp_load",
    "safetensors.torch": "checkpoint:install_safetensors",
    "lightning.pytorch.trainer.trainer": "checkpoint:install_lightning",
    "pytorch_lightning.trainer.trainer": "checkpoint:install_lightning",
    "transformers.trainer": "checkpoint:install_transformers",
    "pyarrow.fs": "checkpoint:install_pyarrow",
    "torch.distributed.distributed_c10d": "process_groups:install",
    "torch.distributed.elastic.events": "process_groups:install_events",
    "torch.distributed.elastic.multiprocessing.errors": "process_groups:install_failures",
    "torch.multiprocessing.spawn": "process_groups:install_spawn",
    "torch._dynamo.callback": "compile:install",
    "torch._dynamo.utils": "compile:install_utils",
    "torch._dynamo.guards": "compile:install_guards",
    "torch._inductor.codecache": "compile:install_fx_cache",
    "torch._functorch._aot_autograd.autograd_cache": "compile:install_aot_cache",
    "torch.export": "publish:install_export",
    "torch.jit._serialization": "publish:install_jit",
    "torch._inductor": "publish:install_inductor",
    "torch.onnx": "publish:install_onnx",
}
# The same, below headway.probe.autotune.
AUTOTUNE_HOOKS = {
    "triton.runtime.autotuner": "triton:install",
    "torch._inductor.runtime.triton_heuristics": "inductor:install",
    "torch._inductor.select_algorithm": "templates:install",
}
# The same, if the launcher fills a compile cache.
COMPILE_CACHE_HOOKS = {
    "torch": "compile_cache:torch_loaded",
    "torch._dynamo.callback": "compile_cache:install_callback",
    "torch._dynamo.pgo": "compile_cache:install_profile",
    "torch._inductor.async_compile": "compile_cache:install_pool",
    "torch._inductor.codecache": "compile_cache:install_codecache",
    "torch._inductor.cpu_vec_isa": "compile_cache:install_isa",
    "torch._inductor.runtime.triton_heuristics": "compile_cache:install_heuristics",
    "triton.compiler.compiler": "compile_cache:install_triton",
    "triton.runtime.cache": "compile_cache:install_key",
}
# The same, if traced frames are archived too; below headway.compile.precompile.
PRECOMPILE_HOOKS = {
    "torch._dynamo.bytecode_transformation": "hooks:install_bytecode",
    "torch._dynamo.convert_frame": "hooks:install_convert",
    "torch._dynamo.eval_frame": "hooks:install_eval_frame",
    "torch._dynamo.guards": "hooks:install_guards",
    "torch._dynamo.package": "hooks:install_package",
}
# The same, if saves are written in the background; below headway.checkpoint.async_save.
ASYNC_SAVE_HOOKS = {
    "torch.serialization": "hooks:install",
    "torch.distributed.checkpoint.state_dict_saver": "hooks:install_dcp",
    "torch.distributed.distributed_c10d": "hooks:install_distributed",
    "lightning.fabric.utilities.cloud_io": "hooks:install_lightning",
    "lightning_fabric.utilities.cloud_io": "hooks:install_lightning",
    "lightning.pytorch.trainer.trainer": "hooks:install_lightning_trainer",
    "pytorch_lightning.trainer.trainer": "hooks:install_lightning_trainer",
    "accelerate.accelerator": "hooks:install_accelerate",
    "pyarrow.fs": "hooks:install_pyarrow",
    "transformers.trainer": "hooks:install_trainer",
    "transformers.trainer_callback": "hooks:install_trainer_state",
    "transformers.trainer_utils": "hooks:install_last_checkpoint",
}
# The span of these opens before their body runs: they are slow, and a kill may interrupt them.
COMPILE_IMPORT = "compile_import"
TIMED_IMPORTS = {
    "torch": "import",
    "torch._dynamo": COMPILE_IMPORT,
    "torch._inductor": COMPILE_IMPORT,
    "torch._inductor.compile_fx": COMPILE_IMPORT,
}
HOOKED_MODULES = frozenset(
    {
        *HOOKS,
        *AUTOTUNE_HOOKS,
        *COMPILE_CACHE_HOOKS,
        *PRECOMPILE_HOOKS,
        *ASYNC_SAVE_HOOKS,
        *TIMED_IMPORTS,
    }
)
MIN_IMPORT_NS = 20_000_000  # shorter imports of other packages are not recorded


class ImportWatcher:
    """First entry of sys.meta_path: wraps the loaders that other finders return."""

    def __init__(self) -> None:
        self.waiting = set(HOOKED_MODULES)
        self.timing = True  # time top-level packages, until the first step
        self.depth = 0
        self.suspended = False  # while Headway imports its own modules
        self.order: list[str] = []  # every name that was looked up, in order
        self.inherited = 0  # how many of them in the fork server, before this process was forked

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the spec with the other finders, and wrap its loader."""
        hooked = name in self.waiting
        if self.timing and len(self.order) < 20_000:
            self.order.append(name)
        if self.suspended or (not hooked and (not self.timing or "." in name)):
            return None
        spec = self._ask_others(name, path, target)
        loader = getattr(spec, "loader", None)
        if loader is not None and not isinstance(loader, type) and hasattr(loader, "exec_module"):
            spec.loader = TimedLoader(loader, self, name)
        return spec

    def _ask_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def run(self, loader: Any, module: ModuleType, name: str) -> None:
        """Run and time the body of a module, then apply its hooks."""
        hooked = name in self.waiting
        self.waiting.discard(name)
        span_name = TIMED_IMPORTS.get(name)
        if name == "torch":
            self._guarded(_note_settings)
        span = self._guarded(_begin, span_name, name) if span_name else None
        self.depth += 1
        start = monotonic_ns()
        try:
            loader.exec_module(module)
        finally:
            end = monotonic_ns()
            self.depth -= 1
            if span is not None:
                self._guarded(_end, span)
        if hooked:
            self._guarded(_apply_hooks, name, module)
        elif self.depth == 0 and end - start >= MIN_IMPORT_NS:
            self._guarded(_record_import, name, start, end)

    def _guarded(self, call: Any, *args: Any) -> Any:
        """Run code of Headway: its imports are not watched, its exceptions do not reach the job."""
        before, self.suspended = self.suspended, True
        try:
            return call(*args)
        except Exception as error:
            import os

            if os.environ.get("HEADWAY_STRICT"):
                raise
            line = f"headway: {error!r} while {args} was imported [import-hook-failed]"
            print(line, file=sys.stderr)
            return None
        finally:
            self.suspended = before


class TimedLoader:
    """Wraps a loader until the body of the module has run."""

    def __init__(self, real: Any, watcher: ImportWatcher, name: str) -> None:
        self.__dict__.update(_real=real, _watcher=watcher, _name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def create_module(self, spec: Any) -> Any:
        """Delegate to the real loader; None makes the import system create the module."""
        make = getattr(self._real, "create_module", None)
        return make(spec) if make is not None else None

    def exec_module(self, module: ModuleType) -> None:
        """Restore the real loader, and run the body."""
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.loader is self:
            spec.loader = self._real
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._real
        self._watcher.run(self._real, module, self._name)


def _begin(span: str, name: str) -> Any:
    from headway.probe.recorder import recorder

    if span == COMPILE_IMPORT:
        from headway.probe import patching

        # Optimizers import the compiler too, also in jobs that do not compile.
        if not (patching.inside("compile") or patching.inside(COMPILE_IMPORT)):
            span = "import"
    return recorder.begin(span, module=name)


def _end(span: Any) -> None:
    from headway.probe.recorder import recorder

    recorder.end(span)


def _apply_hooks(name: str, module: ModuleType) -> None:
    from headway.probe import patching

    patching.apply_hooks(name, module)


def _record_import(name: str, start: int, end: int) -> None:
    if "torch" not in sys.modules:
        EARLY_IMPORTS.append((name, start, end))
        return
    from headway.probe.recorder import recorder

    recorder.span("import", start, end, module=name)


# Imports before torch: name, start, end. The recorder takes them over when it starts.
EARLY_IMPORTS: list[tuple[str, int, int]] = []
python_started_at: int | None = None  # None if Headway was installed later
installing_late = False  # while hooks are applied to modules that others have imported from
_watcher: ImportWatcher | None = None


def watch_imports() -> None:
    """Start watching, once per process. Modules that are already imported are hooked at once."""
    global _watcher, python_started_at, installing_late
    if _watcher is not None:
        return
    if "__main__" not in sys.modules or not hasattr(sys.modules["__main__"], "__file__"):
        python_started_at = monotonic_ns()  # the script has not started
    _watcher = ImportWatcher()
    sys.meta_path.insert(0, _watcher)
    if "torch" in sys.modules:
        installing_late = True
        try:
            for name in sorted(_watcher.waiting & sys.modules.keys()):
                _watcher.waiting.discard(name)
                _watcher._guarded(_apply_hooks, name, sys.modules[name])
        finally:
            installing_late = False


def reset_after_warm_fork(requested_at: int) -> None:
    """Start recording a process that the fork server forked: earlier imports are not its own."""
    global python_started_at
    from headway import probe

    probe.remember_environment()
    python_started_at = monotonic_ns()
    EARLY_IMPORTS.clear()
    if _watcher is not None:
        _watcher.inherited = len(_watcher.order)
    if "headway.probe.recorder" in sys.modules:
        from headway.probe.recorder import recorder

        recorder.reset_after_warm_fork(requested_at)
        _rearm_faults()


def _rearm_faults() -> None:
    """Read the planned faults again: they are planned for each attempt."""
    import os

    if os.environ.get("HEADWAY_CHAOS") or "headway.chaos.probe_hooks" in sys.modules:
        from headway.chaos import probe_hooks

        probe_hooks.arm()


def import_log_fields() -> dict[str, Any] | None:
    """The fields of the event `imported`, from which a later warm start is prepared.

    None if this process was forked and has imported nothing itself.
    """
    from headway.probe import import_log

    if _watcher is None:
        return import_log.log_fields([])
    names = import_log.importable_names(_watcher.order[_watcher.inherited :])
    return import_log.log_fields(_watcher.order) if names or not _watcher.inherited else None


def _note_settings() -> None:
    from headway.probe import import_log

    import_log.note_settings()


def stop_timing() -> None:
    """From the first step on, imports belong to the loop, not to the start."""
    if _watcher is not None:
        _watcher.timing = False
