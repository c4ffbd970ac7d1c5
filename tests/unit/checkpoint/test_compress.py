"""A Checkpointer that compresses: rows and all, it comes back as it was."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.checkpoint.store.cleanup import Policy
from headway.checkpoint.store.store import Store
from headway.errors import HeadwayWarning, MissingExtra, UsageError
from tests.support import has_code, lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")
nn = lazy("torch.nn")
Checkpointer = lazy("headway.checkpoint.checkpointer:Checkpointer")
find_anchor = lazy("headway.publish.anchor:find_anchor")
open_source = lazy("headway.publish.source:open_source")
read_tensor = lazy("headway.publish.source:read_tensor")

pytest.importorskip("zstandard")
pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.usefixtures("writers"),
]


class Training:
    """A table of which each step changes a few rows, and a dense layer."""

    def __init__(self, store: str | Path, **more: Any) -> None:
        torch.manual_seed(0)
        self.table, self.dense = nn.Embedding(500, 8, sparse=True), nn.Linear(8, 4)
        optimizers = {
            "sparse": torch.optim.Adagrad(self.table.parameters()),
            "dense": torch.optim.Adam(self.dense.parameters()),
        }
        self._optimizers = optimizers.values()
        parts = {"table": self.table, "linear": self.dense, **optimizers}
        keep = Policy(last=10)
        self.checkpointer = Checkpointer(store, parts, keep=keep, writer_idle_s=0.1, **more)

    def step(self, number: int) -> dict[str, torch.Tensor]:
        self.dense(self.table(torch.tensor([number, 7]))).sum().backward()
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return self.state()

    def state(self) -> dict[str, torch.Tensor]:
        modules = {"table": self.table, "linear": self.dense}
        found = {f"{n}.{k}": t for n, m in modules.items() for k, t in m.state_dict().items()}
        (rows,) = (self.checkpointer.tree.parts["sparse"].state_dict()["state"].values(),)
        sums = {f"sum.{n}": one["sum"] for n, one in enumerate(rows)}
        return {name: tensor.clone() for name, tensor in {**found, **sums}.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def saves(tmp_path: Path) -> dict[int, dict[str, torch.Tensor]]:
    """Four saves: a full one, and rows on it."""
    training = Training(tmp_path, compress="zstd")
    states = {}
    for step in (1, 2, 3, 4):
        states[step] = training.step(step)
        training.checkpointer.save(step)
        training.checkpointer.wait()
    training.checkpointer.close()
    return states


def test_rows_and_tables_are_compressed_and_come_back(
    saves: dict[int, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    pytest.importorskip("numpy")
    there = Store(tmp_path).checkpoints()
    assert [one.manifest.kind for one in there] == ["delta", "delta", "delta", "full"]
    items = [item for one in there for file in one.manifest.files for item in file.items]
    assert items and all(item.unpacked for item in items)
    again = Training(tmp_path)
    restored = again.checkpointer.restore()
    assert restored is not None and restored.step == 4
    assert same(again.state(), saves[4])
    again.checkpointer.close()


def test_a_damaged_one_is_passed_over(
    saves: dict[int, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    newest = Store(tmp_path).checkpoints()[0]
    (file,) = [file for file in newest.manifest.files if file.items]
    item = next(item for item in file.items if item.name == "linear.weight")
    path = Path(newest.path, file.name)
    content = bytearray(path.read_bytes())
    content[item.data + item.size // 2] ^= 1
    path.write_bytes(content)
    again = Training(tmp_path)
    with pytest.warns(HeadwayWarning, match=r"\[checksum-mismatch\]") as told:
        restored = again.checkpointer.restore()
    assert all(name in str(told[0].message) for name in ("linear.weight", "__0_0.distcp"))
    assert restored is not None and restored.step == 3
    assert same(again.state(), saves[3])
    again.checkpointer.close()


@pytest.mark.parametrize("compressed", [True, False])
def test_deltas_may_build_on_what_is_stored_in_the_other_way(
    saves: dict[int, dict[str, torch.Tensor]], compressed: bool, tmp_path: Path
) -> None:
    training = Training(tmp_path, compress="zstd" if compressed else None)
    assert training.checkpointer.restore() is not None
    for step in (5, 6):
        last = training.step(step)
        training.checkpointer.save(step)
    training.checkpointer.close()
    again = Training(tmp_path)
    restored = again.checkpointer.restore()
    assert restored is not None and restored.step == 6
    assert same(again.state(), last)
    again.checkpointer.close()


def test_a_publish_reads_it(saves: dict[int, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    found = find_anchor(str(tmp_path / "step-0000000004"))
    assert len(found.chain) == 4
    given = open_source(found)
    for name in ("table.weight", "linear.weight", "linear.bias"):
        assert torch.equal(read_tensor(given, name), saves[4][name])
        wide = torch.zeros(saves[4][name].shape, dtype=torch.float64)
        given.read(name, wide)
        assert torch.equal(wide, saves[4][name].double())


def test_without_the_package_a_restore_is_one_sentence(
    saves: dict[int, dict[str, torch.Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    again = Training(tmp_path)
    with (
        warnings.catch_warnings(),
        pytest.raises(MissingExtra, check=lambda error: error.fields["extra"] == "zstd"),
    ):
        warnings.simplefilter("error")
        again.checkpointer.restore()
    again.checkpointer.close()
    with pytest.raises(MissingExtra, check=lambda error: error.fields["extra"] == "zstd"):
        Training(tmp_path, compress="zstd")


def test_there_is_no_other_way(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("compression-unknown")):
        Training(tmp_path, compress="gzip")
