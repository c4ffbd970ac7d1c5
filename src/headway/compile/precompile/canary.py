"""Compare the first result of a loaded package with eager before any of its results is used."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from headway.errors import FINE, Reason

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; less exact types:
LOW_PRECISION_TOLERANCE = 5e-2


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
        distrust: Callable[[Reason], Callable[..., Any]],
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
        if self.look is not None and self._outdated():
            text = "something it depends on has changed"
            self._give_up(Reason(text, code="package-outdated"))
            return self.compiled(*args, **kwargs)
        result = self.compiled(*args, **kwargs)
        if self.look is None:
            self._remember()
        return result

    def _outdated(self) -> bool:
        assert self.look is not None
        try:
            return self.look() != self.seen
        except Exception:  # it was taken away, or is of another kind
            return True

    def _prove(self, args: Any, kwargs: Any) -> Any:
        try:
            with self._unmoved() as moved:
                copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
                with torch.no_grad():
                    expected = self.eager(*copies[0], **copies[1])
        except Exception as error:  # there may be no memory for both
            why = Reason(f"{type(error).__name__}: {error}", code="package-not-comparable")
            self._give_up(why)
            return self.compiled(*args, **kwargs)
        if moved():
            text = "it draws random numbers, and the results cannot be compared"
            self._give_up(Reason(text, code="package-draws-random-numbers"))
            return self.compiled(*args, **kwargs)
        held = _copy_buffers(self.module)
        copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        try:
            result = self.compiled(*args, **kwargs)
            why = _difference(expected, result)
        except Exception as error:  # if the job's own code raises it, it will again
            why = Reason(f"{type(error).__name__}: {error}", code="package-call-failed")
        if why:
            _restore_buffers(held)
            self._give_up(why)
            return self.compiled(*copies[0], **copies[1])
        self.proven = True
        self._remember()
        return result

    def _remember(self) -> None:
        try:
            look = self.watch()
            self.seen = look()
        except Exception as error:
            text = f"what it depends on cannot be looked at: {type(error).__name__}"
            self._give_up(Reason(text, code="package-outdated"))
        else:
            self.look = look

    def _give_up(self, why: Reason) -> None:
        self.off = True
        self.compiled = self.distrust(why)

    @contextmanager
    def _unmoved(self) -> Iterator[Callable[[], bool]]:
        """What runs inside leaves buffers and random numbers as they were; whether it drew some."""
        held, before = _copy_buffers(self.module), _random_states()
        drew = False
        try:
            yield lambda: drew
        finally:
            drew = any(not _same(a, b) for a, b in zip(before, _random_states(), strict=True))
            _restore_buffers(held)
            _set_random_states(before)


def _random_states() -> list[Any]:
    """Of torch on the CPU, of Python, and of NumPy and the GPU if the job uses them."""
    states = [torch.get_rng_state(), random.getstate()]
    numpy = sys.modules.get("numpy.random")
    states.append(numpy.get_state() if numpy is not None else None)
    cuda = torch.cuda.is_available() and bool(torch.cuda._initialized)
    states.append(torch.cuda.get_rng_state() if cuda else None)
    return states


def _set_random_states(states: list[Any]) -> None:
    cpu, python, numpy, cuda = states
    torch.set_rng_state(cpu)
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy.random"].set_state(numpy)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return pickle.dumps(one) == pickle.dumps(other)


def _copy_buffers(module: torch.nn.Module | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = [] if module is None else list(module.buffers())
    return [(buffer, buffer.detach().clone()) for buffer in found]


def _restore_buffers(held: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in held:
            buffer.copy_(value)


def _difference(expected: Any, got: Any) -> Reason:
    """Empty if two results are the same but for rounding."""
    ours, theirs = pytree.tree_flatten(got), pytree.tree_flatten(expected)
    if ours[1] != theirs[1]:
        return Reason(
            "its result has another structure than eager's", code="package-other-structure"
        )
    for one, other in zip(ours[0], theirs[0], strict=True):
        if not isinstance(other, torch.Tensor):
            if isinstance(other, (int, float, str, bool)) and one != other:
                text = f"its result is {one!r}, eager's {other!r}"
                return Reason(text, code="package-other-value")
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            text = f"its result is {one.dtype} {tuple(one.shape)}, eager's another"
            return Reason(text, code="package-other-type")
        away = _distance(one.detach(), other)
        if away > (
            TOLERANCE.get(other.dtype, LOW_PRECISION_TOLERANCE)
            if other.is_floating_point()
            else 0.0
        ):
            text = f"its first result is {away:.2g} away from eager's"
            return Reason(text, code="package-other-numbers")
    return FINE


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative, over the whole tensor; what is not a number must be so in both."""
    one, other = one.double().nan_to_num(1e30), other.double().nan_to_num(1e30)
    if not other.numel():
        return 0.0
    scale = other.norm().item()
    return float((one - other).norm().item() / max(scale, 1e-12))
