"""Watches imports: times them, and hands each module to its hook when its body has run.

At that moment the module's names are not yet re-exported anywhere, so a wrapper put there is the
one that everybody gets; and nothing is imported that the user does not import.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from types import ModuleType
from typing import Any

# Modules that have a hook in headway.probe.hooks.
HOOKED = frozenset(
    {
        "torch",
        "torch.cuda",
        "torch.optim.optimizer",
        "torch.nn.modules.module",
        "torch.nn.parallel.distributed",
        "torch.utils.data.dataloader",
        "torch.serialization",
        "torch.distributed.distributed_c10d",
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "torch.distributed.fsdp._fully_shard._fully_shard",
        "torch.distributed.checkpoint.state_dict_saver",
        "torch.distributed.checkpoint.state_dict_loader",
        "torch.distributed.elastic.events",
        "torch.distributed.elastic.multiprocessing.errors",
        "torch.multiprocessing.spawn",
        "torch._dynamo",
        "torch._dynamo.callback",
        "torch._inductor.compile_fx",
        "torch.export",
        "torch.jit._serialization",
        "torch._inductor",
        "torch.onnx",
        "safetensors.torch",
        "lightning.pytorch.trainer.trainer",
        "pytorch_lightning.trainer.trainer",
        "transformers.trainer",
    }
)
# Timed from their first line, as they are slow and a kill may fall into them.
LIVE = {"torch": "import", "torch._dynamo": "compile_import", "torch._inductor": "compile_import",
        "torch._inductor.compile_fx": "compile_import"}
WORTH_NOTING = 20_000_000  # ns; shorter imports of other packages leave no span


class Watch:
    """First on sys.meta_path; finds nothing itself."""

    def __init__(self) -> None:
        self.waiting = set(HOOKED)
        self.timing = True  # of top-level packages, until the first step
        self.depth = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the other finders give, with its loader's run of the body wrapped."""
        hooked = name in self.waiting
        if not hooked and (not self.timing or "." in name):
            return None
        spec = self._ask_others(name, path, target)
        loader = getattr(spec, "loader", None)
        if loader is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return spec
        self.waiting.discard(name)
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self._exec(run, module, name, hooked)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots: leave it alone
            pass
        return spec

    def _ask_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _exec(self, run: Any, module: ModuleType, name: str, hooked: bool) -> None:
        live = LIVE.get(name)
        span = _recorder().begin(live, module=name) if live else None
        self.depth += 1
        start = monotonic_ns()
        try:
            run(module)
        finally:
            end = monotonic_ns()
            self.depth -= 1
            if span is not None:
                _recorder().end(span)
        if hooked:
            from headway.probe import hooks

            hooks.apply(name, module)
        elif self.depth == 0 and end - start >= WORTH_NOTING and "torch" in sys.modules:
            _recorder().span("import", start, end, module=name)
        elif self.depth == 0 and end - start >= WORTH_NOTING:
            EARLY.append((name, start, end))


# Imports that were over before torch came: the recorder takes them when it starts.
EARLY: list[tuple[str, int, int]] = []
_watch: Watch | None = None


def watch() -> None:
    """Start watching, once per process; modules that are there already are hooked at once."""
    global _watch
    if _watch is not None:
        return
    _watch = Watch()
    sys.meta_path.insert(0, _watch)  # type: ignore[arg-type]
    if "torch" in sys.modules:
        from headway.probe import hooks

        for name in sorted(_watch.waiting & sys.modules.keys()):
            _watch.waiting.discard(name)
            hooks.apply(name, sys.modules[name])


def stop_timing() -> None:
    """From the first step on an import is part of the loop, not of the start."""
    if _watch is not None:
        _watch.timing = False


def _recorder() -> Any:
    from headway.probe.recorder import recorder

    return recorder
