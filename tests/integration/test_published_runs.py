"""`headway run --publish`: a training ends, and a job of its own publishes what it has left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store.store import Store as Checkpoints
from headway.publish.anchor import find_anchor
from headway.publish.store import SnapshotStore
from headway.run import load
from tests.integration.jobs import launched
from tests.support import codes, lazy, wait_until

torch = lazy("torch")
source = lazy("headway.publish.source:open_source")
loaded = lazy("headway.publish:load")
served = lazy("tests.unit.publish.dlrm")
SERVED = Path(__file__).parents[1] / "unit/publish/dlrm.py"
pytestmark = pytest.mark.timeout(120)
JOB = Path(__file__).parent / "published" / "job.py"
FULL = """
[model]
factory = "served:build"
arguments = { rows = 60 }
[golden]
inputs = "served:golden"
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "dlrm"
TARGET = "[targets.safetensors]\n"


def training(
    folder: Path, *words: str, recipe: str = TARGET, ranks: int = 1, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """One below `headway run --publish`."""
    shutil.copy(SERVED, folder / "served.py")
    (folder / "recipe.toml").write_text(recipe)
    run = ("run", "--name", "t", "--publish", "recipe.toml", "--publish-to", "store", *options)
    launcher, env = launched(ranks, "", run)
    script = [sys.executable, "-c", "import sys; sys.exit(int(sys.argv[1]))"]
    command = launcher[: launcher.index("--") + 1] + script if not words[0].isalpha() else launcher
    command = [*command, *([str(JOB)] if words[0].isalpha() else []), *words]
    env["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def ended(folder: Path, within_s: float = 100) -> dict[str, Any]:
    """What the note in the training's folder says when the publish and its run are over."""
    wait_until(lambda: "ended" in note(folder), within_s, every=0.05)
    wait_until((folder / "headway/t-publish/ledger.json").exists, within_s)
    return note(folder)


def note(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "headway/t/publish.json").read_text())
    return content


@pytest.mark.parametrize(
    ("recipe", "options", "code"),
    [
        ("[targets.aotin]\n", (), "target-unknown"),
        ("[goldn]\n", (), "recipe-key-unknown"),
        ("[targets", (), "toml-invalid"),
        ("[targets.aoti]\nfast = true\n", (), "target-option-unknown"),
        (FULL.replace("served:build", "srved:build") + TARGET, (), "module-not-found"),
        (FULL.replace("served:build", "served:make") + TARGET, (), "function-not-found"),
        (TARGET, ("--publish-by", "nobody --knows"), "command-not-found"),
    ],
)
def test_a_mistake_is_told_before_the_training(
    recipe: str, options: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    done = training(tmp_path, "0", recipe=recipe, options=options)
    assert (done.returncode, codes(done.stderr)) == (2, [code])
    assert not (tmp_path / "headway").exists()


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_without_a_checkpoint_keeps_its_exit_code(code: int, tmp_path: Path) -> None:
    done = training(tmp_path, str(code))
    assert done.returncode == code
    assert ("not-published" in codes(done.stderr)) == (code == 0)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "headway/t/publish.json").exists()


def test_an_anchor_is_published_by_a_run_of_its_own(tmp_path: Path) -> None:
    done = training(tmp_path, "anchor")
    assert done.returncode == 0, done.stderr
    outcome = ended(tmp_path)
    assert outcome["error"] == "", (tmp_path / "headway/t/publish.log").read_text()
    (snapshot,) = SnapshotStore(tmp_path / "store").snapshots()
    assert snapshot.name == outcome["snapshot"]
    training_run, publish_run = str(tmp_path / "headway/t"), str(tmp_path / "headway/t-publish")
    anchor = snapshot.manifest.anchor
    assert (anchor["run"], anchor["ledger"], anchor["step"]) == ("t", training_run, 3)
    assert anchor["metrics"] == {"loss": 0.5}
    known = load(training_run).to_dict()["publish"]
    assert (known["run"], known["folder"]) == ("t-publish", publish_run)
    assert known["would_cost_s"] == pytest.approx(known["accelerators"] * known["seconds"])
    assert known["did_cost_s"] > 0 and known["accelerators"] == 1
    written = json.loads((tmp_path / "headway/t/ledger.json").read_text())
    assert written["publish"]["snapshot"] == snapshot.name, "it is written again when that is known"
    other = load(publish_run).to_dict()
    assert (other["publishes"]["run"], other["publishes"]["folder"]) == ("t", training_run)
    assert other["buckets"]["stop.publish"] > 0 and other["steps"] == 0
    model = loaded(tmp_path / "store", factory=served.build)
    assert model(*served.golden())["logit"].shape == (6, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "where"),
    [("saves", "checkpoints/step-0000000003"), ("dcp", "last"), ("file", "last.pt")],
)
def test_the_last_checkpoint_of_any_kind(kind: str, where: str, tmp_path: Path) -> None:
    done = training(tmp_path, kind, recipe=FULL + TARGET)
    assert done.returncode == 0, done.stderr
    outcome = ended(tmp_path)
    assert outcome["error"] == "" and outcome["anchor"] == str(tmp_path / where)
    if kind == "saves":
        assert (tmp_path / where / "anchor").exists(), "it is kept until it is published"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["anchor", "spread", "sharded"])
def test_anchors_of_two_ranks(kind: str, tmp_path: Path) -> None:
    """What one rank cannot answer alone is told, and recorded without outputs."""
    done = training(tmp_path, kind, ranks=2)
    assert done.returncode == 0, done.stderr
    assert ("golden-model-not-alone" in codes(done.stderr)) == (kind != "anchor"), done.stderr
    anchor = find_anchor(str(tmp_path / "checkpoints"))
    shapes = source(anchor).shapes
    assert "golden.inputs.2" in shapes and ("golden.outputs.1" in shapes) == (kind == "anchor")
    assert Checkpoints(tmp_path / "checkpoints").checkpoints()[0].manifest.world == 2
    outcome = ended(tmp_path)
    assert outcome["error"] == ""
    assert load(tmp_path / "headway/t").to_dict()["publish"]["accelerators"] == 2
    with torch.no_grad():
        outputs = loaded(tmp_path / "store", factory=served.build)(*served.golden())
    assert outputs["logit"].isfinite().all()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_turned_down_is_told_in_both_runs(tmp_path: Path) -> None:
    done = training(tmp_path, "anchor", recipe=TARGET + "[limits]\nsize_mb = 0.001\n")
    assert done.returncode == 0
    outcome = ended(tmp_path)
    assert "0.001" in outcome["error"] and outcome["snapshot"] == ""
    assert "0.001" in load(tmp_path / "headway/t").to_dict()["publish"]["error"]
    other = load(tmp_path / "headway/t-publish").to_dict()
    assert other["exit_code"] == 1 and "0.001" in other["publishes"]["error"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("trainer", "recipe", "words"),
    [
        ("train_headway.py", "publish.toml", ("--rows", "300", "--dim", "4")),
        ("train.py", "publish_plain.toml", ("--save-every", "3", "--no-export")),
    ],
)
def test_the_example(trainer: str, recipe: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """As its README says, with the recipes as they are."""
    run = ("run", "--name", "t", "--publish", str(EXAMPLE / recipe), "--publish-to", "store")
    launcher, env = launched(1, "", run)
    command = [*launcher, str(EXAMPLE / trainer), "--steps", "3", "--no-compile", *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcome = ended(tmp_path, 400)
    assert outcome["error"] == "" and not load(tmp_path / "headway/t").to_dict()["failures"]
    model = loaded(tmp_path / "store")
    dense, ids = torch.randn(5, 13), torch.zeros(5, 26, dtype=torch.long)
    assert model(dense, ids).shape == (5,)
