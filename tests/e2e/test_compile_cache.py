"""The compile cache as a person uses it: real torch, real stores, and everything that can fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headway.compile.archive.keep import shelf, verify
from headway.compile.archive.manifest import Manifest
from headway.compile.archive.signing import read_key
from headway.compile.archive.store import Store
from headway.compile.courier import PREFIX

from .conftest import BIN, JOBS, python, quiet_env

pytestmark = pytest.mark.timeout(110)

# Notes each call; answers what it is, and builds only where it may.
COMPILER = """#!/bin/bash
echo "$*" >> "$GXX_LOG"
case "$*" in -v | --version) ;; *) [ -z "$GXX_REFUSE" ] || exit 1 ;; esac
exec g++ "$@"
"""
# A launcher in which one call of a module never comes back, from the given one on.
STALLED = """
import itertools, os, sys, time
from headway.compile.archive import places
owner = {"os": os, "Folder": places.Folder}[sys.argv[1]]
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


@dataclass
class Ended:
    """How a job ended, and what it and its launcher said."""

    code: int
    output: str
    folder: Path
    compiler: list[str] = field(default_factory=list)

    @property
    def losses(self) -> list[str]:
        return re.findall(r"^loss (\S+)", self.output, re.M)

    @property
    def cache(self) -> str:
        """The line that says what was found."""
        (line,) = re.findall(r"^headway: compile cache: (.*)", self.output, re.M)
        return str(line)

    def events(self, ev: str) -> list[dict[str, Any]]:
        found = []
        for path in sorted((self.folder / "journal").glob("*.jsonl")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found += [line for line in lines if line["ev"] == ev]
        return found


class Bench:
    """A folder with the job, a key, a compiler, and a place for temporary files."""

    def __init__(self, root: Path, bin_: Path) -> None:
        self.root = root
        self.bin = bin_
        self.key = root / "key"
        self.key.write_bytes(b"0123456789abcdef0123456789abcdef")
        self.key.chmod(0o600)
        shutil.copy(JOBS / "cached.py", root / "train.py")
        self.runs = 0
        self.fresh()

    def fresh(self) -> None:
        """An empty container: nothing is left of what any job has put into temporary files."""
        self.tmp = self.root / f"tmp{self.runs}"
        self.tmp.mkdir()

    @property
    def store(self) -> Path:
        return self.root / "store"

    def open(self) -> Store:
        return Store(str(self.store), read_key(str(self.key)))

    def only(self) -> Manifest:
        """The archive, whole."""
        (one,) = shelf(self.open())
        assert verify(self.open(), one) == "" and one.manifest is not None
        return one.manifest

    def env(self, **more: str) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", "TORCH"))}
        quiet = quiet_env(self.root)
        ours = {"TMPDIR": str(self.tmp), "CXX": str(self.bin / "g++")}
        return base | quiet | ours | {"GXX_LOG": str(self.root / "g++.log")} | more

    def start(
        self,
        *words: str,
        launcher: tuple[str, ...] = (str(BIN / "headway"),),
        flags: tuple[str, ...] = (),
        program: tuple[str, ...] = python("train.py"),
        **env: str,
    ) -> subprocess.Popen[str]:
        self.runs += 1
        (self.root / "g++.log").write_text("")
        key = ("--cache-key", str(self.key))
        cache = ("--compile-cache", str(self.store), *key)
        output = ("-o", f"runs/{self.runs}", "--no-report")
        return subprocess.Popen(
            [*launcher, "run", *output, *cache, *flags, "--", *program, *words],
            cwd=self.root,
            env=self.env(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, process: subprocess.Popen[str], run: int | None = None) -> Ended:
        output, _ = process.communicate(timeout=100)
        asked = (self.root / "g++.log").read_text().splitlines()
        built = [line for line in asked if line not in ("-v", "--version")]
        return Ended(process.returncode, output, self.root / f"runs/{run or self.runs}", built)

    def run(self, *words: str, **more: Any) -> Ended:
        return self.end(self.start(*words, **more))

    def light(self, *words: str, **more: Any) -> Ended:
        """Without inductor: only the talk, and files that are put there by hand."""
        return self.run(*words, BACKEND="eager", **more)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, as its path is a part of torch's keys."""
    folder = tmp_path_factory.mktemp("compiler")
    (folder / "g++").write_text(COMPILER)
    (folder / "g++").chmod(0o755)
    return folder


@dataclass
class Made:
    """What the first run of the job has left."""

    bench: Bench
    ended: Ended


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, compiler: Path) -> Made:
    """The one compile from nothing."""
    bench = Bench(tmp_path_factory.mktemp("first"), compiler)
    return Made(bench, bench.run())


@pytest.fixture
def bench(tmp_path: Path, compiler: Path) -> Bench:
    return Bench(tmp_path, compiler)


@pytest.fixture
def filled(bench: Bench, made: Made) -> Bench:
    """With a copy of what the first run has saved."""
    assert made.ended.code == 0, made.ended.output
    shutil.copytree(made.bench.store, bench.store, dirs_exist_ok=True)
    return bench


def libraries(one: Manifest) -> set[str]:
    return {file.path for file in one.files if file.path.endswith(".so")}


def damage(store: Path) -> None:
    """One bit of the largest chunk."""
    path = max((p for p in (store / "chunks").rglob("*") if p.is_file()), key=os.path.getsize)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


# -- hits ---------------------------------------------------------------------------------------


def test_the_first_run_saves_all_that_it_has_compiled(made: Made) -> None:
    assert made.ended.code == 0, made.ended.output
    assert made.ended.cache == "nothing for this job yet (the store is empty)"
    assert made.ended.compiler
    load, *saves = made.ended.events("cache")
    assert (load["what"], load["level"]) == ("load", "miss")
    assert {event["what"] for event in saves} == {"save"}
    one = made.bench.only()
    assert one.job == "train" and one.cold_s == saves[-1]["cold_s"] > 0
    kinds = {Path(file.path).parts[0] for file in one.files}
    assert {"aotautograd", "fxgraph", "dynamo", "isa"} <= kinds
    ends = {Path(file.path).suffix for file in one.files}
    assert {".so", ".cpp", ".py"} <= ends and not ends & {".o", ".gch", ".lock", ".tmp"}
    assert [path.name for path in made.bench.tmp.glob(f"{PREFIX}*")] == []


def test_in_an_empty_container_nothing_is_built(filled: Bench, made: Made) -> None:
    ended = filled.run(GXX_REFUSE="1")
    assert ended.code == 0, ended.output
    assert ended.cache.startswith("exact archive of train, ")
    assert ended.compiler == []
    assert ended.losses == made.ended.losses
    assert [event["what"] for event in ended.events("cache")] == ["load"]
    hits = [event["cache"] for event in ended.events("detail") if "cache" in event]
    assert hits and all(not misses for counts in hits for _, misses in counts.values())
    assert list(filled.tmp.iterdir()) == []  # not even the header of 150 MB
    assert not ended.events("note")


def torchrun(ranks: int) -> tuple[str, ...]:
    return (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), "train.py")


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_all_ranks_of_a_node_share_one_download(filled: Bench, made: Made, ranks: int) -> None:
    ended = filled.run(program=torchrun(ranks), GXX_REFUSE="1")
    assert ended.code == 0, ended.output
    assert ended.cache.startswith("exact archive of train, ")
    assert ended.compiler == []
    assert sorted(ended.losses) == sorted(made.ended.losses * ranks)
    assert len([event for event in ended.events("cache") if event["what"] == "load"]) == 1


def test_a_changed_model_is_compiled_anew(filled: Bench, made: Made) -> None:
    """Right by the job's own comparison with eager, and not the numbers of the old one."""
    script = filled.root / "train.py"
    script.write_text(script.read_text().replace("torch.nn.ReLU()", "torch.nn.Tanh()"))
    filled.tmp = made.bench.tmp  # the header is there, only for the test to be quick
    ended = filled.run()
    assert ended.code == 0, ended.output
    assert "the code has changed since it was made" in ended.cache
    assert len(ended.losses) == 3 and not set(ended.losses) & set(made.ended.losses)
    saved = filled.only()
    assert {file.path for file in made.bench.only().files} < {file.path for file in saved.files}


# -- refused ------------------------------------------------------------------------------------


def test_a_changed_byte_is_refused_and_the_store_mended(filled: Bench) -> None:
    damage(filled.store)
    ended = filled.light("a/x=1")
    assert ended.code == 0 and len(ended.losses) == 3
    assert re.search(r"the archive \S+ of train is not used: its chunk \w+ ", ended.cache)
    assert "a/x" in {file.path for file in filled.only().files}


@pytest.mark.slow
def test_what_is_refused_is_compiled_anew(filled: Bench, made: Made) -> None:
    damage(filled.store)
    filled.tmp = made.bench.tmp
    ended = filled.run()
    assert ended.code == 0, ended.output
    assert "is not used: its chunk" in ended.cache
    assert ended.compiler and ended.losses == made.ended.losses
    assert libraries(filled.only()) == libraries(made.bench.only())


def test_the_wrong_key_is_refused(filled: Bench) -> None:
    filled.key.write_bytes(b"another secret of the same length")
    ended = filled.run("ask")
    assert ended.code == 0
    assert ended.cache.endswith("is not used: it was changed, or signed with another key)")


def test_a_team_store_needs_its_key(filled: Bench) -> None:
    for flags, code in (((), 0), (("--cache-key", "/nowhere"), 2)):
        done = subprocess.run(
            [
                *(str(BIN / "headway"), "run", "--no-report", "-o", f"runs/{code}"),
                *("--compile-cache", "memory://team" if not flags else str(filled.store), *flags),
                *("--", "true"),
            ],
            cwd=filled.root,
            env=filled.env(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert "key" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_an_unsigned_archive_is_used_only_from_a_safe_folder(filled: Bench) -> None:
    own = Store(str(filled.root / "own"))
    own.adopt(filled.only(), filled.open().chunk)
    flags = ("--compile-cache", str(filled.root / "own"), "--cache-key", "")
    ended = filled.run("ask", flags=flags)
    assert ended.cache.startswith("exact archive of train, ")
    (filled.root / "own").chmod(0o777)
    ended = filled.run(flags=flags, program=("true",))
    assert ended.code == 0
    told = f"not used, {filled.root}/own can be written by others; type: chmod go-w "
    assert ended.cache.startswith(told)
    assert not ended.events("cache")


@pytest.mark.slow
def test_an_archive_of_another_torch_is_a_miss_that_says_so(filled: Bench) -> None:
    one, team = filled.only(), filled.open()
    facts = {**one.facts, "torch": "2.12.0"}
    other = Store(str(filled.root / "other"), team.key)
    other.adopt(replace(one, facts=facts), team.chunk)
    ended = filled.run("ask", flags=("--compile-cache", str(filled.root / "other")))
    assert ended.code == 0
    assert re.search(r"nothing .* \(torch is 2\.\S+ here and was 2\.12\.0\)", ended.cache)


def test_who_has_switched_caches_off_gets_none(filled: Bench) -> None:
    ended = filled.run(program=("env",), TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    assert ended.code == 0
    assert ended.cache == "not used, TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 is set"
    assert "HEADWAY_DIR=" in ended.output
    assert "HEADWAY_COMPILE=" not in ended.output and "CACHE_DIR=" not in ended.output
    assert not ended.events("cache") and list(filled.tmp.iterdir()) == []


def test_a_cache_folder_that_cannot_be_made_costs_the_job_nothing(bench: Bench) -> None:
    (bench.root / "file").touch()
    ended = bench.run(program=("true",), TORCHINDUCTOR_CACHE_DIR=str(bench.root / "file"))
    assert ended.code == 0
    assert ended.cache == f"not used, {bench.root}/file: File exists"


# -- stores that fail ---------------------------------------------------------------------------


def read_only(store: Path) -> tuple[str, ...]:
    """A launcher to which a folder is read-only; root may write whatever its mode is."""
    if os.geteuid() != 0:
        for path in (store, *store.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
        return (str(BIN / "headway"),)
    mount = f"mount --bind {store} {store} && mount -o remount,ro,bind {store}"
    words = ("unshare", "-m", "/bin/sh", "-c", f'{mount} && exec "$@"', "-")
    if subprocess.run([*words, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("no mount namespaces here, and root may write everywhere")
    return (*words, str(BIN / "headway"))


@pytest.mark.slow
def test_a_store_that_can_only_be_read_is_used(filled: Bench) -> None:
    ended = filled.light("ab/new.py=new", launcher=read_only(filled.store))
    assert ended.code == 0
    assert ended.cache.startswith("exact archive of train, ")
    (line,) = re.findall(r"headway: the compile cache could not be saved .*", ended.output)
    assert line.endswith(("Read-only file system", "Permission denied"))


def test_a_store_that_goes_in_mid_job(filled: Bench) -> None:
    ended = filled.light("ab/new.py=new", f"break:{filled.store}")
    assert ended.code == 0
    assert ended.cache.startswith("exact archive of train, ")
    (line,) = re.findall(r"headway: the compile cache could not be saved .*", ended.output)
    assert line.endswith(("Not a directory", "File exists"))


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def stalled(bench: Bench, owner: str, name: str, first: int) -> tuple[str, ...]:
    (bench.root / "stalled.py").write_text(STALLED)
    words = ("stalled.py", owner, name, str(first), str(bench.root / "mark"))
    return (sys.executable, *words)


@pytest.fixture
def killed(bench: Bench) -> Iterator[Callable[..., None]]:
    """Runs a job until its launcher stalls, and kills that."""
    started: list[subprocess.Popen[str]] = []

    def kill(*words: str, launcher: tuple[str, ...]) -> None:
        process = bench.start(*words, launcher=launcher, BACKEND="eager")
        started.append(process)
        until((bench.root / "mark").exists)
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
    before = {file.path for file in filled.only().files}
    new = ("a/x=0*1100000", "a/y=1*1100000")  # each a chunk of its own
    killed(*new, launcher=stalled(filled, "os", "fsync", first))
    assert len(list((filled.store / "drafts").iterdir())) >= 1
    assert {file.path for file in filled.only().files} == before  # the old one, whole
    (left,) = filled.tmp.glob(f"{PREFIX}*")
    os.utime(left, (1e9, 1e9))
    after = filled.light(*new)
    assert after.cache.startswith("exact archive of train, ")
    assert {file.path for file in filled.only().files} >= before | {"a/x", "a/y"}
    assert list(filled.tmp.glob(f"{PREFIX}*")) == []


def test_a_launcher_that_is_killed_while_it_loads(filled: Bench) -> None:
    """The first read is of the manifest; a job that is not ended with it compiles by itself."""
    process = filled.start("deaf", launcher=stalled(filled, "Folder", "read", 2), BACKEND="eager")
    until((filled.root / "mark").exists)
    process.send_signal(signal.SIGKILL)
    assert len(filled.end(process).losses) == 3
    filled.only()


@pytest.mark.slow
def test_of_two_jobs_that_save_at_once_the_third_has_all(bench: Bench) -> None:
    one = bench.start("a/x=1", "meet:one:two", BACKEND="eager")
    two = bench.start("a/y=2", "meet:two:one", BACKEND="eager")
    ended = bench.end(one, 1), bench.end(two, 2)
    assert [job.code for job in ended] == [0, 0]
    assert {job.cache for job in ended} == {"nothing for this job yet (the store is empty)"}
    first, second = (one.manifest for one in shelf(bench.open()))
    assert first and second
    both = {file.path for one in (first, second) for file in one.files}
    assert {"a/x", "a/y"} <= both
    (load,) = bench.run("ask").events("cache")
    assert (load["level"], load["files"]) == ("exact", len(both))


# -- attempts -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("warm", [(), ("--warm",)])
def test_a_restart_finds_what_the_first_attempt_compiled(
    bench: Bench, warm: tuple[str, ...]
) -> None:
    flags = ("--restarts", "2", *warm)
    ended = bench.light("a/x=1", "a/half.so=ELF", "die", flags=flags)
    assert ended.code == 0, ended.output
    assert len(ended.losses) == 6
    assert ended.cache == "nothing for this job yet (the store is empty)"
    assert [event["what"] for event in ended.events("cache")][:2] == ["load", "save"]
    assert {file.path for file in bench.only().files} >= {"a/x"}
    assert "a/half.so" not in {file.path for file in bench.only().files}


# -- headway cache ------------------------------------------------------------------------------


def headway(bench: Bench, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "headway"), "cache", *words],
        cwd=bench.root,
        env=bench.env(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_looking_after_a_store(filled: Bench) -> None:
    key = ("--cache-key", "key")
    one = filled.only()
    listed = json.loads(headway(filled, "list", "store", "--json", *key).stdout)
    assert [row["id"] for row in listed] == [one.id]
    assert f"{len(one.files)} files" in headway(filled, "list", "store", *key).stdout
    shown = json.loads(headway(filled, "show", "store", one.id[:6], "--json", *key).stdout)
    assert shown["content"] == {file.path: file.size for file in one.files}
    assert headway(filled, "verify", "store", *key).stdout.endswith(
        "1 of 1 archives are whole and may be used\n"
    )
    stats = json.loads(headway(filled, "stats", "store", "--json", *key).stdout)
    assert stats["archives"] == 1 and stats["bytes_in_archives"] == one.size
    assert 0 < stats["bytes_stored"] < one.size
    pulled = headway(filled, "pull", "store", one.id, "folder", *key)
    assert pulled.returncode == 0, pulled.stderr
    assert all((filled.root / "folder" / file.path).exists() for file in one.files)
    (filled.root / "other.key").write_bytes(b"a key of the other team")
    (filled.root / "other.key").chmod(0o600)
    pushed = headway(filled, "push", "store", "theirs", "--target-key", "other.key", *key)
    assert pushed.returncode == 0, pushed.stderr
    assert headway(filled, "verify", "theirs", "--cache-key", "other.key").returncode == 0
    assert headway(filled, "verify", "theirs", *key).returncode == 1
    dry = headway(filled, "gc", "store", "--max-size", "0", "--dry-run", *key)
    assert dry.stdout.startswith("1 archives and ") and "would be" in dry.stdout
    filled.only()
    assert headway(filled, "gc", "store", "--max-size", "0", *key).returncode == 0
    assert headway(filled, "list", "store", *key).stdout == "no archives in store\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("show", "store"), "name one archive"),
        (("show", "store", "zzz"), "no archive in store with a name like zzz"),
        (("pull", "store", "zzz"), "pull needs an archive and a folder"),
        (("push", "store"), "push needs another store"),
        (("gc", "store", "--max-size", "many"), "--max-size is 'many', but it must be like 50G"),
        (("gc", "store", "--max-age", "5x"), "--max-age is '5x', but it must be like 30d"),
        (("list", "train.py"), "train.py is a file; archives need a folder or a URL"),
        (("list", "store", "--cache-key", "none"), "the key none cannot be read"),
    ],
)
def test_wrong_use_is_one_sentence(bench: Bench, words: tuple[str, ...], told: str) -> None:
    done = headway(bench, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert told in line


def test_a_damaged_store_is_told_by_verify(filled: Bench) -> None:
    damage(filled.store)
    done = headway(filled, "verify", "store", "--cache-key", "key")
    assert done.returncode == 1
    assert "its chunk" in done.stdout
    assert done.stdout.endswith("0 of 1 archives are whole and may be used\n")


def test_nothing_is_pulled_from_a_folder_that_others_can_write(filled: Bench) -> None:
    own = Store(str(filled.root / "own"))
    one = filled.only()
    own.adopt(one, filled.open().chunk)
    (filled.root / "own/chunks").chmod(0o777)
    done = headway(filled, "pull", "own", one.id, "folder")
    assert done.returncode == 2 and "archives are run as code" in done.stderr
    assert not (filled.root / "folder").exists()
