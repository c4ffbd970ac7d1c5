"""torchrun sleeps up to 0.3 s before its first rendezvous, so that nodes do not come all at once.

On one node nobody else comes: a warm agent of a single node does not wait.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

RENDEZVOUS_MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"


def remove_rendezvous_skew() -> None:
    """Where torchrun is loaded, and is as it is known."""
    module: Any = sys.modules.get(RENDEZVOUS_MODULE)
    handler = getattr(module, "DynamicRendezvousHandler", None)
    if handler is None or not hasattr(module, "_delay"):
        return
    original: Callable[[Any], Any] = handler.next_rendezvous
    delay: Callable[[Any], None] = module._delay

    def without_skew(seconds: Any) -> None:
        if not isinstance(seconds, tuple):  # a skew is a range
            delay(seconds)

    @functools.wraps(original)
    def next_rendezvous(self: Any) -> Any:
        if getattr(getattr(self, "_settings", None), "max_nodes", 0) != 1:
            return original(self)
        module._delay = without_skew
        try:
            return original(self)
        finally:
            module._delay = delay

    handler.next_rendezvous = next_rendezvous
