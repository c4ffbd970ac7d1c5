"""A compile cache for kernels that are compiled without torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.sync import CompileCacheSync
from tests.support import Probed

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
    """Compile cache syncs, one for each job, on one store."""

    def __init__(self, folder: Path) -> None:
        self.store = ArchiveStore(str(folder / "store"))
        self.syncs: list[CompileCacheSync] = []

    def env(self, job: str = "job") -> dict[str, str]:
        """The environment of the next job; the previous one has ended."""
        self.close()
        self.syncs.append(CompileCacheSync(self.store, job, "1", print, env={}))
        return dict(self.syncs[-1].env)

    def close(self) -> None:
        for sync in self.syncs:
            sync.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    server = Served(tmp_path)
    yield server
    server.close()


def test_a_kernel_of_the_user_is_found_in_another_folder(
    probed: Probed, served: Served, tmp_path: Path
) -> None:
    pytest.importorskip("triton.knobs")
    for _ in range(2):
        probed(KERNEL, env=served.env())
    assert (tmp_path / "said").read_text().split() == ["hit", "False", "hit", "True"]
