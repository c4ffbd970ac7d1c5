"""Traces: the jobs of a cluster, one reader a file."""

from __future__ import annotations

from pathlib import Path

from headway.errors import UsageError
from headway.schedule.traces import philly, sacct, synthetic
from headway.schedule.traces.trace import Trace


def read_trace(
    text: str, *, gpus: int, begin: str = "", days: float = 0.0, load: float = 0.9
) -> Trace:
    """`philly`, `philly:PATH`, `sacct:PATH` or `synthetic:JOBS`."""
    kind, _, rest = text.partition(":")
    if kind != "philly" and (begin or days):
        raise UsageError(
            f"--from and --days choose from the trace philly, not from {text}",
            code="option-not-allowed",
        )
    if kind == "philly":
        return philly.read_philly(
            Path(rest) if rest else philly.PHILLY_FILE, begin=begin, days=days
        )
    if kind == "sacct" and rest:
        return sacct.read_sacct(Path(rest))
    if kind == "synthetic" and rest.isdecimal():
        return synthetic.make_synthetic(int(rest), gpus, load=load)
    raise UsageError(
        f"{text!r} is no trace; give philly, philly:PATH, sacct:PATH or synthetic:JOBS",
        code="trace-unknown",
    )
