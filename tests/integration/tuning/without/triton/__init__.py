"""Stands in for Triton where there is none: as much of it as tunes a kernel, and runs nothing."""

from types import SimpleNamespace

from triton.runtime.autotuner import Config, autotune
from triton.runtime.jit import constexpr, jit

__version__ = "0.0.0"
language = SimpleNamespace(constexpr=constexpr)
__all__ = ["Config", "autotune", "jit", "language"]
