"""Saves of what is on a GPU, written behind the training."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(100),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("room", [True, False])
def test_it_is_the_state_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    from headway.checkpoint.async_save import torch_save
    from headway.checkpoint.async_save.background import write_queue

    monkeypatch.setattr(torch_save, "_spare_gpu_bytes", lambda device: (1 << 40) * room)
    table = torch.randn(1 << 22, device="cuda")
    state = {"table": table, "view": table[5:], "host": torch.ones(3)}
    (tmp_path / "plain").mkdir()
    torch.save(state, tmp_path / "plain" / "a.pt")
    torch_save.save(torch.serialization, torch.save, state, tmp_path / "a.pt")
    table.fill_(7)
    write_queue.wait("the test")
    assert not write_queue.failed
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "plain" / "a.pt").read_bytes()


def test_what_a_gpu_can_spare_leaves_the_job_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.checkpoint.async_save import torch_save
    from headway.probe import step_clock

    device = torch.device("cuda", 0)
    monkeypatch.setattr(step_clock, "steps", 0)
    assert torch_save._spare_gpu_bytes(device) == 0
    monkeypatch.setattr(step_clock, "steps", 1)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch_save._spare_gpu_bytes(device)
    peak = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    del peak
    assert 0 < torch_save._spare_gpu_bytes(device) <= before - (1 << 30)
