"""Fill caches in the forkserver that every process of the job would fill again.

Values that depend only on what is installed on this machine and, without a GPU, one small compile:
the first compile of a process builds tables that are the same in every process. If something fails
here, the processes compute it themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

# function -> a module that is loaded only if the job will call the function, as its last attempt
# did
CACHED_FUNCTIONS = {
    "torch._inductor.codecache.torch_key": "torch._inductor.codecache",  # a hash of torch's sources
    "triton.runtime.cache.triton_key": "triton.runtime.cache",  # a hash of Triton's sources
    "triton.compiler.compiler.triton_key": "triton.compiler.compiler",  # the same in older versions
    "torch._dynamo.trace_rules.get_torch_obj_rule_map": "torch.utils.cpp_extension",
}
# The same for a job that compiles for the CPU. It compiles and loads a few lines of C++.
CPU_FUNCTIONS = {"torch._inductor.cpu_vec_isa.valid_vec_isa_list": "torch.utils.cpp_extension"}


def fill_caches() -> None:
    """Call the functions that the job will call."""
    _fill_inspect()
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    functions = CACHED_FUNCTIONS if torch.cuda.is_available() else CACHED_FUNCTIONS | CPU_FUNCTIONS
    with _metrics_restored():
        for name, loaded in functions.items():
            module, _, function = name.rpartition(".")
            if loaded in sys.modules:
                with contextlib.suppress(Exception):
                    call: Callable[[], Any] = getattr(importlib.import_module(module), function)
                    call()


def _fill_inspect() -> None:
    """Fill the table of files that inspect.stack() builds; torchrun calls it at each rendezvous.

    Modules that load themselves on access are skipped.
    """
    files: Any = getattr(inspect, "_filesbymodname", None)
    modules: Any = getattr(inspect, "modulesbyfile", None)
    if not isinstance(files, dict) or not isinstance(modules, dict):
        return
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str) and type(module) is ModuleType:
            files[name] = path
            for file in (inspect.getabsfile(module), os.path.realpath(path)):
                modules[file] = module.__name__


@contextlib.contextmanager
def _metrics_restored() -> Iterator[None]:
    """Remove the times that dynamo records for these calls as compile times."""
    times: Any = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
    before = set(times)
    yield
    for name in set(times) - before:
        del times[name]


COMPILER_MODULE = (
    "torch._inductor.compile_fx"  # loaded only if the job compiled in its last attempt
)


def compile_once() -> None:
    """Compile a small function once and restore the state; errors are ignored."""
    torch: Any = sys.modules.get("torch")
    if COMPILER_MODULE not in sys.modules or torch.cuda.is_available():
        return
    with contextlib.suppress(Exception), _state_restored():
        _compile()


def _compile() -> None:
    import torch
    from torch._inductor import config

    layer = torch.nn.Linear(4, 4)
    table = torch.nn.Embedding(4, 4)

    def few_lines(dense: Any, ids: Any) -> Any:
        rows = torch.stack([layer(dense).relu(), table(ids)], dim=1)
        dots = rows @ rows.transpose(1, 2)
        return torch.cat([dots.flatten(1), dense], dim=1).softmax(1).mean()

    with torch.no_grad(), config.patch(compile_threads=1):
        torch.compile(few_lines)(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))


@contextlib.contextmanager
def _state_restored() -> Any:
    """Restore random numbers, counters and compiled code; no thread for a progress bar."""
    import torch
    import torch._dynamo

    bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    interval = getattr(bar, "monitor_interval", None)
    if bar is not None:
        bar.monitor_interval = 0
    frames = sys.modules.get("torch._dynamo.convert_frame")
    counter = getattr(frames, "FRAME_COUNTER", None)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            if counter is not None:
                frames.FRAME_COUNTER = counter  # type: ignore[union-attr]
            if bar is not None:
                bar.monitor_interval = interval
