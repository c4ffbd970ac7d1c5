"""Link a publish and the training run of its anchor: each records the other."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway import sdk
from headway.errors import HeadwayError
from headway.journal import run_files
from headway.publish import job
from headway.publish.anchor import Anchor
from headway.publish.job import Outcome
from headway.publish.recipe import Recipe
from headway.publish.store import SnapshotStore
from headway.storage.lease import AlreadyPublishing


def with_training_run(anchor: Anchor, run: str | None) -> Anchor:
    """The anchor with the given training run, or with the one recorded in it."""
    if run is None:
        return anchor
    path = run_files.find_run(run).resolve()
    name = run_files.read_identity(path).get("run") or path.name
    return replace(anchor, extra={**anchor.extra, "run": name, "ledger": str(path)})


def publish_linked(anchor: Anchor, recipe: Recipe, store: SnapshotStore, **options: Any) -> Outcome:
    """Publish; record the outcome in the own journal and in the folder of the training run."""
    fields: dict[str, Any] = {"anchor": anchor.path, "store": store.place.url, "snapshot": ""}
    fields |= {"error": "it was interrupted"}
    started = time.monotonic()
    try:
        with sdk.span("publish"):
            outcome = job.publish(anchor, recipe, store, **options)
    except AlreadyPublishing:
        fields.clear()  # the other worker records the outcome
        raise
    except Exception as error:
        fields["error"] = str(error) or type(error).__name__
        raise
    else:
        fields |= {"snapshot": outcome.snapshot.name, "error": ""}
        if not outcome.fresh:  # the time of the original publish
            fields["seconds"] = sum(outcome.snapshot.manifest.seconds.values())
        return outcome
    finally:
        if fields:
            _record(anchor, {"seconds": time.monotonic() - started, **fields})


def _record(anchor: Anchor, fields: dict[str, Any]) -> None:
    training = {key: anchor.extra.get(key) for key in ("run", "ledger")}
    _emit({**fields, **training})
    path = Path(str(training["ledger"] or ""))
    if training["ledger"] and (path / run_files.JOURNAL).is_dir():
        with contextlib.suppress(OSError):  # the folder may belong to another user
            run_files.write_publish_note(
                path, {**run_files.read_publish_note(path), **fields, "ended": time.time()}
            )
            _rewrite_results(path)


def _emit(fields: dict[str, Any]) -> None:
    recorder = sdk.active_recorder()
    if recorder is not None:
        from headway.probe.recorder import guard

        guard("publish", lambda: recorder.emit("published", **fields))


def _rewrite_results(path: Path) -> None:
    """Update the ledger and the report of the training run with the finished publish."""
    from headway.session.output import write_results

    with contextlib.suppress(HeadwayError):
        write_results(path, quiet=True)
