"""A ledger as one HTML file below 1 MB that opens from disk, without network or libraries."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup

from headway import __version__
from headway.format import count, duration, one_line, percent
from headway.ledger import compiles as ledger_compiles
from headway.ledger.buckets import BUCKETS, EFFECTIVE, GROUP_MEANING, MEANING, stage_of
from headway.ledger.checkpoints import blocked_each
from headway.ledger.model import Ledger
from headway.report import (
    boosters,
    checkpoints,
    communication,
    compiles,
    failures,
    overview,
    publish,
    startup_stages,
)
from headway.report.compiles import PART_MEANING
from headway.report.failures import failure_facts, run_failure
from headway.report.overview import hint
from headway.report.timeline import pack_tracks
from headway.units import NS
from headway.web.page import ASSETS, script_json, template_environment
from headway.web.theme import bucket_color, numbered_palette

LIMIT: Final = 1_000_000  # bytes of the whole page
GENERATOR: Final = "headway"


_MAX_ROWS: Final = 100  # per table
_MAX_DOTS: Final = 1000  # in the plot of saves
_MAX_TEXT: Final = 2000  # characters of evidence, reason or note


@dataclass(frozen=True, slots=True)
class Slice:
    """One piece of the stacked bar or the waterfall, in percent of the wall time."""

    bucket: str
    place: int
    color: str  # for pages without the style sheet
    left: float
    width: float
    time: str
    share: str
    meaning: str


def page(ledger: Ledger) -> str:
    """Return the page. All text of journals is escaped, because journals are not trusted."""
    body = _context(ledger)
    room = LIMIT - len(_render(body, "").encode()) - 1000
    data, coarse = pack_tracks(ledger, room)
    return _render({**body, "coarse": coarse}, script_json(data))


def fragment(ledger: Ledger) -> str:
    """Return the headline, the bar and the largest buckets, for a notebook."""
    stack = _stack(ledger)
    return (
        template_environment()
        .get_template("fragment.html")
        .render(
            ledger=ledger,
            run=one_line(ledger.run, 200),
            effective=ledger.buckets.get(EFFECTIVE, 0),
            stack=stack,
            largest=sorted(stack, key=lambda piece: -piece.width)[:8],
            share=lambda ns: percent(ledger.percent(ns)),
            duration=duration,
            count=count,
        )
    )


def _render(context: Mapping[str, Any], data: str) -> str:
    script = (ASSETS / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = (
        template_environment()
        .get_template("report.html")
        .render(
            **context,
            css=Markup((ASSETS / "report.css").read_text(encoding="utf-8")),
            palette=Markup(numbered_palette()),
            script=Markup(script),
            script_hash=f"'sha256-{digest}'",
            data=Markup(data),
        )
    )
    return text.encode("utf-8", "replace").decode()


def _context(ledger: Ledger) -> dict[str, Any]:
    return {
        "ledger": ledger,
        "run": one_line(ledger.run, 200),
        "command": one_line(shlex.join(ledger.command), _MAX_TEXT),
        "began": f"{datetime.fromtimestamp(ledger.started_at // NS, UTC):%Y-%m-%d %H:%M}",
        "version": __version__,
        "generator": GENERATOR,
        "coarse": None,
        "ett": f"{ledger.ett_percent:.1f}",
        "cards": list(_cards(ledger)),
        "stack": _stack(ledger),
        "waterfall": _waterfall(ledger),
        "columns": _columns(ledger),
        "group_meaning": GROUP_MEANING,
        "loss": _loss(ledger),
        "failed": _failed(ledger),
        "attempts": ledger.attempts[:_MAX_ROWS],
        "stages": startup_stages.draw_stages(ledger),
        "stage_rows": startup_stages.MAX_STAGES,
        "failures": [_failure(ledger, i) for i in range(min(len(ledger.failures), _MAX_ROWS))],
        "faults": [_fault(ledger, i) for i in range(min(len(ledger.faults), _MAX_ROWS))],
        "saves": checkpoints.merged_saves(ledger)[:_MAX_ROWS],
        "blocked_each": blocked_each(ledger),
        "save_plot": _save_plot(ledger),
        "save_facts": [
            *checkpoints.checkpoint_facts(ledger),
            *checkpoints.async_save_facts(ledger),
        ],
        "failed_saves": checkpoints.failed_saves(ledger)[:_MAX_ROWS],
        "resumed": checkpoints.describe_resume,
        "boosters": boosters.booster_facts(ledger),
        "published": publish.publish_facts(ledger),
        "first_compiles": _first_compiles(ledger),
        "compile_parts": _compile_parts(ledger),
        "archives": compiles.describe_cache_loads(ledger),
        "caches": compiles.describe_torch_caches(ledger),
        "bypassed": compiles.cache_bypasses(ledger)[:_MAX_ROWS],
        "missed_ahead": compiles.precompile_misses(ledger)[:_MAX_ROWS],
        "gave_up": compiles.limit_hits_by_place(ledger)[:_MAX_ROWS],
        "recompiles": compiles.group_recompiles(ledger)[:_MAX_ROWS],
        "communication": communication.communication_facts(ledger),
        "talk": (
            communication.process_group_findings(ledger)[:_MAX_ROWS],
            communication.collective_findings(ledger)[:_MAX_ROWS],
        ),
        "own_losses": overview.own_losses(ledger)[:_MAX_ROWS],
        "gaps": sorted(ledger.gaps, key=lambda g: g.start - g.end)[:_MAX_ROWS],
        "notes": [one_line(note, _MAX_TEXT) for note in ledger.notes[:_MAX_ROWS]],
        "places": {bucket: i for i, bucket in enumerate(BUCKETS)},
        "clip": lambda text: one_line(str(text), _MAX_TEXT),
        "share": lambda ns: percent(ledger.percent(ns)),
        "duration": duration,
        "count": count,
        "percent": percent,
        "short": stage_of,
        "meaning": MEANING,
        "max_rows": _MAX_ROWS,
    }


def _cards(ledger: Ledger) -> Iterator[tuple[str, str, str]]:
    """Yield label, value and remark of each figure next to the ETT."""
    start = ledger.time_to_start
    yield "Time to Start", "never" if start is None else duration(start), "to the first step"
    recoveries = ledger.time_to_recover
    if recoveries:
        mean = duration(sum(recoveries) // len(recoveries))
        remark = "1 interruption" if len(recoveries) == 1 else f"mean of {len(recoveries):,}"
        yield "Time to Recover", mean, remark
    else:
        yield "Time to Recover", "-", "no interruption"
    owners = ledger.failures_by_owner
    others = ", ".join(f"{n:,} {owner}" for owner, n in owners.items() if n and owner != "infra")
    remark = f"infra; also {others}" if others else "infra"
    yield "Failures", f"{owners['infra']:,}", remark
    lost = sum(last - first + 1 for first, last in failures.rolled_back_steps(ledger))
    yield "Steps", f"{ledger.steps:,}", f"{lost:,} rolled back" if lost else "none rolled back"
    hosts = {host for rank in ledger.ranks for host in rank.hosts}
    yield "Ranks", f"{len(ledger.ranks):,}", count(len(hosts), "host") if hosts else "1 run"
    outcome = ledger.attempts[-1].outcome if ledger.attempts else "none"
    yield "Attempts", f"{len(ledger.attempts):,}", f"last: {outcome}"


def _columns(ledger: Ledger) -> list[list[tuple[str, int, list[tuple[str, int]]]]]:
    """Return the legend in columns of about equal length."""
    groups = {name: (name, total, leaves) for name, total, leaves in overview.bucket_groups(ledger)}
    plan = (("train", "start"), ("waste", "failure", "stop", "unknown"), ("recover",))
    columns = [[groups[name] for name in names if name in groups] for names in plan]
    return [column for column in columns if column]


def _stack(ledger: Ledger) -> list[Slice]:
    """Return all buckets side by side: effective time first, then in their fixed order."""
    order = (EFFECTIVE, *(bucket for bucket in BUCKETS if bucket != EFFECTIVE))
    slices, left = [], 0.0
    for bucket in order:
        ns = ledger.buckets.get(bucket, 0)
        if ns:
            slices.append(_slice(ledger, bucket, ns, left))
            left += slices[-1].width
    return slices


def _waterfall(ledger: Ledger) -> list[Slice]:
    """Return the losses from 100 % to the ETT; each starts where the previous one ends."""
    losses = [(ns, bucket) for bucket, ns in ledger.buckets.items() if bucket != EFFECTIVE and ns]
    losses.sort(key=lambda pair: (-pair[0], pair[1]))
    slices, left = [], 100.0
    for ns, bucket in losses:
        left -= ledger.percent(ns)
        slices.append(_slice(ledger, bucket, ns, max(left, 0.0)))
    return slices


def _slice(ledger: Ledger, bucket: str, ns: int, left: float) -> Slice:
    share = ledger.percent(ns)
    return Slice(
        bucket, BUCKETS.index(bucket), bucket_color(bucket, dark=False), left, share, duration(ns),
        percent(share), MEANING[bucket],
    )  # fmt: skip


def _loss(ledger: Ledger) -> dict[str, str | None] | None:
    loss = overview.largest_loss(ledger)
    if loss is None or not ledger.steps or ledger.percent(loss.ns) < 0.5:
        return None
    return {
        "stage": loss.stage,
        "time": duration(loss.ns),
        "share": percent(ledger.percent(loss.ns)),
        "without": percent(overview.ett_without(ledger, loss.ns)),
        "hint": hint(ledger, loss),
    }


def _failed(ledger: Ledger) -> dict[str, Any] | None:
    end = run_failure(ledger)
    if end is None:
        return None
    return {"facts": failure_facts(end), "todo": end.todo, "command": one_line(end.command)}


def _failure(ledger: Ledger, place: int) -> dict[str, Any]:
    failure = ledger.failures[place]
    recovery = ledger.recovery_of(failure.attempt)
    return {
        "attempt": failure.attempt,
        "at": duration(failure.at),
        "category": one_line(failure.category, 200),
        "owner": one_line(failure.owner, 200),
        "retry": one_line(failure.retry, 200),
        "rank": failure.root_rank,
        "step": failures.last_step_before(ledger, failure),
        "recovered": None if recovery is None else duration(recovery),
        "evidence": _lines(failure.evidence),
        "node": one_line(failure.node or "", 100),
        "decision": one_line(failure.decision or "", 200),
        "notice": failures.notice_of_attempt(ledger, failure.attempt),
    }


def _fault(ledger: Ledger, place: int) -> dict[str, Any]:
    fault = ledger.faults[place]
    detected, decision = failures.outcome_of(ledger, fault)
    return {
        "planned": one_line(fault.planned, _MAX_TEXT),
        "attempt": fault.attempt,
        "at": duration(fault.at),
        "step": fault.step,
        "who": one_line(fault.who, 400),
        "detected": one_line(detected, 400),
        "decision": one_line(decision, 400),
    }


def _lines(text: str) -> str:
    """Shorten evidence but keep its line breaks, because it may be a traceback."""
    return "\n".join(one_line(line, 400) for line in text[:_MAX_TEXT].splitlines())


def _save_plot(ledger: Ledger) -> dict[str, Any] | None:
    """Return each save as a stem: when, and how long it blocked training."""
    saves = checkpoints.merged_saves(ledger)
    if not saves or not ledger.wall:
        return None
    top = max(max(s.blocked for s in saves), 1)
    stretch = -(-len(saves) // _MAX_DOTS)  # of that many adjacent saves, only the longest is drawn
    saves = [
        max(saves[at : at + stretch], key=lambda save: save.blocked)
        for at in range(0, len(saves), stretch)
    ]
    stems = [
        {
            "x": round(100 * s.at / ledger.wall, 3),
            "y": round(100 * s.blocked / top, 2),
            "text": f"step {s.step:,}: {duration(s.blocked)} blocked, at {duration(s.at)}",
        }
        for s in saves
    ]
    return {"stems": stems, "top": duration(top), "end": duration(ledger.wall)}


def _compile_parts(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the parts of the pt2_compile buckets as a bar, in shades of one color."""
    split = compiles.compile_split(ledger)
    total = sum(ns for _, ns in split)
    return [
        {
            "name": name,
            "width": 100 * ns / total,
            "shade": round(1 - 0.8 * place / max(len(split) - 1, 1), 2),
            "time": duration(ns),
            "meaning": PART_MEANING[name],
        }
        for place, (name, ns) in enumerate(split)
    ]


def _first_compiles(ledger: Ledger) -> dict[str, Any]:
    first = ledger_compiles.first_compiles(ledger)
    cached = sum(c.cached for c in first)
    longest = max((c.ns for c in first), default=0)
    return {"cold": len(first) - cached, "cached": cached, "longest": duration(longest)}
