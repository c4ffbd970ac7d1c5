"""Policies of eviction on the Philly trace: 3 sizes of cluster x 3 checkpoint intervals x 5 seeds.

30 days from 2017-10-10. A seed draws when each job saves first, and moves each tenant's jobs by
whole days, so that the intervals are over workloads too. Change is taken by seed, against newest.

    python benchmarks/schedule.py              the comparison; minutes on two cores
    python benchmarks/schedule.py --switches   each mechanism of least-cost turned on or off
    python benchmarks/schedule.py --held-out   seeds and a month that no weight was chosen on
    python benchmarks/schedule.py --speed      the whole trace, and up to a million synthetic jobs
"""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from keep import keep  # noqa: E402

from headway.schedule import policies  # noqa: E402
from headway.sim import traces  # noqa: E402
from headway.sim.cluster.compare import Case, Comparison, compare  # noqa: E402
from headway.sim.cluster.scenario import Setting, simulate  # noqa: E402
from headway.sim.traces import Trace  # noqa: E402

GPUS = (600, 700, 850)
INTERVALS = (1800.0, 3600.0, 14400.0)
SEEDS = range(5)
WORKERS = 2
# The five, and two that say which part of the gain is the notice, and which the choice.
POLICIES = (*policies.BUILT_IN, "newest:notice=on", "least-cost:notice=off")
SWITCHES = (
    "least-cost",
    "least-cost:notice=off",
    "least-cost:nominal=off",
    "least-cost:each=0",
    "least-cost:repeat=0",
    "least-cost:cap=0",
    "least-cost:phase=on",
    "least-cost:stagger=on",
    "least-cost:reserve=600",
)
HELD_OUT = (("2017-10-10", 600), ("2017-10-10", 700), ("2017-11-09", 352))
FIGURES = (
    "preemptions",
    "lost_h",
    "recover_h",
    "lost_and_recover_h",
    "queue_min",
    "queue_min_p95",
    "queue_min_by_hours",
    "jct_h",
    "in_quota_wait_s",
    "in_quota_prompt",
    "quota_satisfaction",
    "jain_index",
    "rho",
    "second_order_ratio",
    "most_preemptions",
    "ett_percent",
    "ett_percent_by_jobs",
)


def month(begin: str = "2017-10-10") -> Trace:
    """30 days from a date on."""
    return traces.read_philly(begin=begin, days=30)


def rows(compared: Comparison, gpus: int, interval: float) -> list[dict[str, Any]]:
    """One row a policy."""
    return [
        {
            "gpus": gpus,
            "interval_s": interval,
            "policy": name,
            "figures": {one: asdict(compared.of(place, one)) for one in FIGURES},
            "change": {
                one: asdict(found)
                for one in FIGURES
                if place and (found := compared.change(place, one)) is not None
            },
        }
        for place, name in enumerate(compared.names)
    ]


def show(made: list[dict[str, Any]]) -> None:
    """A line a policy."""
    for row in made:
        figures = {name: one["mean"] for name, one in row["figures"].items()}
        print(
            f"{row['gpus']:5} {row['interval_s']:6.0f} {row['policy']:22}"
            f"{figures['preemptions']:8.0f}{figures['lost_h']:8.0f}{figures['recover_h']:8.0f}"
            f"{figures['queue_min']:8.1f}{figures['in_quota_wait_s']:8.1f}"
            f"{figures['most_preemptions']:6.0f}{figures['ett_percent']:8.2f}",
            flush=True,
        )


def comparison() -> None:
    """All cells; what is done is kept, should the rest be cut off."""
    trace, found = month(), []
    for gpus in GPUS:
        for interval in INTERVALS:
            case = Case(trace, Setting(gpus=gpus, interval=interval, shift=True))
            made = rows(compare(case, POLICIES, SEEDS, WORKERS), gpus, interval)
            show(made)
            found += made
            keep("schedule", {"seeds": len(SEEDS), "rows": found})


def switches() -> None:
    """At the most contended size."""
    case = Case(month(), Setting(gpus=GPUS[0], shift=True))
    made = rows(compare(case, SWITCHES, SEEDS, WORKERS), GPUS[0], case.setting.interval)
    show(made)
    keep("schedule_switches", {"seeds": len(SEEDS), "rows": made})


def held_out() -> None:
    """Other seeds, and another month on as many accelerators as make it about as full."""
    found = []
    for begin, gpus in HELD_OUT:
        case = Case(month(begin), Setting(gpus=gpus, shift=True))
        names = ("newest", "newest:notice=on", "least-cost")
        made = rows(compare(case, names, range(100, 105), WORKERS), gpus, case.setting.interval)
        show(made)
        found += [{**row, "begin": begin} for row in made]
        keep("schedule_held_out", {"seeds": len(SEEDS), "rows": found})


def speed() -> None:
    """Seconds of one core for each policy."""
    found = [_timed(traces.read_philly(), 600, name) for name in policies.BUILT_IN]
    for jobs in (10_000, 100_000, 1_000_000):
        trace = traces.make_synthetic(jobs, 2048, load=0.95)
        found += [_timed(trace, 2048, name) for name in ("newest", "least-cost")]
    keep("schedule_speed", {"python": platform.python_version(), "rows": found})


def _timed(trace: Trace, gpus: int, name: str) -> dict[str, Any]:
    began = time.process_time()
    played = simulate(trace, Setting(gpus=gpus), policies.parse_policy(name))
    row = {
        "trace": trace.name.partition(":")[0],
        "jobs": len(trace.jobs),
        "gpus": gpus,
        "policy": name,
        "preemptions": played.preemptions,
        "seconds": time.process_time() - began,
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    if "--switches" in sys.argv:
        switches()
    elif "--held-out" in sys.argv:
        held_out()
    elif "--speed" in sys.argv:
        speed()
    else:
        comparison()
