"""A kernel that torch has generated, from its source to its first launches, without a GPU.

    inductor.py FILE SIZE MS,MS,...

The kernel is made and compiled (for a GPU that need not be there) as a compile worker does it,
pickled, taken up as the parent does it, and launched three times. Where there is no Triton the
compile is left out. Launches do nothing; the times of the benchmarks are given.
"""

import importlib.util
import json
import pickle
import sys
from types import SimpleNamespace

import torch
from torch._inductor.runtime import compile_tasks, hints, triton_helpers
from torch._inductor.runtime import triton_heuristics as heuristics

FILE, SIZE, TIMES = sys.argv[1], int(sys.argv[2]), [float(ms) for ms in sys.argv[3].split(",")]
NAME = "triton_poi_fused_relu_0"
REAL = importlib.util.find_spec("triton") is not None
COMPILED, BENCHMARKED = [], []
TUNER = heuristics.CachingAutotuner


class Launcher:
    n_spills, n_regs, shared, store_cubin = 0, 1, 0, False

    def __init__(self, config):
        self.config, self.cache_hash = config, str(config)

    def __call__(self, *args, stream=None):
        return [self.config.kwargs["XBLOCK"], self.config.num_warps]


class Result:
    """Stands in for a compiled kernel where there is no Triton to compile it."""

    def __init__(self, config):
        self.config, self.kernel = config, SimpleNamespace(hash="0" * 8)


def compiled(self, config, *, original=TUNER._precompile_config):
    COMPILED.append(config.num_warps)
    return original(self, config) if REAL else Result(config)


def bench(self, launcher, *args, **kwargs):
    BENCHMARKED.append(launcher.config.num_warps)
    return TIMES.pop(0)


def device(self):
    return SimpleNamespace(exchange_device=lambda index: 0, maybe_exchange_device=lambda index: 0)


TUNER._precompile_config, TUNER.bench, TUNER.get_device_interface = compiled, bench, device
triton_helpers.set_driver_to_gpu = lambda: None
for kind in (heuristics.StaticTritonCompileResult, heuristics.TritonCompileResult, Result):
    kind.make_launcher = lambda self: Launcher(self.config)


def load():
    if REAL:
        return getattr(compile_tasks._reload_python_module("kernel", FILE), NAME)
    with open(FILE) as file:
        function = SimpleNamespace(
            fn=lambda in_ptr0, out_ptr0, xnumel, XBLOCK: None,
            src=file.read().partition("@triton.jit\n")[2],
            __name__=NAME,
            arg_names=["in_ptr0", "out_ptr0", "xnumel"],
        )
    configs = [
        SimpleNamespace(kwargs={"XBLOCK": block}, num_warps=warps, num_stages=1, pre_hook=None)
        for block, warps in ((1024, 4), (512, 8))
    ]
    return heuristics.cached_autotune(
        {"x": 1048576},
        configs,
        triton_meta={
            "signature": {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32"},
            "device": hints.DeviceProperties("cuda", 0, 132, 90, warp_size=32),
        },
        heuristic_type=hints.HeuristicType.POINTWISE,
        filename=FILE,
        inductor_meta={"mutated_arg_names": []},
    )(function)


kernel = load()
kernel.precompile(warm_cache_only=True)
if REAL:
    kernel.prepare_for_pickle()
    kernel = pickle.loads(pickle.dumps(kernel))
    kernel.restore_after_unpickle(None)
kernel.precompile(warm_cache_only=False, reload_kernel=load)
tensor = torch.zeros(1)
ran = [kernel.run(tensor, tensor, SIZE, stream=0) for _ in range(3)]
print(json.dumps({"compiled": COMPILED, "benchmarked": BENCHMARKED, "ran": ran}))
