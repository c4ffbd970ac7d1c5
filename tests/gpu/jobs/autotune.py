"""Kernels that are tuned, by Triton itself and by torch.compile, and what that took.

autotune.py triton|compiled TRUTH.json [FULL.json] [--few]

For each case: seconds of the first call, the config that was chosen, and milliseconds afterwards.
With the FULL.json of a run that tried every config, the config chosen there is timed beside the
one chosen here, turn by turn, so that clocks and neighbours are the same for both.
"""

import json
import statistics
import sys
import time

import torch
import triton
import triton.language as tl
from triton.testing import do_bench, do_bench_cudagraph

words = [word for word in sys.argv[1:] if not word.startswith("--")]
PART, TRUTH, FULL = words[0], words[1], (words[2] if len(words) > 2 else None)
FEW = "--few" in sys.argv
TURNS = 3 if FEW else 7


def product_configs():
    tiles = [(64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128)]
    tiles = tiles[:2] if FEW else tiles
    return [
        triton.Config({"BM": m, "BN": n, "BK": 64, "GROUP": 8}, num_warps=warps, num_stages=stages)
        for m, n in tiles
        for warps, stages in ((4, 3), (4, 4), (8, 3))
    ]


@triton.autotune(configs=product_configs(), key=["M", "N", "K"])
@triton.jit
def product(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    row = first + pid % (GROUP * columns) % height
    column = pid % (GROUP * columns) // height
    am = (row * BM + tl.arange(0, BM)) % M
    bn = (column * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a = a_ptr + am[:, None] * K + k[None, :]
    b = b_ptr + k[:, None] * N + bn[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(tl.cdiv(K, BK)):
        total = tl.dot(tl.load(a), tl.load(b), total)
        a += BK
        b += BK * N
    cm, cn = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    inside = (cm[:, None] < M) & (cn[None, :] < N)
    tl.store(c_ptr + cm[:, None] * N + cn[None, :], total.to(tl.bfloat16), mask=inside)


@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (1, 2, 4, 8, 16)], key=["N"])
@triton.jit
def softmax(x_ptr, y_ptr, N, WIDTH: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, WIDTH)
    x = tl.load(x_ptr + at, mask=tl.arange(0, WIDTH) < N, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x))
    tl.store(y_ptr + at, (e / tl.sum(e)).to(tl.bfloat16), mask=tl.arange(0, WIDTH) < N)


def tiles(m, n):
    return lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)


def random(*size):
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16) / 8


def product_case(m, n, k):
    a, b, c = random(m, k), random(k, n), random(m, n)
    return product, tiles(m, n), (a, b, c, m, n, k), {}, lambda: (c, a @ b)


def softmax_case(rows, width):
    x, y = random(rows, width), random(rows, width)
    constants = {"WIDTH": triton.next_power_of_2(width)}
    return softmax, (rows,), (x, y, width), constants, lambda: (y, torch.softmax(x, 1))


def timed(call):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def milliseconds(call):
    return do_bench(call, warmup=10, rep=40, return_mode="mean")


def plain(config):
    return {name: value for name, value in config.all_kwargs().items() if value is not None}


def own_kernels(known):
    # Long enough for events of CUDA, which tell half a microsecond, to tell one percent.
    products = [(2048, 2048, 4096), (4096, 4096, 2048), (8192, 2048, 1024)]
    widths = [(65536, 1024), (16384, 4096)]
    cases = {f"product {m}x{n}x{k}": product_case(m, n, k) for m, n, k in products}
    cases |= {f"softmax {m}x{n}": softmax_case(m, n) for m, n in widths}
    for name, (kernel, grid, args, constants, check) in cases.items():
        seconds, _ = timed(lambda: kernel[grid](*args, **constants))  # noqa: B023
        mine, right = check()
        torch.testing.assert_close(mine, right, rtol=2e-2, atol=2e-2)
        chosen = plain(kernel.best_config)
        found = {"first_s": seconds, "config": chosen}
        versions = {"ms": chosen, "full_ms": known.get(name, {}).get("config", chosen)}
        turns = {which: [] for which in versions}
        for _ in range(TURNS):
            for which, config in versions.items():
                run = lambda: kernel.fn[grid](*args, **constants, **config)  # noqa: B023, E731
                turns[which].append(milliseconds(run))
        found |= {which: statistics.median(times) for which, times in turns.items()}
        yield name, found


def compiled(known):
    width = 512 if FEW else 1024
    layers = torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
    model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(width)).cuda().bfloat16()
    x = random(4096, width)

    def own(a, b):
        c = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=torch.bfloat16)
        product[tiles(a.shape[0], b.shape[1])](a, b, c, a.shape[0], b.shape[1], a.shape[1])
        return c + 1

    a, b = random(1024, 512), random(512, 2048)
    mode = "max-autotune-no-cudagraphs"
    cases = {
        "mlp": (torch.compile(model, mode=mode), (x,), model),
        "own kernel": (torch.compile(own), (a, b), lambda a, b: a @ b + 1),
    }
    with torch.no_grad():
        for name, (call, args, right) in cases.items():
            seconds, result = timed(lambda: call(*args))  # noqa: B023
            torch.testing.assert_close(result, right(*args), rtol=3e-2, atol=3e-2)
            found = {"first_s": seconds, "ms": turns(lambda: call(*args))}  # noqa: B023
            yield name, found | {"full_ms": known.get(name, found)["ms"]}


def turns(call):
    """As a graph: how a process launches its kernels is not how fast they are."""
    times = [do_bench_cudagraph(call, rep=40, return_mode="median") for _ in range(TURNS)]
    return statistics.median(times)


with open(FULL) if FULL else open("/dev/null") as file:
    full = json.load(file) if FULL else {}
torch.manual_seed(0)
torch.zeros(1, device="cuda")
results = {}
for case, result in (own_kernels if PART == "triton" else compiled)(full):
    print(f"{case}: {result}", flush=True)
    results[case] = result
with open(TRUTH, "w") as file:
    json.dump(results, file)
