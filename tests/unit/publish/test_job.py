"""From an anchor to a snapshot, in this process; tests/integration has the command."""

from __future__ import annotations

import errno
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headway.errors import HeadwayError, PublishFailed, SaveFailed, SnapshotDamaged, UsageError
from headway.publish.anchor import find_anchor
from headway.publish.store import SnapshotStore
from headway.publish.validate import CheckResult, TargetCheck, check_here
from headway.storage.lease import AlreadyPublishing, lease
from tests.support import codes, has_code, lazy
from tests.unit.publish.anchors import MODEL_MODULE, checkpoint, dcp_checkpoint, recipe, state

if TYPE_CHECKING:
    from headway.publish.job import Outcome

torch = lazy("torch")
nn = lazy("torch.nn")
load = lazy("headway.publish:load")
publish = lazy("headway.publish.job:publish")
watch = lazy("headway.publish.watch:watch")
build = lazy("tests.unit.publish.dlrm:build")
golden = lazy("tests.unit.publish.dlrm:golden")
trained = lazy("tests.unit.publish.dlrm:trained")


@pytest.fixture(autouse=True)
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three calls are enough here."""
    monkeypatch.setattr("headway.publish.validate.TIMED_S", 0)


def publish_anchor(
    folder: Path,
    *,
    anchor: str | None = None,
    to: str | None = None,
    check_target: Any = check_here,
    again: bool = False,
    **sections: str,
) -> Outcome:
    """Publish what lies in the folder."""
    source_anchor = find_anchor(anchor or str(folder / "anchor"))
    parsed = recipe(folder, **sections)
    outcome: Outcome = publish(
        source_anchor,
        parsed,
        SnapshotStore(to or folder / "store"),
        check_target=check_target,
        again=again,
    )
    return outcome


def says(model: Any) -> dict[str, Any]:
    dense, sparse = golden()
    with torch.no_grad():
        outputs: dict[str, Any] = model(dense, sparse)
    return outputs


def same(left: dict[str, Any], right: dict[str, Any], near: float = 0) -> bool:
    return all(torch.allclose(left[name], right[name], atol=near, rtol=near) for name in right)


@pytest.mark.parametrize("kind", ["store", "dcp", "file", "url"])
def test_weights_are_published_and_loaded(kind: str, tmp_path: Path) -> None:
    given = state(trained())
    anchor = to = str(tmp_path / "anchor")
    if kind == "store":
        checkpoint(anchor, given, 5, extra={"run": "r1", "metrics": {"loss": 0.5}})
    elif kind == "dcp":
        dcp_checkpoint(Path(anchor), given)
    elif kind == "file":
        torch.save(given, anchor)
    else:
        anchor, to = (f"memory://{secrets.token_hex(8)}/{name}" for name in ("anchor", "store"))
        checkpoint(anchor, given)
    to = to if kind == "url" else str(tmp_path / "store")
    outcome = publish_anchor(tmp_path, anchor=anchor, to=to)
    assert outcome.fresh and outcome.snapshot == SnapshotStore(to).latest()
    assert same(says(load(to, factory=build)), says(trained().eval()))
    again = publish_anchor(tmp_path, anchor=anchor, to=to)
    assert not again.fresh and again.snapshot == outcome.snapshot
    manifest = outcome.snapshot.manifest
    assert set(manifest.files) == {"weights.safetensors", "golden.safetensors", "config.json"}
    assert manifest.targets["safetensors"].metrics["difference"] == 0
    assert manifest.versions["torch"] == torch.version.__version__
    if kind == "store":
        expected = {"step": 5, "run": "r1", "metrics": {"loss": 0.5}}
        assert {name: manifest.anchor[name] for name in expected} == expected


def test_averaged_weights(tmp_path: Path) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(trained(2))
    checkpoint(tmp_path / "anchor", state(trained(1), ema=averaged.state_dict()))
    model = f'factory = "{MODEL_MODULE}:build"\nweights = ["ema", "model"]'
    publish_anchor(tmp_path, model=model)
    assert same(says(load(tmp_path / "store", factory=build)), says(trained(2).eval()))
    with pytest.raises(PublishFailed, check=has_code("anchor-part-missing")) as error:
        publish_anchor(tmp_path, model=model.replace('"ema"', '"best"'))
    assert error.value.fields["part"] == "best"
    assert all(part in str(error.value) for part in ("ema", "model", "optimizer"))


def test_smaller_tables(tmp_path: Path) -> None:
    last = {name: torch.arange(50) for name in ("tables.0", "tables.1", "names")}
    checkpoint(tmp_path / "anchor", state(trained(), used=last))
    tables = 'int8 = ["tables.*"]\nfp16 = ["names"]\ntolerance = 0.5\n[tables.prune]\n'
    outcome = publish_anchor(tmp_path, tables=tables + 'last_use = "used"\nwithin = 100')
    small = load(tmp_path / "store", factory=build)
    assert small.tables[0].form == "int8" and small.names.form == "fp16"  # type: ignore[attr-defined]
    assert not same(says(small), says(trained().eval()))
    assert same(says(small), says(trained().eval()), near=0.5)
    assert outcome.snapshot.manifest.targets["safetensors"].metrics["difference"] == 0
    with pytest.raises(PublishFailed, check=has_code("smaller-tables-differ")):
        publish_anchor(tmp_path, tables=tables + 'last_use = "used"\nwithin = 1')


def test_golden_inputs_and_outputs_of_the_anchor(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    inputs = torch.randn(5, 4)
    part = {"inputs": [inputs], "outputs": [model(inputs).detach()]}
    checkpoint(tmp_path / "anchor", {"model": model.state_dict(), "golden": part}, 1)
    sections = {
        "model": 'factory = "torch.nn:Linear"\narguments = { in_features = 4, out_features = 2 }',
        "golden": 'anchor = "golden"',
    }
    assert publish_anchor(tmp_path, **sections).fresh
    part["outputs"][0] += 1
    checkpoint(tmp_path / "anchor", {"model": model.state_dict(), "golden": part}, 2)
    with pytest.raises(PublishFailed, check=has_code("golden-outputs-differ")):
        publish_anchor(tmp_path, **sections)
    checkpoint(tmp_path / "anchor", {"model": model.state_dict()}, 3)
    with pytest.raises(PublishFailed, check=has_code("golden-inputs-missing")):
        publish_anchor(tmp_path, **sections)


@pytest.mark.parametrize(
    ("sections", "code"),
    [
        ({"model": 'factory = "nowhere:build"'}, "module-not-importable"),
        ({"model": f'factory = "{MODEL_MODULE}:built"'}, "function-not-found"),
        ({"model": 'factory = "served"'}, "function-malformed"),
        ({"model": f'factory = "{MODEL_MODULE}:no_module"'}, "factory-gives-no-module"),
        (
            {"model": f'factory = "{MODEL_MODULE}:build"\narguments = {{ row = 1 }}'},
            "model-not-built",
        ),
        (
            {"model": f'factory = "{MODEL_MODULE}:build"\narguments = {{ rows = 40 }}'},
            "tensor-shape-mismatch",
        ),
        (
            {"model": 'factory = "torch.nn:Linear"\narguments = {in_features=1, out_features=1}'},
            "tensor-not-in-model",
        ),
        ({"golden": f'inputs = "{MODEL_MODULE}:build"'}, "golden-inputs-malformed"),
        ({"golden": f'inputs = "{MODEL_MODULE}:Dlrm"'}, "golden-function-failed"),
        ({"golden": f'inputs = "{MODEL_MODULE}:too_few"'}, "golden-inputs-failed"),
        ({"targets.sefatensors": ""}, "target-unknown"),
        ({"targets.safetensors": "tolerant = 1"}, "target-option-unknown"),
        ({"targets.safetensors": 'tolerance = "x"'}, "target-tolerance-invalid"),
        ({"limits": "size_mb = 0.001"}, "snapshot-too-large"),
        ({"limits": "latency_ms = 0"}, "target-too-slow"),
    ],
)
def test_what_is_not_published(sections: dict[str, str], code: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    with pytest.raises((UsageError, PublishFailed)) as error:
        publish_anchor(tmp_path, **sections)
    assert isinstance(error.value, HeadwayError)
    rejected = error.value.code in ("snapshot-rejected", "snapshot-deferred")
    assert (error.value.fields["reasons"] if rejected else [error.value.code]) == [code]
    assert "\n" not in str(error.value)
    assert SnapshotStore(tmp_path / "store").latest() is None
    assert SnapshotStore(tmp_path / "store").snapshots() == []


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    model = trained()
    model.top[2].bias.data.fill_(float("nan"))
    checkpoint(tmp_path / "anchor", state(model))
    with pytest.raises(PublishFailed, check=has_code("model-not-finite")):
        publish_anchor(tmp_path)


def test_what_serves_stays_when_the_next_one_fails(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained(1)), 1)
    first = publish_anchor(tmp_path).snapshot
    checkpoint(tmp_path / "anchor", state(trained(2)), 2)

    def wrong(check: TargetCheck) -> CheckResult:
        return replace(check_here(check), difference=0.1)

    with pytest.raises(PublishFailed, check=has_code("snapshot-rejected")) as error:
        publish_anchor(tmp_path, check_target=wrong)
    assert error.value.fields["reasons"] == ["target-differs"]
    store = SnapshotStore(tmp_path / "store")
    assert store.latest() == first
    store.sweep()
    assert {f"files/{n}" for n in store.place.list_names("files")} == {
        file.stored for file in first.manifest.files.values()
    }
    second = publish_anchor(tmp_path, limits="latency_growth = 1000\nsize_growth = 1.01").snapshot
    assert store.latest() == second != first
    with pytest.raises(PublishFailed) as error:
        publish_anchor(tmp_path, limits="size_growth = 0.5", again=True)
    assert error.value.fields["reasons"] == ["snapshot-has-grown"]


def test_a_snapshot_that_was_changed_is_not_loaded(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    snapshot = publish_anchor(tmp_path).snapshot
    with pytest.raises(UsageError, check=has_code("factory-not-given")):
        load(tmp_path / "store")
    with pytest.raises(UsageError, check=has_code("target-not-in-snapshot")):
        load(tmp_path / "store", target="aoti")
    path = tmp_path / "store" / snapshot.manifest.files["weights.safetensors"].stored
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotDamaged, check=has_code("checksum-mismatch")) as error:
        load(tmp_path / "store", factory=build)
    assert error.value.fields["file"] == "weights.safetensors"


def test_one_worker_at_a_time(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    key = find_anchor(str(tmp_path / "anchor")).key(recipe(tmp_path).digest)
    store = SnapshotStore(tmp_path / "store")
    with store.sweep_blocked(), lease(store.place, key), pytest.raises(AlreadyPublishing):
        publish_anchor(tmp_path)
    assert publish_anchor(tmp_path).fresh


def test_watched(tmp_path: Path) -> None:
    folder = str(tmp_path / "anchor")
    for step in (1, 2):
        checkpoint(folder, state(trained(step)), step)
    checkpoint(folder, state(nn.Linear(2, 2)), 3)
    checkpoint(folder, state(trained(4)), 4, anchor=False)
    store, lines = SnapshotStore(tmp_path / "store"), list[str]()
    for _ in range(2):
        watch(folder, recipe(tmp_path), store, log=lines.append, once=True, check_target=check_here)
    assert codes("\n".join(lines)) == ["", "", "tensor-not-in-model"]
    assert [snapshot.manifest.anchor["step"] for snapshot in store.snapshots()] == [1, 2]
    serving = store.latest()
    assert serving is not None and serving.manifest.anchor["step"] == 2


def test_an_older_anchor_does_not_serve_after_a_newer_one(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint(tmp_path / "anchor", state(trained(step)), step)
    newer = publish_anchor(tmp_path).snapshot
    store = SnapshotStore(tmp_path / "store")
    watch(
        str(tmp_path / "anchor"),
        recipe(tmp_path),
        store,
        log=print,
        once=True,
        check_target=check_here,
    )
    assert len(store.snapshots()) == 2 and store.latest() == newer


OWN = """
import json
class Names:
    tolerance = 0.0
    def __init__(self, upper=False):
        self.upper = upper
    def make(self, work):
        (work.folder / "names.json").write_text(json.dumps(list(work.model.state_dict())))
        return ["names.json"]
    def open(self, given):
        assert "scale" in json.loads(given.files["names.json"].read_text())
        model = given.factory(**given.config["arguments"])
        model.load_state_dict(given.weights)
        return model.eval()
"""


def test_a_target_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headway.targets]\nnames = own_target:Names\n")
    (tmp_path / "own_target.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    checkpoint(tmp_path / "anchor", state(trained()))
    snapshot = publish_anchor(tmp_path, **{"targets.names": "upper = true"}).snapshot
    assert list(snapshot.manifest.targets) == ["safetensors", "names"]
    assert "names.json" in snapshot.manifest.targets["names"].files
    served = load(tmp_path / "store", target="names", factory=build)
    assert same(says(served), says(trained().eval()))


PROBE = """
import sys
from headway.cli import main
from headway.publish.store import SnapshotStore
assert SnapshotStore(sys.argv[1]).latest() is not None
assert main(["publish", "--list", "--to", sys.argv[1]]) == 0
assert "torch" not in sys.modules
"""


def test_looking_needs_no_torch(tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    publish_anchor(tmp_path)
    subprocess.run([sys.executable, "-c", PROBE, tmp_path / "store"], check=True, timeout=60)


@pytest.mark.parametrize("what", ["weights", "manifest"])
def test_a_snapshot_that_is_damaged_is_published_anew(what: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "anchor", state(trained()))
    first = publish_anchor(tmp_path).snapshot
    assert not publish_anchor(tmp_path).fresh
    files = {
        "weights": first.manifest.files["weights.safetensors"].stored,
        "manifest": f"snapshots/{first.name}.json",
    }
    path = tmp_path / "store" / files[what]
    path.write_bytes(path.read_bytes()[:-1])
    again = publish_anchor(tmp_path)
    assert again.fresh and SnapshotStore(tmp_path / "store").latest() == again.snapshot
    assert same(says(load(tmp_path / "store", factory=build)), says(trained().eval()))


FULL = """
import errno
class Full:
    tolerance = 0.0
    def make(self, work):
        raise OSError(errno.ENOSPC, "No space left on device")
"""


def test_a_disk_that_is_full_while_a_target_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "full-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: full\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headway.targets]\nfull = full_target:Full\n")
    (tmp_path / "full_target.py").write_text(FULL)
    monkeypatch.syspath_prepend(tmp_path)
    checkpoint(tmp_path / "anchor", state(trained()))
    with pytest.raises(SaveFailed, check=has_code("store-failed")) as error:
        publish_anchor(tmp_path, **{"targets.full": ""})
    assert error.value.fields["errno"] == errno.ENOSPC
