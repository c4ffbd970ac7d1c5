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

# Relative tolerances; the second is for all other floating-point types.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
LOW_PRECISION_TOLERANCE = 5e-2


class Canary:
    """Wrap a compiled function and verify its first result.

    `eager` computes the same without compiling. `make_id_reader()` returns a function that returns
    the ids of the objects behind the dropped guards. `on_mismatch(reason)` makes torch forget the
    package and returns a newly compiled function.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        eager: Callable[..., Any],
        module: torch.nn.Module | None,
        *,
        loaded: bool,
        make_id_reader: Callable[[], Callable[[], tuple[int, ...]]],
        on_mismatch: Callable[[Reason], Callable[..., Any]],
    ) -> None:
        self.compiled = compiled
        self.eager = eager
        self.module = module
        self.verified = not loaded
        self.make_id_reader = make_id_reader
        self.on_mismatch = on_mismatch
        self.read_ids: Callable[[], tuple[int, ...]] | None = None
        self.ids: tuple[int, ...] = ()
        self.disabled = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the package if it can be trusted, else the newly compiled function."""
        if self.disabled or torch.compiler.is_compiling():
            return self.compiled(*args, **kwargs)
        if not self.verified:
            return self._verify_first(args, kwargs)
        if self.read_ids is not None and self._outdated():
            text = "an object it depends on has changed"
            self._give_up(Reason(text, code="package-outdated"))
            return self.compiled(*args, **kwargs)
        result = self.compiled(*args, **kwargs)
        if self.read_ids is None:
            self._remember_ids()
        return result

    def _outdated(self) -> bool:
        assert self.read_ids is not None
        try:
            return self.read_ids() != self.ids
        except Exception:  # it was deleted, or has another type
            return True

    def _verify_first(self, args: Any, kwargs: Any) -> Any:
        try:
            with self._state_restored() as drew_random:
                copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
                with torch.no_grad():
                    expected = self.eager(*copies[0], **copies[1])
        except Exception as error:  # possibly out of memory
            reason = Reason(f"{type(error).__name__}: {error}", code="package-not-comparable")
            self._give_up(reason)
            return self.compiled(*args, **kwargs)
        if drew_random():
            text = "it draws random numbers, so the results cannot be compared"
            self._give_up(Reason(text, code="package-draws-random-numbers"))
            return self.compiled(*args, **kwargs)
        buffers = _copy_buffers(self.module)
        copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        try:
            result = self.compiled(*args, **kwargs)
            reason = _difference(expected, result)
        except (
            Exception
        ) as error:  # an error of the job's own code is raised again by the next call
            reason = Reason(f"{type(error).__name__}: {error}", code="package-call-failed")
        if reason:
            _restore_buffers(buffers)
            self._give_up(reason)
            return self.compiled(*copies[0], **copies[1])
        self.verified = True
        self._remember_ids()
        return result

    def _remember_ids(self) -> None:
        try:
            read_ids = self.make_id_reader()
            self.ids = read_ids()
        except Exception as error:
            text = f"cannot read the objects it depends on: {type(error).__name__}"
            self._give_up(Reason(text, code="package-outdated"))
        else:
            self.read_ids = read_ids

    def _give_up(self, reason: Reason) -> None:
        self.disabled = True
        self.compiled = self.on_mismatch(reason)

    @contextmanager
    def _state_restored(self) -> Iterator[Callable[[], bool]]:
        """Restore buffers and random states; yields a function: were random numbers drawn?"""
        buffers, states = _copy_buffers(self.module), _random_states()
        drew = False
        try:
            yield lambda: drew
        finally:
            drew = any(not _same(a, b) for a, b in zip(states, _random_states(), strict=True))
            _restore_buffers(buffers)
            _set_random_states(states)


def _random_states() -> list[Any]:
    """Random states of torch (CPU), Python, and of NumPy and the GPU if the job uses them."""
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


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor):
        return isinstance(theirs, torch.Tensor) and torch.equal(ours, theirs)
    return pickle.dumps(ours) == pickle.dumps(theirs)


def _copy_buffers(module: torch.nn.Module | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    buffers = [] if module is None else list(module.buffers())
    return [(buffer, buffer.detach().clone()) for buffer in buffers]


def _restore_buffers(buffers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for target, value in buffers:
            target.copy_(value)


def _difference(expected: Any, actual: Any) -> Reason:
    """How two results differ; empty if they are equal within the tolerance."""
    actual_leaves, expected_leaves = pytree.tree_flatten(actual), pytree.tree_flatten(expected)
    if actual_leaves[1] != expected_leaves[1]:
        return Reason(
            "the structure of its result differs from eager's", code="package-other-structure"
        )
    for ours, theirs in zip(actual_leaves[0], expected_leaves[0], strict=True):
        if not isinstance(theirs, torch.Tensor):
            if isinstance(theirs, (int, float, str, bool)) and ours != theirs:
                text = f"its result is {ours!r}, eager's is {theirs!r}"
                return Reason(text, code="package-other-value")
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            text = (
                f"its result is {ours.dtype} {tuple(ours.shape)}, "
                f"eager's is {theirs.dtype} {tuple(theirs.shape)}"
            )
            return Reason(text, code="package-other-type")
        distance = _distance(ours.detach(), theirs)
        if distance > (
            TOLERANCE.get(theirs.dtype, LOW_PRECISION_TOLERANCE)
            if theirs.is_floating_point()
            else 0.0
        ):
            text = f"its first result differs from eager's by {distance:.2g} (relative)"
            return Reason(text, code="package-other-numbers")
    return FINE


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative distance over the whole tensor; NaN must match NaN."""
    ours, theirs = ours.double().nan_to_num(1e30), theirs.double().nan_to_num(1e30)
    if not theirs.numel():
        return 0.0
    scale = theirs.norm().item()
    return float((ours - theirs).norm().item() / max(scale, 1e-12))
