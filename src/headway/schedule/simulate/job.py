"""A job of a trace, and what has become of it in a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

INFINITY = math.inf


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a trace says of a job; seconds."""

    submit: float
    work: float
    gpus: int
    tenant: str


class Job:
    """One job in a simulation. A policy may read it; only the engine changes it."""

    __slots__ = (
        "attempts",
        "faults",
        "first_start",
        "gpus",
        "held",
        "in_quota",
        "interval",
        "kept",
        "listens",
        "lost",
        "number",
        "overhead",
        "phase",
        "places",
        "preemptions",
        "queued_since",
        "recover",
        "recovered",
        "save",
        "saving",
        "since",
        "start",
        "started",
        "submit",
        "tenant",
        "until",
        "version",
        "waited",
        "work",
    )

    def __init__(self, number: int, spec: JobSpec, tenant: int) -> None:
        self.number = number
        self.submit = spec.submit
        self.work = spec.work
        self.gpus = spec.gpus
        self.tenant = tenant
        # What it is like.
        self.start = 0.0  # from its first start to training
        self.recover = 0.0  # and from each later one
        self.save = 0.0  # training waits so long for a save, and then it is durable
        self.interval = INFINITY  # of training between two saves
        self.phase = INFINITY  # and before the first one of an attempt
        self.listens = True  # tells its price, and saves when it is told that it must go
        # Where it is.
        self.places: tuple[tuple[int, int], ...] = ()  # nodes, and how much of each
        self.since = 0.0  # the attempt began
        self.overhead = 0.0  # of this attempt, before it trains
        self.queued_since = spec.submit
        self.until: float | None = None  # it is done
        self.version = 0  # of its events that count
        # What it had; seconds of its own time, to be weighted with its accelerators.
        self.in_quota = False
        self.first_start: float | None = None
        self.attempts = self.preemptions = self.faults = 0
        self.kept = self.lost = self.started = self.recovered = self.saving = 0.0
        self.held = self.waited = 0.0

    def progress(self, now: float) -> tuple[float, float, float]:
        """Of this attempt: trained, durable of it, and stopped for saves."""
        elapsed = now - self.since - self.overhead
        if elapsed <= 0.0:
            return 0.0, 0.0, 0.0
        past = elapsed - self.phase
        if past < 0.0:
            return elapsed, 0.0, 0.0
        cycle = self.interval + self.save
        saves = int(past / cycle)
        rest = past - saves * cycle
        base = self.phase + saves * self.interval
        if rest < self.save:
            before = base - self.interval if saves else 0.0
            return base, before, saves * self.save + rest
        return base + rest - self.save, base, (saves + 1) * self.save

    def unsaved(self, now: float) -> float:
        """Seconds since its newest durable checkpoint; of a silent one, since the attempt began."""
        if not self.listens:
            return max(now - self.since, 0.0)
        trained, durable, _ = self.progress(now)
        return trained - durable

    def ends_at(self) -> float:
        """When this attempt is done, if nothing comes between."""
        left = self.work - self.kept
        saves = math.ceil((left - self.phase) / self.interval) if left > self.phase else 0
        return self.since + self.overhead + left + saves * self.save
