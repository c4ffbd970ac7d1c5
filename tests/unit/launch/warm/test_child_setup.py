"""Thread counts of math libraries."""

from __future__ import annotations

import pytest

from headway.launch.warm.child_setup import openblas_count


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, 8),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "99"}, 8),
        ({"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "3"}, 3),
        ({"OPENBLAS_NUM_THREADS": "0", "OMP_NUM_THREADS": "4"}, 4),
        ({"OMP_NUM_THREADS": "auto"}, 8),
    ],
)
def test_threads_of_openblas(env: dict[str, str], count: int) -> None:
    assert openblas_count(env, 8) == count
