"""Render autotune advice: the terminal report, and Python code to paste."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from headway.compile.autotune.advice import KernelAdvice, KeyAdvice
from headway.compile.autotune.records import Setup

MAX_KERNELS = 5  # in full
MAX_ROWS = 8  # of a kernel's keys, and of its configs
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
DEFAULTS = {"num_ctas": 1}


def report_lines(
    setup: Setup, kernels: Sequence[KernelAdvice], *, everything: bool = False
) -> Iterator[str]:
    """Yield the lines that `headway autotune` prints."""
    yield _headline(kernels)
    yield f"  recorded on {setup}" + (f", driver {setup.driver}" if setup.driver else "")
    yield ""
    yield from _table(kernels)
    shown = [advice for advice in kernels if advice.keys]
    for advice in shown if everything else shown[:MAX_KERNELS]:
        yield ""
        yield from _kernel(advice, math.inf if everything else MAX_ROWS)
    hidden = len(shown) - MAX_KERNELS
    if hidden > 0 and not everything:
        yield f"  and {hidden} more kernels: --all shows them"


def _headline(kernels: Sequence[KernelAdvice]) -> str:
    spent = sum(advice.spent for advice in kernels)
    predicted = sum(advice.predicted for advice in kernels if advice.keys)
    keys = sum(len(advice.keys) for advice in kernels)
    worst = max((advice.loss for advice in kernels), default=0.0)
    kernel_count = "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
    key_count = "1 key" if keys == 1 else f"{keys} keys"
    summary = f"headway: {spent:.2f} s of autotuning, {kernel_count}, {key_count}"
    if not keys:
        return f"{summary}; nothing to prune"
    share = f" ({predicted / spent:.0%})" if spent else ""
    return f"{summary}; pruned at most {predicted:.2f} s{share}, kernels at most {worst:.1%} slower"


def _table(kernels: Sequence[KernelAdvice]) -> Iterator[str]:
    width = max([len(advice.kernel.name[:40]) for advice in kernels] + [6])
    yield f"  {'kernel':<{width}}  kind      keys  configs  kept  seconds     then    loss"
    for advice in kernels:
        kernel = advice.kernel
        row = f"  {kernel.name[:40]:<{width}}  {kernel.kind:<8}  {len(advice.keys):>4}"
        row += f"  {len(kernel.configs):>7}  {len(advice.kept_configs):>4}  {advice.spent:>7.2f}"
        if advice.keys:
            row += f"  {advice.predicted:>7.2f}  {advice.loss:>6.1%}"
        yield row + _remarks(advice)


def _remarks(advice: KernelAdvice) -> str:
    kernel = advice.kernel
    remarks = []
    if kernel.pruned:
        remarks.append(f"{kernel.pruned} tuned with an already pruned set")
    if kernel.unrecorded:
        remarks.append(f"{kernel.unrecorded} keys beyond the recording limit")
    if advice.untunable:
        remarks.append(f"{advice.untunable} keys without a working config")
    return f"  ({', '.join(remarks)})" if remarks else ""


def _kernel(advice: KernelAdvice, rows: float) -> Iterator[str]:
    kernel = advice.kernel
    yield f"  {kernel.name}" + (f"  {kernel.where}" if kernel.where else "")
    for key in advice.keys[: _visible_rows(advice.keys, rows)]:
        best = (
            f"{describe_config(kernel.configs[key.best])} won, {key.timings.time(key.best):.4g} ms"
        )
        used = f"; {describe_config(kernel.configs[key.use[0]])} is used, {key.loss:.1%} slower"
        yield f"    {_key_text(advice, key)}: {best}{'' if key.use[0] == key.best else used}"
    if len(advice.keys) > rows:
        yield f"    and {len(advice.keys) - int(rows)} more keys"
    ranking = advice.ranking()
    widest = max(len(describe_config(kernel.configs[row[0]])[:70]) for row in ranking)
    yield f"    {'config':<{widest}}   won   median    worst"
    for config, wins, middle, worst in ranking[: _visible_rows(ranking, rows)]:
        label = describe_config(kernel.configs[config])[:70]
        worst_text = "failed" if math.isinf(worst) else f"{worst:.1%}"
        mark = "  kept" if config in advice.kept_configs else ""
        yield f"    {label:<{widest}}  {wins:>4}  {middle:>7.1%}  {worst_text:>7}{mark}"
    if len(ranking) > rows:
        yield f"    and {len(ranking) - int(rows)} more configs"


def _visible_rows(rows: Sequence[Any], limit: float) -> int:
    return len(rows) if len(rows) <= limit else int(limit)


def _key_text(advice: KernelAdvice, key: KeyAdvice) -> str:
    values = key.key.values
    names = advice.kernel.names
    pairs = [f"{name}={value}" for name, value in zip(names, values, strict=False)]
    text = " ".join([*pairs, *map(str, values[len(pairs) :])])
    return text[:160] if text else "any call"


def describe_config(config: dict[str, Any]) -> str:
    """A config in one line."""
    if "choice" in config:
        return f"{config['choice']} {config.get('description', '')}".strip()
    return " ".join(f"{name}={value}" for name, value in config.items())


def python_code(advice: KernelAdvice, loss: float) -> str:
    """Code for a `@triton.autotune` kernel: the kept configs, and a function to prune to them."""
    return "\n".join(_code_lines(advice, loss)) + "\n"


def _code_lines(advice: KernelAdvice, loss: float) -> Iterator[str]:
    kernel = advice.kernel
    configs = [kernel.configs[index] for index in advice.kept_configs]
    yield f"# {kernel.name}, {kernel.where}"
    yield f"# {len(configs)} of {len(kernel.configs)} configs are within {loss:.3g} % of the best"
    yield f"# for every recorded key ({len(advice.keys)}), on {kernel.setup}."
    hooks = {config["pre_hook"] for config in configs if "pre_hook" in config}
    if hooks:
        yield f"# Add pre_hook={' or '.join(sorted(hooks))} where it was."
    yield "# For all sizes, recorded or not:"
    yield "configs = ["
    for config in configs:
        yield f"    {config_code(config)},"
    yield "]"
    yield ""
    yield "# Or for the recorded sizes only; others get every config:"
    yield from _pruner(advice, configs)


def _pruner(advice: KernelAdvice, configs: list[dict[str, Any]]) -> Iterator[str]:
    kernel = advice.kernel
    names = kernel.names
    keys = {
        tuple(_hashable(value) for value in key.key.values[: len(names)]) for key in advice.keys
    }
    function = "prune_" + re.sub(r"\W", "_", kernel.name)
    yield f"def {function}(configs, named_args, **kwargs):"
    yield "    recorded = {"
    for key in sorted(keys, key=repr):
        yield f"        {key!r},"
    yield "    }"
    yield "    kept = ["
    for config in configs:
        yield f"        {_comparable(config)!r},"
    yield "    ]"
    yield f"    values = map({{**named_args, **kwargs}}.get, {tuple(names)!r})"
    yield "    plain = (int, float, str, type(None))"
    yield "    if tuple(v if isinstance(v, plain) else str(v) for v in values) not in recorded:"
    yield "        return configs"
    yield "    good = [c for c in configs if (c.kwargs, c.num_warps, c.num_stages) in kept]"
    yield "    return good or configs"
    yield ""
    yield f'# @triton.autotune(..., prune_configs_by={{"early_config_prune": {function}}})'


def config_code(config: dict[str, Any]) -> str:
    """A config as Python code."""
    options = [
        f"{name}={config[name]!r}"
        for name in OPTIONS
        if name in config and config[name] != DEFAULTS.get(name)
    ]
    return f"triton.Config({_kwargs(config)!r}, {', '.join(options)})"


def _comparable(config: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    return _kwargs(config), config.get("num_warps"), config.get("num_stages")


def _kwargs(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in (*OPTIONS, "pre_hook")}


def _hashable(value: Any) -> Any:
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value
