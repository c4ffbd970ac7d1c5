"""Whatever is saved in the background comes back bit for bit, or an error is raised."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
import torch.distributed.checkpoint.state_dict_saver as state_dict_saver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.checkpoint.async_save import dcp_save, torch_save
from headway.checkpoint.async_save.background import write_queue
from headway.storage import atomic_file
from tests import random_states
from tests.random_states import TensorSpec, difference
from tests.support import examples

pytest.importorskip("torch", reason="needs torch")


pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
profile = settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))


class Subclass(Tensor):
    """With an attribute of its own."""


class SavesInside:
    """Saves another tensor while it is pickled."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getstate__(self) -> dict[str, Any]:
        buffer = io.BytesIO()
        torch.save(self.tensor, buffer)
        return {"tensor": self.tensor, "inner": buffer.getvalue()}


def unusual(kind: str, base: Tensor) -> Any:
    """What is more than a plain tensor, made of one with two rows of float32."""
    match kind:
        case "view":
            return [base[1:, ::2], base, base.view(torch.uint8)[:, :0]]
        case "shared":
            return {"a": base, "b": base, "flat": base.view(-1)}
        case "expanded":
            return base[:1].expand(5, -1)
        case "conjugated":
            return torch.view_as_complex(base).conj()
        case "negated":
            return torch.view_as_complex(base).conj().imag
        case "sparse":
            return base.to_sparse()
        case "sparse rows":
            return base.to_sparse_csr()
        case "quantized":
            return torch.quantize_per_tensor(base, 0.1, 3, torch.qint8)
        case "quantized channels":
            scales = torch.tensor([0.1, 0.2], dtype=torch.float64)
            points = torch.zeros(2, dtype=torch.int64)
            return torch.quantize_per_channel(base, scales, points, 0, torch.qint8)
        case "nested":
            return torch.nested.nested_tensor([base[0], base[1, :1]])
        case "jagged":
            parts = [base, base[:1]]
            return torch.nested.nested_tensor(parts, layout=torch.jagged)
        case "subclass":
            made = base.as_subclass(Subclass)
            made.more = {"attribute": base[0]}  # type: ignore[attr-defined]
            return made
        case "attribute":
            base.more = [1, "text"]  # type: ignore[attr-defined]
            return base
        case "storage":
            return [base.untyped_storage(), base.to(torch.int16)]
        case "parameter":
            return torch.nn.Parameter(base)
        case "nested save":
            return [SavesInside(base), base]
        case "meta":
            return base.to("meta")
    raise AssertionError(kind)


KINDS = (
    *("view", "shared", "expanded", "conjugated", "negated", "sparse", "sparse rows"),
    *("quantized", "quantized channels", "nested", "jagged", "subclass", "attribute", "storage"),
    *("parameter", "nested save", "meta"),
)


@st.composite
def saved(draw: st.DrawFn) -> tuple[Any, list[str], int]:
    """Parts of a training, the kinds of other values beside them, and a seed."""
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=4))
    return draw(random_states.states()), kinds, draw(st.integers(0, 1000))


def build(described: tuple[Any, list[str], int], seed: int = 0) -> dict[str, Any]:
    spec, kinds, first = described
    state = random_states.contents(random_states.build(spec, first + seed), per_rank=True)
    chance = torch.Generator().manual_seed(first + seed)
    for number, kind in enumerate(kinds):
        base = random_states.fill(TensorSpec((2, 2), "float32"), chance)
        state[f"{kind} {number}"] = unusual(kind, base)
    return state


def spoil(value: Any) -> None:
    """As a training that goes on: all memory has other bits, all containers other entries."""
    for storage in storages(value):
        data = torch.empty(0, dtype=torch.uint8).set_(storage)
        data.bitwise_not_()
    if isinstance(value, dict):
        for one in value.values():
            empty(one)


def storages(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        if value.layout == torch.sparse_coo:
            yield from storages([value._indices(), value._values()])
        elif value.layout == torch.sparse_csr:
            yield value.values().untyped_storage()
        elif value.device.type == "cpu" and not value.is_nested:
            yield value.untyped_storage()
    elif isinstance(value, torch.UntypedStorage):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from storages(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from storages(one)
    elif isinstance(value, SavesInside):
        yield value.tensor.untyped_storage()


def empty(value: Any) -> None:
    if isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            empty(one)
        value.clear()


def plain_then_behind(call: Any, behind: Any, state: Any, folder: Path, name: str) -> bool:
    """Save it in both ways; whether it could be saved. The training goes on after the second."""
    (folder / "plain").mkdir()
    plain = outcome(call, state, folder / "plain" / name)
    error = ""
    try:
        behind(state, folder / name)
        spoil(state)
        write_queue.wait("the test")
        write_queue.raise_failed()
    except BaseException as raised:  # as DCP's own are
        error = kind_of(raised)
    write_queue.wait("the test")
    assert error == plain
    return not plain


def outcome(call: Any, *args: Any) -> str:
    """The name of the exception that it raises; empty if it raises none."""
    try:
        call(*args)
    except BaseException as error:  # as DCP's own are
        return kind_of(error)
    return ""


def kind_of(error: BaseException) -> str:
    """Of an error of the writer, what it met."""
    return str(getattr(error, "fields", {}).get("error", type(error).__name__)).partition(":")[0]


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_file, "sync", lambda path: None)


@profile
@given(described=saved())
def test_torch_save_writes_the_same_bytes(described: Any) -> None:
    def behind(obj: Any, path: Path) -> None:
        torch_save.save(torch.serialization, torch.save, obj, path)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if plain_then_behind(torch.save, behind, build(described), folder, "a.pt"):
            same = (folder / "a.pt").read_bytes() == (folder / "plain" / "a.pt").read_bytes()
            assert same


@profile
@given(described=saved())
def test_dcp_brings_back_the_same(described: Any) -> None:
    def plain(state: Any, path: Path) -> None:
        torch_dcp.save(state, checkpoint_id=path)

    def behind(state: Any, path: Path) -> None:
        dcp_save.save(state_dict_saver, torch_dcp.save, state, checkpoint_id=path)

    def load(into: Any, path: Path) -> None:
        torch_dcp.load(into, checkpoint_id=path)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if plain_then_behind(plain, behind, build(described), folder, "a"):
            found, wanted = build(described, 1), build(described, 1)
            errors = [
                outcome(load, into, path)
                for into, path in ((wanted, folder / "plain" / "a"), (found, folder / "a"))
            ]
            assert errors[0] == errors[1]
            assert errors[0] or difference(comparable(wanted), comparable(found)) is None


def comparable(value: Any) -> Any:
    """Tensors of any layout by the bytes of what they are made of."""
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(one) for one in value]
    if isinstance(value, Tensor) and value.device.type == "cpu":
        parts = [torch.empty(0, dtype=torch.uint8).set_(one).clone() for one in storages(value)]
        return [str(value.dtype), tuple(value.shape) if not value.is_nested else (), parts]
    if isinstance(value, SavesInside):
        return comparable(vars(value))
    if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        return [value.tolist()]
    if isinstance(value, Tensor):
        return str(value)
    return value
