"""Stores of snapshots, by `headway publish` of the anchors of a Checkpointer."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.golden.cases import command

MODEL = Path(__file__).parents[1] / "model.py"
RECIPE = """
keep = 5
[model]
factory = "golden_model:build"
arguments = { rows = 12 }
[golden]
inputs = "golden_model:inputs"
"""
TABLES = """
[tables]
int8 = ["bags"]
fp16 = ["names"]
tolerance = 1000
[tables.prune]
last_use = "use"
within = 10
tables = ["bags"]
"""


def _recipe(text: str) -> str:
    shutil.copy(MODEL, "golden_model.py")
    Path("recipe.toml").write_text(RECIPE + text)
    return "recipe.toml"


def _anchors(*steps: int, bad: int | None = None) -> None:
    """Trained checkpoints; that of one step has weights that are no numbers."""
    from headway.checkpoint import Checkpointer
    from tests.golden.model import last_use, trained
    from tests.golden.states import Held

    for step in steps:
        model = trained(step)
        if step == bad:
            model.top.bias.data.fill_(float("nan"))
        parts = {"model": model, "use": Held(**last_use())}
        checkpointer = Checkpointer("checkpoints", parts, writer_idle_s=0.1)
        checkpointer.anchor(step, metrics={"auc": step / 64}, extra={"run": "everything"})
        checkpointer.close()


@contextlib.contextmanager
def _relative() -> Iterator[None]:
    """A manifest names its anchor by a path, here one below the folder of the recording."""
    from headway.publish.anchor import Anchor

    told = Anchor.to_manifest

    def telling(anchor: Anchor) -> dict[str, Any]:
        found = told(anchor)
        path = Path(found["path"]).relative_to(Path.cwd())
        return {**found, "path": str(path), "order": [str(path.parent), found["order"][1]]}

    with mock.patch.object(Anchor, "to_manifest", telling):
        yield


def _publish(files: Path, text: str) -> None:
    """All anchors, the oldest first."""
    recipe, store = _recipe(text), files / "store"
    with _relative():
        watch = ["--watch", "checkpoints", "--once"]
        code, out = command("publish", *watch, "--recipe", recipe, "--to", str(store))
    assert code == 0, out
    for note in (store / "anchors").glob("*.json"):  # why one was turned down names its folder
        note.write_text(note.read_text().replace(f"{Path.cwd()}/", ""))


def _weights(files: Path) -> None:
    _anchors(10, 20)
    _publish(files, "[targets.safetensors]\n")


def _tables(files: Path) -> None:
    """Pruned, of int8 and of fp16."""
    _anchors(10)
    _publish(files, TABLES + "[targets.safetensors]\n")


def _rolled_back(files: Path) -> None:
    """The first of two serves again; the second anchor was turned down."""
    _anchors(10, 20, 30, bad=20)
    _publish(files, "[targets.safetensors]\n")
    assert command("publish", "--rollback", "--to", str(files / "store"))[0] == 0
    _registered(files / "store")
    (files / "store" / "leases").mkdir(exist_ok=True)
    (files / "store" / "leases" / ("0" * 32)).write_bytes(b"")  # of a worker that was killed
    (files / "store" / ".work-killed").mkdir()
    (files / "store" / ".work-killed" / "weights.safetensors").write_bytes(b"half")


def _registered(path: Path) -> None:
    from headway.publish import recipe as recipes
    from headway.publish.registry import follow
    from headway.publish.store import SnapshotStore

    registry = mock.Mock()
    registry.find_version.return_value = None
    registry.register.side_effect = ["1", "2", "3"]
    told = recipes.RegistryOptions(mlflow="ctr", uri="http://mlflow:5000", alias="champion")
    assert follow(SnapshotStore(path), told, registry) == "1"


def _aoti(files: Path) -> None:
    """What a compiler makes names its own folders: other bytes stand in its place."""
    from headway.publish import validate
    from headway.publish.targets import aoti

    _anchors(10, 20)

    def compiled(program: Any, path: str) -> None:
        Path(path).write_bytes(b"compiled code")

    def answer(asked: Any) -> Any:
        return validate.CheckResult(latency_ms=0.5, load_s=0.25, peak_mb=100.0)

    # The worker binds its examine when it is defined.
    from headway.publish import watch

    defaults = {**watch.watch.__kwdefaults__, "check_target": answer}  # type: ignore[attr-defined]
    with (
        mock.patch.object(aoti, "_compile", compiled),
        mock.patch.object(watch.watch, "__kwdefaults__", defaults),
    ):
        _publish(files, "batch = false\n[targets.aoti]\n[targets.safetensors]\n")


def _loose(files: Path) -> None:
    """One snapshot by itself, as a registry hands it out."""
    from headway.publish.registry import lay_out
    from headway.publish.store import SnapshotStore

    _anchors(10)
    _publish(Path(), "[targets.safetensors]\n")
    store = SnapshotStore("store")
    Path("laid-out").mkdir()
    lay_out(store, store.snapshot(), Path("laid-out"))
    shutil.copytree("laid-out", files / "snapshot")


TORCH = ("torch",)
RECORDERS = {
    "weights": (_weights, "two snapshots, the second one serves", TORCH),
    "tables": (_tables, "a snapshot with smaller tables", TORCH),
    "rolled_back": (_rolled_back, "an earlier snapshot serves; one anchor was turned down", TORCH),
    "aoti": (_aoti, "two snapshots that share compiled code (a stand-in for it)", TORCH),
    "loose": (_loose, "one snapshot as a registry hands it out", TORCH),
}
