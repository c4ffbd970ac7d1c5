"""Tables that were made smaller say the same, as nearly as their numbers allow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.errors import HeadwayError, PublishFailed, UsageError
from headway.publish.anchor import find_anchor
from headway.publish.recipe import Prune, TableOptions
from tests.support import lazy
from tests.unit.publish.anchors import checkpoint

if TYPE_CHECKING:
    from headway.publish.source import TensorSource

torch = lazy("torch")
nn = lazy("torch.nn")
tables = lazy("headway.publish.tables")
source = lazy("headway.publish.source:open_source")
NEAR = {"fp16": 5e-3, "int8": 5e-2}


def bags(*made: Any) -> Any:
    model = nn.Module()
    model.tables = nn.ModuleList(made)
    return model


class Nothing:
    shapes: dict[str, Any] = {}  # noqa: RUF012

    def read(self, name: str, into: Any) -> None:
        raise AssertionError(name)


def ids(*shape: int) -> Any:
    return torch.randint(0, 20, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", ["fp16", "int8"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("how", ["two", "offsets", "last", "padding", "weights"])
def test_bags(form: str, mode: str, how: str) -> None:
    torch.manual_seed(0)
    padding = 3 if how == "padding" else None
    bag = nn.EmbeddingBag(20, 8, mode=mode, include_last_offset=how == "last", padding_idx=padding)
    given: tuple[Any, ...] = (ids(6, 4),)
    if how in ("offsets", "last"):  # some bags are empty
        given = (ids(10), torch.tensor([0, 4, 4, 9] + [10] * (how == "last")))
    if how == "weights":
        if mode == "mean":
            return  # torch has none
        given = (ids(6, 4), None, torch.rand(6, 4))
    wanted = bag(*given)
    model = bags(bag)
    configs = tables.process(model, TableOptions(**{form: ("tables.0",)}), Nothing())
    outputs = model.tables[0](*given)
    assert outputs.dtype == torch.float32 and torch.allclose(outputs, wanted, atol=NEAR[form])
    assert not torch.equal(outputs, wanted)
    again = bags(nn.EmbeddingBag(20, 8, mode=mode))
    tables.rebuild(again, configs, model.state_dict())
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.tables[0](*given), outputs)


def test_sizes_and_embeddings() -> None:
    torch.manual_seed(0)
    tables_before = [nn.Embedding(100, 16, padding_idx=0) for _ in range(3)]
    wanted = [table(ids(4, 5)) for table in tables_before]
    model = bags(*tables_before)
    tables.process(model, TableOptions(int8=("tables.1",), fp16=("tables.[2]",)), Nothing())
    for table, other, near in zip(model.tables, wanted, (0, 5e-2, 5e-3), strict=True):
        assert torch.allclose(table(ids(4, 5)), other, atol=near)
    assert model.tables[0] is tables_before[0]
    assert model.tables[1].rows.nbytes == 100 * (16 + 8)
    assert model.tables[2].rows.nbytes == 100 * 16 * 2


def used(folder: Path, **last: Any) -> Any:
    checkpoint(folder, {"used": {name.replace("__", "."): use for name, use in last.items()}})
    return source(find_anchor(str(folder)))


@pytest.mark.parametrize("form", ["float", "int8"])
def test_rows_that_were_not_used_are_left_out(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    unpruned = nn.EmbeddingBag(20, 8, mode="sum"), nn.EmbeddingBag(20, 8, mode="sum")
    given = used(tmp_path, tables__0=torch.arange(20), tables__1=torch.arange(20) + 100)
    weight = unpruned[0].weight.detach().clone()
    prune = Prune(last_use="used", within=110)
    model = bags(*unpruned)
    tables.process(model, TableOptions(prune=prune, int8=("*",) if form == "int8" else ()), given)
    assert model.tables[0].rows.shape[0] == 11 + 1, "of 0 to 19 those from 9 on, and zeros"
    assert model.tables[1].rows.shape[0] == 20 + 1
    ids_of_rows = torch.tensor([[8, 9], [2, 3], [19, 0]])
    pruned_weight = torch.where(torch.arange(20)[:, None] >= 9, weight, 0)
    wanted = nn.functional.embedding_bag(ids_of_rows, pruned_weight, mode="sum")
    assert torch.allclose(model.tables[0](ids_of_rows), wanted, atol=5e-2 if form == "int8" else 0)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    def refused(model: Any, given: TensorSource, options: TableOptions) -> str:
        with pytest.raises((UsageError, PublishFailed)) as error:
            tables.process(model, options, given)
        assert isinstance(error.value, HeadwayError)
        return error.value.code

    int8 = TableOptions(int8=("*",))
    by_max = nn.EmbeddingBag(4, 4, mode="max")
    assert refused(bags(by_max), Nothing(), int8) == "table-pools-by-max"
    normed = nn.Embedding(4, 4, max_norm=1.0)
    assert refused(bags(normed), Nothing(), int8) == "table-has-max-norm"
    assert refused(bags(nn.Embedding(4, 4).double()), Nothing(), int8) == "table-not-float32"
    assert refused(bags(), Nothing(), int8) == "table-not-found"
    both = TableOptions(int8=("*",), fp16=("*",))
    assert refused(bags(nn.Embedding(4, 4)), Nothing(), both) == "table-in-two-forms"
    prune = TableOptions(prune=Prune(last_use="used", within=1))
    assert refused(bags(nn.Embedding(4, 4)), Nothing(), prune) == "last-use-missing"
    given = used(tmp_path, tables__0=torch.arange(3))
    assert refused(bags(nn.Embedding(4, 4)), given, prune) == "last-use-size-mismatch"
    large = nn.Embedding(4, 4)
    large.weight.data.fill_(1e9)
    assert refused(bags(large), Nothing(), TableOptions(fp16=("*",))) == "table-exceeds-fp16"
