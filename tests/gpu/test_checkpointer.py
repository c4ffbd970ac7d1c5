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
