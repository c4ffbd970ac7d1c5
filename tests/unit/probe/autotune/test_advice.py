"""Reading of the advice file by the probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.probe import ENV_AUTOTUNE, recorder
from headway.probe.autotune import advice
from headway.probe.autotune.kernel_identity import config_text

HERE = {"gpu": "NVIDIA H200", "driver": "580", "triton": "3.6.0", "torch": "2.11.0"}
CONFIGS = [{"BLOCK": 64}, {"BLOCK": 128}, {"BLOCK": 256}]


def content(**fields: Any) -> dict[str, Any]:
    key = {"key": [1000, "fp16"], "rest": "r", "tried": [0, 1, 2], "best": 0, "use": [1], "ms": 1}
    kernel = {"kind": "triton", "id": "k1", "name": "scale", "configs": CONFIGS, "kept": [1]}
    return {"schema": 1, "kernels": [{**kernel, "keys": [key]}], **HERE, **fields}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The codes of the notes."""
    path = tmp_path / "autotune.json"
    path.write_text(json.dumps(content()))
    codes: list[str] = []
    monkeypatch.setenv(ENV_AUTOTUNE, str(path))
    monkeypatch.setattr(advice, "tuning_facts", lambda: HERE)
    monkeypatch.setattr(advice, "_files", {})
    monkeypatch.setattr(recorder.recorder, "note", lambda hook, text, code: codes.append(code))
    return codes


def test_what_was_recorded_is_known(notes: list[str]) -> None:
    kernel = advice.find_kernel("triton", "k1", "scale")
    assert kernel is not None
    use = kernel.use([1000, "fp16"], "r")
    assert use is not None and use.take == (config_text(CONFIGS[1]),) and use.ms == 1.0
    assert kernel.use([1000, "fp16"], "other") is None
    assert kernel.use([1001, "fp16"], "r") is None
    assert notes == []


def test_unless_it_is_to_be_ignored(notes: list[str]) -> None:
    with advice.full_tuning():
        assert advice.find_kernel("triton", "k1", "scale") is None
    assert advice.find_kernel("triton", "k1", "scale") is not None


def test_a_changed_kernel_is_noted_once_and_a_new_one_not(notes: list[str]) -> None:
    for _ in range(3):
        assert advice.find_kernel("triton", "k2", "scale") is None
        assert advice.find_kernel("triton", "k3", "another") is None
    assert notes == ["autotune-kernel-changed"]


@pytest.mark.parametrize(
    ("change", "kind", "good"),
    [
        ({"gpu": "NVIDIA H100"}, "triton", False),
        ({"triton": "3.8.0"}, "triton", False),
        ({"torch": "2.12.0"}, "triton", True),  # kernels of the job do not depend on torch
        ({"torch": "2.12.0"}, "inductor", False),
        ({"driver": "590"}, "triton", True),
    ],
)
def test_where_the_file_is_good(
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    kind: str,
    good: bool,
) -> None:
    monkeypatch.setattr(advice, "tuning_facts", lambda: HERE | change)
    advice.find_kernel(kind, "k1", "scale")
    assert notes == ([] if good else ["autotune-machine-mismatch"])


def test_only_configs_that_were_tried_are_narrowed() -> None:
    def narrow(offered: list[dict[str, int]], take: list[int]) -> list[dict[str, int]] | None:
        names = [config_text(config) for config in CONFIGS]
        names_taken = [names[index] for index in take]
        return advice.narrow(offered, frozenset(names), names_taken, lambda config: config)

    assert narrow(CONFIGS, [1]) == [CONFIGS[1]]
    assert narrow([*CONFIGS, {"BLOCK": 512}], [1]) is None  # a new config
    assert narrow(CONFIGS[1:], [0]) is None  # the selected config is missing
    assert narrow(CONFIGS[:2], [0, 1]) is None  # no config is dropped
    assert narrow([*CONFIGS, CONFIGS[1]], [1]) == [CONFIGS[1], CONFIGS[1]]
