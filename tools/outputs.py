"""What commands print and write for other programs, by what they make of the golden files."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.public import SOURCE, trees

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
RUNS = GOLDEN / "run"
FLEET = ("duckdb", "ibis", "pyarrow")
# Objects whose keys are names of something else: of buckets, tables, files, reasons.
NAMED = re.compile(
    r"(^|\.)(buckets|hidden_s|parts|bypassed|plain|values|off|measured|known|env|shares|rows"
    r"|content|facts|files|targets|maker|versions|labels|ranking|left_out|paces|metrics|seconds"
    r"|accelerator_hours_by_confidence|seen|learned|arguments|tables|change|configs\[\]"
    r"|lost_percent|lost_points|start_s)$"
)
JOB = "import headway\nfor _ in range(20):\n    headway.step()\n"


def _run(*args: str) -> str:
    """The standard output of a command of this process."""
    from headway.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    if code not in (0, 1):
        raise RuntimeError(f"headway {' '.join(args)} ended with {code}: {err.getvalue()}")
    return out.getvalue()


def _asked(*args: str) -> Any:
    return json.loads(_run(*args))


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Each key of nested objects by its path, and the kind of value that it has."""
    if isinstance(value, dict):
        if path:
            yield f"{path} object"
        named = NAMED.search(path)
        for key, one in value.items():
            step = "*" if named else key
            yield from paths(one, f"{path}.{step}" if path else step)
    elif isinstance(value, list):
        yield f"{path or '.'} list"
        for one in value:
            yield from paths(one, f"{path}[]")
    else:
        kinds = {type(None): "null", bool: "bool", str: "string", int: "number", float: "number"}
        yield f"{path} {kinds[type(value)]}"


def _merged(title: str, values: Iterable[Any]) -> Iterator[str]:
    """One line for each key, with all kinds of value that it had."""
    kinds: dict[str, set[str]] = {}
    for value in values:
        for line in paths(value):
            path, _, kind = line.rpartition(" ")
            kinds.setdefault(path, set()).add(kind)
    for path, found in kinds.items():
        yield f"{title}: {path} {'|'.join(sorted(found))}"


def json_outputs() -> Iterator[str]:
    """Of commands that need nothing else."""
    runs = sorted(RUNS.glob("*/files/run"))
    names = [str(run) for run in runs]
    everything = str(RUNS / "everything" / "files" / "run")
    yield from _merged("report", (_asked("report", name, "--json") for name in names))
    advice = (_asked("advise", name, "--json") for name in names)
    yield from _merged("advise RUN", [*advice, _covered(everything)])
    gate = ["--fail-if", "ett<-1"]
    yield from _merged("compare", [_asked("compare", names[0], names[1], *gate, "--json")])
    waterfall = _asked("compare", *names[:2], "--waterfall", "--json")
    yield from _merged("compare --waterfall", [waterfall])
    trials = ["--trials", "2", "--length", "600", "--json"]
    plans = [
        _asked("plan", "--from", everything, *trials),
        _asked("plan", "--failures-a-day", "3", "--block", "9", "--nodes", "1,8", *trials),
    ]
    yield from _merged("plan", plans)
    yield from _merged("recompiles", [_asked("recompiles", everything, "--json")])
    profiles = str(GOLDEN / "profile" / "auto" / "files" / "headway")
    yield from _merged("auto show", [_asked("auto", "show", "--runs", profiles, "--json")])
    yield from _merged("config", [_settings(_asked("config", "--json"))])
    yield from (f"doctor: [].{name} {_kinds(kind)}" for name, kind in _of_a_check())
    with tempfile.TemporaryDirectory() as place:
        yield from _in_folder(Path(place))
    store = str(GOLDEN / "compile_archive" / "zlib" / "files" / "store")
    rows = _asked("cache", "list", store, "--json")
    yield from _merged("cache list", [rows])
    yield from _merged("cache show", [_asked("cache", "show", store, rows[0]["id"], "--json")])
    yield from _merged("cache stats", [_asked("cache", "stats", store, "--json")])
    snapshots = ["--to", str(GOLDEN / "snapshot" / "rolled_back" / "files" / "store"), "--json"]
    yield from _merged("publish --list", [_asked("publish", "--list", *snapshots)])
    yield from _merged("publish --show", [_asked("publish", "--show", "latest", *snapshots)])
    alerts = str(GOLDEN / "alerts" / "state" / "files" / "store")
    listed = _asked("fleet", "alerts", "--store", alerts, "--list", "--json")
    yield from _merged("fleet alerts --list", [listed])
    small = ["--trace", "synthetic:20", "--gpus", "16", "--seeds", "2"]
    played = _asked("simulate", "cluster", *small, "--policy", "newest,least-cost", "--json")
    yield from _merged("simulate cluster", [played])


def _of_a_check() -> list[tuple[str, str]]:
    """The fields of a check of `headway doctor`, which needs torch to make one."""
    tree = trees()[SOURCE / "cli" / "doctor.py"]
    (check,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Check")
    fields = (one for one in check.body if isinstance(one, ast.AnnAssign))
    return [(ast.unparse(one.target), ast.unparse(one.annotation)) for one in fields]


def _covered(run: str) -> dict[str, Any]:
    """Advice that is worth nothing beside other advice; none of the runs has any."""
    from dataclasses import replace

    from headway.advise.gather import advise, gather
    from headway.advise.show import to_dict

    plan = advise(gather(run, []))
    return to_dict(replace(plan, superseded=plan.advice))


def _settings(told: Mapping[str, Any]) -> dict[str, Any]:
    """Any of them: their names are in a section of their own."""
    return {"*": next(iter(told.values()))}


def _in_folder(place: Path) -> Iterator[str]:
    """Of commands that write beside what they read, or run a job again."""
    everything = RUNS / "everything" / "files" / "run"
    autotune = _asked("autotune", str(everything), "-o", str(place / "autotune.json"), "--json")
    yield from _merged("autotune", [autotune])
    for name, text in {
        "bad.log": "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 7, in <module>\n    main()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "[rank1]: ValueError: bad label\n",
        "good.log": "all is well\n",
    }.items():
        (place / name).write_text(text)
    logs = (_asked("classify", str(place / name), "--json") for name in ("bad.log", "good.log"))
    yield from _merged("classify", logs)
    run = Path(shutil.copytree(everything, place / "run"))
    (place / "job.py").write_text(JOB)
    told = json.loads((run / "run.json").read_text())
    told |= {"command": [sys.executable, "job.py"], "cwd": str(place)}
    (run / "run.json").write_text(json.dumps(told))
    again = _asked("recompiles", str(run), "--verify", "--steps", "5", "--json")
    yield from _merged("recompiles --verify", [again])


def json_fleet() -> Iterator[str]:
    """Of commands that read a fleet store."""
    from headway.cli.fleet import ACTIONS, ASK

    store = str(GOLDEN / "fleet_store" / "written" / "files" / "store")
    for name, (module, _) in ACTIONS.items():
        if module == ASK:
            answer = _asked("fleet", name, "--store", store, "--json")
            yield from _merged(f"fleet {name}", [answer])
    yield from _merged("advise STORE", [_asked("advise", store, "--json")])
    yield from _regressions(store)


def _regressions(store: str) -> Iterator[str]:
    """The store has none: their keys are the fields of the classes that they are made of."""
    from dataclasses import fields

    from headway.fleet.regressions.attribution import FieldShift
    from headway.fleet.regressions.findings import Contribution, Finding
    from headway.fleet.regressions.hosts import Lemon
    from headway.fleet.regressions.running import Alarm

    found = _asked("fleet", "regressions", "--store", store, "--json")
    yield from _merged("fleet regressions", [found])
    for path, kind in (
        ("regressions[]", Finding),
        ("regressions[].parts[]", Contribution),
        ("regressions[].fields[]", FieldShift),
        ("lemons[]", Lemon),
        ("running[]", Alarm),
    ):
        for field in fields(kind):
            yield f"fleet regressions: {path}.{field.name} {_kinds(str(field.type))}"
    yield "fleet regressions: regressions[].regression bool"
    yield "fleet regressions: running[].words string"


def _kinds(annotation: str) -> str:
    """What values of a type are in JSON."""
    kinds = {"float": "number", "int": "number", "str": "string", "None": "null", "bool": "bool"}
    kinds |= {"tuple": "list", "dict": "object"}
    parts = annotation.split(" | ")
    return "|".join(sorted(kinds[part.partition("[")[0]] for part in parts))


# Files


FILES = {
    "publish.json": "run/everything/files/run/publish.json",
    "warm.json": "profile/warm/files/warm.json",
    "autotune.json": "profile/autotune/files/autotune.json",
    ".auto/JOB.json": "profile/auto/files/headway/.auto/*.json",
    ".learned/JOB.json": "profile/learn/files/.learned/*.json",
    "fleet store: store.json": "fleet_store/written/files/store/store.json",
    "fleet store: commits/STEM.json": "fleet_store/written/files/store/commits/*.json",
    "fleet store: compactions/STEM.json": "fleet_store/*/files/store/compactions/*.json",
    "fleet store: alerts.json": "alerts/state/files/store/alerts.json",
    "fleet store: alerts/acks/ID.json": "alerts/state/files/store/alerts/acks/*.json",
    "checkpoint store: manifest.json": "checkpoint/*/files/store/step-*/manifest.json",
    "checkpoint store: part-RANK.json": "checkpoint/interrupted/files/store/.draft-*/part-*.json",
    "checkpoint store: .given-up": "checkpoint/interrupted/files/store/.given-up-*",
    "snapshot store: latest": "snapshot/*/files/store/latest",
    "snapshot store: snapshots/NAME.json": "snapshot/*/files/store/snapshots/*.json",
    "snapshot store: anchors/KEY.json": "snapshot/*/files/store/anchors/*.json",
    "snapshot store: packages/SIGNATURE.json": "snapshot/*/files/store/packages/*.json",
    "snapshot store: registry.json": "snapshot/*/files/store/registry.json",
    "sharding plan": "startup/plan/files/plans/*.json",
    "recorded batch": "startup/batch/files/batch.json",
    "position of the data": "startup/position/files/*.json",
}


def files() -> Iterator[str]:
    """The keys of files of JSON that Headway writes."""
    for name, pattern in FILES.items():
        found = sorted(GOLDEN.glob(pattern))
        assert found, f"there is no {pattern}"
        yield from _merged(name, (json.loads(path.read_text()) for path in found))
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        words = ["run", "-o", str(run), "--label", "team=ads", "--", "true"]
        command = [sys.executable, "-m", "headway", *words]
        subprocess.run(command, cwd=place, capture_output=True, check=True)
        yield from _merged("run.json", [json.loads((run / "run.json").read_text())])
        yield from (f"run folder: {path.name}" for path in run.iterdir())


# Exporters


def exporters() -> Iterator[str]:
    """What `headway export RUN` writes, in each format."""
    from headway.export.csv import HEADER
    from headway.export.otlp import trace_requests
    from headway.export.perfetto import perfetto_lines
    from headway.export.trackers import scalars
    from headway.run import load

    for run in sorted(RUNS.glob("*/files/run")):
        ledger = load(run).ledger
        yield from _metrics("openmetrics", _run("export", "openmetrics", str(run)))
        yield f"csv: {','.join(HEADER)}"
        for name in scalars(ledger):
            yield f"trackers: {re.sub(r'bucket/.*', 'bucket/*_s', name)}"
        for event in json.loads("".join(perfetto_lines(ledger)))["traceEvents"]:
            yield from _of_perfetto(event)
        for request in trace_requests(ledger):
            yield from _of_otlp(request)
    small = ["--failures-a-day", "3", "--block", "9", "--trials", "2", "--length", "600"]
    yield f"plan --csv: {_run('plan', *small, '--csv').splitlines()[0]}"
    yield from _eviction_cost()
    yield from _of_other_systems()
    rules = _run("export", "prometheus-rules")
    yield from (f"prometheus-rules: {one}" for one in re.findall(r"(?:record|alert): \S+", rules))
    for panel in json.loads(_run("export", "grafana"))["panels"]:
        yield from (f"grafana: {panel['title']}: {one['expr']}" for one in panel["targets"])


def _metrics(title: str, text: str) -> Iterator[str]:
    """Each metric with its type, its unit and its labels."""
    for name, kind in re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text):
        unit = re.search(rf"(?m)^# UNIT {name} (\S+)$", text)
        yield f"{title}: {name} {kind}{f' {unit[1]}' if unit else ''}"
        for labels in re.findall(rf"(?m)^{name}{{(.*)}} ", text):
            yield from (f"{title}: {name} label {one}" for one in re.findall(r'(\w+)="', labels))


def _of_perfetto(event: Mapping[str, Any]) -> Iterator[str]:
    name = re.sub(r"\d+.*", "N", event["name"])
    if event["ph"] == "X":
        yield f"perfetto: slice category={event['cat']} args={','.join(event['args'])}"
    elif event["ph"] == "M":
        yield f"perfetto: {name} args={','.join(event['args'])}"
    else:
        yield f"perfetto: instant category={event['cat']} args={','.join(event['args'])}"


def _of_otlp(request: Mapping[str, Any]) -> Iterator[str]:
    (resource,) = request["resourceSpans"]
    for one in resource["resource"]["attributes"]:
        yield "otlp: resource " + re.sub(r"label\..*", "label.*", one["key"])
    for scope in resource["scopeSpans"]:
        yield f"otlp: scope {scope['scope']['name']}"
        for span in scope["spans"]:
            for one in span["attributes"]:
                yield f"otlp: attribute {one['key']} {next(iter(one['value']))}"


def _eviction_cost() -> Iterator[str]:
    """What `headway schedule publish-cost` tells of a run, to files and to scrapers."""
    from headway.eviction_cost import EvictionCost
    from headway.export.openmetrics import Family, format_families
    from headway.schedule.publishers.base import RunCost
    from headway.schedule.publishers.file import _to_json, metric_families

    price = EvictionCost(
        accelerators=1, unsaved=1.0, save=None, recover=1.0, preemptions=0, lost=2.0
    )
    offer = RunCost(run="a", host="node0", job="1", at=0.0, price=price)
    text = "".join(
        format_families((Family(*one) for one in metric_families([(offer.labels, price)])), {})
    )
    yield from _metrics("publish-cost --file X.prom", text)
    yield from _merged("publish-cost --file X.json", [json.loads(_to_json([offer]))])


def _of_other_systems() -> Iterator[str]:
    """Names that are given to things in MLflow and Kubernetes: texts of the source."""
    for folder, pattern in (("publish", r"headway\.[\w.]+"), ("schedule", r"headway/[\w-]+")):
        for path in (SOURCE / folder).rglob("*.py"):
            for text in re.findall(rf'"({pattern})[{{"]', path.read_text()):
                if not text.startswith(("headway.publish", "headway.cli", "headway.targets")):
                    yield f"names elsewhere: {text}"


def metrics_of_a_store() -> Iterator[str]:
    """What `headway fleet metrics` and `headway export prometheus` say."""
    store = str(GOLDEN / "fleet_store" / "written" / "files" / "store")
    yield from _metrics("prometheus", _run("export", "prometheus", store, "--since", "10000d"))


def pages() -> Iterator[str]:
    """The pages of `headway serve`, and what each asks for."""
    from headway.serve.pages import PAGES
    from headway.serve.pages.run import RUN_PAGE

    for page in (*PAGES, RUN_PAGE):
        yield f"page {page.path}"
        yield from (f"page {page.path} /data/{panel.name}" for panel in page.panels)
        yield from (f"page {page.path} parameter {name}" for name in page.parameters)


SECTIONS: tuple[tuple[str, Callable[[], Iterable[str]], tuple[str, ...]], ...] = (
    ("json of commands", json_outputs, ()),
    ("json of commands on a store", json_fleet, FLEET),
    ("files", files, ()),
    ("exporters", exporters, ()),
    ("metrics of a store", metrics_of_a_store, FLEET),
    ("pages", pages, FLEET),
)
