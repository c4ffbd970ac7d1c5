"""Tunes two kernels of one name for the keys that are given; tells what was benchmarked.

The times are given too: `N=MS,MS,...` for a key and its configs. They are what `do_bench` says.
"""

import json
import os
import sys

import triton
from other import tuned as other_tuned

tl = triton.language
CALLS = []
HOOKED = []
TIMES = {}
FACTOR = tl.constexpr(2)


def bench(kernel_call, quantiles):
    kernel_call()
    CALLS.append(1)
    ms = TIMES["now"].pop(0)
    return [ms, ms, ms]


def hook(args):
    HOOKED.append(args["n"])


def configs():
    made = [triton.Config({"BLOCK": 64 << n}, num_warps=4) for n in range(3)]
    return [*made, triton.Config({"BLOCK": 64}, num_warps=4, pre_hook=hook)]


@triton.jit
def twice(x, F: tl.constexpr):
    return x * F


@triton.autotune(configs=configs(), key=["n", "mode"], do_bench=bench)
@triton.jit
def scale(x_ptr, y_ptr, n, mode: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, twice(x, FACTOR), mask=at < n)


class Pointer:
    """A tensor for a Triton that runs nothing."""

    dtype = "torch.float32"

    def data_ptr(self):
        return 64


RUNS = triton.__version__ != "0.0.0" and "NO_LAUNCH" not in os.environ
if "NO_LAUNCH" in os.environ:  # without a GPU there is nothing that a compiled kernel could run on
    triton.JITFunction.run = lambda self, *args, **kwargs: None


def tensor(n):
    if not RUNS:
        return Pointer()
    import torch

    return torch.ones(n)


def launch(kernel, n, *mode):
    x, y = tensor(n), tensor(n)
    for _ in range(3):
        kernel[lambda meta: (-(-n // meta["BLOCK"]),)](x, y, n, *mode)
    if not isinstance(y, Pointer):
        assert (y == 2).all()


told = {}
for word in sys.argv[1:]:
    name, _, times = word.partition("=")
    before = len(CALLS), len(HOOKED)
    TIMES["now"] = [float(ms) for ms in times.split(",") if ms]
    n, _, which = name.partition("/")
    if which == "other":
        tuner = other_tuned(configs(), bench)
        launch(tuner, int(n))
    else:
        tuner = scale
        launch(tuner, int(n), which or "plain")
    best = tuner.best_config
    told[name] = {
        "benchmarked": len(CALLS) - before[0],
        "hooked": len(HOOKED) - before[1],
        "best": [best.kwargs["BLOCK"], best.pre_hook is not None],
    }
print(json.dumps(told))
