"""Precedence of flags, HEADWAY_*, headway.toml and defaults."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.probe import INTERNAL_ENV
from headway.settings import Settings, resolve
from tests.support import has_code


def test_the_order_of_sources(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text('output = "file"\nname = "file"\nreport = false\n')
    settings = resolve(
        env={"HEADWAY_NAME": "env", "HEADWAY_OUTPUT": "env"}, folder=tmp_path, output="f"
    )
    assert settings["output"] == ("f", "flag")
    assert settings["name"] == ("env", "HEADWAY_NAME")
    assert settings["report"] == (False, "headway.toml")


def test_pyproject_is_read_where_there_is_no_file_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.headway]\nname = "project"\n')
    assert resolve(env={}, folder=tmp_path)["name"] == ("project", "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text('[tool.other]\nname = "project"\n')
    assert resolve(env={}, folder=tmp_path)["name"] == (None, "default")


@pytest.mark.parametrize(
    ("text", "env", "code", "setting"),
    [
        ("colour = 1", {}, "setting-unknown", "colour"),
        ("name = ", {}, "toml-invalid", None),
        ("restarts = 1.5", {}, "setting-invalid", "restarts"),
        ("", {"HEADWAY_REPORT": "perhaps"}, "setting-invalid", "HEADWAY_REPORT"),
        ("", {"HEADWAY_RESTARTS": "some"}, "setting-invalid", "HEADWAY_RESTARTS"),
        ("", {"HEADWAY_HANG_AFTER": "long"}, "setting-invalid", "HEADWAY_HANG_AFTER"),
        ("", {"HEADWAY_HANG_AFTER": "-5"}, "setting-invalid", "HEADWAY_HANG_AFTER"),
        ("", {"HEADWAY_HANG_AFTER": "nan"}, "setting-invalid", "HEADWAY_HANG_AFTER"),
        ("", {"HEADWAY_HANG_AFTER": "inf"}, "setting-invalid", "HEADWAY_HANG_AFTER"),
        ("hang_after = -5", {}, "setting-invalid", "hang_after"),
        ("hang_after = nan", {}, "setting-invalid", "hang_after"),
        ('output = ["a"]', {}, "setting-invalid", "output"),
        ("[labels]\nteam = 1", {}, "setting-invalid", "labels"),
        ("name = 2026-01-01", {}, "setting-invalid", "name"),
        ("", {"HEADWAY_RESTARTS": "9" * 5000}, "setting-invalid", "HEADWAY_RESTARTS"),
        ("restarts = " + "9" * 5000, {}, "toml-invalid", None),
        ("name = " + "[" * 100_000, {}, "toml-invalid", None),
        ("name = '\udcff'", {}, "toml-invalid", None),
        ("#" * (1 << 20) + "\n", {}, "toml-unreadable", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_settings_are_named(
    tmp_path: Path, text: str, env: dict[str, str], code: str, setting: str | None
) -> None:
    (tmp_path / "headway.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, check=has_code(code)) as error:
        resolve(env=env, folder=tmp_path)
    assert error.value.fields.get("setting") == setting


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")],
    ids=["folder", "pipe", "broken link"],
)
def test_settings_that_are_no_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "headway.toml")
    with pytest.raises(UsageError, check=has_code("toml-unreadable")):
        resolve(env={}, folder=tmp_path)


def test_a_project_without_a_table_of_ours(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text("tool = 1 # [tool.headway]")
    assert resolve(env={}, folder=tmp_path)["name"] == (None, "default")
    project.write_text("[[tool.headway]]\nname = 1")
    with pytest.raises(UsageError, check=has_code("toml-invalid")):
        resolve(env={}, folder=tmp_path)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_flag_that_is_no_time(tmp_path: Path, value: float) -> None:
    with pytest.raises(UsageError, check=has_code("setting-invalid")) as error:
        resolve(env={}, folder=tmp_path, hang_after=value)
    assert error.value.fields["setting"] == "--hang-after"


def test_zero_is_a_number(tmp_path: Path) -> None:
    settings = resolve(env={"HEADWAY_HANG_AFTER": "0"}, folder=tmp_path, restarts=0)
    assert settings["hang_after"] == (0.0, "HEADWAY_HANG_AFTER")
    assert settings["restarts"] == (0, "flag")


def test_what_the_probe_reads_is_no_setting() -> None:
    """Otherwise a variable of the user would control the probe, regardless of flags."""
    assert not {f"HEADWAY_{field.name.upper()}" for field in fields(Settings)} & set(INTERNAL_ENV)
