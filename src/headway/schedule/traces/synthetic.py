"""Jobs that nobody ran: as many as wanted, at a given load, for trying and for timing.

Arrivals are at random; sizes are mostly one accelerator with a tail of gangs, durations are
lognormal, tenants have unequal shares.
"""

from __future__ import annotations

import random

from headway.errors import UsageError
from headway.schedule.simulate.job import JobSpec
from headway.schedule.traces.trace import DAY, Trace

SYNTHETIC_SIZES = (1, 2, 4, 8, 16, 32)
SYNTHETIC_WEIGHTS = (64, 12, 10, 10, 3, 1)
MEDIAN_DURATION_S, DURATION_SIGMA = (
    1200.0,
    1.6,
)  # of durations: seconds, and the deviation of their logarithm
SYNTHETIC_TENANTS = 10


def make_synthetic(jobs: int, gpus: int, *, load: float = 0.9, seed: int = 0) -> Trace:
    """So many jobs that fill so many accelerators to `load`, as a mean over the trace."""
    if jobs < 1:
        raise UsageError(
            f"a synthetic trace has 1 job or more, not {jobs}",
            code="value-out-of-range",
            field="jobs",
        )
    if not load > 0:
        raise UsageError(f"load is above 0, not {load}", code="value-out-of-range", field="load")
    draw = random.Random(seed)
    names = [f"t{number}" for number in range(SYNTHETIC_TENANTS)]
    shares = [1.0 / (number + 1) for number in range(SYNTHETIC_TENANTS)]
    sizes = draw.choices(
        [size for size in SYNTHETIC_SIZES if size <= gpus],
        SYNTHETIC_WEIGHTS[: _sizes_that_fit(gpus)],
        k=jobs,
    )
    works = [MEDIAN_DURATION_S * draw.lognormvariate(0.0, DURATION_SIGMA) for _ in range(jobs)]
    tenants = draw.choices(names, shares, k=jobs)
    span = sum(size * work for size, work in zip(sizes, works, strict=True)) / (load * gpus)
    submits = sorted(draw.random() * span for _ in range(jobs))
    found = tuple(map(JobSpec, submits, works, sizes, tenants))
    return Trace(f"synthetic:{jobs}", found, max(span / DAY, 1.0))


def _sizes_that_fit(gpus: int) -> int:
    return sum(size <= gpus for size in SYNTHETIC_SIZES)
