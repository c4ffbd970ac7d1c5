"""The advice in words: what tuning cost, which config won, and how far behind the others were."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from headway.compile.autotune.advice import KernelAdvice, KeyAdvice
from headway.compile.autotune.records import Setup

MAX_KERNELS = 5  # in full
MAX_ROWS = 8  # of a kernel's keys, and of its configs


def report_lines(
    setup: Setup, advised: Sequence[KernelAdvice], *, everything: bool = False
) -> Iterator[str]:
    """What `headway autotune` prints."""
    yield _headline(advised)
    yield f"  recorded on {setup}" + (f", driver {setup.driver}" if setup.driver else "")
    yield ""
    yield from _table(advised)
    shown = [advice for advice in advised if advice.keys]
    for advice in shown if everything else shown[:MAX_KERNELS]:
        yield ""
        yield from _kernel(advice, math.inf if everything else MAX_ROWS)
    hidden = len(shown) - MAX_KERNELS
    if hidden > 0 and not everything:
        yield f"  and {hidden} more kernels: --all shows them"


def _headline(advised: Sequence[KernelAdvice]) -> str:
    spent = sum(advice.spent for advice in advised)
    then = sum(advice.predicted for advice in advised if advice.keys)
    keys = sum(len(advice.keys) for advice in advised)
    worst = max((advice.loss for advice in advised), default=0.0)
    kernels = "1 kernel" if len(advised) == 1 else f"{len(advised)} kernels"
    said = (
        f"headway: {spent:.2f} s of autotuning, {kernels}, {keys} {'key' if keys == 1 else 'keys'}"
    )
    if not keys:
        return f"{said}; nothing to prune"
    share = f" ({then / spent:.0%})" if spent else ""
    return f"{said}; pruned at most {then:.2f} s{share}, kernels at most {worst:.1%} slower"


def _table(advised: Sequence[KernelAdvice]) -> Iterator[str]:
    width = max([len(advice.kernel.name[:40]) for advice in advised] + [6])
    yield f"  {'kernel':<{width}}  kind      keys  configs  kept  seconds     then    loss"
    for advice in advised:
        kernel = advice.kernel
        row = f"  {kernel.name[:40]:<{width}}  {kernel.kind:<8}  {len(advice.keys):>4}"
        row += f"  {len(kernel.configs):>7}  {len(advice.kept):>4}  {advice.spent:>7.2f}"
        if advice.keys:
            row += f"  {advice.predicted:>7.2f}  {advice.loss:>6.1%}"
        yield row + _remarks(advice)


def _remarks(advice: KernelAdvice) -> str:
    kernel = advice.kernel
    said = []
    if kernel.pruned:
        said.append(f"{kernel.pruned} tuned with a pruned set already")
    if kernel.more:
        said.append(f"{kernel.more} keys beyond the record")
    if advice.hopeless:
        said.append(f"{advice.hopeless} keys without a config that works")
    return f"  ({', '.join(said)})" if said else ""


def _kernel(advice: KernelAdvice, rows: float) -> Iterator[str]:
    kernel = advice.kernel
    yield f"  {kernel.name}" + (f"  {kernel.where}" if kernel.where else "")
    for key in advice.keys[: _visible_rows(advice.keys, rows)]:
        best = f"{describe_config(kernel.configs[key.best])} won, {key.tuned.time(key.best):.4g} ms"
        taken = f"; {describe_config(kernel.configs[key.use[0]])} is taken, {key.loss:.1%} slower"
        yield f"    {_key_text(advice, key)}: {best}{'' if key.use[0] == key.best else taken}"
    if len(advice.keys) > rows:
        yield f"    and {len(advice.keys) - int(rows)} more keys"
    ranking = advice.ranking()
    widest = max(len(describe_config(kernel.configs[row[0]])[:70]) for row in ranking)
    yield f"    {'config':<{widest}}   won   median    worst"
    for config, wins, middle, worst in ranking[: _visible_rows(ranking, rows)]:
        told = describe_config(kernel.configs[config])[:70]
        far = "failed" if math.isinf(worst) else f"{worst:.1%}"
        kept = "  kept" if config in advice.kept else ""
        yield f"    {told:<{widest}}  {wins:>4}  {middle:>7.1%}  {far:>7}{kept}"
    if len(ranking) > rows:
        yield f"    and {len(ranking) - int(rows)} more configs"


def _visible_rows(rows: Sequence[Any], limit: float) -> int:
    return len(rows) if len(rows) <= limit else int(limit)


def _key_text(advice: KernelAdvice, key: KeyAdvice) -> str:
    values = key.key.values
    names = advice.kernel.names
    named = [f"{name}={value}" for name, value in zip(names, values, strict=False)]
    said = " ".join([*named, *map(str, values[len(named) :])])
    return said[:160] if said else "any call"


def describe_config(config: dict[str, Any]) -> str:
    """A config in one line."""
    if "choice" in config:
        return f"{config['choice']} {config.get('description', '')}".strip()
    return " ".join(f"{name}={value}" for name, value in config.items())
