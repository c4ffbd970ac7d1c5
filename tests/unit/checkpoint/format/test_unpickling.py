"""What is read of checkpoints that somebody else may have written."""

from __future__ import annotations

import io
import os
import pickle
import secrets
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest

from headway.errors import CheckpointUntrusted
from tests.support import has_code, lazy

torch = lazy("torch")
from_store = lazy("headway.checkpoint.restore:from_store")
StateTree = lazy("headway.checkpoint.state_tree:StateTree")
trust = lazy("headway.checkpoint.format.unpickling")
saved = lazy("tests.unit.checkpoint.test_state:saved")
described = lazy("torch.distributed.checkpoint.metadata")

pytestmark = pytest.mark.timeout(60)
CLASS = f"{__name__}.Setting"


class Setting:
    """A value of the user's own kind."""

    def __init__(self, number: int) -> None:
        self.number = number


class Runs:
    """Does something when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def restored(store: str | Path, **options: Any) -> Any:
    found = from_store(str(store), StateTree({"setting": lambda: None}, {}, 0), None, **options)
    assert found is not None
    return found.values["setting"].number


@pytest.mark.parametrize("where", ["url", "folder"])
def test_a_class_has_to_be_allowed_where_others_may_write(where: str, tmp_path: Path) -> None:
    store: Any = f"memory://{secrets.token_hex(8)}" if where == "url" else tmp_path / "store"
    saved(store, StateTree({"setting": Setting(3)}, {}, 0))
    if where == "folder":
        assert restored(store) == 3, "it is its own"
        store.chmod(0o777)
    with pytest.raises(CheckpointUntrusted, check=has_code("checkpoint-untrusted")) as raised:
        restored(store)
    assert raised.value.fields["classes"] == [CLASS]
    assert f"torch.serialization.add_safe_globals([{CLASS}])" in str(raised.value)
    assert restored(store, trust=True) == 3
    with torch.serialization.safe_globals([Setting]):
        assert restored(store) == 3


def test_tensors_and_plain_values_need_no_permission() -> None:
    store = f"memory://{secrets.token_hex(8)}"
    model = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters())
    value = {
        "words": ["a", ("b", None)],
        5: torch.ones(2),
        "empty": {},
        "kinds": [Counter("a"), OrderedDict(a=1), frozenset("a")],
    }
    parts = {"model": model, "adam": adam, "value": value}
    saved(store, StateTree(parts, {}, 0))
    found = from_store(store, StateTree({**parts, "value": None}, {}, 0), None)
    assert found is not None
    for name in ("words", "kinds"):
        assert found.values["value"][name] == value[name]


def test_what_torch_cannot_make_by_its_rules_needs_trust() -> None:
    """Though its class is allowed."""
    store = f"memory://{secrets.token_hex(8)}"
    saved(store, StateTree({"value": lambda: defaultdict(None, a=1)}, {}, 0))
    parts = StateTree({"value": None}, {}, 0)
    with (
        torch.serialization.safe_globals([defaultdict]),
        pytest.raises(CheckpointUntrusted, match="trust=True"),
    ):
        from_store(store, parts, None)
    found = from_store(store, parts, None, trust=True)
    assert found is not None and found.values["value"].default_factory is None


def test_a_refusal_changes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    saved(store, StateTree({"x": torch.ones(3), "setting": Setting(1)}, {}, 0))
    store.chmod(0o777)
    x = torch.zeros(3)
    with pytest.raises(CheckpointUntrusted):
        from_store(str(store), StateTree({"x": x, "setting": None}, {}, 0), None)
    assert not x.any()


def test_metadata_makes_nothing_but_a_description(tmp_path: Path) -> None:
    fine = described.Metadata({"x": described.BytesStorageMetadata()}, {"x": ("x",)})
    assert trust.load_metadata(pickle.dumps(fine)) == fine
    hostile = pickle.dumps(described.Metadata({}, Runs(tmp_path / "made")))
    with pytest.raises(CheckpointUntrusted) as raised:
        trust.load_metadata(hostile)
    assert raised.value.fields["classes"] == ["posix.mkdir"]
    with pytest.raises(pickle.UnpicklingError):
        trust.load_metadata(pickle.dumps({}))
    value = io.BytesIO()
    torch.save(Runs(tmp_path / "made"), value)
    value.seek(0)
    with pytest.raises(CheckpointUntrusted):
        trust.load_value(value)
    assert not (tmp_path / "made").exists()
