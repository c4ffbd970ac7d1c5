"""One compile of a few lines, so that the first real one finds the compiler ready.

A process that compiles for the first time builds tables that are the same in every process: rules,
patterns, decompositions, caches of what an operator does. They come with the fork. Only a forward
pass, and only where there is no GPU: a compile asks the devices what they are, and a process that
has asked them cannot be forked any more.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

COMPILER_MODULE = (
    "torch._inductor.compile_fx"  # loaded only where the job compiled in its last attempt
)


def compile_once() -> None:
    """Compile, and forget that it was done; a fault in it is the job's only if it compiles too."""
    torch: Any = sys.modules.get("torch")
    if COMPILER_MODULE not in sys.modules or torch.cuda.is_available():
        return
    with contextlib.suppress(Exception), _state_restored():
        _compile()


def _compile() -> None:
    import torch
    from torch._inductor import config

    layer = torch.nn.Linear(4, 4)
    table = torch.nn.Embedding(4, 4)

    def few_lines(dense: Any, ids: Any) -> Any:
        rows = torch.stack([layer(dense).relu(), table(ids)], dim=1)
        dots = rows @ rows.transpose(1, 2)
        return torch.cat([dots.flatten(1), dense], dim=1).softmax(1).mean()

    with torch.no_grad(), config.patch(compile_threads=1):
        torch.compile(few_lines)(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))


@contextlib.contextmanager
def _state_restored() -> Any:
    """Random numbers, counters and compiled code as they were; no thread for a progress bar."""
    import torch
    import torch._dynamo

    bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    interval = getattr(bar, "monitor_interval", None)
    if bar is not None:
        bar.monitor_interval = 0
    frames = sys.modules.get("torch._dynamo.convert_frame")
    counter = getattr(frames, "FRAME_COUNTER", None)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            if counter is not None:
                frames.FRAME_COUNTER = counter  # type: ignore[union-attr]
            if bar is not None:
                bar.monitor_interval = interval
