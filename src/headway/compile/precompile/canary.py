"""The first result of a package is compared with eager; until then nothing it says is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; less exact types:
LOOSE = 5e-2


class Canary:
    """Stands before a compiled function.

    `eager` computes the same without compiling. `watch()` gives a function that tells what the
    dropped guards look at. `distrust(why)` makes torch forget the package, and compiles anew.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        eager: Callable[..., Any],
        module: torch.nn.Module | None,
        *,
        loaded: bool,
        watch: Callable[[], Callable[[], tuple[int, ...]]],
        distrust: Callable[[str], Callable[..., Any]],
    ) -> None:
        self.compiled = compiled
        self.eager = eager
        self.module = module
        self.proven = not loaded
        self.watch = watch
        self.distrust = distrust
        self.look: Callable[[], tuple[int, ...]] | None = None
        self.seen: tuple[int, ...] = ()
        self.off = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result, from the package if it may be believed."""
        if self.off or torch.compiler.is_compiling():
            return self.compiled(*args, **kwargs)
        if not self.proven:
            return self._prove(args, kwargs)
        if self.look is not None and self.look() != self.seen:
            self._give_up("something it depends on has changed")
            return self.compiled(*args, **kwargs)
        result = self.compiled(*args, **kwargs)
        if self.look is None:
            self._remember()
        return result

    def _prove(self, args: Any, kwargs: Any) -> Any:
        with self._unmoved() as moved:
            copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            with torch.no_grad():
                expected = self.eager(*copies[0], **copies[1])
        if moved():
            self._give_up("it draws random numbers, and the results cannot be compared")
            return self.compiled(*args, **kwargs)
        held = _buffers(self.module)
        copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        try:
            result = self.compiled(*args, **kwargs)
            why = _difference(expected, result)
        except Exception as error:  # if the job's own code raises it, it will again
            why = f"{type(error).__name__}: {error}"
        if why:
            _put_back(held)
            self._give_up(why)
            return self.compiled(*copies[0], **copies[1])
        self.proven = True
        self._remember()
        return result

    def _remember(self) -> None:
        self.look = self.watch()
        self.seen = self.look()

    def _give_up(self, why: str) -> None:
        self.off = True
        self.compiled = self.distrust(why)

    @contextmanager
    def _unmoved(self) -> Iterator[Callable[[], bool]]:
        """What runs inside leaves buffers and random numbers as they were; whether it drew some."""
        held, states = _buffers(self.module), _random_states()
        drew = False
        yield lambda: drew
        drew = any(not torch.equal(a, b) for a, b in zip(states, _random_states(), strict=True))
        _put_back(held)
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1])


def _random_states() -> list[torch.Tensor]:
    cuda = torch.cuda.is_available() and bool(torch.cuda._initialized)
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if cuda else [])]


def _buffers(module: torch.nn.Module | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = [] if module is None else list(module.buffers())
    return [(buffer, buffer.detach().clone()) for buffer in found]


def _put_back(held: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in held:
            buffer.copy_(value)


def _difference(expected: Any, got: Any) -> str:
    """Empty if two results are the same but for rounding."""
    ours, theirs = pytree.tree_flatten(got), pytree.tree_flatten(expected)
    if ours[1] != theirs[1]:
        return "its result has another structure than eager's"
    for one, other in zip(ours[0], theirs[0], strict=True):
        if not isinstance(other, torch.Tensor):
            if isinstance(other, (int, float, str, bool)) and one != other:
                return f"its result is {one!r}, eager's {other!r}"
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"its result is {one.dtype} {tuple(one.shape)}, eager's another"
        away = _distance(one.detach(), other)
        if away > (CLOSE.get(other.dtype, LOOSE) if other.is_floating_point() else 0.0):
            return f"its first result is {away:.2g} away from eager's"
    return ""


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative, over the whole tensor; what is not a number must be so in both."""
    one, other = one.double().nan_to_num(1e30), other.double().nan_to_num(1e30)
    if not other.numel():
        return 0.0
    scale = other.norm().item()
    return float((one - other).norm().item() / max(scale, 1e-12))
