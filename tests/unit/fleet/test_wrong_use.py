"""Wrong use of the verbs about fleets, plans and schedules: exit code 2 and one line, its code."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.fleet import ACTIONS
from headway.fleet.store.parquet import Store
from headway.run import Run, load
from tests.support import codes
from tests.unit.report.ledgers import killed
from tests.unit.schedule.launcher_journal import write_active_run

pytestmark = pytest.mark.xdist_group("pages")
TABLE = [
    ("fleet", "wrong-usage"),
    ("fleet dance", "wrong-usage"),
    ("fleet ett", "store-not-named"),
    ("fleet ett --store none", "store-not-found"),
    ("fleet ett --store STORE --since soon", "time-invalid"),
    ("fleet ett --store STORE --by color", "split-unknown"),
    ("fleet ett --store STORE --limit 0", "value-out-of-range"),
    ("fleet ett --store STORE --where team", "condition-invalid"),
    ("fleet ett --store STORE --json --csv", "wrong-usage"),
    ("fleet compact --store none", "store-not-found"),
    ("fleet compact --store STORE --grace -1", "value-out-of-range"),
    ("fleet metrics --store none", "store-not-found"),
    ("fleet metrics --store none --listen 0.0.0.0:0", "token-missing"),
    ("fleet metrics --store none --every -1", "value-out-of-range"),
    ("fleet metrics --store none --by color", "split-unknown"),
    ("fleet metrics --store none --since long", "time-invalid"),
    ("fleet regressions --store none", "store-not-found"),
    ("fleet regressions --store STORE --by color", "split-unknown"),
    ("fleet regressions --store STORE --by ,", "split-empty"),
    ("fleet regressions --store STORE --level 2", "value-out-of-range"),
    ("fleet regressions --store STORE --points -1", "value-out-of-range"),
    ("fleet regressions --store STORE --since soon", "time-invalid"),
    ("fleet simulate --store new --jobs 0", "value-out-of-range"),
    ("fleet simulate --store new --days -3", "value-out-of-range"),
    ("fleet simulate --store new --scale 0", "value-out-of-range"),
    ("fleet simulate --store new --seed -1", "value-out-of-range"),
    ("fleet simulate --store new --regressions 51", "value-out-of-range"),
    ("fleet simulate --store new --lemons -1", "value-out-of-range"),
    ("fleet simulate --store . --jobs 20 --days 2", "not-a-store"),
    ("fleet alerts --once", "rules-not-named"),
    ("fleet alerts --check --rules none.toml", "file-unreadable"),
    ("fleet alerts --check --rules .", "file-unreadable"),
    ("fleet alerts --check --rules bad.toml", "rule-key-unknown"),
    ("fleet alerts --check --rules binary", "file-unreadable"),
    ("fleet alerts --rules rules.toml", "store-not-named"),
    ("fleet alerts --rules rules.toml --store none", "store-not-found"),
    ("fleet alerts --rules rules.toml --store STORE", "environment-variable-not-set"),
    ("fleet alerts --list --store none", "store-not-found"),
    ("fleet alerts --list --watch", "wrong-usage"),
    ("fleet alerts --ack x --store STORE", "alert-not-found"),
    ("fleet alerts --ack ../x --store STORE", "alert-not-found"),
    ("fleet alerts --every 5", "option-not-allowed"),
    ("fleet alerts --watch --every 0 --rules rules.toml", "option-not-allowed"),
    ("fleet alerts --watch --every nan --rules rules.toml", "option-not-allowed"),
    ("fleet alerts --by kim", "option-not-allowed"),
    ("fleet alerts --json", "option-not-allowed"),
    ("fleet alerts --list --store torn", "alerts-file-damaged"),
    ("fleet alerts --list --store own", "alerts-file-damaged"),
    ("fleet alerts --list --store newer", "newer-schema"),
    ("fleet alerts --list --store postgresql://h/x", "store-not-files"),
    ("ingest file --store new", "record-not-recognized"),
    ("ingest none --reader slurm --store new", "file-not-found"),
    ("ingest file --reader pbs --store new", "reader-unknown"),
    ("ingest binary --store new", "file-unreadable"),
    ("run --label team -- true", "label-invalid"),
    ("ingest night", "store-not-named"),
    ("ingest night --store s --label 'a b=c'", "label-invalid"),
    ("ingest night --store s --label team", "label-invalid"),
    ("ingest --store s", "wrong-usage"),
    ("plan --block 15s", "mtbf-unknown"),
    ("plan --mtbf 1d --failures-a-day 1", "options-conflict"),
    ("plan --mtbf 5x --block 1s", "time-invalid"),
    ("plan --mtbf 0s --block 1s", "value-out-of-range"),
    ("plan --mtbf 1d --block=-1s", "time-invalid"),
    ("plan --mtbf 1d", "interval-undefined"),
    ("plan --mtbf 1d --block 1s --nodes 8,x", "nodes-invalid"),
    ("plan --mtbf 1d --block 1s --nodes ,", "list-empty"),
    ("plan --mtbf 1d --block 1s --interval often", "time-invalid"),
    ("plan --mtbf 1d --block 1s --length 0s", "value-out-of-range"),
    ("plan --mtbf 1d --block 1s --trials 1", "value-out-of-range"),
    ("plan --failures-a-day 3@0 --block 1s", "rate-invalid"),
    ("plan --mtbf 1min --nodes 100000 --block 1s", "too-many-failures"),
    ("plan --from nowhere", "run-not-found"),
    ("plan --from .", "store-not-found"),
    ("plan --from night --where team=ads", "option-not-allowed"),
    ("plan --json --csv", "wrong-usage"),
    ("schedule", "wrong-usage"),
    ("schedule publish-cost nowhere --to slurm", "run-not-found"),
    ("schedule publish-cost file --to slurm", "not-a-run"),
    ("schedule publish-cost going --to file", "option-missing"),
    ("schedule publish-cost going --to ray --file x", "option-missing"),
    ("schedule publish-cost going --to slurm --file x", "option-not-allowed"),
    ("schedule publish-cost going --to slurm --nudge-min 1", "option-missing"),
    ("schedule publish-cost going --to slurm --nudge-max 0", "value-out-of-range"),
    ("schedule publish-cost going --to slurm --interval nan", "value-out-of-range"),
    ("schedule publish-cost going --to slurm --grace -1", "value-out-of-range"),
    ("schedule publish-cost going --to kubernetes --api ftp://x", "url-invalid"),
    (
        "schedule publish-cost going --to kubernetes --api http://x --object x",
        "kubernetes-object-invalid",
    ),
    ("schedule publish-cost going --to mars", "wrong-usage"),
    ("schedule slurm --grace 0", "value-out-of-range"),
    ("schedule slurm --interval nan", "value-out-of-range"),
    ("schedule slurm --policy cheapest", "policy-unknown"),
    ("schedule slurm --quota no.csv", "file-unreadable"),
    ("schedule slurm --quota later.csv", "quota-of-later-day"),
    ("serve nothing", "store-not-found"),
    ("serve STORE --listen 8787", "address-invalid"),
    ("serve STORE --listen 0.0.0.0:0", "token-missing"),
    ("serve STORE --listen 0.0.0.0:0 --token short", "token-too-short"),
    ("serve STORE --runs nothing", "not-a-folder"),
    ("simulate", "wrong-usage"),
    ("simulate cluster --trace helios", "trace-unknown"),
    ("simulate cluster --trace synthetic:10 --policy oldest", "policy-unknown"),
    ("simulate cluster --trace synthetic:10 --policy ,", "list-empty"),
    ("simulate cluster --trace synthetic:10 --gpus 0", "value-out-of-range"),
    ("simulate cluster --trace synthetic:10 --per-node -1", "value-out-of-range"),
    ("simulate cluster --trace synthetic:10 --save -1", "value-out-of-range"),
    ("simulate cluster --trace synthetic:10 --grace nan", "value-out-of-range"),
    ("simulate cluster --trace synthetic:10 --spot p3 --spot-nodes 76", "value-out-of-range"),
    ("simulate cluster --trace philly --days -1", "value-out-of-range"),
    ("simulate cluster --trace synthetic:10 --seeds 0", "value-out-of-range"),
    ("simulate cluster --trace synthetic:10 --shift", "trace-too-short"),
    ("simulate cluster --trace synthetic:10 --spot p3", "option-missing"),
    ("simulate cluster --trace synthetic:10 --from 2017-10-10", "option-not-allowed"),
    ("simulate cluster --trace sacct:large.psv --gpus 64", "job-too-large"),
    ("simulate cluster --trace synthetic:10 --habits nowhere", "run-not-found"),
    ("simulate cluster --trace sacct:jobs.psv --gpus 8 --quota quota.csv", "quota-missing"),
]
RULES = '[[rule]]\nname = "a"\nkind = "change"\n'
SACCT = "JobID|Account|Submit|ElapsedRaw|AllocTRES\n1|a|2026-01-01T00:00:00|600|gres/gpu=1\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`night` is a finished run, `going` one that goes on."""
    folder = tmp_path_factory.mktemp("wrong-use")
    (folder / "night" / "journal").mkdir(parents=True)
    write_active_run(folder / "going")
    (folder / "file").touch()
    (folder / "later.csv").write_text("ads,4\nads,8,1\n")
    (folder / "quota.csv").write_text("b,4\n")
    (folder / "jobs.psv").write_text(SACCT)
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    (folder / "rules.toml").write_text(RULES + 'to = ["x"]\n[to.x]\nwebhook = "env:NOT_SET"\n')
    (folder / "bad.toml").write_text(RULES + "belw = 1\n")
    for name, text in {"torn": "{", "own": "[]", "newer": '{"schema": 9}'}.items():
        (folder / name).mkdir()
        (folder / name / "store.json").write_text("{}")
        (folder / name / "alerts.json").write_text(text)
    (folder / "large.psv").write_text(SACCT.replace("gpu=1", "gpu=128"))
    return folder


@pytest.mark.parametrize(("line", "code"), TABLE)
def test_wrong_use_is_one_line_with_its_code(
    line: str,
    code: str,
    folder: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    night = Run(path=folder, name="night", ledger=killed())
    monkeypatch.setattr("headway.run.load", lambda path: night if path == "night" else load(path))
    monkeypatch.chdir(folder)
    for name in ("HEADWAY_TOKEN", "HEADWAY_STORE", "NOT_SET"):
        monkeypatch.delenv(name, raising=False)
    try:
        status = main(shlex.split(line.replace("STORE", store.url)))
    except SystemExit as error:  # by argparse
        status = int(error.code or 0)
    output = capsys.readouterr()
    assert (status, output.out, codes(output.err)) == (2, "", [code])
    # Nothing was written.
    assert not Path("new").exists()
    assert not {"alerts.json", "alerts"} & {path.name for path in Path(store.url).iterdir()}


LEAVES = [
    *("ingest", "plan", "serve", "simulate cluster", "schedule slurm", "schedule publish-cost"),
    *(f"fleet {action}" for action in ACTIONS),
]


@pytest.mark.parametrize("verb", LEAVES)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, check=lambda error: error.code == 0):
        main([*verb.split(), "--help"])
    assert f"headway {verb}" in capsys.readouterr().out
