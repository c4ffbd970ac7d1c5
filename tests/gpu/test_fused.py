"""Tables on a GPU that the backward pass changes: deltas of the rows that were looked up."""

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


@pytest.mark.parametrize(("differ", "room"), [(False, True), (True, True), (False, False)])
def test_deltas_are_equal_to_the_bit(
    tmp_path: Path, differ: bool, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`room`: of the GPU, for a copy of the tables."""
    from headway.checkpoint import Checkpointer
    from headway.checkpoint.engine.gpu_transfer import Gpu
    from headway.checkpoint.store.store import Store
    from tests.fused_tables import Training

    class Parts(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, training: Training) -> None:
            super().__init__()
            self.inner, self.training_state = training.tables, training.state

        def state_dict(self, *_: Any, **__: Any) -> Any:
            return self.training_state()

    if not room:
        monkeypatch.setattr(Gpu, "free_bytes", lambda _: 0)
    training = Training("cuda", differ=differ)
    checkpointer = Checkpointer(tmp_path, {"model": Parts(training)}, full_every=100)
    ahead, wanted = training.forward(), []
    for step in range(300):  # more lists of ids than are kept apart
        ahead, last = training.forward(), ahead
        last.backward()
        if step % 60 == 59:
            wanted = training.clone()
            checkpointer.save(step)
    checkpointer.close()
    listed = Store(str(tmp_path)).scan()[0]
    assert listed[0].manifest.kind == "delta"
    fresh = Training("cuda")
    again = Checkpointer(tmp_path, {"model": Parts(fresh)})
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 299
    assert all(torch.equal(a, b) for a, b in zip(fresh.clone(), wanted, strict=True))
