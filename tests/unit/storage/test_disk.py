"""Whether only this user can write a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.storage.disk import only_user_can_write


def test_what_this_user_alone_can_write_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "step"
    folder.mkdir(parents=True)
    file = folder / "data"
    file.write_bytes(b"")
    assert only_user_can_write(folder) and only_user_can_write(f"file://{folder}")
    for path in (folder.parent, folder, file):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        assert not only_user_can_write(folder), path.name
        path.chmod(mode)
    assert only_user_can_write(folder)
    assert not only_user_can_write("memory://store/step") and not only_user_can_write(
        tmp_path / "absent"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files away")
def test_files_of_another_user_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    assert only_user_can_write(tmp_path / "step")
    os.chown(tmp_path / "step", 65534, 65534)
    assert not only_user_can_write(tmp_path / "step")
