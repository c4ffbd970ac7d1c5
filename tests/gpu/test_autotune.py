"""Pruned autotuning on a real GPU: nothing is benchmarked again, and the results are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
JOB = Path(__file__).parent / "jobs" / "autotune.py"
SOURCE = Path(__file__).parents[2] / "src"


class Runs:
    """Runs of the job in one folder, each with caches of its own unless it is given some."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def headway(self, *words: str, caches: str = "none", **env: str) -> None:
        folder = self.folder / f"caches-{caches}"
        places = {name: str(folder / name) for name in ("triton", "inductor")}
        env |= {"TRITON_CACHE_DIR": places["triton"], "HEADWAY_STRICT": "1"}
        env |= {"TORCHINDUCTOR_CACHE_DIR": places["inductor"], "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, "-m", "headway", *words]
        subprocess.run(command, cwd=self.folder, env=os.environ | env, check=True, timeout=180)

    def run(self, part: str, name: str, *flags: str, **env: str) -> list[dict[str, Any]]:
        job = [sys.executable, str(JOB), part, str(self.folder / f"{name}.json"), "--few"]
        env = {"caches": name, **env}
        self.headway("run", "-o", name, *flags, "--no-report", "--", *job, **env)
        return self.events(name)

    def events(self, name: str) -> list[dict[str, Any]]:
        paths = (self.folder / name / "journal").glob("*.jsonl")
        lines = [line for path in paths for line in path.read_text().splitlines()]
        found = [json.loads(line) for line in lines]
        notes = [event for event in found if event["ev"] == "note"]
        assert not [note for note in notes if note["hook"].startswith("autotune")]
        return [event for event in found if event["ev"] == "autotune"]

    def compiled(self, name: str, kernel: str) -> int:
        """How many versions of a kernel Triton has compiled."""
        return len(list((self.folder / f"caches-{name}" / "triton").rglob(f"{kernel}*.cubin")))

    def configs(self, name: str) -> dict[str, Any]:
        truth = json.loads((self.folder / f"{name}.json").read_text())
        return {case: found["config"] for case, found in truth.items()}


def test_own_kernels_are_not_benchmarked_again(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    full = runs.run("triton", "full")
    assert sorted(event["of"] for event in full) == [5, 5, 6, 6, 6]
    assert all(len(event["ms"]) == event["of"] for event in full)
    runs.headway("autotune", "full")
    file = json.loads((tmp_path / "full" / "autotune.json").read_text())
    assert (file["gpu"], bool(file["driver"])) == (torch.cuda.get_device_name(), True)
    pruned = runs.run("triton", "pruned", "--autotune", "full")
    assert [len(event.get("ms", ())) for event in pruned] == [0] * 5
    kept = [one["configs"][index] for one in file["kernels"] for index in one["kept"]]
    assert all(config in kept for config in runs.configs("pruned").values())


def test_what_triton_has_kept_of_all_configs_goes_before(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    env = {"TRITON_CACHE_AUTOTUNING": "1", "caches": "shared"}
    runs.run("triton", "full", **env)
    runs.headway("autotune", "full", "--loss", "500")
    again = runs.run("triton", "again", "--autotune", "full", **env)
    assert again == []
    assert runs.configs("again") == runs.configs("full")
    env["caches"] = "other"  # pruned, and kept under a name of its own
    assert len(runs.run("triton", "pruned", "--autotune", "full", **env)) == 5
    assert len(runs.run("triton", "unpruned", **env)) == 5


def test_compiled_kernels_and_templates(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    full = runs.run("compiled", "full")
    assert all(len(event["ms"]) == event["of"] for event in full)
    known = {event["kernel"] for event in full}
    runs.headway("autotune", "full")
    pruned = runs.run("compiled", "pruned", "--autotune", "full")
    again = [event for event in pruned if event["kernel"] in known]
    assert {event["kind"] for event in again} == {"inductor", "template"}
    for event in again:
        most = 2 if event["kind"] == "template" else 0
        assert len(event.get("ms", ())) <= most < event["of"], event
    assert 0 < runs.compiled("pruned", "product") < runs.compiled("full", "product")
    for events in (full, again):  # the user's own kernel below torch.compile
        assert 6 in [event["of"] for event in events if event["kind"] == "inductor"]
