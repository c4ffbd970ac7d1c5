"""Images of a training on a GPU: the state at the moment of the save, whatever comes after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Training:
    """A net with a norm, whose buffers change in the forward pass, under Adam."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = torch.nn.Linear(256, 4096), torch.nn.BatchNorm1d(4096), torch.nn.Linear(4096, 256)
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=True)

    def step(self) -> None:
        loss = self.model(torch.randn(512, 256, device="cuda")).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def clone(self) -> list[Any]:
        found = list(self.model.state_dict().values())
        for state in self.optimizer.state.values():
            found += list(state.values())
        return [tensor.detach().clone().cpu() for tensor in found]


@pytest.mark.parametrize("room", [True, False])
def test_an_image_is_the_moment_of_its_save(
    room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.checkpoint import Checkpointer

    if not room:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    training = Training()
    checkpointer = Checkpointer(tmp_path, training.parts())
    wanted = []
    for step in range(12):
        training.step()
        if step % 3 == 2:
            wanted = training.clone()
            checkpointer.save(step)
    checkpointer.close()
    fresh = Training()
    again = Checkpointer(tmp_path, fresh.parts())
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 11
    assert all(torch.equal(a, b) for a, b in zip(fresh.clone(), wanted, strict=True))
    assert next(fresh.model.parameters()).is_cuda


class Tables:
    """Two tables with sparse gradients under Adagrad, and a layer under Adam."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        bags = [torch.nn.EmbeddingBag(5000, 16, sparse=True, mode="sum") for _ in range(2)]
        self.tables = torch.nn.ModuleList(bags).cuda()
        self.top = torch.nn.Linear(32, 8).cuda()
        self.sparse = torch.optim.Adagrad(self.tables.parameters(), lr=0.1)
        self.adam = torch.optim.Adam(self.top.parameters(), fused=True)

    def step(self) -> None:
        ids = torch.randint(0, 5000, (2, 64, 4), device="cuda")
        found = [bag(one) for bag, one in zip(self.tables, ids, strict=True)]
        loss = self.top(torch.cat(found, dim=1)).square().mean()
        for optimizer in (self.sparse, self.adam):
            optimizer.zero_grad()
        loss.backward()
        self.sparse.step()
        self.adam.step()

    def parts(self) -> dict[str, Any]:
        named = {"tables": self.tables, "top": self.top}
        return {**named, "sparse": self.sparse, "adam": self.adam}

    def clone(self) -> list[Any]:
        found = [*self.tables.state_dict().values(), *self.top.state_dict().values()]
        for optimizer in (self.sparse, self.adam):
            for state in optimizer.state.values():
                found += list(state.values())
        return [tensor.detach().clone().cpu() for tensor in found]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's, of its own Adagrad
def test_changed_rows_of_tables_on_a_gpu(tmp_path: Path) -> None:
    from headway.checkpoint import Checkpointer
    from headway.checkpoint.store.store import Store

    training = Tables()
    checkpointer = Checkpointer(tmp_path, training.parts())
    wanted = []
    for step in range(15):
        training.step()
        if step % 3 == 2:
            wanted = training.clone()
            checkpointer.save(step)
            training.step()
    checkpointer.close()
    kinds = [one.manifest.kind for one in Store(str(tmp_path)).scan()[0]]
    assert "delta" in kinds
    fresh = Tables()
    again = Checkpointer(tmp_path, fresh.parts())
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 14
    assert all(torch.equal(a, b) for a, b in zip(fresh.clone(), wanted, strict=True))


class Replayed:
    """A layer under Adam whose whole step is a CUDA graph, once it is captured."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(1024, 4096).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), capturable=True)
        self.input = torch.randn(64, 1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.model(self.input).square().mean().backward()
        self.optimizer.step()

    def capture(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def clone(self) -> list[Any]:
        found = list(self.model.state_dict().values())
        for state in self.optimizer.state.values():
            found += list(state.values())
        return [tensor.detach().clone().cpu() for tensor in found]


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_steps_that_a_graph_replays(
    room: bool, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They call no hooks and count no changes. `late`: the graph was there before."""
    from headway.checkpoint import Checkpointer
    from headway.checkpoint.engine.gpu_transfer import Gpu

    if not room:
        monkeypatch.setattr(Gpu, "free_bytes", lambda _: 0)
    training = Replayed()
    if late:
        training.capture()
    checkpointer = Checkpointer(tmp_path, training.parts())
    checkpointer.save(0)  # nothing is prepared beside the capture
    checkpointer.wait()
    if not late:
        training.capture()
    wanted = []
    for step in range(1, 5):
        training.graph.replay()
        wanted = training.clone()
        checkpointer.save(step)
        for _ in range(20):
            training.graph.replay()
    checkpointer.close()
    fresh = Replayed()
    again = Checkpointer(tmp_path, fresh.parts())
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 4
    assert all(torch.equal(a, b) for a, b in zip(fresh.clone(), wanted, strict=True))


def test_copies_leave_the_memory_that_a_step_needs() -> None:
    """What activations need again is cached between steps, and is not free."""
    from headway.checkpoint.engine.dense import DeviceTensors

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    size = torch.cuda.mem_get_info()[0] * 2 // 5
    state = torch.ones(size, dtype=torch.uint8, device="cuda")
    activations = torch.empty(size, dtype=torch.uint8, device="cuda")
    del activations  # at the end of a step
    images = DeviceTensors(state.device)
    assert not images._has_room({0: state})
    assert images._has_room({0: state[: size // 10]})
    del state, images
    torch.cuda.empty_cache()
