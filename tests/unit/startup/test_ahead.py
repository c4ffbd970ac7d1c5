"""A step that is compiled before its first batch is there."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

from headway.errors import UsageError  # noqa: E402
from headway.startup.ahead import AheadFailed, CompileAhead  # noqa: E402
from headway.startup.batches import Schema, fast_batch  # noqa: E402

pytestmark = pytest.mark.timeout(110)


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(100, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.1)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, ids: Any, starts: Any, dense: Any) -> Any:
        return self.out(self.drop(self.norm(self.bag(ids, starts))) + dense).square().mean()


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
    expected = [plain(one) for one in batches]

    model, optimizer, step = training()
    before = copy.deepcopy(model.state_dict())
    drawn = torch.get_rng_state()
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer])
    ahead.start(fast_batch(schema=Schema.of(*batches))).wait()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not optimizer.state and all(p.grad is None for p in model.parameters())
    assert ahead.differences(batches[0]) == []

    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 1
    assert [step(one) for one in batches] == expected  # bit for bit
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_an_optimizer_in_mid_training_goes_on_as_it_was() -> None:
    model, optimizer, step = training()
    step(batch(40))
    before = copy.deepcopy(optimizer.state_dict())
    CompileAhead(step, modules=[model], optimizers=[optimizer]).start(batch(47)).wait()
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, held in before["state"].items():
        for name, value in held.items():
            assert torch.equal(after["state"][key][name], value)


def test_steps_ahead_are_not_counted() -> None:
    counted: list[int] = []
    handle = register_optimizer_step_post_hook(lambda *_: counted.append(1))
    try:
        model, optimizer, step = training()
        CompileAhead(step, modules=[model], optimizers=[optimizer]).start(batch(40)).wait()
        assert not counted
        step(batch(40))
        assert counted == [1]
    finally:
        handle.remove()


def test_what_differs_is_said() -> None:
    model, optimizer, step = training()
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer]).start(batch(40)).wait()
    assert ahead.differences(batch(47)) == ["[0] has the size 47 in dimension 0, not 40"]


def test_a_step_that_fails_leaves_everything_as_it_was() -> None:
    model, optimizer, step = training()
    before = copy.deepcopy(model.state_dict())
    ids, starts, dense = batch(40)
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer])
    ahead.start((ids, starts, dense[:, :3]))
    with pytest.raises(AheadFailed, match="the step failed on the fast batch"):
        ahead.wait()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert step(batch(40)) > 0


def test_without_a_batch_nothing_is_done() -> None:
    model, optimizer, step = training()
    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer]).start(None).wait()
    assert ahead.seconds == 0 and ahead.differences(batch(40)) == []


def test_who_communicates_in_forward_is_refused() -> None:
    class FullyShardedDataParallel(Model):
        pass

    with pytest.raises(UsageError, match="communicates in every forward"):
        CompileAhead(lambda given: None, modules=[FullyShardedDataParallel()])
    with pytest.raises(UsageError, match="keeps more than its parameters"):
        CompileAhead(lambda given: None, modules=[FullyShardedDataParallel()], together=True)

    class FSDPModule(Model):
        pass

    with pytest.raises(UsageError, match="at the same point of all ranks, with together=True"):
        CompileAhead(lambda given: None, modules=[FSDPModule()])


def test_together_it_is_done_when_start_returns() -> None:
    model, optimizer, step = training()
    before = copy.deepcopy(model.state_dict())
    threads: list[Any] = []

    def told(given: Any) -> None:
        threads.append(threading.current_thread())
        step(given)

    ahead = CompileAhead(told, modules=[model], optimizers=[optimizer], together=True)
    assert ahead.start(None).wait().seconds == 0 and not threads
    ahead.start(batch(40))
    assert threads == [threading.current_thread()] and not optimizer.state
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_an_interrupt_is_for_who_calls() -> None:
    def interrupted(given: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CompileAhead(interrupted, modules=[Model()], together=True).start(batch(40))
