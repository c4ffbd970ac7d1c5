"""A run in MLflow, through its real client and a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.export.trackers import export_to_tracker
from tests.support import has_code
from tests.unit.report.ledgers import killed

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
# What MLflow says of its own code and of what it uses is not ours.
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


def test_a_run_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    first = export_to_tracker(killed(), "mlflow", "night")
    assert export_to_tracker(killed(), "mlflow", "night") == first
    run = mlflow.get_run(first)
    assert run.data.metrics["headway/ett_percent"] == pytest.approx(killed().ett_percent)
    assert run.data.metrics["headway/bucket/train.effective_s"] > 0
    assert run.data.tags["headway.run"] == killed().run and run.info.status == "FINISHED"


def test_a_server_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    with pytest.raises(HeadwayError, check=has_code("tracker-failed")):
        export_to_tracker(killed(), "mlflow", "night")
