"""Converts a ledger to JSON (`ledger.json`, `headway report --json`) and masks its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from headway import redact
from headway.ledger import publish
from headway.ledger.buckets import BUCKETS
from headway.ledger.model import (
    COMPILE_PARTS,
    SCHEMA,
    AsyncSave,
    Attempt,
    AutoRun,
    CompileCacheLoad,
    Failure,
    Fault,
    Ledger,
    PreemptionNotice,
    PreStepCollectives,
    ProcessGroups,
    Publish,
    RankCompiles,
    RecompileLimitHit,
    SaveInterval,
    StageGraph,
)
from headway.units import NS


def to_dict(ledger: Ledger) -> dict[str, Any]:
    """Return the content of `ledger.json` and `headway report --json`.

    Scripts depend on this format. Times are in seconds, rounded to 1 ns.
    """
    cold = sum(not c.recompile and not c.cached for c in ledger.compiles)
    return {
        "schema": SCHEMA,
        "run": ledger.run,
        "wall_s": ledger.wall / NS,
        "ett_percent": ledger.ett_percent,
        "idleness_percent": ledger.idleness_percent,
        "failure_percent": ledger.failure_percent,
        "ranks": len(ledger.ranks),
        "steps": ledger.steps,
        "running": ledger.running,
        "started_at": ledger.started_at / NS,
        "exit_code": ledger.exit_code,
        "buckets": _seconds(ledger.buckets),
        "time_to_start_s": _s(ledger.time_to_start),
        "time_to_recover_s": [ns / NS for ns in ledger.time_to_recover],
        "hidden_s": _seconds(ledger.hidden),
        "queue_capacity_s": _s(ledger.queue_capacity),
        "paused_s": ledger.paused / NS,
        "batches_per_step": ledger.batches_per_step,
        "attempts": [_attempt(a) for a in ledger.attempts],
        "failures": [_failure(f) for f in ledger.failures],
        "failures_by_owner": ledger.failures_by_owner,
        **({"stages": [_stage_graph(graph) for graph in ledger.stages]} if ledger.stages else {}),
        **({"notices": [_notice(n) for n in ledger.notices]} if ledger.notices else {}),
        **({"faults": [_fault(f) for f in ledger.faults]} if ledger.faults else {}),
        "checkpoints": {
            "saves": ledger.saves,
            "blocked_s": ledger.buckets.get("waste.checkpoint_block", 0) / NS,
            "interval_s": _s(ledger.save_interval),
            "recommended_interval_s": _s(ledger.recommended_interval),
            **({"behind": _async_save(ledger.async_save)} if ledger.async_save else {}),
            **({"levels": _levels(ledger)} if ledger.outcomes else {}),
            **({"failed": _failed_saves(ledger)} if any(s.error for s in ledger.outcomes) else {}),
        },
        **({"publish": _publish_of(ledger, ledger.published_by)} if ledger.published_by else {}),
        **({"publishes": _publish(ledger.publishes_run)} if ledger.publishes_run else {}),
        "compile": {
            "cold": cold,
            "cached": sum(not c.recompile and c.cached for c in ledger.compiles),
            "recompiles": [
                {
                    "where": c.location,
                    "reason": c.reason,
                    "seconds": c.ns / NS,
                    "attempt": c.attempt,
                    "rank": c.rank,
                    "missed_ahead": c.missed_precompile,
                }
                for c in ledger.compiles
                if c.recompile
            ],
            "parts": _parts(ledger.compile_parts),
            "by_rank": [_rank_compiles(rank) for rank in ledger.rank_compiles],
            "gave_up": [_recompile_limit_hit(hit) for hit in ledger.recompile_limit_hits],
            "archives": [_compile_cache_load(load) for load in ledger.archives],
            "archived": ledger.archives_saved,
        },
        "communication": {
            "groups": [_process_groups(groups) for groups in ledger.process_groups],
            "calls": [_pre_step_collectives(calls) for calls in ledger.pre_step_collectives],
        },
        "per_rank": [
            {"rank": r.rank, "steps": r.steps, "buckets": _seconds(r.buckets)} for r in ledger.ranks
        ],
        "notes": list(ledger.notes),
        **({"auto": _auto(ledger.auto)} if ledger.auto else {}),
    }


def _levels(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the cost of saves and their interval, by level of a Checkpointer."""
    intervals = {outcome.level: outcome for outcome in ledger.save_intervals}
    levels = []
    for level in ("memory", "disk"):
        good = [
            outcome for outcome in ledger.outcomes if outcome.level == level and not outcome.error
        ]
        if not good:
            continue
        interval = intervals.get(level)
        levels.append(
            {
                "level": level,
                "saves": len(good),
                "blocked_s": sum(outcome.blocked for outcome in good) / NS,
                "slower_s": sum(outcome.step_slowdown for outcome in good) / NS,
                "durable_s": max(outcome.durable for outcome in good) / NS,
                "bytes": sum(outcome.size for outcome in good),
                **(_save_interval(interval) if interval else {}),
            }
        )
    return levels


def _save_interval(interval: SaveInterval) -> dict[str, Any]:
    return {
        "interval_s": interval.interval / NS,
        "recommended_interval_s": _s(interval.recommended),
        "wasted_percent": interval.wasted_percent,
        "recommended_percent": interval.recommended_percent,
        "failures_per_hour": interval.failures_per_hour,
        "failures_low": interval.failures_low,
        "failures_high": interval.failures_high,
    }


def _failed_saves(ledger: Ledger) -> list[dict[str, Any]]:
    return [
        {
            "attempt": outcome.attempt,
            "step": outcome.step,
            "at_s": outcome.at / NS,
            "level": outcome.level,
            "error": outcome.error,
        }
        for outcome in ledger.outcomes
        if outcome.error
    ]


def _s(ns: int | None) -> float | None:
    return None if ns is None else ns / NS


def _seconds(buckets: Mapping[str, int]) -> dict[str, float]:
    """Order the buckets as `BUCKETS` does, so that two ledgers have the same order."""
    return {bucket: buckets[bucket] / NS for bucket in BUCKETS if buckets.get(bucket)}


def _parts(parts: Mapping[str, int]) -> dict[str, float]:
    return {name: parts[name] / NS for name in COMPILE_PARTS if parts.get(name)}


def _rank_compiles(rank: RankCompiles) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "parts": _parts(rank.parts),
        "fx_hits": rank.fx[0],
        "fx_misses": rank.fx[1],
        "aot_hits": rank.aot[0],
        "aot_misses": rank.aot[1],
        "bypassed": dict(rank.bypassed),
    }


def _recompile_limit_hit(hit: RecompileLimitHit) -> dict[str, Any]:
    return {
        "attempt": hit.attempt,
        "rank": hit.rank,
        "at_s": hit.at / NS,
        "where": hit.where,
        "limit": hit.limit,
        "reason": hit.reason,
    }


def _stage_graph(graph: StageGraph) -> dict[str, Any]:
    return {
        "attempt": graph.attempt,
        "rank": graph.rank,
        "took_s": graph.took / NS,
        "bound_s": graph.bound / NS,
        "one_by_one_s": graph.one_by_one / NS,
        "critical": list(graph.critical),
        "stages": [
            {
                "name": row.name,
                "where": row.where,
                "needs": list(row.needs),
                "start_s": row.start / NS,
                "end_s": row.end / NS,
            }
            for row in graph.rows
        ],
    }


def _compile_cache_load(load: CompileCacheLoad) -> dict[str, Any]:
    return {
        "attempt": load.attempt,
        "level": load.level,
        "why": load.why,
        "files": load.files,
        "bytes": load.bytes,
        "load_s": load.load / NS,
        "cold_s": load.compile_cold / NS,
        "compile_s": load.compile / NS,
        "saved_s": load.saved / NS,
    }


def _auto(auto: AutoRun) -> dict[str, Any]:
    return {
        "job": auto.job,
        "kind": auto.comparison_key,
        "boosters": [
            {
                "name": booster.name,
                "state": booster.state,
                "what": booster.what or None,
                "why": booster.why or None,
                "here_s": _s(booster.time),
                "without_s": _s(booster.baseline),
                "saved_s": _s(booster.saved),
            }
            for booster in auto.boosters
        ],
    }


def _async_save(saves: AsyncSave) -> dict[str, Any]:
    return {
        "saves": saves.saves,
        "blocked_s": saves.blocked / NS,
        "written_s": saves.write / NS,
        "waited_s": saves.wait / NS,
        "failed": saves.failed,
        "plain": dict(saves.sync_fallbacks),
    }


def _publish(published: Publish) -> dict[str, Any]:
    return {
        "run": published.run,
        "folder": published.folder,
        "anchor": published.anchor,
        "store": published.store,
        "snapshot": published.snapshot or None,
        "error": published.error or None,
        "seconds": _s(published.took),
    }


def _publish_of(ledger: Ledger, published: Publish) -> dict[str, Any]:
    held = publish.accelerators_held(ledger)
    return {
        **_publish(published),
        "accelerators": held,
        "would_cost_s": None if published.took is None else held * published.took / NS,
        "did_cost_s": held * publish.time_after_training(ledger) / NS,
    }


def _process_groups(groups: ProcessGroups) -> dict[str, Any]:
    return {
        "where": groups.where,
        "what": groups.what,
        "desc": groups.desc,
        "backend": groups.backend,
        "size": groups.size,
        "ranks": groups.ranks,
        "calls": groups.calls,
        "made": groups.made,
        "used": groups.used,
        "unused": groups.unused,
        "again": groups.duplicate,
        "seconds": groups.ns / NS,
        "needless_s": groups.avoidable / NS,
        "settled": groups.complete,
    }


def _pre_step_collectives(calls: PreStepCollectives) -> dict[str, Any]:
    return {
        "where": calls.where,
        "what": calls.what,
        "ranks": calls.ranks,
        "times": calls.times,
        "seconds": calls.ns / NS,
        "least_s": calls.min_time / NS,
        "bytes": calls.bytes,
    }


def _attempt(a: Attempt) -> dict[str, Any]:
    return {
        "index": a.index,
        "start_s": a.start / NS,
        "end_s": a.end / NS,
        "first_step": a.first_step,
        "last_step": a.last_step,
        "resumed_from": a.resumed_from,
        "resumed_by": a.resumed_by,
        "outcome": a.outcome,
        "ranks": len(a.ranks),
    }


def _failure(f: Failure) -> dict[str, Any]:
    return {
        "attempt": f.attempt,
        "at_s": f.at / NS,
        "category": f.category,
        "owner": f.owner,
        "retry": f.retry,
        "root_rank": f.root_rank,
        "evidence": f.evidence,
        "node": f.node,
        "confidence": f.confidence,
        "fingerprint": f.fingerprint,
        "decision": f.decision,
    }


def _notice(n: PreemptionNotice) -> dict[str, Any]:
    return {
        "attempt": n.attempt,
        "at_s": n.at / NS,
        "answer": n.response,
        "step": n.step,
        "accelerators": n.accelerators,
        "saved_s": n.saved / NS,
        "saved_steps": n.saved_steps,
        "saved_accelerator_s": n.accelerators * n.saved / NS,
        "lost_s": _s(n.lost),
        "lost_steps": n.lost_steps,
        "lost_accelerator_s": _s(None if n.lost is None else n.accelerators * n.lost),
    }


def _fault(f: Fault) -> dict[str, Any]:
    return {
        "attempt": f.attempt,
        "at_s": f.at / NS,
        "kind": f.kind,
        "who": f.who,
        "step": f.step,
        "planned": f.planned,
        "missed": f.missed,
        "failure": f.failure,
        "detected": f.detected,
        "detected_after_s": _s(f.detected_after),
    }


# The name identifies the run everywhere; the other fields contain times, in large numbers.
_UNMASKED_FIELDS = frozenset({"run", "segments", "ranks", "buckets"})


def mask_secrets(ledger: Ledger) -> Ledger:
    """Mask secrets in every text of a ledger except the run's name."""
    masked: Ledger = _mask_fields(ledger, _UNMASKED_FIELDS)
    return masked


def _mask_fields(value: Any, unmasked: frozenset[str] = frozenset()) -> Any:
    changed = {}
    for field in fields(value):
        old = getattr(value, field.name)
        if field.name not in unmasked and (new := _mask_value(old)) != old:
            changed[field.name] = new
    return replace(value, **changed) if changed else value


def _mask_value(value: Any) -> Any:
    if isinstance(value, (str, Mapping)):
        return redact.data(value)
    if isinstance(value, tuple):
        if value and all(isinstance(item, str) for item in value):
            return tuple(redact.words(value))
        return tuple(_mask_value(item) for item in value)
    return _mask_fields(value) if is_dataclass(value) else value
