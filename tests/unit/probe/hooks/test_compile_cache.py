"""The messages of a process to the launcher that fills its compile cache."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headway.probe.hooks import compile_cache
from headway.probe.hooks.compile_cache import CacheClient
from tests.unit.probe.test_host_facts import torch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder and the environment that the launcher creates."""
    path = tmp_path / "headway-compile-x"
    (path / "talk").mkdir(parents=True)
    (path / "cache").mkdir()
    (path / "lock").touch()
    monkeypatch.setenv("HEADWAY_COMPILE", str(path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(path / "cache/triton"))
    monkeypatch.setenv("TORCH_COMPILE_JOB_ID", "train")
    monkeypatch.delenv("RANK", raising=False)
    return path


@pytest.fixture
def courier(folder: Path) -> Iterator[None]:
    """A running launcher, which holds the lock."""
    with (folder / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def new_client() -> CacheClient:
    client = CacheClient()
    client.request(torch())
    return client


def ready(folder: Path, client: CacheClient) -> None:
    (folder / f"talk/ready-{client.key}.json").write_text("{}")


def test_the_first_process_says_what_the_machine_is(folder: Path) -> None:
    client = new_client()
    (path,) = (folder / "talk").iterdir()
    assert path.name == f"want-{client.key}.json"
    assert json.loads(path.read_text())["torch"] == "2.13.0"
    before = path.stat().st_mtime_ns
    new_client()
    assert path.stat().st_mtime_ns == before


@pytest.mark.usefixtures("courier")
@pytest.mark.timeout(30)
def test_who_compiles_waits_for_the_answer(folder: Path) -> None:
    client = new_client()
    threading.Timer(0.1, ready, (folder, client)).start()
    client.begin_compile()
    assert (folder / f"talk/ready-{client.key}.json").exists()
    assert client.compile_started


@pytest.mark.timeout(30)
def test_nobody_waits_for_a_launcher_that_was_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "POLL_S", 0)
    new_client().wait()
    os.unlink(folder / "lock")
    new_client().wait()


@pytest.mark.usefixtures("courier")
@pytest.mark.timeout(30)
def test_nobody_waits_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "TIMEOUT_S", 0.1)
    new_client().wait()


@pytest.mark.usefixtures("courier")
@pytest.mark.timeout(30)
def test_it_is_waited_for_once(folder: Path) -> None:
    client = new_client()
    ready(folder, client)
    client.wait()
    os.unlink(folder / f"talk/ready-{client.key}.json")
    client.wait()


def test_without_a_launcher_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_COMPILE", raising=False)
    client = new_client()
    client.begin_compile()
    client.end_compile()
    assert not client.folder


def test_on_another_machine_torch_has_its_own_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun passes on the environment, but not the folder: use the default cache folders."""
    monkeypatch.setenv("HEADWAY_COMPILE", "/not/here")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/not/here/cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/not/hereabouts")
    assert not new_client().folder
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert os.environ["TRITON_CACHE_DIR"] == "/not/hereabouts"


def test_each_compile_is_told(folder: Path) -> None:
    client = new_client()
    ready(folder, client)
    for _ in range(2):
        client.begin_compile()
        client.end_compile()
    path = folder / f"talk/made-{os.getpid()}.json"
    message = json.loads(path.read_text())
    assert message["key"] == client.key and message["seconds"] == client.compile_seconds > 0
    path.unlink()
    client.end_compile()  # no compile has started
    assert not path.exists()


def test_a_forked_process_counts_its_own_seconds(folder: Path) -> None:
    client = new_client()
    ready(folder, client)
    client.begin_compile()
    client.end_compile()
    client.compile_seconds, client.pid = 1000.0, -1  # of the fork server
    client.begin_compile()
    client.end_compile()
    message = json.loads((folder / f"talk/made-{os.getpid()}.json").read_text())
    assert message["seconds"] < 1000


def test_what_rank_0_has_learned_is_for_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = folder / "cache/dynamo"
    learned.mkdir()
    (learned / "code_state_train_0_.pkl").write_bytes(b"zero")
    (learned / "code_state_train_3_tag_0_.pkl").write_bytes(b"three")
    (learned / "code_state_other_0_.pkl").write_bytes(b"of another job")
    monkeypatch.setenv("RANK", "2")
    client = new_client()
    ready(folder, client)
    client.wait()
    assert (learned / "code_state_train_2_.pkl").read_bytes() == b"zero"
    assert len(list(learned.iterdir())) == 4
    (learned / "code_state_train_2_.pkl").write_bytes(b"two")
    client.answered = False
    client.wait()
    assert (learned / "code_state_train_2_.pkl").read_bytes() == b"two"


def test_kernels_of_the_user_are_waited_for_and_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = new_client()
    monkeypatch.setattr(compile_cache, "cache_client", client)
    ready(folder, client)
    compiler: Any = ModuleType("triton.compiler.compiler")
    compiler.compile = lambda source: f"compiled {source}"
    compile_cache.install_triton(compiler)
    assert compiler.compile("kernel") == "compiled kernel"
    path = folder / f"talk/made-{os.getpid()}.json"
    assert path.exists()
    path.unlink()
    client.begin_compile()
    assert compiler.compile("inside") == "compiled inside"
    assert client.compile_started and not path.exists()  # a part of a compile of torch


def isa_module(answers: list[bool]) -> Any:
    class VecISA:
        def build_arch_flags(self) -> str:
            return "-mavx2"

        def check_build(self, code: str) -> bool:
            return answers.pop()

    return SimpleNamespace(VecISA=VecISA, _get_isa_dry_compile_fingerprint=lambda flags: flags)


@pytest.mark.parametrize("answer", [True, False])
def test_a_trial_build_is_made_once(folder: Path, answer: bool) -> None:
    answers = [answer]
    isa = isa_module(answers)
    compile_cache.install_isa(isa)
    assert [isa.VecISA().check_build("code") for _ in range(3)] == [answer] * 3
    assert answers == []
    with pytest.raises(IndexError):
        isa.VecISA().check_build("other code")


def test_a_trial_build_without_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    answers = [True, True]
    isa = isa_module(answers)
    compile_cache.install_isa(isa)
    assert isa.VecISA().check_build("code") and isa.VecISA().check_build("code")
    assert answers == []


LOAD = """
def load(main_path):
    return _precompile_header("cpp_prefix.h")
"""


def test_the_header_is_made_only_for_what_is_built(tmp_path: Path) -> None:
    headers = []
    module: Any = ModuleType("codecache")
    module._precompile_header = lambda header: headers.append(header) or "header.h"
    exec(LOAD, module.__dict__)
    compile_cache.install_codecache(module)
    hooked = module._precompile_header
    # Another wrapper around it does not matter.
    module._precompile_header = lambda header: hooked(header)
    assert module.load(str(tmp_path / "x.main.cpp")) == "header.h"
    (tmp_path / "x.main.so").touch()
    assert module.load(str(tmp_path / "x.main.cpp")) == ""
    assert headers == ["cpp_prefix.h"]


@pytest.mark.parametrize("value", [b"\x00\n\xff", "3.6.0-abc"])
def test_the_hash_of_a_package_is_kept(
    value: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package: Any = ModuleType("package")
    source = tmp_path / "package" / "__init__.py"
    package.__file__ = str(source)
    source.parent.mkdir()
    source.write_text("one")
    monkeypatch.setitem(sys.modules, "package", package)
    worked_out = []

    def key() -> Any:
        """The key in a new process, which shares only the folder."""
        module: Any = ModuleType("package.cache")
        module.triton_key = lambda: worked_out.append(1) or value
        compile_cache.install_key(module)
        assert module.triton_key() == module.triton_key()
        return module.triton_key()

    monkeypatch.setattr(compile_cache.cache_client, "answered", False)
    assert key() == value and len(worked_out) == 1  # the folder does not exist yet
    monkeypatch.setattr(compile_cache.cache_client, "answered", True)
    assert key() == key() == value and len(worked_out) == 2
    source.write_text("other")
    assert key() == value and len(worked_out) == 3


@pytest.mark.parametrize(("level", "woken"), [("exact", 0), ("near", 1), ("miss", 1), (None, 1)])
def test_compile_processes_are_woken_only_for_something_to_compile(
    level: str | None, woken: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class AsyncCompile:
        @classmethod
        def wakeup(cls) -> None:
            calls.append(cls)

    module: Any = ModuleType("async_compile")
    module.AsyncCompile = AsyncCompile
    compile_cache.install_pool(module)
    monkeypatch.setattr(compile_cache.cache_client, "folder", str(folder))
    monkeypatch.setattr(compile_cache.cache_client, "key", "k")
    (folder / "talk").mkdir(exist_ok=True)
    if level is not None:
        (folder / "talk" / "ready-k.json").write_text(json.dumps({"level": level}))
    AsyncCompile.wakeup()
    AsyncCompile().wakeup()
    assert calls == [AsyncCompile] * 2 * woken


def test_what_a_kernels_tuning_found_is_looked_for_here(folder: Path) -> None:
    filenames = []

    class CachingAutotuner:
        filename: str | None = "/gone/cache/ab/cabc.py"

        def recheck_autotune_cache(self, reload: Any) -> None:
            filenames.append(self.filename)

    heuristics: Any = ModuleType("triton_heuristics")
    heuristics.CachingAutotuner = CachingAutotuner
    compile_cache.install_heuristics(heuristics)
    CachingAutotuner().recheck_autotune_cache(None)
    other = CachingAutotuner()
    other.filename = None
    other.recheck_autotune_cache(None)
    assert filenames == [os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab", "cabc.py"), None]


def test_a_closure_is_known_by_its_code() -> None:
    pgo: Any = ModuleType("pgo")
    pgo._get_cell_hash_content = id
    compile_cache.install_profile(pgo)

    def around(inner: Any) -> Any:
        return lambda: inner

    def cell(inner: Any) -> Any:
        return around(inner).__closure__[0]

    def of(inner: Any) -> Any:
        return pgo._get_cell_hash_content(cell(inner))

    assert of(lambda x: x + 1) == of(lambda x: x + 1) != of(lambda x: x * 2)
    assert of(3) == 0


@pytest.mark.parametrize("install", ["install_codecache", "install_profile"])
def test_where_torch_has_it_not_nothing_is_done(install: str) -> None:
    module = ModuleType("older")
    getattr(compile_cache, install)(module)
    assert not [name for name in vars(module) if not name.startswith("__")]
