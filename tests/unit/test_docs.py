"""The documentation compared with the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from headway.cli import VERBS
from headway.journal import pulse, writer
from headway.launch.failures import Verdict
from headway.launch.failures.model import Role
from headway.ledger import rank
from headway.ledger.buckets import BUCKETS
from headway.probe import INTERNAL_ENV
from headway.probe.import_hook import HOOKED_MODULES
from headway.run import load
from headway.settings import Settings
from headway.taxonomy import OWNERS, RETRIES, TRAINER_STAGES
from headway.units import NS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def source() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))


def code(name: str, heading: str) -> str:
    """The first Python block below a heading."""
    match = re.search(rf"^## {heading}$.*?```python\n(.*?)```", page(name), re.S | re.M)
    assert match is not None, f"{name} has no Python block below {heading!r}"
    return match[1]


def table(name: str) -> list[list[str]]:
    """The cells of every table row of a page, without back-ticks."""
    rows = [line for line in page(name).splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")] for row in rows]


def code_names(text: str) -> set[str]:
    """All words in back-ticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("leaf", BUCKETS)
def test_every_leaf_is_explained(leaf: str) -> None:
    assert f"| `{leaf}` |" in page("metric.md")


def test_the_thresholds_are_those_of_the_ledger() -> None:
    text = page("metric.md")
    assert f"| `HANG_FLOOR` | {rank.HANG_FLOOR // NS} s |" in text
    assert f"| `HANG_FLOOR_BUSY` | {rank.HANG_FLOOR_BUSY // NS} s |" in text
    assert f"| `MANY_STEPS` | {rank.MANY_STEPS} |" in text


def test_every_category_of_failure_is_explained() -> None:
    documented = {row[0]: tuple(row[1:3]) for row in table("metric.md")}
    assert {name: documented.get(name) for name in OWNERS} == OWNERS


def test_every_field_of_a_verdict_is_explained() -> None:
    documented = code_names(page("failures.md"))
    assert {"schema", "failed", *(field.name for field in fields(Verdict))} <= documented
    assert {*RETRIES, *get_args(Role)} <= documented


def test_the_worked_example_is_right() -> None:
    names: dict[str, Any] = {}
    exec(code("metric.md", "Worked example"), names)
    ledger = names["ledger"]
    documented: dict[str, float] = {}
    for row in table("metric.md"):
        between = re.fullmatch(r"([\d.]+) to ([\d.]+)", row[0])
        if between:
            documented[row[1]] = documented.get(row[1], 0.0) + float(between[2]) - float(between[1])
    assert documented == ledger.to_dict()["buckets"]
    text = page("metric.md").replace("\n", " ")
    assert f"{ledger.ett_percent:.1f} %; failure 28 s, {ledger.failure_percent:.1f} %" in text
    assert f"idleness 12 s, {ledger.idleness_percent:.1f} %" in text
    assert (ledger.time_to_start, ledger.time_to_recover) == (8 * NS, (17 * NS,))
    assert (ledger.steps, ledger.ranks[0].steps) == (100, 111)


def written_events() -> set[str]:
    """Every `ev` that the code writes or reads."""
    text = source()
    written = re.findall(r'"ev":\s*"(\w+)"', text) + re.findall(r'emit\(\s*"(\w+)"', text)
    calls = re.findall(r"\.named\(([^)]*)\)", text)
    return {*written, *(name for call in calls for name in re.findall(r'"(\w+)"', call))}


def test_the_events_were_found() -> None:
    assert {"head", "open", "close", "span", "steps", "exit", "spawn", "death"} <= written_events()


@pytest.mark.parametrize("event", sorted(written_events()))
def test_every_event_is_in_the_table_of_events(event: str) -> None:
    below = page("journal.md").partition("## Events")[2].partition("### head")[0]
    assert f"`{event}`" in below


def test_every_field_of_a_head_is_explained() -> None:
    documented = code_names(page("journal.md").partition("### head")[2].partition("### Spans")[0])
    launcher = {"launch", "index", "allocated", "queued", "scheduler_job", "requeues", "fs"}
    process = {"rank", "world", "local_rank", "restart", "helper", "torch"}
    assert (writer.head("process").keys() | launcher | process) - {"ev"} <= documented


def test_every_span_has_its_leaves() -> None:
    below = page("journal.md").partition("### Spans")[2].partition("### steps")[0]
    not_written = {"pt2_compile", "get_first_batch_data"}  # their spans have other names
    assert {*rank._BUCKET_BEFORE_FIRST_STEP, *rank._BUCKET_AFTER} - not_written <= code_names(below)


def test_every_cell_of_the_pulse_page_is_explained() -> None:
    documented = {row[1]: row[0] for row in table("journal.md") if row[0].isdecimal()}
    sizes = ("CELLS", "LIMIT", "MAGIC", "SIZE")
    cells = {k: v for k, v in vars(pulse).items() if k.isupper() and k not in sizes}
    assert len(cells) == pulse.CELLS
    assert documented == {name: str(number) for name, number in cells.items()}


def test_a_journal_can_be_written_by_the_book(tmp_path: Path) -> None:
    script = tmp_path / "write.py"
    script.write_text(code("journal.md", "Writing one"))
    subprocess.run([sys.executable, "-I", script, tmp_path / "run"], check=True, timeout=60)
    ledger = load(tmp_path / "run").to_dict()
    assert ledger["notes"] == ["run.json is missing or damaged"]
    assert ledger["buckets"] == {
        "start.train_module_creation": 2.0,
        "start.get_first_batch_data": 1.0,
        "train.effective": 6.0,
        "waste.checkpoint_block": 1.0,
    }


@pytest.mark.parametrize("module", sorted(HOOKED_MODULES))
def test_every_module_that_is_touched_is_listed(module: str) -> None:
    watched = page("probe.md").partition("## What is watched")[2].partition("\n## ")[0]
    assert module in code_names("\n".join(row.split(" | ")[0] for row in watched.splitlines()))


def patched_names() -> set[str]:
    """Every function and method that a hook wraps or replaces."""
    folders = [ROOT / "src/headway/probe" / name for name in ("hooks", "autotune")]
    text = "\n".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    patched = re.findall(r'(?:wrap|spanned)\(\s*[\w.]+,\s*"(\w+)"', text)
    looped = re.findall(r"for name in \(([^)]*)\):\s+[^\n]*(?:getattr|spanned)\(", text)
    return {*patched, *(name for names in looped for name in re.findall(r'"(\w+)"', names))}


def test_every_patch_is_listed() -> None:
    watched = page("probe.md").partition("## What is watched")[2].partition("\n## ")[0]
    names = patched_names()
    assert {"save", "init_process_group", "to", "no_grad", "export"} <= names
    documented = {part for text in code_names(watched) for part in text.split(".")}
    assert names <= documented


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_shown(verb: str) -> None:
    assert f"| `headway {verb}` |" in page("reports.md")


def test_every_setting_and_variable_is_explained() -> None:
    rows = {row[0]: row for row in table("settings.md")}
    for field in fields(Settings):
        assert rows[field.name][2] == f"HEADWAY_{field.name.upper()}"
    variables = {*INTERNAL_ENV, *re.findall(r'"(HEADWAY_[A-Z_]+)"', source())}
    assert variables - {"HEADWAY_"} <= code_names(page("settings.md"))


def test_the_sdk_page_names_all_that_is_public() -> None:
    import headway

    text = page("sdk.md")
    for name in headway.__all__:
        assert name == "__version__" or f"headway.{name}" in text
    assert set(TRAINER_STAGES) <= code_names(text)


def test_the_readme_shows_the_two_commands_and_its_picture() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text and "make test" in text
    for target in re.findall(r"\]\(((?!http)[^)#]+)", text):
        assert (ROOT / target).exists(), target
    assert (DOCS / "images" / "report.png").stat().st_size < 400_000


def benchmark_rows() -> Iterator[str]:
    """The rows of docs/benchmarks.md, from the results."""
    cost = json.loads((RESULTS / "recorder.json").read_text())
    for name, ns in cost["ns_per_step"].items():
        yield f"| {name} | {ns:,.0f} ns |"
    for name, ns in cost["loop_ns"].items():
        yield f"| {name} | {ns / 1000:.1f} µs |"
    for name, ms in cost["start_ms"].items():
        yield f"| {name} | {ms:.1f} ms |"
    for row in json.loads((RESULTS / "ledger.json").read_text())["rows"]:
        yield (
            f"| {row['steps']:,} | {row['step_ms']} ms | {row['lines']:,} | {row['seconds']:.2f} s "
            f"| {row['peak_mb']:.0f} MB | {row['json_loads_seconds']:.2f} s |"
        )
    for row in json.loads((RESULTS / "classify.json").read_text())["rows"]:
        yield (
            f"| {row['log']} | {row['megabytes']:,.0f} MB | {row['seconds']:.1f} s "
            f"| {row['megabytes'] / row['seconds']:.0f} MB/s | {row['peak_mb']:.0f} MB "
            f"| {row['grep_seconds']:.2f} s |"
        )
    for row in json.loads((RESULTS / "truth_against_peers.json").read_text())["rows"]:
        peer = row["ml_goodput_measurement"]
        yield (
            f"| {row['scenario']} | {row['truth']:.1f} | {row['headway']['ett']:.1f} "
            f"| {peer['ett']:.1f} | {peer['sum']:.1f} |"
        )


def recover_rows() -> Iterator[str]:
    for name in ("recover", "recover_h200"):
        result = json.loads((RESULTS / f"{name}.json").read_text())
        for job in ("tiny", "dlrm"):
            rows = result.get(job, {})
            for launcher, row in rows.items():
                ratio = rows["torchrun"]["median_s"] / row["median_s"]
                parts = sorted(row["mean_by_bucket_s"].items(), key=lambda part: -part[1])[:3]
                where = ", ".join(f"{leaf} {seconds:.2f}" for leaf, seconds in parts)
                yield (
                    f"| {job}, {result['ranks']} | {launcher} | {row['median_s']:.2f} s "
                    f"| {row['min_s']:.2f}-{row['max_s']:.2f} | 1/{ratio:.1f} | {where} |"
                )


def compile_rows() -> Iterator[str]:
    for name in ("compile", "compile_h200"):
        path = RESULTS / f"{name}.json"
        models = json.loads(path.read_text())["models"] if path.exists() else {}
        for model, rows in models.items():
            cold = rows["cold"]
            for row, documented in rows.items():
                shares = (
                    f"{documented[key]:.2f} s, {documented[key] / cold[key]:.1%}"
                    for key in ("total_s", "ready_s", "compile_s")
                )
                yield f"| {model} | {row} | " + " | ".join(shares) + " |"


def autotune_rows() -> Iterator[str]:
    result = json.loads((RESULTS / "autotune_h200.json").read_text())
    for part in ("triton", "compiled"):
        for case, row in result[part]["cases"].items():
            yield (
                f"| {case} | {row['full_s']:.2f} s | {row['pruned_s']:.2f} s "
                f"| {row['full_ms']:.4f} ms | {row['pruned_ms']:.4f} ms | {row['slower']:+.1%} |"
            )


def start_rows() -> Iterator[str]:
    for name in ("start", "start_h200"):
        path = RESULTS / f"{name}.json"
        for row in json.loads(path.read_text())["rows"] if path.exists() else ():
            serial, side = row["one by one"], row["side by side"]
            yield (
                f"| {row['ranks']} | {row['warmup_s']:g} s | {row['cache']} "
                f"| {serial['time_to_start_s']:.1f} s | {side['time_to_start_s']:.1f} s "
                f"| {side['stages_s']:.2f} s | {side['bound_s']:.2f} s "
                f"| {side['after_first_batch_s']:.2f} s |"
            )
    for row in json.loads((RESULTS / "shard_metadata.json").read_text())["rows"]:
        yield (
            f"| {row['tables']:,} | {row['ranks']} | {row['gathered_ms']:,.0f} ms "
            f"| {row['planned_ms']:.1f} ms | {row['times_faster']:.0f} |"
        )


def checkpoint_rows() -> Iterator[str]:
    for name in ("checkpoint", "checkpoint_dense"):
        path = RESULTS / f"{name}.json"
        result = json.loads(path.read_text()) if path.exists() else {"rows": []}
        for row in result["rows"]:
            state = f"{row['megabytes']:,} MB" + (", dense" if result["dense"] else "")
            limits = row["limits"]
            yield (
                f"| {state} | limits | {limits['copy_s'] * 1e3:,.1f} ms | | 1.00 | "
                f"| {limits['write_s']:.2f} s | {limits['read_s']:.2f} s | | |"
            )
            if "failed" in row:
                yield f"| {state} | {row['way']} | {row['failed']} | | | | | | | |"
                continue
            fsync = "" if row["fsyncs"] else ", no fsync of its own"
            killed = f" {row['after_kill_s']:.2f} s" if "after_kill_s" in row else ""
            yield (
                f"| {state} | {row['way']} | {row['call_s'] * 1e3:,.1f} ms "
                f"| {row['cost_s'] * 1e3:,.1f} ms | {row['cost_of_copy']:.2f} "
                f"| {row['slower']:.2f} | {row['durable_s']:.2f} s{fsync} "
                f"| {row['restore_s']:.2f} s |{killed} | {row['memory_mb']:,.0f} MB |"
            )


def checkpoint_gpu_rows() -> Iterator[str]:
    for row in json.loads((RESULTS / "checkpoint_h200.json").read_text())["rows"]:
        limits, state = row["limits"], f"{row['megabytes']:,} MB"
        yield (
            f"| {state} | limits | {limits['copy_s'] * 1e3:,.1f} ms | {limits['bus_s']:.2f} s "
            f"| {limits['write_s']:.2f} s | | | {limits['read_s']:.2f} s |"
        )
        if "failed" in row:
            yield f"| {state} | {row['way']} | {row['failed']} | | | | | |"
            continue
        speed = f" {row['of_disk']:.0%}" if "of_disk" in row else ""
        killed = f" {row['after_kill_s']:.2f} s" if "after_kill_s" in row else ""
        yield (
            f"| {state} | {row['way']} | {row['call_s'] * 1e3:,.1f} ms "
            f"| {row['cost_s'] * 1e3:,.0f} ms, {row['cost_in_steps']:.2f} steps "
            f"| {row['durable_s']:.2f} s |{speed} |{killed} | {row['restore_s']:.2f} s |"
        )


def fused_table_rows() -> Iterator[str]:
    result = json.loads((RESULTS / "fused_tables.json").read_text())
    yield f"| a copy | {result['copy_s'] * 1e3:.1f} ms | | 1.00 | {result['megabytes']:,} MB | |"
    for row in result["rows"]:
        if "failed" in row:
            yield f"| {row['way']} | {row['failed']} | | | | |"
            continue
        yield (
            f"| {row['way']} | {row['call_s'] * 1e3:,.1f} ms | {row['cost_s'] * 1e3:,.1f} ms "
            f"| {row['cost_of_copy']:.2f} | {row['bytes'] / 1e6:,.0f} MB "
            f"| {row['durable_s']:.2f} s |"
        )


def publish_rows() -> Iterator[str]:
    for name in ("publish", "publish_h200"):
        path = RESULTS / f"{name}.json"
        for row in json.loads(path.read_text())["rows"] if path.exists() else ():
            inside = row["inside_s"]
            figures = (
                f"| {row['failed']} | | |"
                if "failed" in row
                else (
                    f"| {row['publish_s']:.1f} s | {row['republish_s']:.1f} s "
                    f"| {row['peak_mb']:,.0f}, {row['allowed_mb']:,.0f} MB |"
                )
            )
            yield (
                f"| {row['model_mb']:,.0f} MB, {row['device']} | {row['nothing_s']:.2f} s "
                f"| {inside['export']:.1f} s | {inside['aoti']:.1f} s "
                f"| {row['anchor_s']:.2f} s, {row['anchor_work_s']:.2f} s | 1/{row['ratio']:.1f} "
                f"| {row['write_s']:.2f} s | {row['of_write']:.2f} {figures}"
            )


def gpu_rows() -> Iterator[str]:
    columns = json.loads((RESULTS / "gpu_run_ahead.json").read_text())["rows"]
    for key in columns[0]:
        if key.startswith(("device ", "save", "loop", "ledger ")) and key != "ledger device_init":
            yield f"| {key} | " + " | ".join(f"{column[key]:.3f}" for column in columns) + " |"


def soak_rows() -> Iterator[str]:
    for name, figure in json.loads((RESULTS / "soak.json").read_text())["figures"].items():
        early, late = list(figure.values())[:2]
        yield f"| {name} | {early:,} | {late:,} |"


def test_the_benchmark_figures_are_those_that_were_measured() -> None:
    documented = page("benchmarks.md").splitlines()
    rows = (*benchmark_rows(), *recover_rows(), *compile_rows(), *start_rows(), *gpu_rows())
    rows = dict.fromkeys((*rows, *autotune_rows(), *checkpoint_rows(), *checkpoint_gpu_rows()))
    rows |= dict.fromkeys((*publish_rows(), *fused_table_rows(), *soak_rows()))
    missing = [row for row in rows if row not in documented]
    assert not missing, "put these rows into docs/benchmarks.md:\n" + "\n".join(missing)
    cost = json.loads((RESULTS / "recorder.json").read_text())
    step = cost["ns_per_step"]["headway, step and batch"] / 1000
    start = cost["start_ms"]["interpreter, with the probe"] - cost["start_ms"]["interpreter, bare"]
    readme = (ROOT / "README.md").read_text()
    assert f"{step:.2f} µs" in readme and f"{start:.1f} ms" in readme
