"""What the probe does for a compile cache, in real processes with real torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.compile.archive.store import Store
from headway.compile.courier import Courier

from .conftest import Probed

# Closures are known to torch 2.13 by a number that each process has anew.
GROWING = """
import torch
compiles = 0
def backend(graph, inputs):
    global compiles
    compiles += 1
    return graph.forward
def made():
    def inner(x): return x + 1
    def outer(x): return inner(x) * 2
    return outer
call = torch.compile(made(), backend=backend)
for size in (4, 5, 6):
    call(torch.ones(size))
print("compiles", compiles, file=open("said", "a"))
"""
# For a GPU that need not be there.
KERNEL = """
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
@triton.jit
def twice(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, tl.load(x + i) * 2)
def told(cache_hit, **_):
    print("hit", cache_hit, file=open("said", "a"))
triton.knobs.compilation.listener = told
types = {"x": "*fp32", "y": "*fp32", "n": "constexpr"}
source = ASTSource(fn=twice, signature=types, constexprs={"n": 128})
triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


class Served:
    """Couriers, one for each job, on one store."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(str(folder / "store"))
        self.said: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.couriers: list[Courier] = []

    def env(self, job: str = "job") -> dict[str, str]:
        """For the next job; the one before has ended."""
        self.close()
        self.couriers.append(Courier(self.store, job, "1", self.said.append, env={}))
        self.couriers[-1].begin(self.events.append)
        return dict(self.couriers[-1].env)

    def close(self) -> None:
        for courier in self.couriers:
            courier.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    made = Served(tmp_path)
    yield made
    made.close()


def test_the_wait_is_a_span_and_each_compile_is_told(
    probed: Probed, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a size that has changed in one job is expected to in the next."""
    answer = Courier._answer

    def late(courier: Courier, key: str, path: Path) -> None:
        """When somebody waits."""
        journals = tmp_path / "journal"
        while not any("compile_cache" in file.read_text() for file in journals.glob("*.jsonl")):
            time.sleep(0.01)
        answer(courier, key, path)

    monkeypatch.setattr(Courier, "_answer", late)
    (journal,) = probed(GROWING, env=served.env())
    (wait,) = [span for span in journal.spans if span.name == "compile_cache"]
    (first, *_) = [span for span in journal.spans if span.name == "compile"]
    assert wait.end is not None and wait.start < wait.end <= first.start
    (path,) = (served.couriers[-1].folder / "talk").glob("made-*.json")
    assert json.loads(path.read_text())["seconds"] > 0
    probed(GROWING, env=served.env())
    assert (tmp_path / "said").read_text().split() == ["compiles", "2", "compiles", "1"]
    loads = [event["level"] for event in served.events if event["what"] == "load"]
    assert loads == ["miss", "exact"]


def test_a_kernel_of_the_user_is_found_in_another_folder(
    probed: Probed, served: Served, tmp_path: Path
) -> None:
    pytest.importorskip("triton.knobs")
    for _ in range(2):
        probed(KERNEL, env=served.env())
    assert (tmp_path / "said").read_text().split() == ["hit", "False", "hit", "True"]
