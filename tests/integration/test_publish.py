"""`headway publish` as a person types it: real processes, real kills, real compiled code."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.errors import SnapshotDamaged
from headway.publish.store import SnapshotStore
from tests.integration.peaks import peaks
from tests.support import cli, codes, has_code, lazy, wait_until
from tests.unit.publish.anchors import checkpoint, state

torch = lazy("torch")
served = lazy("tests.unit.publish.dlrm")
trained = lazy("tests.unit.publish.dlrm:trained")
load = lazy("headway.publish:load")
pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]
SERVED = ROOT / "tests/unit/publish/dlrm.py"
RECIPE = """
keep = {keep}
[model]
factory = "served:build"
[golden]
inputs = "served:golden"
[targets.{target}]
"""


def folder_with(folder: Path, target: str = "safetensors", keep: int = 50) -> Path:
    """What a user has: a recipe and the module it names."""
    shutil.copy(SERVED, folder / "served.py")
    (folder / "recipe.toml").write_text(RECIPE.format(target=target, keep=keep))
    return folder


def command(folder: Path, *words: str) -> list[str]:
    recipe, to = str(folder / "recipe.toml"), str(folder / "store")
    return [sys.executable, "-m", "headway", "publish", *words, "--recipe", recipe, "--to", to]


def headway(folder: Path, *words: str, code: int = 0) -> str:
    """Run the command; what it said."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command(folder, *words), cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def looked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What needs no torch, in this process."""
    return cli("publish", *words, "--to", str(folder / "store"), cwd=folder)


def says(model: Any) -> Any:
    dense, sparse = served.golden()
    with torch.no_grad():
        return model(dense, sparse)["logit"]


def test_published_listed_shown_and_rolled_back(tmp_path: Path) -> None:
    anchor, store = str(folder_with(tmp_path) / "checkpoints"), str(tmp_path / "store")
    checkpoint(anchor, state(trained(1)), 1)
    output = headway(tmp_path, anchor)
    assert re.search(r"^00000001-[0-9a-f]{32} \* .*safetensors$", output, re.M), output
    first = load(store, factory=served.build)
    assert torch.equal(says(first), says(trained(1).eval()))
    (row,) = json.loads(looked(tmp_path, "--list", "--json").stdout)
    assert (row["serves"], row["step"], row["targets"]) == (True, 1, ["safetensors"])
    detail = json.loads(looked(tmp_path, "--show", "1", "--json").stdout)
    assert detail["targets"]["safetensors"]["metrics"]["latency_ms"] > 0
    back = looked(tmp_path, "--rollback")
    assert (back.returncode, codes(back.stderr)) == (2, ["no-earlier-snapshot"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere", "--recipe", "recipe.toml"], "anchor-not-found"),
        (["nowhere"], "recipe-not-given"),
        ([], "wrong-usage"),
        (["--show", "7"], "snapshot-not-found"),
    ],
)
def test_wrong_use_is_one_sentence(words: list[str], code: str, tmp_path: Path) -> None:
    done = looked(folder_with(tmp_path), *words)
    assert (done.returncode, codes(done.stderr)) == (2, [code])
    assert not (tmp_path / "store").exists()


SERVE = re.search(r"```python\n(import json.*?)```", (ROOT / "docs/publish.md").read_text(), re.S)
ALONE = """
import sys
sys.modules["headway"] = None
import torch
%s
from safetensors.torch import load_file
golden = load_file(path("golden.safetensors"))
said = model(golden["inputs.0"], [golden["inputs.1"], golden["inputs.2"]])
for name, wanted in (("logit", "outputs.0"), ("probability", "outputs.1")):
    assert torch.allclose(said[name], golden[wanted], atol=1e-4), name
# Another batch size than that of the golden inputs.
said = model(golden["inputs.0"][:4], [golden["inputs.1"][:4], golden["inputs.2"][:4]])
assert torch.allclose(said["logit"], golden["outputs.0"][:4], atol=1e-4)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_code_serves_without_headway_and_is_compiled_once(tmp_path: Path) -> None:
    anchor = str(folder_with(tmp_path, "aoti") / "checkpoints")
    store = SnapshotStore(tmp_path / "store")
    signatures = []
    for seed in (1, 2):
        checkpoint(anchor, state(trained(seed)), seed)
        headway(tmp_path, anchor)
        snapshot = store.snapshot()
        assert torch.allclose(says(load(tmp_path / "store")), says(trained(seed).eval()), atol=1e-4)
        signatures.append(snapshot.manifest)
        assert SERVE is not None
        script = ALONE % SERVE[1]
        subprocess.run(
            [sys.executable, "-I", "-c", script, tmp_path / "store"], check=True, timeout=100
        )
    first, second = signatures
    assert first.files["model.pt2"] == second.files["model.pt2"]
    assert first.files["weights.safetensors"] != second.files["weights.safetensors"]
    assert second.seconds["aoti"] < first.seconds["aoti"] / 3
    path = tmp_path / "store" / second.files["model.pt2"].stored
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotDamaged, check=has_code("checksum-mismatch")) as error:
        load(tmp_path / "store")
    assert error.value.fields["file"] == "model.pt2"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_small_tables_in_compiled_code(tmp_path: Path) -> None:
    anchor = str(folder_with(tmp_path, "aoti") / "checkpoints")
    used = {"names": torch.arange(50)}
    checkpoint(anchor, state(trained(), used=used), 1)
    with (tmp_path / "recipe.toml").open("a") as recipe:
        recipe.write('[tables]\nint8 = ["tables.*"]\nfp16 = ["names"]\ntolerance = 0.5\n')
        recipe.write('[tables.prune]\nlast_use = "used"\nwithin = 49\ntables = ["names"]\n')
    headway(tmp_path, anchor)
    outputs = says(load(tmp_path / "store"))
    assert torch.allclose(outputs, says(trained().eval()), atol=0.5, rtol=0.5)
    assert not torch.equal(outputs, says(trained().eval()))
    (record,) = SnapshotStore(tmp_path / "store").snapshot().manifest.targets.values()
    assert record.metrics["difference"] <= 1e-4


TWO = """
import torch
class Two(torch.nn.Module):
    def __init__(self, plus):
        super().__init__()
        self.plus, self.weight = plus, torch.nn.Parameter(torch.ones(3))
    def forward(self, x):
        return x + self.weight if self.plus else x * self.weight
def build(plus=False):
    return Two(plus)
def golden():
    return torch.arange(6.0).view(2, 3)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_code_that_does_not_fit_is_compiled_anew(tmp_path: Path) -> None:
    """Code of one graph under the name of another: the golden inputs tell."""
    (tmp_path / "served.py").write_text(TWO)
    times = RECIPE.format(target="aoti", keep=5)
    plus = times.replace('"served:build"', '"served:build"\narguments = { plus = true }')
    anchor = str(tmp_path / "checkpoints")
    packages: list[bytes] = []
    for number, recipe in enumerate((plus, times)):
        checkpoint(anchor, {"model": {"weight": torch.ones(3)}}, number)
        (tmp_path / "recipe.toml").write_text(recipe)
        headway(tmp_path, anchor)
        contents = {path: path.read_bytes() for path in (tmp_path / "store/packages").iterdir()}
        (path,) = (path for path, content in contents.items() if content not in packages)
        packages.append(contents[path])
    path.write_bytes(packages[0])  # the name of the second, and the code of the first
    checkpoint(anchor, {"model": {"weight": torch.full((3,), 2.0)}}, 7)
    headway(tmp_path, anchor)
    assert path.read_bytes() != packages[0]
    model = load(tmp_path / "store")
    assert torch.equal(model(torch.full((4, 3), 3.0)), torch.full((4, 3), 6.0))


KILLED = """
import os, signal, sys
from pathlib import Path
from headway.storage import disk
from headway.publish import validate
from headway.publish.anchor import find_anchor
from headway.publish.job import publish
from headway.publish.recipe import read_recipe
from headway.publish.store import SnapshotStore

validate.TIMED_S = 0
left = int(sys.argv[4])
total = 0
def counted(known):
    def call(*args, **more):
        global total
        if total == left:
            os.kill(os.getpid(), signal.SIGKILL)
        total += 1
        return known(*args, **more)
    return call
for name in ("create", "write_at", "sync", "make_folder", "sync_folder", "rename", "unlink",
             "remove_folder", "names", "read", "lock"):
    setattr(disk, name, counted(getattr(disk, name)))
anchor, recipe = find_anchor(sys.argv[1]), read_recipe(Path(sys.argv[2]))
done = publish(anchor, recipe, SnapshotStore(sys.argv[3]), examine=validate.check_here)
print(done.snapshot.name, total, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_fifty_points(tmp_path: Path) -> None:
    """`latest` always loads and is the newest that was committed; no half file is left."""
    chance = random.Random(11)
    anchor = str(folder_with(tmp_path) / "checkpoints")
    paths = [anchor, str(tmp_path / "recipe.toml"), str(tmp_path / "store")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    store = SnapshotStore(tmp_path / "store")

    def life(calls: int) -> tuple[int, str]:
        """One publisher; how it ended, and what it said."""
        run = [sys.executable, "-c", KILLED, *paths, str(calls)]
        done = subprocess.run(run, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, -9), done.stderr
        return done.returncode, done.stdout

    checkpoint(anchor, state(trained(0)), 0)
    _, printed = life(-1)
    total = int(printed.split()[1])
    ends = set()
    for number in range(1, 51):
        checkpoint(anchor, state(trained(number)), number)
        before = store.snapshot().manifest.anchor["step"]
        code, printed = life(chance.randrange(total + 5))
        ends.add(code)
        latest = store.snapshot()
        step = latest.manifest.anchor["step"]
        assert step in (before, number) and (not printed or step == number)
        model = load(tmp_path / "store", factory=served.build)
        assert torch.equal(says(model), says(trained(step).eval()))
        if number % 10 == 0:
            life(-1)
            assert store.snapshot().manifest.anchor["step"] == number
            _nothing_is_left(store)
    steps = [snapshot.manifest.anchor["step"] for snapshot in store.snapshots()]
    assert steps == sorted(set(steps)), "none twice"
    assert -9 in ends


def _nothing_is_left(store: SnapshotStore) -> None:
    needed = {
        file.stored for snapshot in store.snapshots() for file in snapshot.manifest.files.values()
    }
    assert {f"files/{name}" for name in store.place.list_names("files")} == needed
    for name in ("", "snapshots", "packages", "anchors", "leases"):
        assert not [
            snapshot for snapshot in store.place.list_names(name) if snapshot.startswith(".new-")
        ]
    assert store.place.list_names("leases") == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_and_one_that_is_killed(tmp_path: Path) -> None:
    """Of twenty anchors each is published once, and the newest serves."""
    anchor = folder_with(tmp_path) / "checkpoints"
    for step in range(20):
        checkpoint(anchor, state(trained(step)), step)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = [*command(tmp_path, "--watch", str(anchor)), "--once"]

    def worker() -> subprocess.Popen[str]:
        return subprocess.Popen(start, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)

    doomed, store = worker(), SnapshotStore(tmp_path / "store")
    wait_until(lambda: (tmp_path / "store").exists() and store.snapshots())
    wait_until(lambda: list((tmp_path / "store").glob(".work-*")))  # it publishes the next one
    doomed.kill()
    doomed.communicate()
    pair = [worker(), worker()]
    outputs = [worker.communicate(timeout=800)[0] for worker in pair]
    assert [worker.returncode for worker in pair] == [0, 0]
    assert all(len(text.splitlines()) > 3 for text in outputs), outputs
    worker().communicate(timeout=300)  # what one had while the other passed by
    steps = sorted(worker.manifest.anchor["step"] for worker in store.snapshots())
    assert steps == list(range(20))
    assert store.snapshot().manifest.anchor["step"] == 19
    _nothing_is_left(store)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["store", "file"])
def test_the_memory_of_a_publish(kind: str, tmp_path: Path) -> None:
    """At most 1.3 x the model and 500 MB, of the publisher and of the process that looks."""
    folder_with(tmp_path)
    rows, width = 400_000, 128
    arguments = f'factory = "served:build"\narguments = {{ rows = {rows}, width = {width} }}'
    text = (tmp_path / "recipe.toml").read_text().replace('factory = "served:build"', arguments)
    (tmp_path / "recipe.toml").write_text(text)
    model = served.build(rows=rows, width=width)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    anchor = str(tmp_path / "checkpoints")
    if kind == "store":
        checkpoint(anchor, state(model))
    else:
        torch.save(state(model), anchor)
    del model
    measured = peaks(tmp_path, *command(tmp_path, anchor)[3:])
    print(f"model {size / 1e6:.0f} MB, peaks {[round(tensor / 1e6) for tensor in measured]} MB")
    assert max(measured) <= 1.3 * size + 500e6
