"""Flags over HEADWAY_* over headway.toml over defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.settings import resolve


def test_the_order_of_sources(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text('output = "file"\nname = "file"\nreport = false\n')
    found = resolve(
        env={"HEADWAY_NAME": "env", "HEADWAY_OUTPUT": "env"}, folder=tmp_path, output="f"
    )
    assert found["output"] == ("f", "flag")
    assert found["name"] == ("env", "HEADWAY_NAME")
    assert found["report"] == (False, "headway.toml")


def test_pyproject_is_read_where_there_is_no_file_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.headway]\nname = "project"\n')
    assert resolve(env={}, folder=tmp_path)["name"] == ("project", "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text('[tool.other]\nname = "project"\n')
    assert resolve(env={}, folder=tmp_path)["name"] == (None, "default")


@pytest.mark.parametrize(
    ("text", "env", "sentence"),
    [
        ("colour = 1", {}, "colour"),
        ("name = ", {}, "not valid TOML"),
        ("", {"HEADWAY_REPORT": "perhaps"}, "HEADWAY_REPORT is 'perhaps'"),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path, text: str, env: dict[str, str], sentence: str
) -> None:
    (tmp_path / "headway.toml").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        resolve(env=env, folder=tmp_path)
