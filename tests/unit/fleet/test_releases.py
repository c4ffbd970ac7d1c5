"""Releases of a store as bars, with the same numbers as the page of starts."""

from __future__ import annotations

import json

import pytest

from headway.cli import main
from headway.fleet.store.parquet import Store


@pytest.mark.timeout(60)
@pytest.mark.xdist_group("pages")
def test_a_waterfall_over_the_releases_of_a_store(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--store", store.url, "--waterfall", "--json", "--by", "torch"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["runs"]) for one in found["bars"]] == [("2.13.0", 6), ("2.14.0", 6)]
    for one in found["bars"]:
        assert one["start_s"] == {"start.hardware_setup": 120, "start.pt2_compile": 600}
        assert sum(one["lost_percent"].values()) + one["ett_percent"] == pytest.approx(100)
    [step] = found["steps"]
    assert step["start_s"] == {}
    assert max(step["lost_points"], key=lambda leaf: step["lost_points"][leaf]) == (
        "failure.lost_training"
    )
