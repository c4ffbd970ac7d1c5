"""Images of dense tensors: the moment of the save, though most is copied while training goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.checkpoint.snapshot.host import LARGE, HostImages
from headway.checkpoint.snapshot.take import Taker

pytestmark = pytest.mark.timeout(60)


class Training:
    """Layers, and a norm whose buffers change in the forward pass, under Adam."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.Linear(512, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.step()

    def forward(self) -> Tensor:
        return self.model(torch.randn(32, 64)).square().mean()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.forward().backward()
        self.optimizer.step()

    def tensors(self) -> list[Tensor]:
        found = list(self.model.state_dict().values())
        for state in self.optimizer.state.values():
            found += state.values()
        return found


class Image:
    """Room for a training, and what the taker has said of it."""

    def __init__(self, training: Training) -> None:
        self.views = [torch.zeros_like(tensor) for tensor in training.tensors()]
        self.good: bool | None = None

    def taken(self, good: bool, _: Any) -> None:
        self.good = good


def test_an_image_is_the_moment_of_its_save() -> None:
    training = Training()
    taker = Taker([training.optimizer], 2)
    for _ in range(20):
        image = Image(training)
        wanted = [tensor.clone() for tensor in training.tensors()]
        taker.take(0, training.tensors(), image.views, image.taken)
        training.step()
        taker.wait()
        assert image.good
        assert all(torch.equal(a, b) for a, b in zip(image.views, wanted, strict=True))
    taker.close()


def test_the_optimizer_waits_for_what_it_changes() -> None:
    large, small = torch.ones(LARGE // 4), torch.ones(4)
    other = torch.ones(LARGE // 4)
    views = [torch.zeros_like(tensor) for tensor in (large, small, other)]
    images = HostImages()
    images.begin({0: large, 1: small, 2: other}, views, {0, 1})
    assert not views[0].any(), "is copied later"
    assert views[1].all() and views[2].all(), "may be changed by anything, or is small"
    assert not images._copied.is_set()
    assert images.drain()
    images.fence()
    assert views[0].all()


def test_a_change_past_the_optimizer_makes_no_image() -> None:
    large = torch.ones(LARGE // 4)
    images = HostImages()
    images.begin({0: large}, [torch.zeros_like(large)], {0})
    large.mul_(2)
    assert not images.drain()
    images.fence()
    images.begin({0: large}, [torch.zeros_like(large)], {0})
    assert images.drain()


def test_a_torn_image_is_said_to_be_bad_and_the_next_is_good() -> None:
    training = Training()
    taker = Taker([training.optimizer], 2)
    image = Image(training)
    taken = taker._host.begin

    def changed_at_once(*given: Any) -> None:
        taken(*given)
        with torch.no_grad():
            training.model[0].weight.mul_(2)

    taker._host.begin = changed_at_once  # type: ignore[method-assign]
    taker.take(0, training.tensors(), image.views, image.taken)
    taker.wait()
    assert image.good is False
    taker._host.begin = taken  # type: ignore[method-assign]
    taker.take(0, training.tensors(), image.views, image.taken)
    taker.wait()
    assert image.good is True
    taker.close()


@pytest.mark.filterwarnings("ignore:an image of the state could not be made")
def test_an_image_that_fails_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    taker = Taker([training.optimizer], 2)

    def fails(_: HostImages) -> bool:
        raise RuntimeError("no memory")

    for broken, good in ((True, False), (False, True)):
        with monkeypatch.context() as patched:
            if broken:
                patched.setattr(HostImages, "drain", fails)
            image = Image(training)
            taker.take(0, training.tensors(), image.views, image.taken)
            training.step()
            taker.wait()
        assert image.good is good
    taker.close()
