"""Evaluation between steps: `model.eval()` ... `model.train()`, or batches read without grad.

`eval()` alone proves nothing: frozen teachers are put into eval mode too. It counts when the same
module is back in train mode by the next step, or when batches were read with gradients off. The
end is the last exit from no_grad (or the last such batch) before training went on. Training leaves
no_grad too, as in `clip_grad_norm_`: with the module back in train mode one exit ends it.
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
    """What is known of an evaluation that may be going on."""

    def __init__(self) -> None:
        self.since = 0
        self.last = 0
        self.module: Callable[[], Any] = lambda: None
        self.span: int | None = None
        self.tail: Any = None
        self.left = False  # gradients are back on
        # Modules that stay in eval mode while others train; by id, as not all can be hashed.
        self.frozen: dict[int, weakref.ref[Any]] = {}

    def eval_called(self, module: Any) -> None:
        """`module.eval()` in the thread that makes the steps."""
        if not is_in_loop() or self._is_frozen(module):
            return
        self.module = weakref.ref(module)
        self._begin(monotonic_ns())

    def _is_frozen(self, module: Any) -> bool:
        known = self.frozen.get(id(module))
        return known is not None and known() is module

    def waited(self, start: int, end: int, tail: Any, ended: bool) -> bool:
        """A batch was read; True when it was for evaluation."""
        if not is_in_loop():
            return False
        if not step_clock.grad_enabled():
            if not self.since:
                self._begin(start)
            if self.span is None:
                self.span = recorder.begin("evaluation", self.since)
            self.last, self.left = end, False
            if not ended:
                step_clock.not_for_training()
            return True
        if not self.since:
            return False
        module = self.module()
        if module is not None and not module.training:
            self.last = end  # gradients on, but the model is still in eval mode
            if not ended:
                step_clock.not_for_training()
            return True
        self.finish(self.last or start)
        return False

    def stepped(self, t: int) -> None:
        """Training went on."""
        if not self.since:
            return
        module = self.module()
        if self.span is None and (module is None or not module.training):
            if module is not None:
                self.frozen[id(module)] = weakref.ref(module)
            self._forget()
            return
        self.finish(self.last or self.since)

    def finish(self, end: int) -> None:
        """The evaluation ended at `end`."""
        if self.span is not None:
            recorder.end(self.span, end)
        elif end > self.since:
            recorder.span("evaluation", self.since, end)
        guard("device", device.note_drain, self.tail, self.since, end)
        self._forget()

    def at_end(self) -> None:
        """The process ends while it evaluates."""
        if self.since and self.span is not None:
            self.finish(monotonic_ns())
        elif self.since and self.last:
            self.finish(self.last)

    def _begin(self, t: int) -> None:
        if self.since:
            return
        self.since, self.last, self.left = t, 0, False
        self.tail = guard("device", device.mark_queue)
        step_clock.force_slow_path()

    def _forget(self) -> None:
        self.since = self.last = 0
        self.module = lambda: None
        self.span = self.tail = None
        step_clock.resume_fast_path()

    def left_no_grad(self) -> None:
        """Gradients are back on, or will be."""
        if not guard("evaluation", is_in_loop):
            return
        module = self.module()
        if self.left and (module is None or module.training):
            return
        self.last, self.left = monotonic_ns(), step_clock.grad_enabled()


evaluation = Evaluation()


def install_grad_mode(grad_mode: ModuleType) -> None:
    """torch.autograd.grad_mode"""
    for name in ("no_grad", "inference_mode"):
        _watch_exit(getattr(grad_mode, name))


def _watch_exit(kind: Any) -> None:
    original, current = kind.__exit__, evaluation

    def __exit__(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
        result = original(self, exc_type, exc_value, traceback)
        if current.since:
            current.left_no_grad()
        return result

    # TorchScript compiles this method from its source, with the names of its module: both stay.
    looks = FunctionType(
        __exit__.__code__, original.__globals__, "__exit__", None, __exit__.__closure__
    )
    kind.__exit__ = functools.wraps(original)(looks)


def install(module: ModuleType) -> None:
    """torch.nn.modules.module"""

    def around(original: Callable[..., Any], module: Any) -> Any:
        guard("evaluation", evaluation.eval_called, module)
        return original(module)

    wrap(module.Module, "eval", around)
    step_clock.on_step.append(lambda t: guard("evaluation", evaluation.stepped, t))
    step_clock.on_read.append(lambda *wait: bool(guard("evaluation", evaluation.waited, *wait)))
    recorder.at_end.append(lambda: guard("evaluation", evaluation.at_end))
