"""Answers that every process of the job works out again, and that are the same for all of them.

Only functions whose answer depends on nothing but what is installed on this machine; each keeps it
in a cache of its own. Whatever fails here is worked out by the processes themselves.
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

# function -> a module that is loaded only where the job will ask, as its last attempt did
CACHED_FUNCTIONS = {
    "torch._inductor.codecache.torch_key": "torch._inductor.codecache",  # a hash of torch's sources
    "triton.runtime.cache.triton_key": "triton.runtime.cache",  # and of Triton's
    "triton.compiler.compiler.triton_key": "triton.compiler.compiler",  # where older ones have it
    "torch._dynamo.trace_rules.get_torch_obj_rule_map": "torch.utils.cpp_extension",
}
# The same, for a job that compiles for the CPU. It compiles and loads a few lines of C++.
CPU_FUNCTIONS = {"torch._inductor.cpu_vec_isa.valid_vec_isa_list": "torch.utils.cpp_extension"}


def fill_caches() -> None:
    """Work them out, where the job will ask."""
    _fill_inspect()
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    asked = CACHED_FUNCTIONS if torch.cuda.is_available() else CACHED_FUNCTIONS | CPU_FUNCTIONS
    with _metrics_restored():
        for answer, loaded in asked.items():
            module, _, function = answer.rpartition(".")
            if loaded in sys.modules:
                with contextlib.suppress(Exception):
                    call: Callable[[], Any] = getattr(importlib.import_module(module), function)
                    call()


def _fill_inspect() -> None:
    """inspect.stack(), which torchrun calls at each rendezvous, first looks at the files of all
    modules. Modules that load themselves when they are looked at are left alone here."""
    files: Any = getattr(inspect, "_filesbymodname", None)
    modules: Any = getattr(inspect, "modulesbyfile", None)
    if not isinstance(files, dict) or not isinstance(modules, dict):
        return
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str) and type(module) is ModuleType:
            files[name] = path
            for known in (inspect.getabsfile(module), os.path.realpath(path)):
                modules[known] = module.__name__


@contextlib.contextmanager
def _metrics_restored() -> Iterator[None]:
    """dynamo counts the seconds of some of them as those of a compile."""
    times: Any = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
    before = set(times)
    yield
    for name in set(times) - before:
        del times[name]
