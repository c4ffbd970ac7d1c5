"""The compile cache from the command line: real torch, real stores, and failures.

One job compiles for real, and others use what it has left. Where a store or a launcher fails,
torch is not the point: such jobs run with the stand-in of jobs/stand_in, and compile nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.cleanup import list_archives, verify_archive
from headway.compile.cache.manifest import Manifest
from headway.compile.cache.sync import PREFIX
from headway.journal.reader import Journal, read_journals
from headway.storage.signing import read_key
from tests.support import BIN, HEADWAY, JOBS, codes, python, quiet_env, wait_until

pytestmark = pytest.mark.timeout(400)

# Writes down each call, and builds only where it may.
COMPILER = """#!/bin/bash
echo "$*" >> "$GXX_LOG"
case "$*" in -v | --version) ;; *) [ -z "$GXX_REFUSE" ] || exit 1 ;; esac
exec g++ "$@"
"""
# A launcher in which one call of a module never returns, from the given one on.
STALLED = """
import itertools, os, sys, time
from headway.storage import object_places
owner = {"os": os, "FolderObjectPlace": object_places.FolderObjectPlace}[sys.argv[1]]
name, first, mark = sys.argv[2], int(sys.argv[3]), sys.argv[4]
original, count = getattr(owner, name), itertools.count()
def stalled(*args, **kwargs):
    if next(count) >= first:
        open(mark, "w").close()
        time.sleep(600)
    return original(*args, **kwargs)
setattr(owner, name, stalled)
from headway.cli import main
sys.exit(main(sys.argv[5:]))
"""
# A launcher that answers when somebody waits for it.
LATE = """
import sys, time
from pathlib import Path
from headway.compile.cache.sync import CompileCacheSync
answer, journals = CompileCacheSync._answer, Path(sys.argv[1])
def late(sync, key, path):
    end = time.monotonic() + 60
    while not any("compile_cache" in file.read_text() for file in journals.glob("*.jsonl")):
        assert time.monotonic() < end
        time.sleep(0.01)
    answer(sync, key, path)
CompileCacheSync._answer = late
from headway.cli import main
sys.exit(main(sys.argv[2:]))
"""


@dataclass
class Ended:
    """The exit code of a job, its output and that of its launcher, and what it compiled."""

    code: int
    output: str
    folder: Path
    built: list[str] = field(default_factory=list)  # C++ programs
    compiles: int = 0  # of a light job

    def printed(self, name: str) -> list[str]:
        """The values that all ranks printed after that name; the launcher also writes."""
        return re.findall(rf"\b{name} ([0-9]\S*)", self.output)

    @property
    def codes(self) -> list[str]:
        """Codes of the problems that the launcher reported."""
        lines = re.findall(r"^headway: .*", self.output, re.M)
        return [code for code in codes("\n".join(lines)) if code]

    def journals(self) -> list[Journal]:
        journals, problems = read_journals(str(self.folder / "journal"))
        assert not problems
        return journals

    def events(self, ev: str) -> list[dict[str, Any]]:
        files = sorted((self.folder / "journal").glob("*.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [line for line in lines if line["ev"] == ev]

    @property
    def load(self) -> dict[str, Any]:
        """The launcher's load event."""
        (event,) = [event for event in self.events("cache") if event["what"] == "load"]
        return event


class Bench:
    """A folder with the jobs, a key, a compiler, and a folder for temporary files."""

    def __init__(self, root: Path, compiler: Path) -> None:
        self.root = root
        self.compiler = compiler
        self.key = root / "key"
        self.key.write_bytes(b"0123456789abcdef0123456789abcdef")
        self.key.chmod(0o600)
        shutil.copy(JOBS / "cached.py", root / "train.py")
        shutil.copy(JOBS / "light.py", root / "light.py")
        self.runs = 0
        self.tmp = self.root / "tmp"  # of an empty container: no job has left anything there
        self.tmp.mkdir()

    @property
    def store(self) -> Path:
        return self.root / "store"

    def open(self) -> ArchiveStore:
        return ArchiveStore(str(self.store), read_key(str(self.key)))

    def only(self) -> Manifest:
        """The only archive, verified."""
        (archive,) = list_archives(self.open())
        assert verify_archive(self.open(), archive) == "" and archive.manifest is not None
        return archive.manifest

    def files(self) -> set[str]:
        return {file.path for file in self.only().files}

    def env(self, **more: str) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", "TORCH"))}
        ours = {"TMPDIR": str(self.tmp), "CXX": str(self.compiler)}
        return base | quiet_env(self.root) | ours | {"GXX_LOG": str(self.root / "g++.log")} | more

    def start(
        self,
        *program: str,
        launcher: tuple[str, ...] = (HEADWAY,),
        flags: tuple[str, ...] = (),
        **env: str,
    ) -> subprocess.Popen[str]:
        self.runs += 1
        (self.root / "g++.log").write_text("")
        (self.root / "compiled").write_text("")
        cache = ("--compile-cache", str(self.store), "--cache-key", str(self.key))
        output = ("-o", f"runs/{self.runs}", "--no-report")
        return subprocess.Popen(
            [*launcher, "run", *output, *cache, *flags, "--", *program],
            cwd=self.root,
            env=self.env(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, process: subprocess.Popen[str], run: int | None = None) -> Ended:
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            process.kill()
            process.wait()
        asked = (self.root / "g++.log").read_text().splitlines()
        built = [line for line in asked if line not in ("-v", "--version")]
        folder = self.root / f"runs/{run or self.runs}"
        compiles = len((self.root / "compiled").read_text())
        return Ended(process.returncode, output, folder, built, compiles)

    def run(self, *program: str, **more: Any) -> Ended:
        return self.end(self.start(*program, **more))

    def start_light(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """A job without torch: only the messages, and files with given content."""
        return self.start(*python("light.py", *words), PYTHONPATH=str(JOBS / "stand_in"), **more)

    def light(self, *words: str, **more: Any) -> Ended:
        return self.end(self.start_light(*words, **more))


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all tests, because its path is part of torch's keys."""
    path = tmp_path_factory.mktemp("compiler") / "g++"
    path.write_text(COMPILER)
    path.chmod(0o755)
    return path


@dataclass
class First:
    """The first run of a job, and its store."""

    bench: Bench
    ended: Ended


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory, compiler: Path) -> First:
    """The only job that compiles without a cache, with a launcher that answers late."""
    bench = Bench(tmp_path_factory.mktemp("cold"), compiler)
    (bench.root / "late.py").write_text(LATE)
    launcher = (sys.executable, "late.py", str(bench.root / "runs/1/journal"))
    return First(bench, bench.run(*python("train.py"), launcher=launcher))


@pytest.fixture(scope="session")
def by_hand(tmp_path_factory: pytest.TempPathFactory, compiler: Path) -> First:
    """An archive without a compile."""
    bench = Bench(tmp_path_factory.mktemp("light"), compiler)
    return First(bench, bench.light("ab/old.py=old"))


@pytest.fixture
def bench(tmp_path: Path, compiler: Path) -> Bench:
    return Bench(tmp_path, compiler)


@pytest.fixture
def warm(bench: Bench, cold: First) -> Bench:
    """With a copy of the archive of the job that compiled."""
    assert cold.ended.code == 0, cold.ended.output
    shutil.copytree(cold.bench.store, bench.store)
    return bench


@pytest.fixture
def filled(bench: Bench, by_hand: First) -> Bench:
    """With a copy of the archive without a compile."""
    assert by_hand.ended.code == 0, by_hand.ended.output
    shutil.copytree(by_hand.bench.store, bench.store)
    return bench


def damage(store: Path) -> None:
    """Flip one bit of the largest chunk."""
    path = max((p for p in (store / "chunks").rglob("*") if p.is_file()), key=os.path.getsize)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


# -- hits ---------------------------------------------------------------------------------------


def test_the_first_run_saves_all_that_it_has_compiled(cold: First) -> None:
    assert cold.ended.code == 0, cold.ended.output
    assert cold.ended.codes == []
    assert cold.ended.built
    load, *saves = cold.ended.events("cache")
    assert (load["what"], load["level"]) == ("load", "miss")
    assert {event["what"] for event in saves} == {"save"}
    archive = cold.bench.only()
    assert archive.job == "train" and archive.cold_s == saves[-1]["cold_s"] > 0
    kinds = {Path(file.path).parts[0] for file in archive.files}
    assert {"aotautograd", "fxgraph", "dynamo", "isa"} <= kinds
    ends = {Path(file.path).suffix for file in archive.files}
    assert {".so", ".cpp", ".py"} <= ends and not ends & {".o", ".gch", ".lock", ".tmp"}
    assert [path.name for path in cold.bench.tmp.glob(f"{PREFIX}*")] == []


def test_the_wait_for_an_answer_is_a_span(cold: First) -> None:
    (journal,) = [archive for archive in cold.ended.journals() if archive.role == "process"]
    (wait,) = [span for span in journal.spans if span.name == "compile_cache"]
    first = next(span for span in journal.spans if span.name == "compile")
    assert wait.end is not None and wait.start < wait.end <= first.start


def torchrun(ranks: int) -> tuple[str, ...]:
    return (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), "train.py")


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (torchrun(2), 2),
        pytest.param(python("train.py"), 1, marks=pytest.mark.slow),
        pytest.param(torchrun(8), 8, marks=pytest.mark.slow),
    ],
    ids=["2", "1", "8"],
)
def test_in_an_empty_container_nothing_is_built(
    warm: Bench, cold: First, program: tuple[str, ...], ranks: int
) -> None:
    """All ranks of a node share one download."""
    job_end = warm.run(*program, GXX_REFUSE="1")
    assert job_end.code == 0, job_end.output
    assert job_end.built == []
    assert sorted(job_end.printed("loss")) == sorted(cold.ended.printed("loss") * ranks)
    assert job_end.load["level"] == "exact"
    if ranks == 1:
        assert [event["what"] for event in job_end.events("cache")] == ["load"]
    hits = [event["cache"] for event in job_end.events("detail") if "cache" in event]
    assert hits and all(not misses for counts in hits for _, misses in counts.values())
    names = [path.name for path in warm.tmp.iterdir()]  # not even the header of 150 MB
    assert [name for name in names if not name.startswith("torchelastic_")] == []
    assert not job_end.events("note")


def test_a_changed_model_is_compiled_anew(warm: Bench, cold: First) -> None:
    """Correct by the job's own comparison with eager, and different from the old results.

    What has not changed knows from the start which of its sizes does.
    """
    script = warm.root / "train.py"
    script.write_text(script.read_text().replace("torch.nn.ReLU()", "torch.nn.Identity()"))
    job_end = warm.run(*python("train.py"))
    assert job_end.code == 0, job_end.output
    assert job_end.load["level"] == "job"
    losses = job_end.printed("loss")
    assert len(losses) == 3 and not set(losses) & set(cold.ended.printed("loss"))
    assert cold.bench.files() < warm.files()
    assert (cold.ended.printed("graphs"), job_end.printed("graphs")) == (["2"], ["1"])


# -- refused ------------------------------------------------------------------------------------


def test_a_changed_byte_is_refused_and_the_store_mended(filled: Bench) -> None:
    damage(filled.store)
    job_end = filled.light("a/x=1")
    assert (job_end.code, job_end.compiles) == (0, 1)
    assert job_end.load["level"] == "miss" and job_end.codes == ["chunk-changed"]
    assert "a/x" in filled.files()


@pytest.mark.slow
def test_what_is_refused_is_compiled_anew(warm: Bench, cold: First) -> None:
    damage(warm.store)
    warm.tmp = cold.bench.tmp  # the header is there, only for the test to be quick
    job_end = warm.run(*python("train.py"))
    assert job_end.code == 0, job_end.output
    assert job_end.load["level"] == "miss" and len(job_end.codes) == 1
    assert job_end.built and job_end.printed("loss") == cold.ended.printed("loss")
    assert {p for p in warm.files() if p.endswith(".so")} == {
        p for p in cold.bench.files() if p.endswith(".so")
    }


def test_the_wrong_key_is_refused(filled: Bench) -> None:
    filled.key.write_bytes(b"another secret of the same length")
    job_end = filled.light("ask")
    assert job_end.code == 0
    assert job_end.load["level"] == "miss" and job_end.codes == ["signature-mismatch"]


def test_a_team_store_needs_its_key(filled: Bench) -> None:
    flags = ("--compile-cache", "memory://team", "--cache-key", "")
    job_end = filled.light(flags=flags)
    assert (job_end.code, job_end.codes) == (2, ["archive-key-missing"])
    job_end = filled.light(flags=("--cache-key", "/nowhere"))
    assert (job_end.code, job_end.codes) == (2, ["key-not-readable"])


def test_an_unsigned_archive_is_used_only_from_a_safe_folder(filled: Bench) -> None:
    own = ArchiveStore(str(filled.root / "own"))
    own.import_archive(filled.only(), filled.open().read_chunk)
    flags = ("--compile-cache", str(filled.root / "own"), "--cache-key", "")
    job_end = filled.light("ask", flags=flags)
    assert job_end.load["level"] == "exact"
    (filled.root / "own").chmod(0o777)
    job_end = filled.run("true", flags=flags)
    assert (job_end.code, job_end.codes) == (0, ["compile-cache-key-missing"])
    assert f"chmod go-w {filled.root}/own" in job_end.output
    assert not job_end.events("cache")


@pytest.mark.slow
def test_an_archive_of_another_torch_is_a_miss_that_says_so(filled: Bench) -> None:
    archive, team = filled.only(), filled.open()
    facts = {**archive.facts, "torch": "2.12.0"}
    other = ArchiveStore(str(filled.root / "other"), team.key)
    other.import_archive(replace(archive, facts=facts), team.read_chunk)
    job_end = filled.light("ask", flags=("--compile-cache", str(filled.root / "other")))
    assert job_end.code == 0
    assert job_end.load["level"] == "miss"
    assert "2.13.0" in job_end.load["why"] and "2.12.0" in job_end.load["why"]


def test_who_has_switched_caches_off_gets_none(filled: Bench) -> None:
    job_end = filled.run("env", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert (job_end.code, job_end.codes) == (0, ["compile-cache-disabled"])
    assert "HEADWAY_DIR=" in job_end.output
    assert "HEADWAY_COMPILE=" not in job_end.output and "CACHE_DIR=" not in job_end.output
    assert not job_end.events("cache") and list(filled.tmp.iterdir()) == []


def test_a_cache_folder_that_cannot_be_made_costs_the_job_nothing(bench: Bench) -> None:
    (bench.root / "file").touch()
    job_end = bench.run("true", TORCHINDUCTOR_CACHE_DIR=str(bench.root / "file"))
    assert (job_end.code, job_end.codes) == (0, ["compile-cache-unwritable"])


# -- stores that fail ---------------------------------------------------------------------------


def read_only(store: Path) -> tuple[str, ...]:
    """A launcher that cannot write to a folder; root ignores file modes."""
    if os.geteuid() != 0:
        for path in (store, *store.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
        return (HEADWAY,)
    mount = f"mount --bind {store} {store} && mount -o remount,ro,bind {store}"
    words = ("unshare", "-m", "/bin/sh", "-c", f'{mount} && exec "$@"', "-")
    if subprocess.run([*words, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("no mount namespaces here, and root may write everywhere")
    return (*words, HEADWAY)


@pytest.mark.slow
def test_a_store_that_can_only_be_read_is_used(filled: Bench) -> None:
    job_end = filled.light("ab/new.py=new", launcher=read_only(filled.store))
    assert (job_end.code, job_end.codes) == (0, ["compile-cache-save-failed"])
    assert job_end.load["level"] == "exact"
    assert re.search("Read-only file system|Permission denied", job_end.output)


def test_a_store_that_goes_in_mid_job(filled: Bench) -> None:
    job_end = filled.light("ab/new.py=new", f"break:{filled.store}")
    assert (job_end.code, job_end.codes) == (0, ["compile-cache-save-failed"])
    assert job_end.load["level"] == "exact"
    assert re.search("Not a directory|File exists", job_end.output)


def stalled(bench: Bench, owner: str, name: str, first: int) -> tuple[str, ...]:
    (bench.root / "stalled.py").write_text(STALLED)
    words = ("stalled.py", owner, name, str(first), str(bench.root / "mark"))
    return (sys.executable, *words)


@pytest.fixture
def killed(bench: Bench) -> Iterator[Callable[..., None]]:
    """Run a job until its launcher stalls, and kill the launcher."""
    started: list[subprocess.Popen[str]] = []

    def kill(*words: str, launcher: tuple[str, ...]) -> None:
        process = bench.start_light(*words, launcher=launcher)
        started.append(process)
        wait_until((bench.root / "mark").exists)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)  # the job gets SIGTERM, and closes its output

    yield kill
    for process in started:
        process.kill()


# Which write of a save never ends: that of the second chunk, of the facts, of the manifest.
@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_launcher_that_is_killed_while_it_saves(
    filled: Bench, killed: Callable[..., None], first: int
) -> None:
    before = filled.files()
    new = ("a/x=0*1100000", "a/y=1*1100000")  # each a chunk of its own
    killed(*new, launcher=stalled(filled, "os", "fsync", first))
    assert len(list((filled.store / "drafts").iterdir())) >= 1
    assert filled.files() == before  # the old one, whole
    (leftovers,) = filled.tmp.glob(f"{PREFIX}*")
    os.utime(leftovers, (1e9, 1e9))
    after = filled.light(*new)
    assert after.load["level"] == "exact"
    assert filled.files() >= before | {"a/x", "a/y"}
    assert list(filled.tmp.glob(f"{PREFIX}*")) == []


def test_a_launcher_that_is_killed_while_it_loads(filled: Bench) -> None:
    """The first read is of the manifest; a job that survives the launcher compiles without it."""
    process = filled.start_light("deaf", launcher=stalled(filled, "FolderObjectPlace", "read", 1))
    wait_until((filled.root / "mark").exists)
    process.send_signal(signal.SIGKILL)
    assert filled.end(process).compiles == 1
    filled.only()


@pytest.mark.slow
def test_of_two_jobs_that_save_at_once_the_third_has_all(bench: Bench) -> None:
    archive = bench.start_light("a/x=1", "meet:one:two")
    two = bench.start_light("a/y=2", "meet:two:one")
    job_end = bench.end(archive, 1), bench.end(two, 2)
    assert [job.code for job in job_end] == [0, 0]
    assert [job.load["level"] for job in job_end] == ["miss", "miss"]
    first, second = (archive.manifest for archive in list_archives(bench.open()))
    assert first and second
    both = {file.path for archive in (first, second) for file in archive.files}
    assert {"a/x", "a/y"} <= both
    load = bench.light("ask").load
    assert (load["level"], load["files"]) == ("exact", len(both))


# -- attempts -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("warm", [(), ("--warm",)])
def test_a_restart_finds_what_the_first_attempt_compiled(
    bench: Bench, warm: tuple[str, ...]
) -> None:
    flags = ("--restarts", "2", *warm)
    job_end = bench.light("a/x=1", "a/half.so=ELF", "die", flags=flags)
    assert job_end.code == 0, job_end.output
    assert job_end.compiles == 2
    assert [event["what"] for event in job_end.events("cache")][:2] == ["load", "save"]
    assert job_end.events("cache")[0]["level"] == "miss"
    assert "a/x" in bench.files() and "a/half.so" not in bench.files()
