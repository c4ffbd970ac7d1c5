"""Model registry of MLflow, using its own client.

A snapshot is a run with its files as artifacts, and a version of the registered model that refers
to this run. Both are created with the name of the snapshot as a tag.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.errors import MissingExtra, RegistryFailed, UsageError
from headway.publish import recipe as recipes
from headway.publish.snapshot import Snapshot

TAG = "headway.snapshot"
ARTIFACTS = "snapshot"  # folder of the artifacts of a run
MAX_TAG_CHARS = 5000  # of the value of a tag
RESERVED_ALIAS = re.compile(r"latest|v\d+", re.I)  # names that MLflow uses for versions
QUIET_ENV = {  # unless already set
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class MlflowRegistry:
    """Versions of one registered model."""

    def __init__(self, options: recipes.RegistryOptions) -> None:
        self._model, self._alias = options.mlflow, options.alias
        if not self._model or set(self._model) & set("/:'"):
            raise UsageError(
                f"[registry] mlflow is {self._model!r}, which is not a valid model name",
                code="registry-model-invalid",
            )
        if RESERVED_ALIAS.fullmatch(self._alias):
            raise UsageError(
                f"[registry] alias is {self._alias!r}, which is reserved by MLflow",
                code="registry-alias-reserved",
            )
        if not (options.uri or os.environ.get("MLFLOW_TRACKING_URI")):
            raise UsageError(
                "[registry] needs uri, or MLFLOW_TRACKING_URI in the environment",
                code="registry-uri-missing",
            )
        for name, value in QUIET_ENV.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise MissingExtra("the MLflow registry needs its client", extra="mlflow") from None
        with self._failing():
            self._client = MlflowClient(tracking_uri=options.uri, registry_uri=options.uri)

    def find_version(self, snapshot: Snapshot) -> str | None:
        """The version of a snapshot, if it is registered."""
        with self._failing():
            versions = self._client.search_model_versions(
                f"name = '{self._model}' and tags.`{TAG}` = '{snapshot.name}'"
            )
        return min((str(version.version) for version in versions), key=int, default=None)

    def register(self, snapshot: Snapshot, folder: Path) -> str:
        """Create a version for a snapshot; continues an interrupted attempt."""
        with self._failing():
            self._make_model()
            run = self._run(snapshot)
            if run.info.status != "FINISHED":
                self._client.log_artifacts(run.info.run_id, str(folder), ARTIFACTS)
                self._log_metrics(run.info.run_id, snapshot)
                self._client.set_terminated(run.info.run_id, "FINISHED")
            version = self._client.create_model_version(
                self._model,
                source=f"{run.info.artifact_uri}/{ARTIFACTS}",
                run_id=run.info.run_id,
                tags=tags(snapshot),
            )
        return str(version.version)

    def serve(self, version: str) -> None:
        """Set the alias to a version."""
        with self._failing():
            self._client.set_registered_model_alias(self._model, self._alias, version)

    def _make_model(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(self._model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _run(self, snapshot: Snapshot) -> Any:
        """The run of a snapshot, in the experiment with the name of the model."""
        experiment = self._client.get_experiment_by_name(self._model)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(self._model)
        )
        runs = self._client.search_runs([experiment_id], f"tags.`{TAG}` = '{snapshot.name}'")
        if runs:
            return runs[-1]
        return self._client.create_run(experiment_id, run_name=snapshot.name, tags=tags(snapshot))

    def _log_metrics(self, run: str, snapshot: Snapshot) -> None:
        from mlflow.entities import Metric

        step, now = int(snapshot.manifest.anchor.get("step") or 0), int(time.time() * 1000)
        measured = [Metric(name, value, now, step) for name, value in metrics(snapshot).items()]
        self._client.log_batch(run, metrics=measured)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise errors of MLflow as RegistryFailed with their first line."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            text = f"the serving snapshot was not registered in MLflow as {self._model}: {first}"
            raise RegistryFailed(
                f"{text}; the next publish tries again", code="registry-failed"
            ) from error


def tags(snapshot: Snapshot) -> dict[str, str]:
    """Tags of the version of a snapshot."""
    manifest = snapshot.manifest
    values = {
        TAG: snapshot.name,
        "headway.anchor": manifest.anchor.get("path"),
        "headway.anchor.id": manifest.anchor.get("id"),
        "headway.step": manifest.anchor.get("step"),
        "headway.run": manifest.anchor.get("run"),
        "headway.recipe": manifest.recipe,
        **{f"headway.version.{name}": version for name, version in manifest.versions.items()},
        **{f"headway.sha256.{name}": file.sha256 for name, file in manifest.files.items()},
        **{f"headway.metric.{name}": value for name, value in metrics(snapshot).items()},
    }
    return {name: str(value)[:MAX_TAG_CHARS] for name, value in values.items() if value is not None}


def metrics(snapshot: Snapshot) -> dict[str, float]:
    """Metrics of the anchor and of each target, with names that MLflow accepts."""
    values = dict(snapshot.manifest.anchor.get("metrics") or {})
    for target, record in snapshot.manifest.targets.items():
        values |= {f"{target}.{name}": value for name, value in record.metrics.items()}
    return {
        re.sub(r"[^\w\-. :/]", "_", str(name)): float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
