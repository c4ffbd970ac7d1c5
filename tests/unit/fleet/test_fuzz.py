"""Damaged stores and hostile files: a sentence that names the file, never a traceback or a hang."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.fleet.store.compaction import collect_garbage, compact
from headway.fleet.store.parquet import Store
from tests.support import codes
from tests.unit.fleet.importers.ledgers import SAMPLES
from tests.unit.fleet.store_rows import START, merge_rows, run_rows

pytestmark = [pytest.mark.timeout(3000), pytest.mark.xdist_group("fuzz")]
SEED = 21
JUNK = [
    *(b"", b"{", b"null", b"[]", b"5", b'"x"', b"{}", b"\xff\xfe\x00", b"\x00" * 4096),
    *(b"[" * 200_000, b'{"a":' * 200_000, b'{"replaces": 5}', b'{"replaces": [[1], {}]}'),
    *(b'{"replaces": [1e999, null]}', b'{"schema": 1e999, "replaces": []}', b"9" * 10_000),
]


def told(*words: str) -> tuple[int, str]:
    """The exit code of a command, and what it printed to stderr; any exception fails the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return code, err.getvalue()


def is_a_sentence(text: str) -> bool:
    """With a code, and no traceback or class of Python in it."""
    return bool(codes(text)) and "Traceback" not in text and "internal-fault" not in text


# -- stores -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with writes, a settled compaction and one that is not settled yet."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    store = Store(str(folder))
    for run in range(3):
        store.write(run_rows(f"run{run}", start=START + timedelta(hours=run)), as_of=100.0 + run)
    compact(store)
    collect_garbage(store, 0.0)
    for run in range(3, 6):
        store.write(
            merge_rows(run_rows(f"run{run}", hours=2), run_rows("run0", hours=run)),
            as_of=100.0 + run,
        )
    compact(store)
    store.write(run_rows("run7"), as_of=200.0)
    return folder


def damage(path: Path, draw: random.Random) -> str:
    """One of its files is changed: a bit, its length, its content, its name, or it is gone."""
    files = sorted(one for one in path.rglob("*") if one.is_file())
    markers = [one for one in files if one.suffix != ".parquet"]
    file = draw.choice(markers if draw.random() < 0.4 else files)
    content = bytearray(file.read_bytes())
    kind = draw.choice(("bits", "bits", "cut", "junk", "gone", "other", "zeros", "longer"))
    if kind == "bits":
        for _ in range(draw.choice((1, 1, 4, 64)) if content else 0):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del content[draw.randrange(len(content) + 1) :]
    elif kind == "junk":
        content = bytearray(draw.choice(JUNK))
    elif kind == "zeros" and content:
        begin = draw.randrange(len(content))
        end = min(begin + draw.randrange(1, 200), len(content))
        content[begin:end] = bytes(end - begin)
    elif kind == "longer":
        content += draw.randbytes(draw.randrange(1, 100))
    elif kind == "other":
        content = bytearray(draw.choice(files).read_bytes())
    file.unlink()
    if kind != "gone":
        file.write_bytes(content)
    return f"{kind} of {file.relative_to(path)}"


def variants(folder: Path, count: int, seed: int, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Copies with one or two damages each."""
    draw = random.Random(seed)
    for number in range(count):
        copy = tmp_path / f"{number}"
        shutil.copytree(folder, copy)
        names = [damage(copy, draw) for _ in range(draw.choice((1, 1, 1, 2)))]
        yield f"seed {seed}, variant {number}: {'; '.join(names)}", copy
        shutil.rmtree(copy)


def damaged_stores(folder: Path, count: int, seed: int, tmp_path: Path) -> None:
    for name, copy in variants(folder, count, seed, tmp_path):
        question = ("ett", "tts", "failures", "nodes", "top")[count % 5]
        for words in (("fleet", question, "--json"), ("fleet", "compact")):
            code, text = told(*words, "--store", str(copy))
            assert code == 0 or is_a_sentence(text), f"{name}: {words}: {code}: {text}"
            assert "Traceback" not in text, name


def test_a_damaged_store_is_a_sentence(whole: Path, tmp_path: Path) -> None:
    damaged_stores(whole, 12, SEED, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_damaged_stores(whole: Path, tmp_path: Path, part: int) -> None:
    damaged_stores(whole, 250, SEED + 1 + part, tmp_path)


# -- importers --------------------------------------------------------------------------------

VALUES: list[Any] = [
    *(None, True, -1, 0, 10**30, 1e308, -1e308, float("inf"), float("nan"), 1.5, "", "x", "\ud800"),
    *([], {}, [[]], {"a": {}}, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "n[0-999999999]"),
    *("gres/gpu=99999999", "n[", "\x00", "a" * 5000, "٣", "1e400", ["x"], {"number": 1e400}),
]


def samples() -> dict[str, str]:
    """A file of each importer, by the importer's name."""
    from tests.unit.fleet.importers.test_kubernetes import listed, pod
    from tests.unit.fleet.importers.test_kueue import ADMITTED, workload
    from tests.unit.fleet.importers.test_ray import T, actor, job

    pods = [
        pod("a", 0, 1, 10, 100, code=137, disrupted=(95, "PreemptionByScheduler")),
        pod("b", 160, 170, 180, 300, code=137, reason="OOMKilled"),
        pod("c", 0, 1, 320, 400, index=1),
    ]
    cycle = {
        "job_id": "7",
        "attempt_index": 0,
        "cycle_number": 0,
        "cycle_start_time": "2026-11-16T05:00:00Z",
        "cycle_end_time": "2026-11-16T06:00:00Z",
        "active_nodes": "n[01-04]",
    }
    tasks = [actor(n, (T + n) * 1000, (T + 15) * 1000, (T + 20) * 1000) for n in range(3)]
    titan = sorted((SAMPLES / "torchtitan").iterdir())[0]
    return {
        "slurm": (SAMPLES / "sacct_D.json").read_text(),
        "slurm.psv": (SAMPLES / "sacct_D.psv").read_text(),
        "kubernetes": json.dumps(listed(*pods)),
        "kueue": json.dumps(workload(**ADMITTED, Finished=(600, "Succeeded"))),
        "ray": json.dumps([job(), *tasks]),
        "torchelastic": (SAMPLES / "torchelastic.txt").read_text(),
        "torchtitan": titan.read_text(),
        "nvrx": json.dumps([cycle, {**cycle, "cycle_number": 1}]),
        "one_logger": (SAMPLES / "one_logger.jsonl").read_text(),
        "ml_goodput": (SAMPLES / "ml_goodput.jsonl").read_text(),
    }


def broken(text: str, draw: random.Random) -> str:
    """A text with something changed: a value of its JSON, a cell, letters, its end."""
    kind = draw.choice(("value", "value", "value", "letters", "cut", "twice", "deep"))
    if kind == "letters":
        letters = list(text)
        for _ in range(draw.choice((1, 5, 50))):
            letters[draw.randrange(len(letters))] = chr(draw.choice((0, 34, 44, 48, 91, 123, 8232)))
        return "".join(letters)
    if kind == "cut":
        return text[: draw.randrange(len(text))]
    if kind == "twice":
        return text + text
    if kind == "deep":
        begin = draw.randrange(len(text))
        return text[:begin] + draw.choice(('{"a":', "[", '[{"a":')) * 100_000 + text[begin:]
    return _with_a_value(text, draw)


def _with_a_value(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    try:
        documents = [json.loads(text)]
    except ValueError:
        try:
            documents = [json.loads(line) for line in lines]
        except ValueError:
            number = draw.randrange(len(lines))
            cells = lines[number].split("|")
            cells[draw.randrange(len(cells))] = str(draw.choice(VALUES)).replace("\ud800", "?")
            lines[number] = "|".join(cells)
            return "\n".join(lines)
    places: list[Callable[[Any], None]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict | list):
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                places.append(lambda new, value=value, key=key: value.__setitem__(key, new))
                if isinstance(value, dict):
                    places.append(lambda new, value=value, key=key: value.pop(key, None))
                walk(value[key])

    walk(documents)
    for _ in range(draw.choice((1, 1, 2, 5))):
        with contextlib.suppress(KeyError, IndexError):
            draw.choice(places)(draw.choice(VALUES))
    return "\n".join(map(json.dumps, documents))


def hostile_files(count: int, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    files = samples()
    for number in range(count):
        name = sorted(files)[number % len(files)]
        file = tmp_path / f"{name}-{number}.json"
        text = broken(files[name], draw)
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        store = tmp_path / f"store-{number}"
        known = ["--reader", name.partition(".")[0]] if draw.random() < 0.7 else []
        code, said = told("ingest", str(file), *known, "--store", str(store), "--quiet")
        what = f"seed {seed}, {file}: {code}: {said[:500]}"
        assert "Traceback" not in said, what
        assert code == 0 or (code == 2 and is_a_sentence(said) and file.name in said), what
        shutil.rmtree(store, ignore_errors=True)
        file.unlink()


def test_a_hostile_file_is_a_sentence_that_names_it(tmp_path: Path) -> None:
    hostile_files(48, SEED, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_hostile_files(tmp_path: Path, part: int) -> None:
    hostile_files(500, SEED + 1 + part, tmp_path)
