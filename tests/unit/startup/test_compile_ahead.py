"""Compile a step before its first batch is available."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from headway.errors import HeadwayError, UsageError
from tests.support import has_code, lazy

torch = lazy("torch")
CompileAhead = lazy("headway.startup.compile_ahead:CompileAhead")
Schema = lazy("headway.startup.batches:Schema")
fast_batch = lazy("headway.startup.batches:fast_batch")
on_step = lazy("torch.optim.optimizer:register_optimizer_step_post_hook")
Model = lazy("tests.unit.startup.model:Model")
pytestmark = pytest.mark.timeout(110)


def batch(rows: int) -> tuple[Any, Any, Any]:
    chosen = torch.Generator().manual_seed(rows)
    inner = torch.randint(0, rows, (15,), generator=chosen).sort().values
    ids = torch.randint(0, 100, (rows,), generator=chosen)
    dense = torch.randn(16, 8, generator=chosen)
    return ids, torch.cat([torch.tensor([0]), inner]), dense


def training(seed: int = 0) -> tuple[Any, Any, Any]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend="aot_eager")

    def step(given: Any) -> float:
        loss = compiled(*given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value: float = loss.item()
        return value

    return model, optimizer, step


def test_the_real_batches_hit_and_nothing_has_changed() -> None:
    batches = [batch(40 + 7 * number) for number in range(4)]
    _, _, plain = training()
    expected = [plain(tensor) for tensor in batches]

    model, optimizer, step = training()
    before = copy.deepcopy(model.state_dict())
    drawn = torch.get_rng_state()
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer])
    ahead.start(fast_batch(schema=Schema.learn(*batches))).wait()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not optimizer.state and all(p.grad is None for p in model.parameters())
    assert ahead.differences(batches[0]) == []

    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 1
    assert [step(tensor) for tensor in batches] == expected  # bit for bit
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_an_optimizer_in_mid_training_goes_on_as_it_was() -> None:
    model, optimizer, step = training()
    step(batch(40))
    before = copy.deepcopy(optimizer.state_dict())
    CompileAhead(step, modules=[model], optimizers=[optimizer]).start(batch(47)).wait()
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(after["state"][key][name], value)


def test_steps_ahead_are_not_counted() -> None:
    counted: list[int] = []
    handle = on_step(lambda *_: counted.append(1))
    try:
        model, optimizer, step = training()
        CompileAhead(step, modules=[model], optimizers=[optimizer]).start(batch(40)).wait()
        assert not counted
        step(batch(40))
        assert counted == [1]
    finally:
        handle.remove()


class Held:
    """A step that waits halfway while the main thread continues."""

    def __init__(self, step: Any) -> None:
        self.step = step
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self, given: Any) -> None:
        self.step(given)
        self.began.set()
        assert self.may_end.wait(60)
        self.step(given)


def seeds(count: int) -> list[int]:
    """Draw seeds as samplers and loaders do."""
    return [int(torch.empty((), dtype=torch.int64).random_().item()) for _ in range(count)]


@pytest.mark.parametrize("ranks", [1, 2], ids=["one", "two side by side"])
def test_seeds_that_are_drawn_meanwhile(ranks: int) -> None:
    """They are the same as in a job without it, and none is drawn twice."""
    training()
    expected = seeds(5)
    jobs = [training() for _ in range(ranks)]
    steps = [Held(step) for _, _, step in jobs]
    first = seeds(1)
    ahead = [
        CompileAhead(step, modules=[model], optimizers=[optimizer]).start(batch(40))
        for step, (model, optimizer, _) in zip(steps, jobs, strict=True)
    ]
    early = seeds(1)
    for step in steps:
        assert step.began.wait(60)
    late = seeds(2)
    own = torch.Generator().manual_seed(1)
    torch.empty(3).random_(generator=own)
    for step, one in zip(steps, ahead, strict=True):
        step.may_end.set()
        one.wait()
    assert [*first, *early, *late, *seeds(1)] == expected
    assert "random_" not in vars(torch.Tensor)


def test_steps_of_others_are_counted_meanwhile() -> None:
    counted: list[Any] = []
    handle = on_step(lambda stepped, *_: counted.append(stepped))
    removed = on_step(lambda *_: counted.append("removed"))
    try:
        model, optimizer, step = training()
        state = Held(step)
        ahead = CompileAhead(state, modules=[model], optimizers=[optimizer]).start(batch(40))
        assert state.began.wait(60)
        other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        removed.remove()
        other.step()
        state.may_end.set()
        ahead.wait()
        optimizer.step()
        assert counted == [other, optimizer]
    finally:
        handle.remove()


def test_what_differs_is_said() -> None:
    model, optimizer, step = training()
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer]).start(batch(40)).wait()
    (difference,) = ahead.differences(batch(47))
    assert difference.code == "batch-sizes-differ"
    assert difference.startswith("[0] ") and "47" in difference and "40" in difference


def test_a_step_that_fails_leaves_everything_as_it_was() -> None:
    model, optimizer, step = training()
    before = copy.deepcopy(model.state_dict())
    ids, starts, dense = batch(40)
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer])
    ahead.start((ids, starts, dense[:, :3]))
    with pytest.raises(HeadwayError, check=has_code("ahead-failed")):
        ahead.wait()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert step(batch(40)) > 0


def test_without_a_batch_nothing_is_done() -> None:
    model, optimizer, step = training()
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer]).start(None).wait()
    assert ahead.seconds == 0 and ahead.differences(batch(40)) == []


def test_who_communicates_in_forward_is_refused() -> None:
    class FullyShardedDataParallel(torch.nn.Module):  # type: ignore[misc,name-defined]
        pass

    with pytest.raises(UsageError, check=has_code("ahead-not-possible")):
        CompileAhead(lambda given: None, modules=[FullyShardedDataParallel()])
    with pytest.raises(UsageError, check=has_code("ahead-not-possible")):
        CompileAhead(lambda given: None, modules=[FullyShardedDataParallel()], collective=True)

    class FSDPModule(torch.nn.Module):  # type: ignore[misc,name-defined]
        pass

    with pytest.raises(UsageError, check=has_code("ahead-needs-together")):
        CompileAhead(lambda given: None, modules=[FSDPModule()])


def test_together_it_is_done_when_start_returns() -> None:
    model, optimizer, step = training()
    before = copy.deepcopy(model.state_dict())
    threads: list[Any] = []

    def told(given: Any) -> None:
        threads.append(threading.current_thread())
        step(given)

    ahead = CompileAhead(told, modules=[model], optimizers=[optimizer], collective=True)
    assert ahead.start(None).wait().seconds == 0 and not threads
    ahead.start(batch(40))
    assert threads == [threading.current_thread()] and not optimizer.state
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_an_interrupt_is_for_who_calls() -> None:
    def interrupted(given: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CompileAhead(interrupted, modules=[Model()], collective=True).start(batch(40))
