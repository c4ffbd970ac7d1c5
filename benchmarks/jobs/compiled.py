"""One training of a compiled model, timed: prints a line of JSON after a few steps.

    python compiled.py dlrm|transformer|jagged [--device cuda] [--load FILE] [--save FILE] [--eager]

`--load` and `--save` use torch's MegaCache by hand, as its documentation says. `$DIE_ONCE` names a
file: if it is not there it is made, and the process kills itself after its steps.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
from itertools import pairwise

ENTERED = time.monotonic()

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

if "--eager" not in sys.argv:
    import torch._dynamo
    import torch._inductor.compile_fx

IMPORTED = time.monotonic()
compiling: list[float] = []  # begin and end of each outermost compile, one after the other
late: list[float] = []  # seconds of each import that a compile made
STEPS = 5


def time_imports() -> None:
    """Those within a compile: modules that the compiler loads when it first needs them."""
    loader = importlib._bootstrap
    original, within = loader._find_and_load, [False]

    def timed(*args):
        if within[0] or len(compiling) % 2 == 0:
            return original(*args)
        within[0] = True
        begun = time.monotonic()
        try:
            return original(*args)
        finally:
            within[0] = False
            late.append(time.monotonic() - begun)

    loader._find_and_load = timed


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """26 tables, pairwise products, two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, 32) for _ in range(26))
        self.bottom = mlp(13, 128, 32)
        self.top = mlp(32 + 27 * 26 // 2, 128, 1)

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        bags = [table(ids[i], offsets) for i, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *bags], dim=1)
        dots = vectors @ vectors.transpose(1, 2)
        i, j = torch.triu_indices(27, 27, offset=1, device=dots.device)
        return self.top(torch.cat([bottom, dots[:, i, j]], dim=1)).square().mean()

    @staticmethod
    def batch(step: int) -> tuple[Tensor, ...]:
        return torch.randn(128, 13), torch.randint(0, 1000, (26, 256)), torch.arange(0, 256, 2)


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """8 blocks of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 128)
        self.blocks = nn.ModuleList(Block(128) for _ in range(8))
        self.head = nn.Linear(128, 512)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids[:, :-1])
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids[:, 1:].flatten())

    @staticmethod
    def batch(step: int) -> tuple[Tensor, ...]:
        return (torch.randint(0, 512, (8, 65)),)


class Jagged(nn.Module):
    """20 features whose lengths change with every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(20))
        self.top = mlp(20 * 16, 64, 1)

    def forward(self, *features: Tensor) -> Tensor:
        pooled = [table(ids).mean(dim=0) for table, ids in zip(self.tables, features, strict=True)]
        return self.top(torch.cat(pooled)).square().sum()

    @staticmethod
    def batch(step: int) -> tuple[Tensor, ...]:
        return tuple(torch.randint(0, 1000, (32 + 3 * step + i,)) for i in range(20))


MODELS = {"dlrm": Dlrm, "transformer": Transformer, "jagged": Jagged}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load")
    parser.add_argument("--save")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = MODELS[args.model]().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [[part.to(args.device) for part in model.batch(step)] for step in range(STEPS)]
    built = time.monotonic()
    if args.load:
        with open(args.load, "rb") as file:
            torch.compiler.load_cache_artifacts(file.read())
    if not args.eager:
        time_imports()
        torch._dynamo.callback.on_compile_start(lambda _: compiling.append(time.monotonic()))
        torch._dynamo.callback.on_compile_end(lambda _: compiling.append(time.monotonic()))
    loading = time.monotonic()
    step_of = model if args.eager else torch.compile(model)
    loading = time.monotonic() - loading
    losses, first, imports = [], 0.0, 0.0
    for batch in batches:
        loss = step_of(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if not first:
            first, imports = time.monotonic(), sum(late)
    if args.save:
        saved = torch.compiler.save_cache_artifacts()
        with open(args.save, "wb") as file:
            file.write(saved[0] if saved else b"")
    spans = zip(compiling[::2], compiling[1::2], strict=True)
    compile_s = loading + sum(end - begin for begin, end in spans if begin < first) - imports
    times = {"ready_s": first - built, "compile_s": compile_s, "late_import_s": imports}
    report({**times, "first_step_at": first}, losses, built)


def report(times: dict[str, float], losses: list[float], built: float) -> None:
    once = os.environ.get("DIE_ONCE")
    dying = bool(once) and not os.path.exists(once or "")
    told = {
        "import_s": IMPORTED - ENTERED,
        "build_s": built - IMPORTED,
        **times,
        "losses": losses,
        "dying": dying,
    }
    with open(os.environ["REPORT"], "a") as file:
        file.write(json.dumps(told) + "\n")
    if dying:
        open(once or "", "w").close()
        time.sleep(float(os.environ.get("LIVE_ON", "0")))  # for who saves or prepares meanwhile
        os.kill(os.getpid(), signal.SIGKILL)


main()
