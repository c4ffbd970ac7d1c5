"""Exports a ledger to W&B, MLflow or TensorBoard by their clients; a new export updates it."""

from __future__ import annotations

import importlib
import re
from typing import Any

from headway.errors import HeadwayError, MissingExtra
from headway.export.identity import run_key, run_labels
from headway.ledger.model import Ledger
from headway.units import NS

TRACKERS = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboard.summary"}
PROJECT = "headway"


def export_to_tracker(ledger: Ledger, tracker: str, to: str | None) -> str:
    """Write the ledger to `to`, a project, an experiment or a folder, and return its location."""
    client = _client(tracker)
    write = {"wandb": _wandb, "mlflow": _mlflow, "tensorboard": _tensorboard}[tracker]
    try:
        return write(client, ledger, to)
    except HeadwayError:
        raise
    except Exception as error:  # a client may raise any exception for its server
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeadwayError(
            f"{tracker} did not take the run {ledger.run}: {why}", code="tracker-failed"
        ) from error


def scalars(ledger: Ledger) -> dict[str, float]:
    """Return the figures of a run by their names in trackers."""
    values: dict[str, float] = {
        "headway/ett_percent": ledger.ett_percent,
        "headway/idleness_percent": ledger.idleness_percent,
        "headway/failure_percent": ledger.failure_percent,
        "headway/wall_s": ledger.wall / NS,
        "headway/steps": ledger.steps,
        "headway/attempts": len(ledger.attempts),
        "headway/failures": ledger.failures_by_owner["infra"],
        "headway/saves": ledger.saves,
    }
    for owner, number in ledger.failures_by_owner.items():
        if owner != "infra":
            values[f"headway/failures_{owner}"] = number
    if ledger.time_to_start is not None:
        values["headway/time_to_start_s"] = ledger.time_to_start / NS
    if ledger.time_to_recover:
        values["headway/time_to_recover_max_s"] = max(ledger.time_to_recover) / NS
    for bucket, ns in ledger.buckets.items():
        values[f"headway/bucket/{bucket}_s"] = ns / NS
    return values


def _client(tracker: str) -> Any:
    try:
        return importlib.import_module(TRACKERS[tracker])
    except ImportError as error:
        raise MissingExtra(f"the export to {tracker} needs its client", extra=tracker) from error


def _labels(ledger: Ledger) -> dict[str, str]:
    return {name: str(value) for name, value in run_labels(ledger).items()}


def _wandb(wandb: Any, ledger: Ledger, project: str | None) -> str:
    run = wandb.init(
        project=project or PROJECT,
        name=ledger.run,
        id=run_key(ledger),
        resume="allow",
        job_type="headway",
        config={"headway": {"labels": _labels(ledger), "command": list(ledger.command)}},
        settings=wandb.Settings(silent=True, console="off"),
    )
    run.summary.update(scalars(ledger))
    url = str(getattr(run, "url", None) or run.dir)
    run.finish()
    return url


def _mlflow(mlflow: Any, ledger: Ledger, experiment: str | None) -> str:
    chosen = mlflow.set_experiment(experiment or PROJECT)
    runs = mlflow.search_runs(
        [chosen.experiment_id],
        filter_string=f"tags.`headway.key` = '{run_key(ledger)}'",
        output_format="list",
    )
    identity = {"run_id": runs[0].info.run_id} if runs else {"run_name": ledger.run}
    with mlflow.start_run(**identity) as run:
        labels = {f"headway.{name}": value for name, value in _labels(ledger).items()}
        mlflow.set_tags({"headway.key": run_key(ledger), "headway.run": ledger.run, **labels})
        # MLflow accepts letters, digits and a few other characters in metric names.
        clean = {re.sub(r"[^\w\-./ :]", "_", name): v for name, v in scalars(ledger).items()}
        mlflow.log_metrics(clean, step=ledger.steps)
        return str(run.info.run_id)


def _tensorboard(summary: Any, ledger: Ledger, folder: str | None) -> str:
    where = folder or f"runs/{ledger.run}"
    writer = summary.Writer(where)
    for name, value in scalars(ledger).items():
        writer.add_scalar(name, value, step=ledger.steps)
    writer.close()
    return where
