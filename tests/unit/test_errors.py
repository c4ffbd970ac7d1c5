"""Errors with a command to type, and codes at the end of lines."""

from __future__ import annotations

import shlex
from importlib import metadata

import pytest

from headway.errors import FINE, MissingExtra, Reason, install_command, split_code, with_code


def test_an_extra_is_installed_by_its_packages() -> None:
    assert shlex.split(install_command("ed25519")) == ["pip", "install", "cryptography>=42.0"]
    serve, fleet = (set(shlex.split(install_command(extra))) for extra in ("serve", "fleet"))
    assert fleet < serve and any(word.startswith("starlette") for word in serve - fleet)


def test_an_extra_is_named_where_the_metadata_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert shlex.split(install_command("fleet")) == ["pip", "install", "headway[fleet]"]


def test_a_missing_extra_has_the_command_and_its_fields() -> None:
    error = MissingExtra("a store needs pyarrow", extra="fleet", package="pyarrow")
    assert str(error) == f"a store needs pyarrow; type: {install_command('fleet')}"
    assert error.fields == {"extra": "fleet", "package": "pyarrow"}
    assert (error.code, error.exit_code) == ("missing-package", 2)


@pytest.mark.parametrize("text", ["", "it is gone", "it is gone [there]", "two\nlines", "a [B]"])
@pytest.mark.parametrize("code", ["file-missing", "x"])
def test_a_code_comes_off_as_it_went_on(text: str, code: str) -> None:
    assert split_code(with_code(text, code=code)) == (text, code)


@pytest.mark.parametrize("text", ["", "it is gone", "a [B]", "[code] first", "no space[code]"])
def test_a_line_without_a_code(text: str) -> None:
    assert with_code(text, code="") == text
    assert split_code(text) == (text, "")


def test_a_reason_is_its_text() -> None:
    reason = Reason("it is gone", code="file-missing")
    assert (reason, f"{reason}", reason.code) == ("it is gone", "it is gone", "file-missing")
    assert not FINE and FINE.code == ""
