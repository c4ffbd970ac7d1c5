"""How fast a store takes runs and answers, from a thousand runs to 100 M rows of buckets.

The fleets are those of `headway fleet simulate`, compacted: 1,000, 10,000 and 100,000 runs as they
are, and 100,000 runs with eleven times as many ranks each, which makes the 100 M rows of buckets.
Every question is asked as `headway fleet QUESTION` in a fresh process that may have 2 GB of address
space (RLIMIT_AS) and two cores, and then three times more in that process. Beside them stands what
DuckDB needs to sum one column of the same files and nothing else.

    python benchmarks/fleet.py [--work DIR] [--only stores,ingest,queries,pages,spark] [--keep]

Stores are left in DIR, if one is given, and taken from there the next time: 1.2 GB. `spark` needs
the environment that `make test-spark` makes. Other work on the machine makes all wall times longer;
processor time stands beside them.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from keep import FOLDER, keep  # noqa: E402
from ledger import PEAK, write_run  # noqa: E402

from headway.fleet.queries.queries import QUERIES  # noqa: E402
from headway.fleet.schema import TABLES  # noqa: E402
from headway.fleet.store.parquet import Store  # noqa: E402
from headway.fleet.store.reader import run_query  # noqa: E402
from headway.serve.pages import PAGES  # noqa: E402

STORES = {
    "1k": ("--jobs", "1000"),
    "10k": ("--jobs", "10000"),
    "100k": ("--jobs", "100000"),
    "100m": ("--jobs", "100000", "--scale", "11"),
}
MUST_S, MUST_MB, MUST_ROWS = 3.0, 2048.0, 100_000_000
INGESTED = 40  # runs of 8 ranks and 10,000 steps
ROUNDS = 3
FRESH = {"1k": 1, "10k": 1, "100k": 2, "100m": 3}  # processes for each question
# Both the address space and the cores are limited before anything else is loaded.
ASK = """
import contextlib, io, json, os, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
name, url, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
from headway.cli import main
with contextlib.redirect_stdout(io.StringIO()) as said:
    assert main(["fleet", name, "--store", url, "--json"]) == 0
told = {"answered_at": time.time(), "cold_cpu_s": time.process_time()}
from headway.fleet.store.reader import run_query
from headway.fleet.queries.queries import build_query
from headway.fleet.queries.dimensions import Filter
from headway.fleet.store.parquet import Store
warm = []
for _ in range(rounds):
    wall, cpu = time.perf_counter(), time.process_time()
    rows = run_query(Store(url), build_query(name, Filter())).rows.num_rows
    warm.append((time.perf_counter() - wall, time.process_time() - cpu))
told["warm_s"], told["warm_cpu_s"] = (min(one) for one in zip(*warm))
told["peak_mb"], told["rows"] = peak(), rows
assert rows == len(json.loads(said.getvalue()))
print(json.dumps(told))
"""
SUM = """
import json, os, sys, time
import duckdb
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
con = duckdb.connect()
con.execute("SET memory_limit = '2GB'; SET threads = 2; SET enable_progress_bar = false")
found = []
for _ in range(int(sys.argv[3])):
    wall, cpu = time.perf_counter(), time.process_time()
    con.execute(
        "SELECT sum(seconds) FROM read_parquet(?)", [f"{sys.argv[1]}/{sys.argv[2]}/*/*.parquet"]
    ).fetchone()
    found.append((time.perf_counter() - wall, time.process_time() - cpu))
wall, cpu = (min(one) for one in zip(*found))
print(json.dumps({"sum_s": wall, "sum_cpu_s": cpu}))
"""


def child(program: str, *arguments: str) -> dict[str, Any]:
    """What a fresh process prints, and the seconds from its start to its first answer."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", PEAK + program, *arguments]
    began = time.time()
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    if "answered_at" in told:
        told["cold_s"] = told.pop("answered_at") - began
    return {name: round(value, 4) for name, value in told.items()}


def headway(*words: str) -> dict[str, float]:
    """A command to its end: seconds of the wall and of the processors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    command = [sys.executable, "-m", "headway", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def stores(work: Path) -> dict[str, Any]:
    """Each store: how it was made, and what it holds."""
    found = {}
    for name, words in STORES.items():
        notes = work / f"{name}.json"
        if not notes.exists():
            url = str(work / name)
            made = {"simulate": headway("fleet", "simulate", "--store", url, *words)}
            made["compact"] = headway("fleet", "compact", "--store", url, "--grace", "0")
            headway("fleet", "compact", "--store", url, "--grace", "0")  # what was replaced goes
            notes.write_text(json.dumps(made))
        found[name] = {**json.loads(notes.read_text()), **_held(work / name)}
        print(name, json.dumps(found[name]), flush=True)
    return found


def _held(folder: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    rows, size = {}, {}
    for table in TABLES:
        files = list((folder / table).glob("*/*.parquet"))
        rows[table] = sum(pq.read_metadata(file).num_rows for file in files)
        size[table] = sum(file.stat().st_size for file in files)
    total = sum(size.values())
    return {
        "rows": rows,
        "bytes": size,
        "bytes_a_run": round(total / rows["runs"]),
        "bytes_a_run_without_buckets": round((total - size["buckets"]) / rows["runs"]),
        "bytes_a_bucket_row": round(size["buckets"] / rows["buckets"], 2),
    }


def ingest(work: Path) -> dict[str, Any]:
    """The command on folders of journals, and `Store.write` of rows that are there already."""
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        folder = Path(scratch)
        runs = [folder / f"run-{number}" for number in range(INGESTED)]
        for run in runs:
            write_run(run, 10_000, 100)
        took = headway("ingest", *map(str, runs), "--store", str(folder / "ingested"))
        tables = {
            name: run_query(
                Store(str(work / "10k")), lambda have, n=name: have[n].drop("version")
            ).rows
            for name in TABLES
        }
        wall, cpu = time.perf_counter(), time.process_time()
        Store(str(folder / "written")).write(tables)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    count = tables["runs"].num_rows
    return {
        "command": {"runs": INGESTED, **took, "runs_a_s": round(INGESTED / took["wall_s"], 1)},
        "bulk": {
            "runs": count,
            "wall_s": round(wall, 2),
            "cpu_s": round(cpu, 2),
            "runs_a_s": round(count / wall),
            "rows_a_s": round(sum(table.num_rows for table in tables.values()) / wall),
        },
    }


def best(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The least of each figure, but the most of memory."""
    return {
        name: (max if name == "peak_mb" else min)(one[name] for one in found) for name in found[0]
    }


def queries(work: Path) -> dict[str, Any]:
    """Every question on every store, and the floor: one column of its files summed."""
    found: dict[str, Any] = {}
    for name in STORES:
        url = str(work / name)
        asked = {}
        for question in QUERIES:
            asked[question] = best(
                [child(ASK, question, url, str(ROUNDS)) for _ in range(FRESH[name])]
            )
            print(name, question, json.dumps(asked[question]), flush=True)
        floors = {table: child(SUM, url, table, str(ROUNDS)) for table in ("hours", "buckets")}
        print(name, "sums", json.dumps(floors), flush=True)
        found[name] = {"questions": asked, "sums": floors}
    return found


def pages(work: Path) -> dict[str, Any]:
    """First bytes of each page and of the data of each panel on it, of a server of 100k runs."""
    command = [sys.executable, "-m", "headway", "serve", str(work / "100k"), "--listen"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen(
        [*command, "127.0.0.1:0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        base = server.stdout.readline().split()[-1].rstrip("/")
        found = {}
        for page in PAGES:
            shell = [_first_byte(base + page.path) for _ in range(ROUNDS)]
            data = {
                panel.name: [_first_byte(f"{base}/data/{panel.name}") for _ in range(ROUNDS)]
                for panel in page.panels
            }
            found[page.path] = {
                "page_s": round(min(shell), 4),
                "slowest_panel_first_s": round(max(one[0] for one in data.values()), 3),
                "slowest_panel_again_s": round(max(min(one[1:]) for one in data.values()), 4),
            }
            print(page.path, json.dumps(found[page.path]), flush=True)
        return found
    finally:
        server.terminate()
        server.wait(30)


def _first_byte(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=120) as answer:
        answer.read(1)
        took = time.perf_counter() - began
        answer.read()
    return took


def spark(work: Path) -> dict[str, Any]:
    """Every question in three slicings, asked of a Spark of two workers and of DuckDB."""
    binary = ROOT / ".venv-spark" / "bin" / "python"
    if not binary.exists():
        return {"left_out": "there is no .venv-spark; `make test-spark` makes it"}
    script = str(Path(__file__).parent / "fleet_spark.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    store = str(work / "spark")
    if not Path(store).exists():
        headway("fleet", "simulate", "--store", store, "--jobs", "2000", "--days", "9")
    command = [str(binary), script, store]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print("spark", json.dumps(told), flush=True)
    return told


def met(result: dict[str, Any]) -> bool:
    """Whether each question was answered in time, within the memory, on that many rows.

    What the processors took is told apart: on a machine that others use, the wall is theirs too.
    """
    asked = result["queries"]["100m"]["questions"].values()
    rows = result["stores"]["100m"]["rows"]["buckets"]
    most = {name: max(one[name] for one in asked) for name in next(iter(asked))}
    print(f"{rows:,} rows of buckets, at most {most['peak_mb']:.0f} MB of {MUST_MB:.0f}")
    for name in ("cold_s", "cold_cpu_s", "warm_s", "warm_cpu_s"):
        told = "met" if most[name] <= MUST_S else "MISSED"
        print(f"{name}: at most {most[name]:.2f}, must be {MUST_S:g}: {told}")
    return rows >= MUST_ROWS and most["cold_s"] <= MUST_S and most["peak_mb"] <= MUST_MB


PARTS = {
    "stores": stores,
    "ingest": ingest,
    "queries": queries,
    "pages": pages,
    "spark": spark,
}


def given(flag: str) -> str | None:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else None


def main() -> int:
    chosen: Sequence[str] = (given("--only") or ",".join(PARTS)).split(",")
    kept = FOLDER / "fleet.json"
    whole = json.loads(kept.read_text()) if given("--only") and kept.exists() else {}
    whole["machine"] = {"cpus": os.cpu_count(), "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(given("--work") or scratch)
        work.mkdir(parents=True, exist_ok=True)
        for name in chosen:
            load = os.getloadavg()[0]
            whole[name] = PARTS[name](work)
            whole.setdefault("load_before", {})[name] = round(load, 1)
            keep("fleet", whole)
    if not {"stores", "queries"} <= whole.keys():
        return 0
    return 0 if met(whole) else 1


if __name__ == "__main__":
    raise SystemExit(main())
