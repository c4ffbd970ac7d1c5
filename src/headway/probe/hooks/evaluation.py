"""Evaluation between steps: `model.eval()` ... `model.train()`, or batches read without grad.

`eval()` alone is not an evaluation: frozen teacher models are put into eval mode too. It counts if
the same module is back in train mode by the next step, or if batches were read with gradients off.
The end is the last exit from no_grad (or the last such batch) before training continued. Training
exits no_grad too, as in `clip_grad_norm_`: once the module is back in train mode, the first exit
ends the evaluation.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from time import monotonic_ns
from types import FunctionType, ModuleType
from typing import Any

from headway.probe import step_clock
from headway.probe.hooks import device
from headway.probe.patching import is_in_loop, wrap
from headway.probe.recorder import guard, recorder


class Evaluation:
    """The evaluation that may be in progress."""

    def __init__(self) -> None:
        self.since = 0
        self.last_activity = 0
        self.module: Callable[[], Any] = lambda: None
        self.span: int | None = None
        self.marker: Any = None
        self.grad_restored = False  # gradients are enabled again
        # Modules that stay in eval mode during training; by id, as some are not hashable.
        self.frozen: dict[int, weakref.ref[Any]] = {}

    def eval_called(self, module: Any) -> None:
        """Called for `module.eval()`; counts in the thread that makes the steps."""
        if not is_in_loop() or self._is_frozen(module):
            return
        self.module = weakref.ref(module)
        self._begin(monotonic_ns())

    def _is_frozen(self, module: Any) -> bool:
        reference = self.frozen.get(id(module))
        return reference is not None and reference() is module

    def on_wait(self, start: int, end: int, marker: Any, ended: bool) -> bool:
        """A batch was read; True if it was for an evaluation."""
        if not is_in_loop():
            return False
        if not step_clock.grad_enabled():
            if not self.since:
                self._begin(start)
            if self.span is None:
                self.span = recorder.begin("evaluation", self.since)
            self.last_activity, self.grad_restored = end, False
            if not ended:
                step_clock.not_for_training()
            return True
        if not self.since:
            return False
        module = self.module()
        if module is not None and not module.training:
            self.last_activity = end  # gradients are on, but the model is in eval mode
            if not ended:
                step_clock.not_for_training()
            return True
        self.finish(self.last_activity or start)
        return False

    def on_step(self, t: int) -> None:
        """A step was made: the evaluation has ended."""
        if not self.since:
            return
        module = self.module()
        if self.span is None and (module is None or not module.training):
            if module is not None:
                self.frozen[id(module)] = weakref.ref(module)
            self._forget()
            return
        self.finish(self.last_activity or self.since)

    def finish(self, end: int) -> None:
        """Record the evaluation, which ended at `end`."""
        if self.span is not None:
            recorder.end(self.span, end)
        elif end > self.since:
            recorder.span("evaluation", self.since, end)
        guard("device", device.note_drain, self.marker, self.since, end)
        self._forget()

    def at_end(self) -> None:
        """Record an evaluation that is in progress when the process ends."""
        if self.since and self.span is not None:
            self.finish(monotonic_ns())
        elif self.since and self.last_activity:
            self.finish(self.last_activity)

    def _begin(self, t: int) -> None:
        if self.since:
            return
        self.since, self.last_activity, self.grad_restored = t, 0, False
        self.marker = guard("device", device.mark_queue)
        step_clock.force_slow_path()

    def _forget(self) -> None:
        self.since = self.last_activity = 0
        self.module = lambda: None
        self.span = self.marker = None
        step_clock.resume_fast_path()

    def on_grad_enabled(self) -> None:
        """Called at every exit from no_grad or inference_mode."""
        if not guard("evaluation", is_in_loop):
            return
        module = self.module()
        if self.grad_restored and (module is None or module.training):
            return
        self.last_activity, self.grad_restored = monotonic_ns(), step_clock.grad_enabled()


evaluation = Evaluation()


def install_grad_mode(grad_mode: ModuleType) -> None:
    """torch.autograd.grad_mode"""
    for name in ("no_grad", "inference_mode"):
        _wrap_exit(getattr(grad_mode, name))


def _wrap_exit(kind: Any) -> None:
    original, current = kind.__exit__, evaluation

    def __exit__(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
        result = original(self, exc_type, exc_value, traceback)
        if current.since:
            current.on_grad_enabled()
        return result

    # TorchScript compiles this method from its source and the globals of its module: keep both.
    exit_function = FunctionType(
        __exit__.__code__, original.__globals__, "__exit__", None, __exit__.__closure__
    )
    kind.__exit__ = functools.wraps(original)(exit_function)


def install(module: ModuleType) -> None:
    """torch.nn.modules.module"""

    def around(original: Callable[..., Any], module: Any) -> Any:
        guard("evaluation", evaluation.eval_called, module)
        return original(module)

    wrap(module.Module, "eval", around)
    step_clock.on_step.append(lambda t: guard("evaluation", evaluation.on_step, t))
    step_clock.on_read.append(lambda *wait: bool(guard("evaluation", evaluation.on_wait, *wait)))
    recorder.at_end.append(lambda: guard("evaluation", evaluation.at_end))
