"""The advice as Python, for those who would rather have it in their own source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headway.compile.autotune.advice import KernelAdvice

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
DEFAULTS = {"num_ctas": 1}


def python_code(advice: KernelAdvice, loss: float) -> str:
    """For a kernel of `@triton.autotune`: its kept configs, and a function that keeps to them."""
    return "\n".join(_code_lines(advice, loss)) + "\n"


def _code_lines(advice: KernelAdvice, loss: float) -> Iterator[str]:
    kernel = advice.kernel
    kept = [kernel.configs[index] for index in advice.kept]
    yield f"# {kernel.name}, {kernel.where}"
    yield f"# {len(kept)} of {len(kernel.configs)} configs are within {loss:.3g} % of the best for"
    yield f"# every key that was recorded ({len(advice.keys)}), on {kernel.setup}."
    hooks = {config["pre_hook"] for config in kept if "pre_hook" in config}
    if hooks:
        yield f"# Add pre_hook={' or '.join(sorted(hooks))} where it was."
    yield "# For all sizes, recorded or not:"
    yield "configs = ["
    for config in kept:
        yield f"    {config_code(config)},"
    yield "]"
    yield ""
    yield "# Or for the recorded sizes only; others get every config:"
    yield from _pruner(advice, kept)


def _pruner(advice: KernelAdvice, kept: list[dict[str, Any]]) -> Iterator[str]:
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
    for config in kept:
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
    """One config as it is written in a source file."""
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
    return tuple(_hashable(one) for one in value) if isinstance(value, list) else value
