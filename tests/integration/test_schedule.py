"""A publishing controller in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import wait_until
from tests.unit.schedule.launcher_journal import write_active_run


def test_a_controller_that_is_stopped_takes_back_what_it_published(tmp_path: Path) -> None:
    write_active_run(tmp_path / "a")
    path = tmp_path / "costs.prom"
    words = [sys.executable, "-m", "headway", "schedule", "publish-cost", str(tmp_path / "a")]
    words += ["--to", "file", "--file", str(path), "--interval", "0.2"]
    with subprocess.Popen(words) as controller:
        try:
            wait_until(path.exists)
            assert 'run="a"' in path.read_text()
            controller.terminate()
            assert controller.wait(30) == 0
        finally:
            controller.kill()
    assert path.read_text() == "# EOF\n"
