"""What to try against a loss: only what this run did not have, and what could have helped it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headway.ledger.boosters import active_boosters
from headway.ledger.model import Failure, Ledger
from headway.report import findings
from headway.report.findings import Loss
from headway.report.words import duration

RESTARTS: Final = 5  # unless the run has failed more often
RESTARTABLE: Final = ("yes", "bounded", "swap")  # what asks for another attempt at once

# By stage, start and recover alike; what depends on the run is in `_OF_RUN`.
_STAGE_HINTS: Final = {
    "scheduling": "ask the scheduler for the nodes earlier, or for fewer of them",
    "hardware_setup": "bake the environment into the image instead of setting it up each time",
    "device_init": "touch the device early, while the data pipeline is being built",
    "process_group_init": "make fewer process groups, or make them lazily",
    "preproc_creation": "build the data pipeline while the model is being built",
    "train_module_creation": "build the model on the meta device, then materialize it",
    "init_plugins": "start plugins after the first step",
    "pre_train": "move this work behind the first step",
    "get_first_batch_data": "start the data workers before the model is built",
    "checkpoint_load": "load shards in parallel, from the nearest storage",
    "data_stall": "more data workers, or prefetch further ahead",
    "recompile": "see why, and what cures it: headway recompiles RUN",
    "evaluation": "evaluate less often, or in a job of its own",
    "shutdown": "leave less work for after the last step",
    "publish": "publish in a job of its own: headway run --publish RECIPE",
    "unknown": 'name the largest gap: with headway.stage("..."): around that code',
}


def hint(ledger: Ledger, loss: Loss) -> str | None:
    """One line; None where nothing is known that the run did not have already."""
    of_run = _RUN_HINTS.get(loss.leaf)
    return of_run(ledger, loss) if of_run else _STAGE_HINTS.get(loss.leaf)


def is_restartable(failure: Failure) -> bool:
    """Whether another attempt may be made at once, where the job is."""
    return failure.owner != "scheduler" and failure.retry in RESTARTABLE


def restart_flags(ledger: Ledger) -> tuple[str, str]:
    """The flag that lets Headway start the job again, often enough for this run."""
    return "--restarts", str(max(RESTARTS, len(ledger.failures)))


def _restart(ledger: Ledger, what: str, *more: str) -> str:
    return f"{what}: headway run {' '.join((*restart_flags(ledger), *more))}"


def _between_attempts(ledger: Ledger, _: Loss) -> str | None:
    """A restart on the spot helps where another attempt may be made at once."""
    if "restarts" in active_boosters(ledger):
        return None
    if not any(map(is_restartable, ledger.failures)):
        return None
    return _restart(ledger, "start again on the spot")


def _launcher(ledger: Ledger, loss: Loss) -> str | None:
    again = ledger.buckets.get("recover.launcher_init", 0)
    here = any(map(is_restartable, ledger.failures))  # not on other machines, in another job
    if 2 * again >= loss.ns and here and "warm" not in active_boosters(ledger):
        return _restart(ledger, "fork restarts with their imports done", "--warm")
    return "import less before the loop, and keep packages on a local disk"


def _compile(ledger: Ledger, _: Loss) -> str | None:
    cold = [one for one in findings.first_compiles(ledger) if not one.cached]
    if not cold:  # an eager job that imports the compiler, or nothing left to keep
        return None
    if "compile_cache" not in active_boosters(ledger):
        return "keep compiled code for later runs: headway run --compile-cache FOLDER"
    if ledger.archived and all(one.level == "miss" for one in ledger.archives):
        return "run it again: what it has compiled is stored for its next run"
    return None


def _saves(ledger: Ledger, _: Loss) -> str | None:
    if not ledger.saved and "async_save" not in active_boosters(ledger):
        return "write saves in the background: headway run --async-save"
    now, best = ledger.save_interval, ledger.recommended_interval
    if now is not None and best is not None and best > now:
        return f"save less often: every {duration(best)} instead of every {duration(now)}"
    return None


def _lost(ledger: Ledger, _: Loss) -> str | None:
    if not ledger.saves:
        return "save checkpoints, and go on from them: headway.checkpoint.Checkpointer"
    now, best = ledger.save_interval, ledger.recommended_interval
    if now is not None and best is not None and best < now:
        return f"save more often: every {duration(best)} instead of every {duration(now)}"
    return None


def _hang(ledger: Ledger, _: Loss) -> str | None:
    if "restarts" not in active_boosters(ledger):
        return _restart(ledger, "end hung attempts, and start again")
    return "end a hang sooner: headway run --hang-after SECONDS"


def _blocked(ledger: Ledger, _: Loss) -> str | None:
    several = len(ledger.ranks) > 1
    return "see which rank holds up the others: headway report lists them" if several else None


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
