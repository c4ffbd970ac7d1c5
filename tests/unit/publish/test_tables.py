"""Tables that were made smaller say the same, as nearly as their numbers allow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from headway.errors import PublishFailed, UsageError
from headway.publish import tables
from headway.publish.anchor import find
from headway.publish.recipe import Prune, Tables
from headway.publish.source import Source, source
from tests.unit.publish.made import checkpoint

NEAR = {"fp16": 5e-3, "int8": 5e-2}


class Bags(nn.Module):
    def __init__(self, *made: nn.Module) -> None:
        super().__init__()
        self.tables = nn.ModuleList(made)


class Nothing:
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}  # noqa: RUF012

    def read(self, name: str, into: torch.Tensor) -> None:
        raise AssertionError(name)


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 20, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", ["fp16", "int8"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("how", ["two", "offsets", "last", "padding", "weights"])
def test_bags(form: str, mode: str, how: str) -> None:
    torch.manual_seed(0)
    padding = 3 if how == "padding" else None
    bag = nn.EmbeddingBag(20, 8, mode=mode, include_last_offset=how == "last", padding_idx=padding)
    given: tuple[torch.Tensor | None, ...] = (ids(6, 4),)
    if how in ("offsets", "last"):  # some bags are empty
        given = (ids(10), torch.tensor([0, 4, 4, 9] + [10] * (how == "last")))
    if how == "weights":
        if mode == "mean":
            return  # torch has none
        given = (ids(6, 4), None, torch.rand(6, 4))
    wanted = bag(*given)
    model = Bags(bag)
    told = tables.process(model, Tables(**{form: ("tables.0",)}), Nothing())
    said = model.tables[0](*given)
    assert said.dtype == torch.float32 and torch.allclose(said, wanted, atol=NEAR[form])
    assert not torch.equal(said, wanted)
    again = Bags(nn.EmbeddingBag(20, 8, mode=mode))
    tables.rebuild(again, told, model.state_dict())
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.tables[0](*given), said)


def test_sizes_and_embeddings() -> None:
    torch.manual_seed(0)
    made = [nn.Embedding(100, 16, padding_idx=0) for _ in range(3)]
    wanted = [one(ids(4, 5)) for one in made]
    model = Bags(*made)
    tables.process(model, Tables(int8=("tables.1",), fp16=("tables.[2]",)), Nothing())
    for one, other, near in zip(model.tables, wanted, (0, 5e-2, 5e-3), strict=True):
        assert torch.allclose(one(ids(4, 5)), other, atol=near)
    assert model.tables[0] is made[0]
    assert model.tables[1].rows.nbytes == 100 * (16 + 8)
    assert model.tables[2].rows.nbytes == 100 * 16 * 2


def used(folder: Path, **last: torch.Tensor) -> Source:
    checkpoint(folder, {"used": {name.replace("__", "."): one for name, one in last.items()}})
    return source(find(str(folder)))


@pytest.mark.parametrize("form", ["float", "int8"])
def test_rows_that_were_not_used_are_left_out(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = nn.EmbeddingBag(20, 8, mode="sum"), nn.EmbeddingBag(20, 8, mode="sum")
    given = used(tmp_path, tables__0=torch.arange(20), tables__1=torch.arange(20) + 100)
    weight = made[0].weight.detach().clone()
    prune = Prune(last_use="used", within=110)
    model = Bags(*made)
    tables.process(model, Tables(prune=prune, int8=("*",) if form == "int8" else ()), given)
    assert model.tables[0].rows.shape[0] == 11 + 1, "of 0 to 19 those from 9 on, and zeros"
    assert model.tables[1].rows.shape[0] == 20 + 1
    asked = torch.tensor([[8, 9], [2, 3], [19, 0]])
    kept = torch.where(torch.arange(20)[:, None] >= 9, weight, 0)
    wanted = nn.functional.embedding_bag(asked, kept, mode="sum")
    assert torch.allclose(model.tables[0](asked), wanted, atol=5e-2 if form == "int8" else 0)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    def refused(model: nn.Module, given: Source, told: Tables) -> str:
        with pytest.raises((UsageError, PublishFailed)) as error:
            tables.process(model, told, given)
        return str(error.value)

    int8 = Tables(int8=("*",))
    assert "pools by max" in refused(Bags(nn.EmbeddingBag(4, 4, mode="max")), Nothing(), int8)
    assert "max_norm" in refused(Bags(nn.Embedding(4, 4, max_norm=1.0)), Nothing(), int8)
    assert "torch.float64" in refused(Bags(nn.Embedding(4, 4).double()), Nothing(), int8)
    assert "no table is called so" in refused(Bags(), Nothing(), int8)
    both = Tables(int8=("*",), fp16=("*",))
    assert "both int8 and fp16" in refused(Bags(nn.Embedding(4, 4)), Nothing(), both)
    prune = Tables(prune=Prune(last_use="used", within=1))
    assert "has no used.tables.0" in refused(Bags(nn.Embedding(4, 4)), Nothing(), prune)
    given = used(tmp_path, tables__0=torch.arange(3))
    assert "3 last uses" in refused(Bags(nn.Embedding(4, 4)), given, prune)
    large = nn.Embedding(4, 4)
    large.weight.data.fill_(1e9)
    assert "fp16 cannot hold" in refused(Bags(large), Nothing(), Tables(fp16=("*",)))
