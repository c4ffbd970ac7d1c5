"""Stores of snapshots: what `headway publish` says of them, and what the loaded models say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from headway.publish import load
from headway.publish.store import SnapshotStore
from tests.golden.cases import asked, command
from tests.golden.model import build, inputs

SEALED = ("weights", "tables")


def read(name: str, files: Path) -> Any:
    if name == "loose":
        return {"outputs": _outputs(files / "snapshot", "latest")}
    url = str(files / "store")
    rows = asked("publish", "--list", "--check", "--to", url, "--json")
    names = [row["snapshot"] for row in rows]
    found = {
        "list": rows,
        "show": {one: asked("publish", "--show", one, "--to", url, "--json") for one in names},
        "outputs": {one: _outputs(url, one) for one in names},
        "latest": _outputs(url, "latest"),
        "anchors": {
            path.stem: sorted(json.loads(path.read_text()))
            for path in (files / "store" / "anchors").iterdir()
        },
        "registered": SnapshotStore(url).registry_state(),
    }
    found["packages"] = {
        path.stem: SnapshotStore(url).find_package(path.stem).sha256  # type: ignore[union-attr]
        for path in (files / "store").glob("packages/*.json")
    }
    swept = SnapshotStore(url).sweep()
    found["swept"] = sorted(swept)
    if name == "weights":  # the first one serves, and says the same
        assert command("publish", "--rollback", "--to", url)[0] == 0
        found["rolled back"] = _outputs(url, "latest")
    return found


def _outputs(url: str | Path, name: str) -> dict[str, Any]:
    """What the weights say to fixed inputs; no other target loads without a compiler."""
    model = load(url, name, target="safetensors", factory=build)
    with torch.no_grad():
        found = model(*inputs())
    return {key: value.tolist() for key, value in found.items()}


def sealed(files: Path) -> list[Path]:
    """Every manifest, and every file that one of them names."""
    store = files / "store"
    return [*sorted((store / "snapshots").iterdir()), *sorted((store / "files").iterdir())]


def refused(files: Path) -> bool:
    """A snapshot cannot serve."""
    return command("publish", "--list", "--check", "--to", str(files / "store"))[0] != 0
