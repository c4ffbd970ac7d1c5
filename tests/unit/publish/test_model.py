"""Models that are built without numbers in their parameters."""

from __future__ import annotations

import threading
from typing import Any

from tests.support import lazy

nn = lazy("torch.nn")
torch = lazy("torch")
unfilled = lazy("headway.publish.model:build_without_init")


def test_models_of_other_threads_get_their_numbers() -> None:
    models: list[Any] = []

    def other() -> None:
        parameter = nn.Parameter(torch.zeros(3))
        nn.init.ones_(parameter)
        models.append(parameter.sum().item())

    def build() -> Any:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        own = nn.Parameter(torch.zeros(3))
        nn.init.ones_(own)
        return own

    known = nn.init.ones_
    assert unfilled(build, {}).sum().item() == 0
    assert models == [3.0]
    assert nn.init.ones_ is known


def test_one_inside_another() -> None:
    known = nn.init.ones_
    unfilled(lambda: unfilled(lambda: nn.Linear(2, 2), {}), {})
    assert nn.init.ones_ is known
