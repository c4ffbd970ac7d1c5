"""Several requests at once, in threads that the end of a process does not wait for.

Those of `concurrent.futures` are waited for, and a place may never answer.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

MAX_THREADS = 8


def parallel_map(call: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """What the call makes of each item, in order; no more of them are taken than are at work."""
    todo: queue.SimpleQueue[tuple[Future[Out], In] | None] = queue.SimpleQueue()
    given: deque[Future[Out]] = deque()
    threads = 0

    def work() -> None:
        while (task := todo.get()) is not None:
            future, item = task
            try:
                future.set_result(call(item))
            except BaseException as error:
                future.set_exception(error)

    try:
        for item in items:
            if len(given) >= MAX_THREADS:
                yield given.popleft().result()
            given.append(Future())
            todo.put((given[-1], item))
            if threads < MAX_THREADS:
                threads += 1
                threading.Thread(target=work, name="headway-crew", daemon=True).start()
        while given:
            yield given.popleft().result()
    finally:
        for _ in range(threads):
            todo.put(None)
