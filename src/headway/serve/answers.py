"""Answers that are kept: each is made once, however many ask for it at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any


class AnswerCache:
    """The last `most` ones by key. One that is being made holds up nobody who asks for another."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives; a failure is for all who wait for it, and is not kept."""
        with self._lock:
            answer = self._answers.get(key)
            mine = answer is None
            if answer is None:
                answer = Future()
                while len(self._answers) >= self._most:
                    self._answers.popitem(last=False)
                self._answers[key] = answer
            self._answers.move_to_end(key)
        if mine:
            try:
                answer.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._answers.get(key) is answer:
                        del self._answers[key]
                answer.set_exception(error)
        return answer.result()
