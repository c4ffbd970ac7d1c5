"""Tables that the backward pass changes: images by the rows that were looked up."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.checkpoint.snapshot import fused
from headway.checkpoint.snapshot.fused import Fused, modules
from headway.checkpoint.snapshot.lacking import marked
from headway.checkpoint.snapshot.take import Changed, Taker
from tests.fused_tables import Optimizer, SplitTableBatchedEmbeddingBagsCodegen, Training, Where

pytestmark = pytest.mark.timeout(60)
NOTHING: Any = lambda _: None  # noqa: E731


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though other tests of this process may have."""
    monkeypatch.setattr(fused, "_has_compiled", lambda: False)


class Images:
    """Two, taken in turn, and what was said of the last."""

    def __init__(self, training: Training, taker: Taker) -> None:
        self.training, self.taker = training, taker
        self.views = [[torch.zeros_like(t) for t in training.state().values()] for _ in range(2)]
        self.count = 0
        self.changed: list[Changed] = []

    def begin(self) -> None:
        self.count += 1
        tensors = list(self.training.state().values())
        self.taker.take(self.count % 2, tensors, self.views[self.count % 2], self.told)

    def told(self, good: bool, changed: list[Changed]) -> None:
        assert good
        self.changed = changed

    def end(self) -> list[Tensor]:
        self.taker.wait()
        return self.views[self.count % 2]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("differ", [False, True])
def test_an_image_is_the_moment_of_its_save(differ: bool) -> None:
    training = Training(differ=differ)
    taker = Taker([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(8):
        for _ in range(3):
            training.step()
        wanted = training.clone()
        images.begin()
        training.step()
        training.step()
        assert same(images.end(), wanted), number
        told = {tuple(one.tensors): len(one.ids) for one in images.changed}
        if number:  # a few rows of the large ones; the small one changes as a whole
            assert 0 < told[0, 3] < 300 and 0 < told[1, 4] < 300 and (2, 5) not in told
    taker.close()


def test_a_lookup_before_a_save_and_its_change_after_it() -> None:
    """As trainings do that look up the next batch before the last one has changed anything."""
    training = Training()
    taker = Taker([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(6):
        ahead = training.forward()
        training.step()
        wanted = training.clone()
        images.begin()
        ahead.backward()
        assert same(images.end(), wanted), number
    taker.close()


@pytest.mark.parametrize("under_way", [False, True])
def test_rows_that_are_reset_are_not_missed(under_way: bool) -> None:
    training = Training()
    taker = Taker([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(5):
        training.step()
        if not under_way:
            training.tables.reset_embedding_weight_momentum(50 * number)
        wanted = training.clone()
        images.begin()
        if under_way:
            training.tables.reset_embedding_weight_momentum(50 * number)
        training.step()
        assert same(images.end(), wanted), number
    assert len(taker.tracker.tables) == 3
    taker.close()


def test_what_is_kept_of_rows_may_be_changed_by_hand() -> None:
    """As TorchRec does it when it loads the state of an optimizer."""
    training = Training()
    taker = Taker([], 2, [training.tables])
    images = Images(training, taker)
    for number in range(5):
        training.step()
        training.tables.split_optimizer_states()[1][0].mul_(0.5)
        wanted = training.clone()
        images.begin()
        assert same(images.end(), wanted), number
    taker.close()


def test_a_copy_of_a_module_is_not_tracked() -> None:
    training = Training()
    taker = Taker([], 2, [training.tables])
    images = Images(training, taker)
    images.begin()
    images.end()
    for other in (copy.deepcopy(training.tables), pickle.loads(pickle.dumps(training.tables))):
        before = [tensor.clone() for tensor in training.state().values()]
        other(**training.batch()).sum().backward()
        other.reset_embedding_weight_momentum(50)
        assert not other.momentum[:50].any()
        assert same(list(training.state().values()), before)
    assert all(rows._lacking[-1] == [] for rows in taker.tracker.tables.values())
    taker.close()


def test_all_arguments_by_place() -> None:
    training = Training(differ=True)
    told: list[Tensor] = []
    found = Fused(training.tables, lambda _, ids: told.append(ids), NOTHING, NOTHING)
    batch = training.batch()
    sizes = batch["batch_size_per_feature_per_rank"]
    training.tables(**batch).sum().backward()
    training.tables(batch["indices"], batch["offsets"], None, None, sizes).sum().backward()
    assert len(told) == 6 and same(told[:3], told[3:])
    found.close()


def test_lookups_that_change_nothing() -> None:
    training = Training()
    told: list[Any] = []
    found = Fused(training.tables, lambda *what: told.append(what), NOTHING, NOTHING)
    with torch.no_grad():
        training.forward()
    training.forward()  # and nobody asks for the gradient
    assert not told
    training.step()
    assert [len(table) for table, _ in told] == [6000, 3000, 20]
    found.close()
    training.step()
    assert len(told) == 3


def test_which_are_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables() -> SplitTableBatchedEmbeddingBagsCodegen:
        return SplitTableBatchedEmbeddingBagsCodegen([5], [0], 4)

    plain, lamb, cached, decaying = (tables() for _ in range(4))
    lamb.optimizer = Optimizer.LAMB
    cached.embedding_specs = [(5, 4, Where.MANAGED_CACHING, "cuda")]
    decaying._used_rowwise_adagrad_with_global_weight_decay = True
    hidden, holder = tables(), nn.Module()
    vars(holder)["_lookups"] = [nn.Sequential(hidden)]  # so TorchRec has it
    root = nn.ModuleList([plain, lamb, cached, decaying, nn.Linear(2, 2), holder])
    assert list(modules([root, plain])) == [plain, hidden]

    class DMPCollection(nn.Sequential):
        """Of TorchRec: its ranks change each other's tables, by collectives that count nothing."""

    assert not list(modules([DMPCollection(plain)]))
    monkeypatch.setattr(fused, "_has_compiled", lambda: True)
    assert not list(modules([root]))


@pytest.mark.parametrize("differ", [False, True])
def test_ids_of_all_tables_together(differ: bool) -> None:
    """As on a GPU, which nobody asks where the ids of a table end."""
    training = Training(differ=differ)
    told: dict[int, Tensor] = {}
    note = lambda table, ids: told.update({len(table): ids})  # noqa: E731
    found = Fused(training.tables, note, NOTHING, NOTHING)
    batch = training.batch()
    training.tables(**batch).sum().backward()
    sizes = batch.get("batch_size_per_feature_per_rank")
    ends = fused._ends(batch["offsets"], 4, sizes and [sum(one) for one in sizes])
    together = found._among_all(batch["indices"], ends)
    starts = dict(zip(training.rows, (0, 6000, 9000), strict=True))
    for rows in training.rows:
        marks = marked([together], rows, start=starts[rows])
        assert torch.equal(marks, marked([told[rows]], rows))
    assert sum(int(marked([ids], rows).sum()) for rows, ids in told.items()) > 10
