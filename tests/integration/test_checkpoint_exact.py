"""A training that was killed has the losses and the samples of one that was not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.checkpointed.server import ask
from tests.integration.checkpointed.tiny import BATCH, SAMPLES

pytestmark = pytest.mark.timeout(100)
EPOCH = SAMPLES // BATCH  # steps
STEPS = 2 * EPOCH + 3


def lives(store: Path, *worlds: int, job: str = "", images: int = 2) -> list[dict[str, Any]]:
    """On so many ranks each: all but the last are killed at their sixth step, by another rank."""
    found: list[dict[str, Any]] = []
    for number, world in enumerate(worlds):
        life = {"store": str(store), "world": world, "until": STEPS, "job": job}
        life |= {"every": 2, "waits": 1, "images": images}
        found.append({"life": life, "dying": (number % world, 6)})
    del found[-1]["dying"]
    return found


@pytest.mark.parametrize(
    ("worlds", "job", "images"),
    [
        ((2, 2, 2), "two-ranks", 2),
        ((2, 1, 2, 1), "", 2),
        ((1, 1), "one-image", 1),
        pytest.param((1, 1, 1, 1), "", 2, marks=pytest.mark.slow),
        pytest.param((1, 2, 1), "other-ranks", 2, marks=pytest.mark.slow),
    ],
)
def test_losses_and_samples(worlds: tuple[int, ...], job: str, images: int, tmp_path: Path) -> None:
    right = ask("lives:reference", folder=str(tmp_path), steps=STEPS)[1:]
    job = job and f"{job}-{tmp_path.name}"
    given = lives(tmp_path / "s", *worlds, job=job, images=images)
    found = ask("lives:history", folder=str(tmp_path), lives=given)
    steps = [found["steps"][str(number)] for number in range(1, STEPS + 1)]
    assert len(found["steps"]) == STEPS < found["trained"], "some steps were made twice"
    assert all(step > 0 for step, _ in found["sources"][1:]), found["sources"]
    assert bool(job) == ("memory" in [source for _, source in found["sources"]]), found["sources"]
    for ranks, one in zip(steps, right, strict=True):
        assert {rank["loss"] for rank in ranks} == {one["loss"]}
    samples = [sample for ranks in steps for rank in ranks for sample in rank["ids"]]
    assert Counter(samples) == Counter(sample for one in right for sample in one["ids"])
    epoch = samples[: EPOCH * BATCH]
    assert sorted(epoch) == list(range(SAMPLES)), "each sample once in an epoch"
