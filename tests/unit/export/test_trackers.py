"""Runs in W&B and TensorBoard, through their real clients where these are installed.

MLflow is in tests/mlflow.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from headway.cli import main
from headway.errors import MissingExtra
from headway.export.identity import run_labels
from headway.export.otlp import trace_requests
from headway.export.trackers import TRACKERS, export_to_tracker, scalars
from headway.units import NS
from tests.support import has_code
from tests.unit.report.ledgers import killed

pytestmark = pytest.mark.timeout(120)


def test_the_figures() -> None:
    ledger, found = killed(), scalars(killed())
    assert found["headway/ett_percent"] == ledger.ett_percent
    buckets = [value for name, value in found.items() if name.startswith("headway/bucket/")]
    assert sum(buckets) == pytest.approx(ledger.wall / NS)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_missing_client_is_a_sentence(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[tracker], None)
    with pytest.raises(MissingExtra, check=has_code("missing-package")):
        export_to_tracker(killed(), tracker, None)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert export_to_tracker(killed(), "tensorboard", str(tmp_path)) == str(tmp_path)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    (event,) = found.Tensors("headway/ett_percent")
    assert event.step == killed().steps
    assert event.tensor_proto.float_val[0] == pytest.approx(killed().ett_percent)


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.chdir(tmp_path)
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    export_to_tracker(killed(), "wandb", "night")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(folder.glob("*.wandb"))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["smoke", "RUN"], "export-format-unknown"),
        (["csv"], "export-arguments"),
        (["grafana", "RUN"], "export-arguments"),
    ],
)
def test_wrong_words_are_a_sentence(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *words]) == 2
    assert f"[{code}]" in capsys.readouterr().err


def test_the_number_of_failures_is_that_of_the_infrastructure() -> None:
    shown = scalars(killed())
    assert (shown["headway/failures"], shown["headway/failures_ambiguous"]) == (0, 1)


@pytest.mark.parametrize("bad", [None, "team=ads", ["team"], 7])
def test_labels_that_are_no_mapping_are_none(bad: object) -> None:
    ledger = dataclasses.replace(killed(), metadata={"labels": bad})
    assert run_labels(ledger) == {}
    (first, *_) = trace_requests(ledger)
    assert first["resourceSpans"][0]["resource"]["attributes"]
