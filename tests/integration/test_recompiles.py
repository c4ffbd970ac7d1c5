"""The recompile advisor with real torch: each cause and its fix, before and after."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.compile.recompiles.advice import Advice, advise
from headway.compile.recompiles.record import Record, collect
from headway.compile.recompiles.sources import DYNAMIC, SETTINGS, UNBACKED
from headway.journal.reader import Journal, read_journals
from headway.ledger.build import build_ledger
from headway.units import NS
from tests.support import ForkServer, cli, codes, probe_env

JOBS = Path(__file__).parent / "recompiles"
# What each function of causes.py recompiles for: times, and the cause that is found.
SET = {
    "batch": (1, "size", "L['rows']"),
    "jagged": (6, "size", "L['lengths']['f0']"),
    "named": (2, "size", "L['table']['c d']"),
    "int_argument": (1, "int", "L['many']"),
    "module_int": (3, "module_int", "L['scaled'].factor"),
    "global_int": (2, "int", "G['FACTOR']"),
    "zero_one": (3, "zero_one", "L['few']"),
    "duck": (1, "duck", "L['right']"),
    "parameter": (2, "parameter", "L['layer']._parameters['bias']"),
    "graph_break": (2, "size", "L['outer']"),
}
CODE = {
    "float_argument": (1, "float", "L['rate']"),
    "list_length": (2, "length", "L['parts']"),
    "dict_keys": (2, "keys", "L['entries']"),
    "dtype": (2, "dtype", "L['precise']"),
    "requires_grad": (1, "requires_grad", "L['leaf']"),
    "stride": (2, "stride", "L['laid']"),
    "rank": (2, "rank", "L['deep']"),
    "grad_mode": (1, "grad_mode", "grad_mode"),
    "autocast": (1, "autocast", "autocast(cpu)_enabled"),
    "global_state": (1, "global_state", "default_dtype"),
    "training": (1, "training", "L['dropping']._modules['drop'].training"),
    "identity": (2, "identity", "L['activation']"),
    "none": (1, "none", "L['mask']"),
    "type_of": (1, "type", "L['pair']"),
    "constant": (1, "constant", "L['mode']"),
    "pinned": (2, "pinned", "L['rounds']"),
    "branch": (2, "branch", "L['wide']"),
    "alias": (1, "alias", '["one", "two"]'),
    "tensor_type": (1, "tensor_type", "L['weight']"),
    "backend": (2, "backend", ""),
}


def probed(script: Path, folder: Path, *words: str, **env: str) -> tuple[list[Journal], str]:
    """Run a script with the probe; returns its journals and output."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, str(script), *words],
        env=probe_env(folder, "TORCH", **env),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return journals_of(folder), done.stdout


def journals_of(folder: Path) -> list[Journal]:
    journals, problems = read_journals(str(folder))
    assert not problems
    assert not [event for journal in journals for event in journal.named("note")]
    return journals


def times(record: Record, function: str) -> int:
    return sum(_is_of(recompile.where, function) for recompile in record.recompiles)


def _is_of(where: str, function: str) -> bool:
    return re.search(rf" (?:torch_dynamo_resume_in_)?{function}(?:_at_\d+)?$", where) is not None


@pytest.fixture(scope="module")
def before(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> tuple[Record, Advice]:
    folder = tmp_path_factory.mktemp("causes")
    (folder / "journal").mkdir()
    run = f"import runpy\nrunpy.run_path({str(JOBS / 'causes.py')!r}, run_name='__main__')\n"
    (folder / "script.py").write_text(run)
    env = probe_env(folder / "journal", "TORCH")
    code, stderr = fork_server.run(folder / "script.py", env=env)
    assert code == 0, stderr
    record = collect(journals_of(folder / "journal"))
    return record, advise(record)


@pytest.fixture(scope="module")
def after(
    before: tuple[Record, Advice], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Record, Advice]:
    folder = tmp_path_factory.mktemp("cured") / "journal"
    journals, _ = probed(JOBS / "causes.py", folder, CURED="1", **before[1].env)
    record = collect(journals)
    return record, advise(record)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("function", [*SET, *CODE])
def test_each_cause_is_named_and_cured(
    before: tuple[Record, Advice], after: tuple[Record, Advice], function: str
) -> None:
    count, kind, source = {**SET, **CODE}[function]
    causes = [c for c in before[1].causes if _is_of(c.where, function)]
    assert (kind, source) in [(c.kind, c.source) for c in causes]
    assert times(before[0], function) == count
    assert times(after[0], function) == 0


@pytest.mark.timeout(300)
def test_the_settings_cure_what_they_can_and_nothing_else(
    before: tuple[Record, Advice], after: tuple[Record, Advice]
) -> None:
    env = before[1].env
    assert set(env) == {DYNAMIC, UNBACKED}
    assert env[UNBACKED] == "L['few']:0"
    assert r"L\['lengths'\]\['f\d+'\]\Z:0" in env[DYNAMIC].split(",")
    assert "L['few']" not in env[DYNAMIC]  # one or the other
    for never in ("rate", "rounds", "deep", "mask", "weight", "laid"):
        assert f"L['{never}']" not in env[DYNAMIC]
    assert not after[1].recompiles and not after[1].has_new_settings
    assert after[1].env == env  # what was set is kept, for whoever reads that run


@pytest.mark.timeout(300)
def test_where_it_was_called_and_with_what(before: tuple[Record, Advice]) -> None:
    (cause,) = [c for c in before[1].causes if _is_of(c.where, "batch")]
    lines = (JOBS / "causes.py").read_text().splitlines()
    call = 1 + next(n for n, line in enumerate(lines) if "call(torch.ones(size, 3))" in line)
    assert cause.caller == f"{JOBS / 'causes.py'}:{call} run_batch"
    assert cause.values == ("4", "5")
    assert cause.code_line == "torch._dynamo.mark_dynamic(rows, 0)"
    (number,) = [c for c in before[1].causes if _is_of(c.where, "int_argument")]
    assert number.values == ("3", "4") and not number.code_line
    (resumed,) = [c for c in before[1].causes if c.source == "L['beside']"]
    assert "torch_dynamo_resume" in resumed.where and not resumed.code_line
    (few,) = [c for c in before[1].causes if _is_of(c.where, "zero_one")]
    assert few.code_line == "torch._dynamo.decorators.mark_unbacked(few, 0)"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_model_that_recompiles_21_times(tmp_path: Path) -> None:
    journals, printed = probed(JOBS / "storm.py", tmp_path / "before")
    record = collect(journals)
    advice = advise(record)
    assert advice.recompiles == 21
    assert [storm.limit for storm in advice.limit_hits] == ["recompile_limit"] * 3

    cured = advise(collect(probed(JOBS / "storm.py", tmp_path / "cured", **advice.env)[0]))
    assert (cured.recompiles, cured.graphs, cured.limit_hits) == (0, 3, ())

    # torch's own advice does not include changes after it stopped compiling.
    hint = re.search(rf'{DYNAMIC}="([^"]+)"', printed)
    assert hint is not None
    assert "offsets" not in hint[1] and "L['offsets']:0" in advice.env[DYNAMIC]
    own = {DYNAMIC: hint[1]}
    helped = advise(collect(probed(JOBS / "storm.py", tmp_path / "hint", **own)[0]))
    assert helped.recompiles == 3


MARKED = """
import os, torch
from torch._dynamo import decorators
def rows_of(rows): return rows * 2
def few_of(few): return few * 2
marks = os.environ.get("MARKS", "").splitlines()
for function, sizes in ((rows_of, (4, 5, 6)), (few_of, (4, 1, 0))):
    call = torch.compile(function, backend="eager")
    for size in sizes:
        rows = few = torch.ones(size, 3)
        for mark in marks:
            exec(mark)
        call(rows)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_lines_of_code_do_the_same(tmp_path: Path) -> None:
    (tmp_path / "marked.py").write_text(MARKED)
    advice = advise(collect(probed(tmp_path / "marked.py", tmp_path / "before")[0]))
    marks = {cause.where.split()[-1]: cause.code_line for cause in advice.causes}
    assert marks == {
        "rows_of": "torch._dynamo.mark_dynamic(rows, 0)",
        "few_of": "torch._dynamo.decorators.mark_unbacked(few, 0)",
    }
    assert advice.recompiles == 3
    journals = probed(tmp_path / "marked.py", tmp_path / "one", MARKS=marks["rows_of"])[0]
    assert times(collect(journals), "rows_of") == 0
    other = probed(tmp_path / "marked.py", tmp_path / "other", MARKS=marks["few_of"])[0]
    assert times(collect(other), "few_of") == 0


# What the ledger makes of the compiler's time.

KERNELS = """
import time, torch, torch._inductor.config as config
from torch._dynamo.utils import get_runtime_metrics_context
weight = torch.nn.Parameter(torch.ones(4, 4))
optimizer = torch.optim.SGD([weight], lr=0.1)
def kept(x): return x @ x
def passed_by(x): return x @ x.t()
torch.compile(kept)(torch.ones(4, 4))
config.post_grad_custom_post_pass = lambda graph: None  # nothing that has this can be cached
torch.compile(passed_by)(torch.ones(4, 4))
config.post_grad_custom_post_pass = None
tuned = get_runtime_metrics_context()  # as a kernel that is tuned at its first launch does
told = {"compile_id": "0/0", "is_runtime": True, "is_forward": True}
time.sleep(0.06)
tuned.increment("runtime_triton_autotune_time_us", 50_000, told)
tuned.finish()
for _ in range(3):
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_caches_and_tuning_in_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    sections = []
    for name in ("cold", "warm"):
        journals, _ = probed(tmp_path / "kernels.py", tmp_path / name, **cache)
        ledger = build_ledger(journals)
        sections.append(ledger.to_dict()["compile"])
        assert sum(sections[-1]["parts"].values()) * NS == pytest.approx(
            ledger.buckets["start.pt2_compile"], abs=1
        )
    cold, warm = sections
    assert (cold["cold"], cold["cached"], warm["cold"], warm["cached"]) == (2, 0, 1, 1)
    counts = ("fx_hits", "fx_misses", "aot_hits", "aot_misses", "bypassed")
    why = {"Unsupported post grad custom pass": 1}
    assert [cold["by_rank"][0][name] for name in counts] == [0, 1, 0, 1, why]
    assert [warm["by_rank"][0][name] for name in counts] == [1, 0, 1, 0, why]
    assert {"import", "dynamo", "aot_autograd", "inductor", "autotune"} <= set(cold["parts"])
    assert "cache_load" in warm["parts"] and "cache_load" not in cold["parts"]
    assert cold["parts"]["autotune"] == pytest.approx(0.05, abs=0.001)


# The command line.

LOOP = """
import sys, torch
rank = int(__import__("os").environ.get("RANK", 0))
def work(rows, beside):
    return rows.sum() * beside.sum()
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
call = torch.compile(work, backend="eager")
for step in range(int(sys.argv[1])):
    rows, beside = 4 + (step if rank == 0 else 0), 6 + (step if rank == 1 else 0)
    (call(torch.ones(rows), torch.ones(beside)) * weight).backward()
    optimizer.step()
open(f"end-{rank}", "a").write("x")
"""
Headway = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def headway(tmp_path: Path) -> Headway:
    (tmp_path / "loop.py").write_text(LOOP)
    base = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", "TORCH"))}

    def run(*words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "headway", *words],
            cwd=tmp_path,
            env={**base, "OMP_NUM_THREADS": "1", "HEADWAY_STRICT": "1", **env},
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_verify_counts_before_and_after(headway: Headway, tmp_path: Path) -> None:
    headway("run", "--name", "a", "--no-report", "--", sys.executable, "loop.py", "40")
    assert "L['rows']" in headway("recompiles", "headway/a").stdout
    done = headway("recompiles", "headway/a", "--verify", "--json")
    result = json.loads(done.stdout)
    assert result["steps"] == 6  # the last recompile came after step 1
    assert result["recorded"]["recompiles"] == 1
    assert [t["recompiles"] for t in result["trials"]] == [1, 0]
    assert [t["graphs"] for t in result["trials"]] == [2, 1]
    assert [t["exit_code"] for t in result["trials"]] == [0, 0]
    assert (tmp_path / "end-0").read_text() == "x"  # no trial came to the job's own end


TEN = """
import torch
def work(a, b, c, d, e, f, g, h, i, j):
    return sum(x.sum() for x in (a, b, c, d, e, f, g, h, i, j))
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
call, sizes = torch.compile(work, backend="eager"), [4] * 10
for step in range(14):
    if 1 <= step <= 10:
        sizes[step - 1] = 4 + step
    (call(*map(torch.ones, sizes)) * weight).backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_verify_goes_on_as_long_as_it_finds_more(headway: Headway, tmp_path: Path) -> None:
    """Two of ten inputs change only after torch stopped compiling, so that no record names them."""
    (tmp_path / "ten.py").write_text(TEN)
    headway("run", "--name", "ten", "--no-report", "--", sys.executable, "ten.py")
    text = headway("recompiles", "headway/ten", "--verify", "--steps", "13", "--json").stdout
    result = json.loads(text)
    assert [t["recompiles"] for t in result["trials"]] == [7, 2, 0]
    assert "L['j']" not in result["recorded"]["env"][DYNAMIC]
    assert "L['j']:0" in result["trials"][-1]["env"][DYNAMIC]


BRANCHING = """
import torch
def work(x):
    return x * 3 if x.shape[0] > 100 else x * 2
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
call = torch.compile(work, backend="eager", fullgraph=True)
for size in (4, 1, 4, 1):
    (call(torch.ones(size)).sum() * weight).backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_setting_that_breaks_the_job_is_found_out(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "branching.py").write_text(BRANCHING)
    headway("run", "--name", "b", "--no-report", "--", sys.executable, "branching.py")
    text = headway("recompiles", "headway/b", "--verify", "--steps", "4", "--json", code=1).stdout
    trials = json.loads(text)["trials"]
    assert [set(t["env"]) for t in trials[1:]] == [{UNBACKED}, {DYNAMIC}]
    assert [t["exit_code"] for t in trials] == [0, 1, 0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_that_recompile_for_different_reasons(headway: Headway, tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    headway("run", "--name", "two", "--no-report", "--", *torchrun, "loop.py", "30")
    result = json.loads(headway("recompiles", "headway/two", "--json").stdout)
    assert result["env"] == {DYNAMIC: "L['rows']:0,L['beside']:0"}
    assert {(c["source"], *c["ranks"]) for c in result["causes"]} == {
        ("L['rows']", 0),
        ("L['beside']", 1),
    }
    text = headway("recompiles", "headway/two", "--verify", "--steps", "4", "--json").stdout
    trials = json.loads(text)["trials"]
    assert [(t["recompiles"], t["graphs"]) for t in trials] == [(1, 2), (0, 1)]
    assert (tmp_path / "end-0").read_text() == (tmp_path / "end-1").read_text() == "x"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_next_run_learns(headway: Headway, tmp_path: Path) -> None:
    def run(name: str, *words: str, **env: str) -> tuple[list[str], dict[str, Any]]:
        job = ("--", sys.executable, "loop.py", "8")
        lines = headway("run", *words, "--name", name, "--no-report", *job, **env).stderr
        text = headway("recompiles", f"headway/{name}", "--json").stdout
        return [code for code in codes(lines) if code], json.loads(text)

    stored = tmp_path / "headway" / ".learned" / "loop.json"
    lines, first = run("one", "--learn")
    assert (first["recompiles"], lines) == (1, []) and stored.exists()
    lines, second = run("two", "--learn")
    assert (second["recompiles"], lines) == (0, [])
    lines, alone = run("three")  # without the flag nothing is set
    assert (alone["recompiles"], lines) == (1, [])
    lines, own = run("four", "--learn", **{DYNAMIC: "L['nothing']"})
    assert (own["recompiles"], lines) == (1, ["learned-sources-not-applied"])
    assert set(json.loads(stored.read_text())["env"]) <= set(SETTINGS)


def test_a_run_that_cannot_be_tried_again(tmp_path: Path) -> None:
    def refused(*words: str) -> str:
        done = cli("recompiles", *words, cwd=tmp_path)
        assert done.returncode == 2
        (code,) = codes(done.stderr)
        return code

    (tmp_path / "bare" / "journal").mkdir(parents=True)
    assert refused("bare", "--verify") == "command-not-recorded"
    advice = json.loads(cli("recompiles", "bare", "--json", cwd=tmp_path).stdout)
    assert advice["recompiles"] == 0
    run_json = {"schema": 1, "run": "bare", "command": ["true"], "cwd": str(tmp_path / "gone")}
    (tmp_path / "bare" / "run.json").write_text(json.dumps(run_json))
    assert refused("bare", "--verify") == "job-folder-not-found"
    (tmp_path / "bare" / "run.json").write_text(json.dumps({**run_json, "cwd": str(tmp_path)}))
    assert refused("bare", "--verify") == "no-steps"
    assert refused("bare", "--steps", "0") == "steps-out-of-range"
    assert refused("nowhere") == "run-not-found"
