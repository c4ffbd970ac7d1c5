"""Wrong flags, settings and commands exit with 2 before the job starts, and create nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.launches import Row, names

WRONG = Row(options=("--no-report",), code=2, starts=0, outcomes=None, act=lambda started: None)


def file(text: bytes, name: str = "headway.toml") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(text)


def variable(name: str, value: str, code: str, *, slow: bool = True) -> Row:
    return replace(WRONG, env={name: value}, codes=(code,), slow=slow)


ROWS = {
    "no number": variable("HEADWAY_RESTARTS", "x", "setting-invalid", slow=False),
    "a number without end": variable("HEADWAY_RESTARTS", "9" * 5000, "setting-invalid"),
    "no time": variable("HEADWAY_HANG_AFTER", "nan", "setting-invalid"),
    "neither true nor false": variable("HEADWAY_AUTO", "2", "setting-invalid"),
    "no tier": variable("HEADWAY_COMPILE_TIER", "x", "setting-invalid"),
    "no label": variable("HEADWAY_LABELS", "x", "label-invalid"),
    "no name": variable("HEADWAY_NAME", "a/b", "run-name-invalid"),
    "no run": variable("HEADWAY_RUN", "..", "run-name-invalid"),
    "no such place": variable("HEADWAY_OUTPUT", "nosuch://x/y", "url-unusable"),
    "no such store": variable("HEADWAY_STORE", "nosuch://x/y", "url-unusable", slow=False),
    "no such cache": variable("HEADWAY_COMPILE_CACHE", "nosuch://x/y", "url-unusable"),
    "no such configs": variable("HEADWAY_AUTOTUNE", "x", "run-not-found"),
    "no such setting": replace(
        WRONG, before=file(b"colour = 1"), codes=("setting-unknown",), slow=True
    ),
    "no text": replace(WRONG, before=file(b"\xff\xfe\0"), codes=("toml-invalid",)),
    "no file": replace(
        WRONG, before=lambda folder: (folder / "headway.toml").mkdir(), codes=("toml-unreadable",)
    ),
    "no table": replace(
        WRONG,
        before=file(b"[[tool.headway]]\nauto = true", "pyproject.toml"),
        codes=("toml-invalid",),
        slow=True,
    ),
    "no plan": replace(WRONG, options=("--chaos", "x"), codes=("fault-kind-unknown",), slow=True),
}


@names(ROWS)
def test_the_job_is_not_started(tmp_path: Path, name: str) -> None:
    if "url-unusable" in ROWS[name].codes:
        pytest.importorskip("fsspec")
    ROWS[name].check(tmp_path / "job")
    assert not (tmp_path / "job" / "headway").exists()
