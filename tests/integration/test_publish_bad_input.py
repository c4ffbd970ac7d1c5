"""What is wrong is told in one sentence, with an exit code, and what serves stays as it was."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import SnapshotDamaged
from headway.publish.store import SnapshotStore
from headway.storage import disk
from tests.support import cli, codes, lazy
from tests.unit.publish.anchors import checkpoint, dcp_checkpoint, state

torch = lazy("torch")
nn = lazy("torch.nn")
load = lazy("headway.publish:load")
served = lazy("tests.unit.publish.dlrm")
trained = lazy("tests.unit.publish.dlrm:trained")
SERVED = Path(__file__).parents[1] / "unit/publish/dlrm.py"
pytestmark = pytest.mark.timeout(120)
RECIPE = """
keep = 5
[model]
factory = "served:build"
[golden]
inputs = "served:golden"
[targets.safetensors]
"""
BROKEN = """
def broken():
    raise RuntimeError("the vocabulary is not here")
"""


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a publish in this process imports for a recipe is gone for the next."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    sys.modules.pop("served", None)


def headway(folder: Path, *words: str, code: int) -> str:
    """Run the command; what it said, which is one sentence if it failed."""
    sys.modules.pop("served", None)
    done = cli("publish", *words, "--to", "store", cwd=folder)
    assert done.returncode == code, done.stderr
    if code == 0:
        return done.stdout
    assert done.stderr.startswith("headway: ") and done.stderr.count("\n") == 1, done.stderr
    assert codes(done.stderr) not in ([""], ["internal-fault"])
    return done.stderr


def refused(folder: Path, *words: str, code: int) -> str:
    """The code of the problem."""
    return codes(headway(folder, *words, code=code))[0]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the first anchor is published."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "served.py").write_text(SERVED.read_text() + BROKEN)
    (folder / "recipe.toml").write_text(RECIPE)
    checkpoint(folder / "checkpoints", state(trained(1)), 1)
    words = ("publish", "checkpoints", "--recipe", "recipe.toml", "--to", "store")
    subprocess.run(
        [sys.executable, "-m", "headway", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "folder"))


@contextlib.contextmanager
def nothing_published(folder: Path) -> Iterator[None]:
    """What serves is what did, and the next start leaves nothing else behind."""
    before, files = SnapshotStore(folder / "store").snapshot(), _files(folder)
    yield
    store = SnapshotStore(folder / "store")
    assert store.snapshot() == before and store.snapshots() == [before]
    store.sweep()
    assert _files(folder) == files
    model = load(folder / "store", factory=served.build)
    assert torch.equal(model(*served.golden())["logit"], trained(1)(*served.golden())["logit"])


def _files(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in (folder / "store").rglob("*")}
    return names - {"store/.busy", "store/.lock"}


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_an_anchor_of_another_model(folder: Path) -> None:
    checkpoint(folder / "checkpoints", state(nn.Linear(2, 2)), 2)
    with nothing_published(folder):
        code = refused(folder, "checkpoints", "--recipe", "recipe.toml", code=1)
    assert code == "tensor-not-in-model"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("served:build", "nowhere:build", "module-not-importable"),
        ("served:build", "served:built", "function-not-found"),
        ("served:build", "served:broken", "model-not-built"),
        ("factory =", "factroy =", "recipe-key-unknown"),
        ("[model]", "[models]", "recipe-key-unknown"),
        ("keep = 5", 'keep = "five"', "recipe-value-invalid"),
        ("keep = 5", "release = 1", "recipe-value-invalid"),
        ('"served:golden"', "7", "recipe-value-invalid"),
        ("safetensors]", "sefatensors]", "target-unknown"),
        ("safetensors]", "safetensors]\ntolerant = 1", "target-option-unknown"),
        ("[golden]", "[golden", "toml-invalid"),
        ("keep = 5", "[registry]", "recipe-key-missing"),
        ("keep = 5", '[registry]\nmlflow = "a"\nalias = "latest"', "registry-alias-reserved"),
    ],
)
def test_a_mistake_in_the_recipe(old: str, new: str, code: str, folder: Path) -> None:
    assert old in RECIPE
    (folder / "recipe.toml").write_text(RECIPE.replace(old, new))
    checkpoint(folder / "checkpoints", state(trained(2)), 2)
    with nothing_published(folder):
        assert refused(folder, "checkpoints", "--recipe", "recipe.toml", code=2) == code


def in_weights(path: Path, model: Any) -> int:
    """Where the bytes of a table lie in a file."""
    table = model.state_dict()["tables.0.weight"]
    at = path.read_bytes().find(table.numpy().tobytes())
    assert at > 0
    return at + 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store", "dcp", "file"])
def test_a_damaged_anchor(kind: str, folder: Path) -> None:
    """One byte in each of its files in turn."""
    anchor, model = folder / "anchor", trained(2)
    if kind == "store":
        anchor = Path(checkpoint(folder / "checkpoints", state(model), 2).path)
    elif kind == "dcp":
        dcp_checkpoint(anchor, state(model))
    else:
        torch.save(state(model), anchor)
    given = folder / "checkpoints" if kind == "store" else anchor
    files = (
        [anchor] if kind == "file" else [path for path in anchor.iterdir() if path.stat().st_size]
    )
    assert len(files) == {"store": 3, "dcp": 2, "file": 1}[kind]
    for path in files:
        whole = path.read_bytes()
        spots = {".metadata": whole.find(b"torch"), "manifest.json": len(whole) // 2}
        flip(path, spots.get(path.name) or in_weights(path, model))
        with nothing_published(folder):
            output = headway(folder, str(given), "--recipe", "recipe.toml", code=70)
        assert path.name in output or "manifest" in output, output
        path.write_bytes(whole)
    headway(folder, str(given), "--recipe", "recipe.toml", code=0)
    assert SnapshotStore(folder / "store").snapshot().manifest.number == 2


def test_a_disk_that_refuses_every_write(folder: Path) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    checkpoint(folder / "checkpoints", state(trained(2)), 2)
    with nothing_published(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "write_at", full)
        output = headway(folder, "checkpoints", "--recipe", "recipe.toml", code=70)
    assert codes(output) == ["store-failed"] and os.strerror(errno.ENOSPC) in output


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A real one of 256 KiB in the place of a folder, with what that has."""
    moved = path.rename(path.parent / "kept")
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk can be mounted by root only")
    try:
        shutil.copytree(moved, path, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 4096, 12288])
def test_a_full_disk(free: int, folder: Path) -> None:
    """With room for nothing, for a folder, and for some of the files."""
    checkpoint(folder / "checkpoints", state(trained(2)), 2)
    store = folder / "store"
    with small_disk(store):
        filler = store / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        os.truncate(filler, filler.stat().st_size - free)
        with nothing_published(folder):
            output = headway(folder, "checkpoints", "--recipe", "recipe.toml", code=70)
            assert codes(output) == ["store-failed"] and os.strerror(errno.ENOSPC) in output
        watching = ("--watch", "checkpoints", "--recipe", "recipe.toml", "--once")
        with nothing_published(folder):
            assert codes(headway(folder, *watching, code=0)) == ["store-failed"]
        filler.unlink()
        assert codes(headway(folder, *watching, code=0)) == [""]
        assert SnapshotStore(store).snapshot().manifest.anchor["step"] == 2


def tampered(folder: Path) -> Iterator[str]:
    """Each file of what serves in turn, by its name, while one byte of it is changed."""
    store = SnapshotStore(folder / "store")
    snapshot = store.snapshot()
    paths = {folder / "store" / file.stored: name for name, file in snapshot.manifest.files.items()}
    paths[folder / "store/snapshots" / f"{snapshot.name}.json"] = "manifest"
    for path, name in paths.items():
        whole = path.read_bytes()
        flip(path, len(whole) // 2)
        yield name
        path.write_bytes(whole)


def says(call: Callable[[], object]) -> str:
    with pytest.raises(SnapshotDamaged) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_tampered_snapshot(folder: Path) -> None:
    checkpoint(folder / "checkpoints", state(trained(2)), 2)
    headway(folder, "checkpoints", "--recipe", "recipe.toml", code=0)
    store = SnapshotStore(folder / "store")
    first, second = store.snapshots()
    theirs, names_seen = first.manifest.files, set()
    for name in tampered(folder):
        names_seen.add(name)
        assert name in says(lambda: load(folder / "store", factory=served.build))
        assert name in headway(folder, "--show", second.name, code=70)
        assert name in headway(folder, "--list", "--check", code=70)
        assert name in headway(folder, "--rollback", second.name, code=70)
        latest = (folder / "store/latest").read_bytes()
        if name in theirs and theirs[name] == second.manifest.files[name]:
            assert refused(folder, "--rollback", code=2) == "no-earlier-snapshot"
            assert (folder / "store/latest").read_bytes() == latest
        else:
            headway(folder, "--rollback", code=0)
            assert store.snapshot() == first
            (folder / "store/latest").write_bytes(latest)
    assert names_seen == {"weights.safetensors", "golden.safetensors", "config.json", "manifest"}
    headway(folder, "--list", "--check", code=0)
    assert store.snapshot() == second
