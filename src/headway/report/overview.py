"""The overview of a report: bucket groups, the largest loss with a hint, and ranks that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headway.format import duration
from headway.ledger import compiles
from headway.ledger.boosters import active_boosters
from headway.ledger.buckets import BUCKETS, EFFECTIVE, GROUPS, UNKNOWN, group, stage_of
from headway.ledger.failures import is_restartable, restart_flags
from headway.ledger.model import Ledger, RankLedger


@dataclass(frozen=True, slots=True)
class Loss:
    """A cause of lost time: one stage, summed over the first start and all recoveries."""

    stage: str
    ns: int
    buckets: tuple[str, ...]


def bucket_groups(ledger: Ledger) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """Return each group with a time above zero, with its buckets, in their fixed order."""
    groups = []
    for name in GROUPS:
        buckets = [(x, ledger.buckets.get(x, 0)) for x in BUCKETS if group(x) == name]
        buckets = [(bucket, ns) for bucket, ns in buckets if ns]
        if buckets:
            groups.append((name, sum(ns for _, ns in buckets), buckets))
    return groups


def largest_loss(ledger: Ledger) -> Loss | None:
    """Return the stage with the largest loss, summed over the first start and all recoveries."""
    by_stage: dict[str, list[str]] = {}
    for bucket in BUCKETS:
        if bucket != EFFECTIVE and ledger.buckets.get(bucket):
            by_stage.setdefault(stage_of(bucket), []).append(bucket)
    losses = [
        Loss(stage, sum(ledger.buckets[bucket] for bucket in buckets), tuple(buckets))
        for stage, buckets in by_stage.items()
    ]
    return max(losses, key=lambda loss: loss.ns, default=None)


def ett_without(ledger: Ledger, ns: int) -> float:
    """Return the ETT% without `ns` of lost time, all else equal."""
    rest = ledger.wall - ns
    return 100.0 * ledger.buckets.get(EFFECTIVE, 0) / rest if rest > 0 else 0.0


def rank_spread(ledger: Ledger) -> tuple[RankLedger, RankLedger] | None:
    """Return the ranks with the most and the least effective time; None for a single rank."""
    if len(ledger.ranks) < 2:
        return None
    present = [rank for rank in ledger.ranks if not rank.absent]
    ranks = present if len(present) > 1 else ledger.ranks
    by_time = sorted(ranks, key=lambda r: r.buckets.get(EFFECTIVE, 0))
    return by_time[-1], by_time[0]


def own_losses(ledger: Ledger) -> list[tuple[RankLedger, str, int]]:
    """Return where a rank exceeds the median rank by more than 0.5 % of the wall time.

    Each entry is the rank, the bucket and the excess in ns.
    """
    floor = ledger.wall // 200
    losses = []
    for bucket in BUCKETS:
        times = sorted(_time_present(r, bucket) for r in ledger.ranks)
        if bucket == EFFECTIVE or not times or not times[-1]:
            continue
        median = times[(len(times) - 1) // 2]
        for rank in ledger.ranks:
            more = _time_present(rank, bucket) - median
            if more > floor:
                losses.append((rank, bucket, more))
    return sorted(losses, key=lambda row: (-row[2], row[0].rank))


def _time_present(rank: RankLedger, bucket: str) -> int:
    """Return the time in a bucket, without attempts that the rank was not part of."""
    return rank.buckets.get(bucket, 0) - (rank.absent if bucket == UNKNOWN else 0)


# By stage of a start or recovery; hints that depend on the run are in `_RUN_HINTS`.
_STAGE_HINTS: Final = {
    "scheduling": "request the nodes earlier, or request fewer nodes",
    "hardware_setup": "build the environment into the image instead of setting it up at each start",
    "device_init": "initialize the device early, while the data pipeline is built",
    "process_group_init": "create fewer process groups, or create them lazily",
    "preproc_creation": "build the data pipeline while the model is built",
    "train_module_creation": "build the model on the meta device, then materialize it",
    "init_plugins": "start plugins after the first step",
    "pre_train": "move this work after the first step",
    "get_first_batch_data": "start the data workers before the model is built",
    "checkpoint_load": "load shards in parallel, from the nearest storage",
    "data_stall": "use more data workers, or prefetch more batches",
    "recompile": "see causes and fixes: headway recompiles RUN",
    "evaluation": "evaluate less often, or in a separate job",
    "shutdown": "do less work after the last step",
    "publish": "publish in a separate job: headway run --publish RECIPE",
    "unknown": 'name the largest gap: with headway.stage("..."): around that code',
}


def hint(ledger: Ledger, loss: Loss) -> str | None:
    """Return a hint of one line; None if the run already has everything that would help."""
    of_run = _RUN_HINTS.get(loss.stage)
    return of_run(ledger, loss) if of_run else _STAGE_HINTS.get(loss.stage)


def _restart(ledger: Ledger, what: str, *more: str) -> str:
    return f"{what}: headway run {' '.join((*restart_flags(ledger), *more))}"


def _between_attempts(ledger: Ledger, _: Loss) -> str | None:
    """Suggest a restart if another attempt on the same machines can succeed."""
    if "restarts" in active_boosters(ledger):
        return None
    if not any(map(is_restartable, ledger.failures)):
        return None
    return _restart(ledger, "restart without a new allocation")


def _launcher(ledger: Ledger, loss: Loss) -> str | None:
    recovery = ledger.buckets.get("recover.launcher_init", 0)
    restartable = any(map(is_restartable, ledger.failures))  # on the same machines, in this job
    if 2 * recovery >= loss.ns and restartable and "warm" not in active_boosters(ledger):
        return _restart(ledger, "restart from a process with imports loaded", "--warm")
    return "import less before the loop, and keep packages on a local disk"


def _compile(ledger: Ledger, _: Loss) -> str | None:
    cold = [c for c in compiles.first_compiles(ledger) if not c.cached]
    if not cold:  # an eager job that imports the compiler, or everything was cached
        return None
    if "compile_cache" not in active_boosters(ledger):
        return "keep compiled code for later runs: headway run --compile-cache FOLDER"
    if ledger.archives_saved and all(c.level == "miss" for c in ledger.archives):
        return "run the job again: its compiled code is stored for the next run"
    return None


def _saves(ledger: Ledger, _: Loss) -> str | None:
    if not ledger.outcomes and "async_save" not in active_boosters(ledger):
        return "write checkpoints in the background: headway run --async-save"
    now, best = ledger.save_interval, ledger.recommended_interval
    if now is not None and best is not None and best > now:
        return f"save less often: every {duration(best)} instead of every {duration(now)}"
    return None


def _lost(ledger: Ledger, _: Loss) -> str | None:
    if not ledger.saves:
        return "save checkpoints and resume from them: headway.checkpoint.Checkpointer"
    now, best = ledger.save_interval, ledger.recommended_interval
    if now is not None and best is not None and best < now:
        return f"save more often: every {duration(best)} instead of every {duration(now)}"
    return None


def _hang(ledger: Ledger, _: Loss) -> str | None:
    if "restarts" not in active_boosters(ledger):
        return _restart(ledger, "stop hung attempts and restart")
    return "detect hangs sooner: headway run --hang-after SECONDS"


def _blocked(ledger: Ledger, _: Loss) -> str | None:
    several = len(ledger.ranks) > 1
    return (
        "see which ranks block the others: headway report lists ranks that differ"
        if several
        else None
    )


_RUN_HINTS: Final[dict[str, Callable[[Ledger, Loss], str | None]]] = {
    "launcher_init": _launcher,
    "pt2_compile": _compile,
    "checkpoint_block": _saves,
    "lost_training": _lost,
    "hang": _hang,
    "detection": _between_attempts,
    "downtime": _between_attempts,
    "blocked": _blocked,
}
