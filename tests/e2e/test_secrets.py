"""Secrets in a command, a variable, a URL or a message are in no file and no output of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway import redact
from tests.journals.recorded import unpack
from tests.support import HEADWAY, JOBS, cli, quiet_env

API_KEY, PASSWORD = "hunter2correcthorse", "batterystaple99"
HEADER, VARIABLE = "bearerofthejob55", "variableofthejob77"
SECRETS = (API_KEY, PASSWORD, HEADER, VARIABLE)
DATABASE = f"postgres://trainer:{PASSWORD}@db.example.com:5432/samples"
WORDS = ("--api-key", API_KEY, DATABASE, "--auth-token", HEADER, f"--aws_secret={VARIABLE}")
# It sets variables before it imports torch, makes steps, and shows everything in its last words.
JOB = """
import os, sys
_, _, key, database, _, header, variable = sys.argv
os.environ["AWS_SECRET_ACCESS_KEY"] = variable.partition("=")[2]
os.environ["SAMPLES"] = database
import torch, headway
for step in range(20):
    headway.step()
raise RuntimeError(f"no connection to {database} with token={key}, Authorization: Bearer {header}")
"""


def _secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def test_no_file_and_no_output_of_a_run_has_a_secret(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, str(script), *WORDS]
    done = subprocess.run(
        [HEADWAY, "run", "--auto", "--store", "store", "-o", "runs/job", "--", *command],
        cwd=tmp_path,
        env={**os.environ, **quiet_env(tmp_path), "PYTHONPATH": str(JOBS / "stand_in")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    # The last words of the job are its own; it has said them once.
    last = f"RuntimeError: no connection to {DATABASE} with token={API_KEY}, "
    last += f"Authorization: Bearer {HEADER}"
    assert done.stderr.count(last) == 1
    outputs = {"run": done.stderr.replace(last, "")}
    for words in (
        ("report", "runs/job"),
        ("report", "runs/job", "--json"),
        ("report", "runs/job", "--html", "report.html"),
        ("top", "--once", "runs/job"),
        ("advise", "runs/job"),
        ("advise", "runs/job", "--json"),
        ("compare", "runs/job", "runs/job", "--json"),
        ("recompiles", "runs/job", "--json"),
        *(("export", name, "runs/job", "-o", name) for name in ("perfetto", "csv", "otlp")),
        ("export", "openmetrics", "runs/job"),
        ("fleet", "failures", "--store", "store"),
    ):
        answer = cli(*words, cwd=tmp_path)
        assert answer.returncode == 0, (words, answer.stderr)
        outputs[" ".join(words)] = answer.stdout + answer.stderr
    assert {name: found for name, text in outputs.items() if (found := _secrets_in(text))} == {}

    exact = tmp_path / "runs" / "job" / "command.json"
    files = [p for p in tmp_path.rglob("*") if p.is_file() and p not in (script, exact)]
    assert {path.suffix for path in files} >= {".jsonl", ".json", ".html", ".parquet"}
    contents = {path: path.read_bytes().decode("utf-8", "replace") for path in files}
    assert {path: found for path, text in contents.items() if (found := _secrets_in(text))} == {}
    assert redact.MASK in contents[tmp_path / "runs" / "job" / "run.json"]

    assert json.loads(exact.read_text()) == command
    assert exact.stat().st_mode & 0o777 == 0o600


def test_what_is_wrong_or_configured_is_shown_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_STORE", DATABASE)
    (tmp_path / "job.log").write_text(
        f"Traceback (most recent call last):\nRuntimeError: {'x' * 250} {DATABASE}\n"
    )
    for words in (
        ("config",),
        ("config", "--json"),
        ("report", "r", f"--api-key={API_KEY}"),
        ("fleet", DATABASE),
        ("classify", "job.log"),
        ("classify", "job.log", "--json"),
    ):
        answer = cli(*words, cwd=tmp_path)
        text = answer.stdout + answer.stderr
        assert redact.MASK in text, words
        assert _secrets_in(text) == [] and PASSWORD[:5] not in text, (words, text)


def test_the_password_of_a_store_is_not_shown(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store = f"memory://trainer:{PASSWORD}@db.example.com/store"
    folder = str(unpack("two_nodes", tmp_path))
    length = ("--length", "10min", "--trials", "2")
    for words in (
        ("fleet", "ett", "--store", store),
        ("ingest", folder, "--store", store),
        ("ingest", folder, str(tmp_path / "none"), "--store", store),
        ("fleet", "ett", "--store", store),
        ("fleet", "compact", "--store", store),
        ("advise", store),
        ("advise", store, "--json"),
        ("plan", "--from", store, "--nodes", "1", "--block", "1s", "--mtbf", "1d", *length),
        ("plan", "--from", store, "--nodes", "1", "--mtbf", "1d", *length, "--json"),
        ("fleet", "simulate", "--store", f"{store}2", "--jobs", "20", "--days", "2"),
        ("publish", "--list", "--to", store),
        ("cache", "list", store),
        ("report", store),
    ):
        answer = cli(*words, cwd=tmp_path)
        assert _secrets_in(answer.stdout + answer.stderr) == [], words
        assert "internal-fault" not in answer.stderr, (words, answer.stderr)
