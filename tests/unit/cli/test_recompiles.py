"""`headway recompiles --verify` runs the exact command, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headway.cli.recompiles import _recorded_command
from headway.compile.recompiles.learning import load_run
from headway.errors import UsageError
from headway.journal.run_files import write_command
from headway.redact import MASK
from headway.testing import FakeRun
from tests.support import has_code

COMMAND = ["python", "train.py", "--password", "first-password"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = FakeRun()
    job.launcher(0)
    rank = job.process(0)
    rank.train(1, 50, 2.0, 0.1)
    rank.exit(8)
    run = tmp_path / "run"
    run.mkdir(mode=0o755)
    job.write(run)
    identity = {"command": [*COMMAND[:-1], MASK], "cwd": str(tmp_path)}
    (run / "run.json").write_text(json.dumps(identity))
    return run


def test_a_masked_command_is_not_run(folder: Path) -> None:
    with pytest.raises(UsageError, check=has_code("command-masked")):
        _recorded_command(load_run(str(folder)), str(folder))
    write_command(folder, COMMAND)
    assert _recorded_command(load_run(str(folder)), str(folder)) == (COMMAND, folder.parent)


@pytest.mark.parametrize("what", ["folder", "run.json", "command.json", "owner", "link", "url"])
def test_what_others_can_write_is_not_run(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_command(folder, COMMAND)
    run = str(folder)
    if what == "folder":
        folder.chmod(0o775)
    elif what == "owner":
        if os.geteuid() == 0:  # what root has made is safe for everybody
            os.chown(folder / "run.json", 65534, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 65534)
    elif what == "link":
        (folder.parent / "shared").mkdir()
        (folder.parent / "shared").chmod(0o777)
        folder.rename(folder.parent / "shared" / "run")
        folder.symlink_to(folder.parent / "shared" / "run")
    elif what == "url":
        run = f"file://{folder}"
    else:
        (folder / what).chmod(0o666)
    with pytest.raises(UsageError, check=has_code("command-not-trusted")):
        _recorded_command(load_run(str(folder)), run)
