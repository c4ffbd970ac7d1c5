"""Schemas, and synthetic batches from them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import HeadwayError, UsageError
from tests.support import examples, has_code, lazy

torch = lazy("torch")
Schema = lazy("headway.startup.batches:Schema")
fast_batch = lazy("headway.startup.batches:fast_batch")
recording = lazy("headway.startup.batches:recording")
synthetic = lazy("headway.startup.batches:synthetic_batch")
Pair = collections.namedtuple("Pair", ["left", "right"])


def jagged(rows: int) -> dict[str, Any]:
    cuts = torch.tensor([0, rows // 3, rows // 2, rows])
    return {
        "ids": torch.randint(0, 50, (rows,)),
        "offsets": cuts,
        "lengths": cuts.diff().int(),
        "starts": cuts[:-1].clone(),
        "dense": torch.rand(4, 3).half(),
        "deep": (torch.rand(2, 3).t(), [torch.zeros(2, dtype=torch.bool), "train", 7, None]),
    }


def test_what_is_learned_of_batches() -> None:
    schema = Schema.learn(jagged(30), jagged(36), jagged(60))
    leaf_by_path = {leaf.path: leaf for leaf in schema.leaves}
    assert [
        (leaf.path, place)
        for leaf in schema.leaves
        for place, dim in enumerate(leaf.dims)
        if not dim.fixed
    ] == [("['ids']", 0)]
    assert (leaf_by_path["['ids']"].dims[0].low, leaf_by_path["['ids']"].dims[0].high) == (30, 60)
    kinds = {path: (leaf.jagged, leaf.of) for path, leaf in leaf_by_path.items() if leaf.jagged}
    assert kinds == {
        "['offsets']": ("offsets", "['ids']"),
        "['lengths']": ("lengths", "['ids']"),
        "['starts']": ("starts", "['ids']"),
    }
    assert schema.batches == 3


def test_a_made_up_batch_is_of_that_kind() -> None:
    real = jagged(60)
    schema = Schema.learn(jagged(30), real)
    batch = synthetic(schema)
    assert Schema.learn(batch, real).spec == schema.spec
    assert not schema.differences(batch)
    assert type(batch["deep"]) is tuple and batch["deep"][1][1:] == ["train", 7, None]
    assert batch["deep"][0].stride() == real["deep"][0].stride()
    assert batch["dense"].dtype == torch.float16
    assert batch["offsets"][-1] == batch["ids"].shape[0] == batch["lengths"].sum()
    assert batch["starts"][0] == 0 and (batch["starts"].diff() >= 0).all()
    assert batch["ids"].min() >= 0 and batch["ids"].max() < 50
    assert batch["ids"]._dynamo_weak_dynamic_indices == {0}
    again = synthetic(schema)
    assert torch.equal(batch["ids"], again["ids"])


def test_no_content_is_kept() -> None:
    secret = torch.tensor([11, 987_654_321, 22])
    text = Schema.learn({"secret": secret.float() / 3, "n": secret}).to_json()
    assert "329218107" not in text and "[11, " not in text.replace("\n", " ")


def test_kept_and_read_again() -> None:
    schema = Schema.learn(Pair(torch.rand(3, requires_grad=True), 1.5), Pair(torch.rand(5), 1.5))
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (lambda: {"x": torch.zeros(2, 3, dtype=torch.int32)}, "batch-types-differ"),
        (lambda: {"x": torch.zeros(3, 2).t()}, "batch-strides-differ"),
        (lambda: {"x": torch.zeros(2, 4)}, "batch-sizes-differ"),
        (lambda: {"x": torch.zeros(2, 3, 1)}, "batch-dimensions-differ"),
        (lambda: {"x": torch.zeros(2, 3, requires_grad=True)}, "batch-gradients-differ"),
        (lambda: {"y": torch.zeros(2, 3)}, "batch-containers-differ"),
        (lambda: {"x": 3}, "batch-types-differ"),
    ],
)
def test_in_what_a_batch_differs(other: Callable[[], Any], code: str) -> None:
    (difference,) = Schema.learn({"x": torch.zeros(2, 3)}).differences(other())
    assert difference.code == code


@pytest.mark.parametrize("text", ["", "{}", '{"version": 99}', '{"version": 1, "leaves": [3]}'])
def test_a_schema_of_another_version_is_said_to_be_one(text: str) -> None:
    with pytest.raises(HeadwayError) as error:
        Schema.from_json(text)
    code = "schema-other-version" if "99" in text else "schema-not-readable"
    assert error.value.code == code


def test_batches_of_two_kinds() -> None:
    with pytest.raises(HeadwayError, check=has_code("batch-containers-differ")):
        Schema.learn([torch.zeros(2)], (torch.zeros(2),))
    with pytest.raises(HeadwayError, check=has_code("batch-types-differ")):
        Schema.learn([torch.zeros(2)], [torch.zeros(2, dtype=torch.long)])
    with pytest.raises(HeadwayError, check=has_code("batch-value-unsupported")):
        Schema.learn([object()])
    with pytest.raises(HeadwayError, check=has_code("schema-without-batch")):
        Schema.learn()


def test_recorded_by_one_run_for_the_next(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "batch.json"
    assert fast_batch(recorded=file) is None
    batches = list(recording((jagged(30 + 3 * n) for n in range(12)), file))
    assert len(batches) == 12
    assert Schema.from_json(file.read_text()).batches == 8
    batch = fast_batch(recorded=file)
    assert 30 <= batch["ids"].shape[0] <= 51
    mixed = [torch.zeros(2), (torch.zeros(2),), torch.zeros(2)]
    assert len(list(recording(mixed, file))) == 3  # nothing of it in the way


def test_the_first_rows_of_a_dataset() -> None:
    rows = [(torch.full((3,), float(n)), n) for n in range(10)]
    values, labels = fast_batch(dataset=rows, batch_size=4)
    assert labels.tolist() == [0, 1, 2, 3] and values.shape == (4, 3)
    with pytest.raises(UsageError, check=has_code("fast-batch-without-rows")):
        fast_batch(dataset=rows)
    with pytest.raises(UsageError, check=has_code("fast-batch-without-source")):
        fast_batch()


leaves = st.one_of(
    st.integers(-5, 5),
    st.text(max_size=3),
    st.builds(
        lambda sizes, kind: torch.zeros(sizes, dtype=getattr(torch, kind)),
        st.lists(st.integers(0, 4), max_size=3),
        st.sampled_from(["float32", "int64", "bool", "bfloat16", "uint8"]),
    ),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(trees)
def test_any_batch_can_be_made_up(batch: Any) -> None:
    schema = Schema.learn(batch)
    synthesized = synthetic(Schema.from_json(schema.to_json()))
    assert not schema.differences(synthesized)
