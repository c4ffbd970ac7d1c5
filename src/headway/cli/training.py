"""Ties a publish to the training that its anchor is of: the run of each names that of the other."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway import sdk
from headway.errors import HeadwayError
from headway.journal import folder
from headway.journal import publish as notes
from headway.publish import job
from headway.publish.anchor import Anchor
from headway.publish.job import Outcome
from headway.publish.lease import Taken
from headway.publish.recipe import Recipe
from headway.publish.store import Store


def linked(anchor: Anchor, run: str | None) -> Anchor:
    """The anchor with the training run that is named, or else the one that it names itself."""
    if run is None:
        return anchor
    path = folder.find(run).resolve()
    name = folder.read_identity(path).get("run") or path.name
    return replace(anchor, extra={**anchor.extra, "run": name, "ledger": str(path)})


def publish(anchor: Anchor, recipe: Recipe, store: Store, **how: Any) -> Outcome:
    """As usual; in the end its own journal and the folder of the training say how that ended."""
    known: dict[str, Any] = {"anchor": anchor.path, "store": store.place.url, "snapshot": ""}
    known |= {"error": "it was ended half-way"}
    begun = time.monotonic()
    try:
        with sdk.span("publish"):
            outcome = job.publish(anchor, recipe, store, **how)
    except Taken:
        known.clear()  # another one is at it, and will say
        raise
    except Exception as error:
        known["error"] = str(error) or type(error).__name__
        raise
    else:
        known |= {"snapshot": outcome.snapshot.name, "error": ""}
        if not outcome.fresh:  # what it took when it was made
            known["seconds"] = sum(outcome.snapshot.manifest.seconds.values())
        return outcome
    finally:
        if known:
            _tell(anchor, {"seconds": time.monotonic() - begun, **known})


def _tell(anchor: Anchor, known: dict[str, Any]) -> None:
    training = {key: anchor.extra.get(key) for key in ("run", "ledger")}
    _journal({**known, **training})
    path = Path(str(training["ledger"] or ""))
    if training["ledger"] and (path / folder.JOURNAL).is_dir():
        with contextlib.suppress(OSError):  # it may be another user's
            notes.write(path, {**notes.read(path), **known, "ended": time.time()})
            _conclude_again(path)


def _journal(told: dict[str, Any]) -> None:
    recorder = sdk._recording()
    if recorder is not None:
        from headway.probe.recorder import guard

        guard("publish", lambda: recorder.emit("published", **told))


def _conclude_again(path: Path) -> None:
    """The ledger and the page of the training were written before its publish had ended."""
    from headway.cli.run import conclude

    with contextlib.suppress(HeadwayError):
        conclude(path, quiet=True)
