"""Images of dense tensors: the moment of the save, though most is copied while training goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import lazy

if TYPE_CHECKING:
    from torch import Tensor


torch = lazy("torch")
nn = lazy("torch.nn")
host = lazy("headway.checkpoint.engine.dense")
HostTensors = lazy("headway.checkpoint.engine.dense:HostTensors")
StateCapture = lazy("headway.checkpoint.engine.capture:StateCapture")

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
    taker = StateCapture([training.optimizer], 2)
    for _ in range(20):
        image = Image(training)
        wanted = [tensor.clone() for tensor in training.tensors()]
        taker.capture(0, training.tensors(), image.views, image.taken)
        training.step()
        taker.wait()
        assert image.good
        assert all(torch.equal(a, b) for a, b in zip(image.views, wanted, strict=True))
    taker.close()


def test_the_optimizer_waits_for_what_it_changes() -> None:
    large, small = torch.ones(host.DEFERRED_MIN_BYTES // 4), torch.ones(4)
    other = torch.ones(host.DEFERRED_MIN_BYTES // 4)
    views = [torch.zeros_like(tensor) for tensor in (large, small, other)]
    images = HostTensors()
    images.begin({0: large, 1: small, 2: other}, views, {0, 1})
    assert not views[0].any(), "is copied later"
    assert views[1].all() and views[2].all(), "may be changed by anything, or is small"
    assert not images._copied.is_set()
    assert images.drain()
    images.fence()
    assert views[0].all()


def test_a_change_past_the_optimizer_makes_no_image() -> None:
    large = torch.ones(host.DEFERRED_MIN_BYTES // 4)
    images = HostTensors()
    images.begin({0: large}, [torch.zeros_like(large)], {0})
    large.mul_(2)
    assert not images.drain()
    images.fence()
    images.begin({0: large}, [torch.zeros_like(large)], {0})
    assert images.drain()


def test_a_torn_image_is_said_to_be_bad_and_the_next_is_good() -> None:
    training = Training()
    taker = StateCapture([training.optimizer], 2)
    training.step()
    image = Image(training)
    taken = taker._host.begin

    def changed_at_once(*given: Any) -> None:
        taken(*given)
        with torch.no_grad():
            training.model[0].weight.mul_(2)

    taker._host.begin = changed_at_once  # type: ignore[method-assign]
    taker.capture(0, training.tensors(), image.views, image.taken)
    taker.wait()
    assert image.good is False
    taker._host.begin = taken  # type: ignore[method-assign]
    taker.capture(0, training.tensors(), image.views, image.taken)
    taker.wait()
    assert image.good is True
    taker.close()


@pytest.mark.filterwarnings(r"ignore:.*\[image-failed\]")
def test_an_image_that_fails_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    taker = StateCapture([training.optimizer], 2)

    def fails(_: HostTensors) -> bool:
        raise RuntimeError("no memory")

    for broken, good in ((True, False), (False, True)):
        with monkeypatch.context() as patched:
            if broken:
                patched.setattr(HostTensors, "drain", fails)
            image = Image(training)
            taker.capture(0, training.tensors(), image.views, image.taken)
            training.step()
            taker.wait()
        assert image.good is good
    taker.close()


class Device:
    """In the place of a GPU: what may be read while training goes on, and whether copies fit."""

    def __init__(self) -> None:
        self.begun: list[tuple[bool, bool]] = []

    def begin(self, tensors: Any, views: Any, fixed: Any, *, copies: bool) -> None:
        self.begun.append((bool(fixed), copies))

    def drain(self) -> bool:
        return True

    def fence(self) -> None:
        """Nothing is under way."""

    give_up = fence


def test_tensors_are_read_late_only_if_hooks_tell_of_their_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, device = Training(), Device()
    taker = StateCapture([training.optimizer], 2)
    taker._devices["gpu"] = device  # type: ignore[index,assignment]

    def take() -> tuple[bool, bool]:
        image = Image(training)
        taker.capture(0, training.tensors(), image.views, image.taken)
        taker.wait()
        return device.begun[-1]

    assert take() == (False, False), "no step was seen yet"
    training.step()
    assert take() == (True, True)
    assert take() == (False, True), "as with a graph that was captured before"
    with monkeypatch.context() as patch:
        patch.setattr("headway.checkpoint.engine.capture.is_capturing", lambda: True)
        training.step()
    training.step()
    assert take() == (False, True), "a replay calls no hooks"
    taker.close()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_rows_of_a_captured_step_are_not_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    table = nn.EmbeddingBag(50, 4, sparse=True)
    adagrad = torch.optim.Adagrad(table.parameters())
    taker = StateCapture([adagrad], 2)

    def step() -> None:
        adagrad.zero_grad()
        table(torch.tensor([[1, 2]])).sum().backward()
        adagrad.step()

    with monkeypatch.context() as patch:
        patch.setattr("headway.checkpoint.engine.tracking.is_capturing", lambda: False)
        step()
        assert taker.tracker.find({0: table.weight.detach()})
        patch.setattr("headway.checkpoint.engine.tracking.is_capturing", lambda: True)
        step()
    assert not taker.tracker.find({0: table.weight.detach()})
    taker.close()


def test_what_is_changed_between_steps_is_copied_at_once_from_then_on() -> None:
    """As by optimizers that look ahead (SAM): else no image of such a training is ever good."""
    training = Training()
    taker = StateCapture([training.optimizer], 2)
    found = []
    for _ in range(4):
        training.step()
        image = Image(training)
        wanted = [tensor.clone() for tensor in training.tensors()]
        drain, changed = taker._host.drain, threading.Event()

        def late(drain: Any = drain, changed: threading.Event = changed) -> bool:
            changed.wait()
            return bool(drain())

        taker._host.drain = late  # type: ignore[method-assign]
        taker.capture(0, training.tensors(), image.views, image.taken)
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.add_(1.0)
        changed.set()
        taker.wait()
        taker._host.drain = drain  # type: ignore[method-assign]
        right = all(torch.equal(a, b) for a, b in zip(image.views, wanted, strict=True))
        assert right or not image.good
        found.append(image.good)
    taker.close()
    assert found == [False, True, True, True]


def test_a_step_that_calls_no_hooks_is_not_waited_for() -> None:
    """As of an optimizer within another: on the CPU its fused kernels are not even counted."""
    training = Training()
    hidden = torch.optim.SGD(training.model.parameters(), lr=0.1, fused=True)
    taker = StateCapture([training.optimizer], 2)
    for _ in range(3):
        image = Image(training)
        wanted = [tensor.clone() for tensor in training.tensors()]
        drain, changed = taker._host.drain, threading.Event()

        def late(drain: Any = drain, changed: threading.Event = changed) -> bool:
            changed.wait()
            return bool(drain())

        taker._host.drain = late  # type: ignore[method-assign]
        taker.capture(0, training.tensors(), image.views, image.taken)
        training.forward().backward()
        hidden.step()
        changed.set()
        taker.wait()
        taker._host.drain = drain  # type: ignore[method-assign]
        assert image.good
        assert all(torch.equal(a, b) for a, b in zip(image.views, wanted, strict=True))
    taker.close()


@pytest.mark.parametrize("inner", [True, False])
def test_an_optimizer_around_another_one_needs_no_hooks(inner: bool) -> None:
    """As Accelerate's, which torch has not set up."""
    training = Training()

    class Around(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
        param_groups = training.optimizer.param_groups
        state = training.optimizer.state

        def __init__(self) -> None:
            if inner:
                self.optimizer = training.optimizer

    taker = StateCapture([Around(), training.optimizer] if inner else [Around()], 2)
    for _ in range(3):
        image = Image(training)
        wanted = [tensor.clone() for tensor in training.tensors()]
        taker.capture(0, training.tensors(), image.views, image.taken)
        training.step()
        taker.wait()
        assert taker._stepped is inner
        assert image.good
        assert all(torch.equal(a, b) for a, b in zip(image.views, wanted, strict=True))
    taker.close()
