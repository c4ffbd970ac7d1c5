"""A job that stood still, and nobody ended it for long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from headway.advise.intervals import length, subtract, take_first, union
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.launch.hang.limits import OVER_GAPS, OVER_LONGEST
from headway.launch.hang.notice import CONFIRM_S
from headway.ledger.leaves import EFFECTIVE, HANG, LOST
from headway.ledger.model import NS, Ledger
from headway.report.hints import restart_flags
from headway.report.words import count, duration

MIN_HANG_LIMIT_S = 10.0  # no shorter limit is advised: a pause that no run has shown may be longer


def propose_hang_limits(evidence: Evidence) -> Iterator[Proposal]:
    """Every hang is ended once it is longer than any pause that went well."""
    ledger = evidence.ledger
    hangs = time_in(ledger, (HANG,))
    limit = math.ceil(max(MIN_HANG_LIMIT_S, _longest_normal_pause(ledger) / NS))
    left = round((limit + CONFIRM_S) * NS)
    beyond = subtract(hangs, union(*(take_first((one,), left) for one in hangs)))
    if not beyond:
        return
    yield Proposal(
        title=f"End a hang after {limit} s",
        cuts=(Saving(take=beyond),),
        confidence="medium",
        why=f"{count(len(hangs), 'hang')} of {duration(length(hangs))} in all; the longest pause "
        "between steps that went well, and the steps themselves, leave room for this limit. A rank "
        "that works is given longer",
        flags=(*restart_flags(ledger), "--hang-after", str(limit)),
        see="docs/recover.md#hangs",
    )


def _longest_normal_pause(ledger: Ledger) -> float:
    """What the hang watch would take for well, by what the ledger shows of steps and pauses."""
    trained = time_in(ledger, (EFFECTIVE, LOST))
    step = length(trained) / max(ledger.steps, 1)
    pauses = [0]
    for attempt in ledger.attempts:
        inside = time_in(ledger, (EFFECTIVE, LOST), attempt.index)
        pauses += [after[0] - before[1] for before, after in pairwise(inside)]
    return max(OVER_GAPS * step, OVER_LONGEST * max(pauses))
