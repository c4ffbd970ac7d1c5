"""Several requests at once."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from headway.compile.archive import crew


def test_in_order_whatever_takes_long() -> None:
    first = threading.Event()

    def call(number: int) -> int:
        if number == 0:
            assert first.wait(10)
        first.set()
        return number * number

    assert list(crew.parallel_map(call, range(50))) == [n * n for n in range(50)]


def test_no_more_is_taken_than_is_at_work() -> None:
    taken: list[int] = []

    def items() -> object:
        for number in range(100):
            taken.append(number)
            yield number

    results = crew.parallel_map(lambda number: number, items())  # type: ignore[arg-type, misc]
    assert next(results) == 0
    assert len(taken) <= crew.MAX_THREADS + 1


def test_a_fault_comes_out_in_its_place() -> None:
    def call(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = crew.parallel_map(call, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_a_process_can_end_while_a_request_never_does() -> None:
    script = (
        "import threading\n"
        "from headway.compile.archive import crew\n"
        "begun = threading.Event()\n"
        "def never(number):\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "take = lambda: next(crew.each(never, range(9)))\n"
        "threading.Thread(target=take, daemon=True).start()\n"
        "begun.wait()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
