"""To whom a publish is handed over; how: tests/integration/test_publish_order.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.launch import publish
from tests.support import has_code


@pytest.mark.parametrize(
    ("by", "code"),
    [
        ("", "publish-by-invalid"),
        ("local please", "publish-by-invalid"),
        ("'half", "publish-by-invalid"),
        ("no-such-program", "command-not-found"),
        ("slurm", "command-not-found"),
    ],
)
def test_nobody_can_do_it(by: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, check=has_code(code)) as error:
        publish.parse_request("recipe.toml", "store", by)
    program = {"no-such-program": by, "slurm": "sbatch"}.get(by)
    assert error.value.fields.get("command") == program


def test_each_publish_has_a_folder_of_its_own(tmp_path: Path) -> None:
    training = tmp_path / "night"
    (tmp_path / "night-publish").mkdir()
    assert publish._free_folder(training) == tmp_path / "night-publish-2"
