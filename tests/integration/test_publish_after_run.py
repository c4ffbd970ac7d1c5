"""Starting a publish: in a process, by Slurm, by a command of the user."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.journal import run_files as notes
from headway.launch import signals
from headway.launch.run_folder import RunFolder
from headway.publish import after_run
from tests.support import has_code, wait_until

TELLS = """#!{python}
import json, os, signal, sys
told = {{"held": list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))}}
told |= {{"words": sys.argv, "nice": os.nice(0), "session": os.getsid(0) == os.getpid()}}
told["env"] = dict(os.environ)
open("{out}.new", "w").write(json.dumps(told))
os.rename("{out}.new", "{out}")
print("17;cluster")
"""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Wait for the publish processes."""
    yield
    while after_run._publish_processes:
        after_run._publish_processes.pop().wait(30)


def script(folder: Path, name: str) -> Path:
    """A program that writes its arguments to NAME.json."""
    path = folder / name
    path.write_text(TELLS.format(python=sys.executable, out=folder / f"{name}.json"))
    path.chmod(0o755)
    return path


def told(path: Path) -> dict[str, object]:
    wait_until(path.exists)
    content: dict[str, object] = json.loads(path.read_text())
    return content


def target(folder: Path) -> RunFolder:
    run = folder / "headway" / "night"
    run.mkdir(parents=True)
    return RunFolder(run="night", folder=run, url=None, launch="l", index=0)


def test_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own session, with the lowest priority, and without the variables of a rank."""
    program = script(tmp_path, "python")
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    monkeypatch.setenv("HEADWAY_RUN", "night")
    monkeypatch.chdir(tmp_path)
    where = target(tmp_path)
    with signals.blocked():
        location = after_run.start_publish(
            after_run.parse_request("r.toml", "store", "local"), "/anchor", where
        )
    content = told(tmp_path / "python.json")
    words, env = content["words"], content["env"]
    assert isinstance(words, list) and isinstance(env, dict)
    assert words[1:4] == ["-m", "headway", "run"] and "--run" in words and "/anchor" in words
    assert words[words.index("--recipe") + 1] == str(tmp_path / "r.toml")
    assert words[words.index("--to") + 1] == str(tmp_path / "store")
    assert words[words.index("-o") + 1] == str(tmp_path / "headway" / "night-publish")
    assert content["nice"] == 19 and content["session"] and content["held"] == []
    assert env["CUDA_VISIBLE_DEVICES"] == "" and not {"SLURM_JOB_ID", "HEADWAY_RUN"} & env.keys()
    note = notes.read_publish_note(where.folder)
    assert note["run"] == "night-publish" and note["anchor"] == "/anchor"
    assert note["log"] in location and Path(note["log"]).exists()


def test_it_outlives_whoever_started_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = f"""
import os, pathlib, time
from headway.publish.after_run import _start_detached
print(_start_detached(["sleep", "30"], pathlib.Path({str(log)!r}), os.environ), flush=True)
time.sleep(30)
"""
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    launcher.kill()
    launcher.communicate()
    os.kill(child, 0)
    os.kill(child, signal.SIGTERM)


def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "sbatch")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HEADWAY_RUN", "night")
    order = after_run.parse_request("r.toml", "s3://bucket/store", "slurm --partition=cpu")
    where = target(tmp_path)
    location = after_run.start_publish(order, "/an anchor", where)
    assert re.search(r"\b17\b", location)
    content = told(tmp_path / "sbatch.json")
    assert isinstance(content["words"], list) and isinstance(content["env"], dict)
    path = where.folder / "publish.sbatch"
    assert content["words"][1:] == ["--parsable", "--partition=cpu", str(path)]
    assert "HEADWAY_RUN" not in content["env"]
    text = path.read_text()
    assert f"#SBATCH --output={where.folder / 'publish.log'}\n" in text
    assert "publish '/an anchor'" in text and "--to s3://bucket/store" in text
    subprocess.run(["sh", "-n", path], check=True)


def test_slurm_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    where = target(tmp_path)
    with pytest.raises(after_run.PublishNotStarted, check=has_code("publish-not-started")):
        after_run.start_publish(after_run.parse_request("r.toml", "s", "slurm"), "/anchor", where)
    assert notes.read_publish_note(where.folder)["error"].endswith(
        "invalid partition"
    )  # its own words


@pytest.mark.parametrize(
    ("by", "tail"),
    [
        ("on cpu1 {anchor} --recipe={recipe} {store}", ["cpu1", "/a", "--recipe=/r.toml", "/s"]),
        ("on cpu1", ["cpu1", sys.executable, "-m", "headway", "run"]),
    ],
)
def test_a_command_of_the_users(by: str, tail: list[str], tmp_path: Path) -> None:
    """Placeholders are filled in; without any, the whole command is appended."""
    program = script(tmp_path, "on")
    order = after_run.parse_request("/r.toml", "/s", by.replace("on", str(program), 1))
    after_run.start_publish(order, "/a", target(tmp_path))
    words = told(tmp_path / "on.json")["words"]
    assert isinstance(words, list) and words[1 : 1 + len(tail)] == tail


def test_a_shell_elsewhere_gets_one_word(tmp_path: Path) -> None:
    program = script(tmp_path, "ssh")
    order = after_run.parse_request("/r.toml", "/s", f"{program} cpu1 {{command}}")
    after_run.start_publish(order, "/an anchor", target(tmp_path))
    words = told(tmp_path / "ssh.json")["words"]
    assert isinstance(words, list) and len(words) == 3 and "publish '/an anchor' " in words[2]
