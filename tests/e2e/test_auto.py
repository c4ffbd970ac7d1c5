"""`headway run --auto` as a person types it, and everything that can go wrong with it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.compile.recompiles.learning import LearnedSources, write_learned
from headway.probe import ENV_ASYNC, ENV_AUTOTUNE, ENV_COMPILE
from headway.session.job import identify
from tests.support import BIN, HEADWAY, JOBS, Golden, cli, codes, python, quiet_env

PYTHON = python("train.py")
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2")


@dataclass
class Ended:
    """How a run ended, and what it and its launcher said."""

    code: int
    output: str
    ledger: dict[str, Any]

    @property
    def losses(self) -> dict[int, str]:
        """By step; a step that was made again has the last one."""
        matches = re.findall(r"^loss (\d+) (\S+)", self.output, re.M)
        return {int(step): loss for step, loss in matches}

    @property
    def codes(self) -> list[str]:
        """Of the problems that the launcher has told."""
        lines = re.findall(r"^headway: .*", self.output, re.M)
        return [code for code in codes("\n".join(lines)) if code]

    @property
    def boosters(self) -> dict[str, dict[str, Any]]:
        return {booster["name"]: booster for booster in self.ledger["auto"]["boosters"]}

    @property
    def compiling(self) -> float:
        """Seconds of compiling before the first step, without imports."""
        return float(self.ledger["compile"]["archives"][0]["compile_s"])


class Bench:
    """A folder with the job in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.number = 0
        shutil.copy(JOBS / "train.py", root)

    def run(
        self, *command: str, flags: tuple[str, ...] = ("--auto",), env: dict[str, str] | None = None
    ) -> Ended:
        self.number += 1
        for name in ("last.pt", "killed"):
            (self.root / name).unlink(missing_ok=True)
        done = subprocess.run(
            [HEADWAY, "run", "-o", f"runs/{self.number}", *flags, "--", *command],
            cwd=self.root,
            env={**os.environ, **quiet_env(self.root), "HEADWAY_STRICT": "", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
        ledger = json.loads((self.root / f"runs/{self.number}/ledger.json").read_text())
        return Ended(done.returncode, done.stdout, ledger)

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        return cli("auto", *words, "--runs", "runs", cwd=self.root)

    def refused(self, *words: str) -> str:
        """The code of the problem."""
        done = self.verb(*words)
        assert done.returncode == 2
        (code,) = codes(done.stderr)
        return code

    def shown(self, *words: str) -> Any:
        return json.loads(self.verb("show", *words, "--json").stdout)

    @property
    def auto(self) -> Path:
        return self.root / "runs" / ".auto"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# Without torch: the parts of `--auto` that no training is needed for.


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_job_runs_whatever_lies_in_the_place_of_its_profile(bench: Bench) -> None:
    (bench.root / "runs").mkdir()
    (bench.root / "publish.toml").write_text("this is [no recipe")
    command = python("-c", "print('fine')")
    bench.auto.write_text("a file, so that nothing can be kept there")
    blocked = bench.run(*command)
    assert blocked.code == 0 and "fine" in blocked.output, blocked.output
    assert {"profile-unwritable", "auto-publish-off"} <= set(blocked.codes)
    bench.auto.unlink()
    bench.auto.mkdir()
    profile = bench.auto / f"{identify(command).id}.json"
    profile.write_text('{"schema": 1, "job"')
    torn = bench.run(*command)
    assert torn.code == 0 and "profile-set-aside" in torn.codes
    assert json.loads(profile.read_text())["runs"] == 1
    again = bench.run(*command)
    assert again.code == 0 and again.codes == []
    assert again.boosters["publish"]["state"] == "off"
    assert "publish.toml" in again.boosters["publish"]["why"]


@pytest.mark.timeout(60)
def test_a_recipe_for_another_script_is_told_and_left_alone(bench: Bench) -> None:
    (bench.root / "publish.toml").write_text('script = "other.py"\n[targets.safetensors]\n')
    (bench.root / "train.py").write_text("print('fine')")
    done = bench.run(*PYTHON)
    assert done.code == 0 and "fine" in done.output
    assert done.codes == ["auto-publish-off"]
    assert done.boosters["publish"]["state"] == "off"
    assert all(name in done.boosters["publish"]["why"] for name in ("other.py", "train.py"))
    assert not (bench.root / "runs/1/publish.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_job_that_fails_with_a_booster_and_works_without(bench: Bench) -> None:
    name = "TORCH_COMPILE_DYNAMIC_SOURCES"
    (bench.root / "train.py").write_text(f"import os; assert '{name}' not in os.environ, 'marked'")
    learned = bench.root / "runs" / ".learned" / "train.json"
    write_learned(learned, "train", LearnedSources(torch="2", env={name: "L['x']"}))
    first = bench.run(*PYTHON)
    assert first.code == 0, first.output
    assert "booster-dropped" in first.codes
    assert [attempt["outcome"] for attempt in first.ledger["attempts"]] == ["failed", "completed"]
    assert first.boosters["learn"]["why"]
    second = bench.run(*PYTHON)
    assert second.code == 0 and len(second.ledger["attempts"]) == 1
    assert second.boosters["learn"]["state"] == "off"
    requested = bench.run(*PYTHON, flags=("--auto", "--learn", "--restarts", "0"))
    assert requested.code == 1  # a flag is the user's own word


@pytest.mark.timeout(60)
def test_a_bug_of_the_job_is_not_tried_again(bench: Bench) -> None:
    (bench.root / "train.py").write_text("raise KeyError('no such column')")
    done = bench.run(*PYTHON)
    assert done.code == 1 and len(done.ledger["attempts"]) == 1


@pytest.mark.timeout(60)
def test_exclusions(bench: Bench) -> None:
    flags = ("--auto", "--no-async-save", "--no-warm", "--no-learn", "--no-compile-cache")
    flags += ("--no-autotune", "--no-publish", "--no-hang-watch", "--restarts", "0")
    env = {"HEADWAY_ASYNC_SAVE": "1", "HEADWAY_AUTOTUNE": "kept.json", "HEADWAY_WARM": "1"}
    env |= {"HEADWAY_COMPILE_CACHE": "archives", "HEADWAY_LEARN": "1", "HEADWAY_RESTARTS": "3"}
    env |= {ENV_ASYNC: "1", ENV_AUTOTUNE: "kept.json"}  # of a launcher further out
    job = python("-c", "import os; print(sorted(os.environ))")
    done = bench.run(*job, flags=flags, env=env)
    assert {booster["state"] for booster in done.boosters.values()} == {"off"}
    whys = {booster["why"] for booster in done.boosters.values()}
    assert len(whys) == 1  # the user
    assert not [
        name for name in (ENV_ASYNC, ENV_AUTOTUNE, ENV_COMPILE) if repr(name) in done.output
    ]


@pytest.mark.timeout(60)
def test_show_and_forget(bench: Bench, golden: Golden) -> None:
    assert bench.refused("show") == "runs-folder-not-found"
    (bench.root / "runs").mkdir()
    assert bench.shown() == []
    bench.run(*python("-c", "pass"))
    (row,) = bench.shown()
    assert (row["schema"], row["runs"]) == (1, 1)
    assert bench.shown(row["job"]) == row
    texts = [bench.verb("show").stdout, bench.verb("show", row["job"]).stdout]
    assert bench.refused("show", "nothing") == "job-not-found"
    assert bench.refused("forget") == "job-not-given"
    forgotten = bench.verb("forget", "pass")  # by its name, as it is the only one
    assert forgotten.returncode == 0
    assert bench.shown() == []
    text = "\n".join([*texts, forgotten.stdout, bench.verb("show").stdout])
    text = text.replace(row["job"], "JOB").replace(python()[0], "PYTHON")
    golden("auto.txt", re.sub(r"without .*:", "without    MACHINE:", text))
    assert bench.verb("remember").returncode == 2


# With torch.


def spoil(folder: Path) -> int:
    """Change the bytes of every archive; how many there were."""
    files = [path for path in sorted((folder / "compile").rglob("*")) if path.is_file()]
    chunks = [path for path in files if "chunks" in path.parts]
    for path in chunks:
        data = path.read_bytes()
        path.write_bytes(bytes(255 - byte for byte in data))
    return len(chunks)


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_the_second_run_compiles_less_and_trains_the_same(bench: Bench) -> None:
    command, env = (*TORCHRUN, "train.py"), {"BACKEND": "inductor"}
    fresh = {"TORCHINDUCTOR_CACHE_DIR": str(bench.root / "cache")}
    plain = bench.run(*command, flags=(), env={**env, **fresh})
    cold = bench.run(*command, env=env)
    learned = bench.run(*command, env={**env, "KILL": "1"})
    for done in (plain, cold, learned):
        assert done.code == 0, done.output
        assert len(done.losses) == 40
    assert plain.losses == cold.losses == learned.losses
    assert learned.compiling < cold.compiling
    cache = learned.boosters["compile_cache"]
    assert cache["state"] == "acted" and cache["saved_s"] > 0
    assert cold.boosters["compile_cache"]["state"] == "on"
    saves = cold.boosters["async_save"]
    assert saves["state"] == "acted" and saves["without_s"] > 0  # the plain run has told
    assert [attempt["outcome"] for attempt in learned.ledger["attempts"]] == ["failed", "completed"]
    assert learned.ledger["attempts"][1]["resumed_from"] == 20
    assert re.findall(r"\d+", learned.boosters["restarts"]["what"]) == ["1"]
    assert any("compile_s" in measured for measured in bench.shown("train")["measured"].values())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_archive_that_is_spoiled_is_left_alone(bench: Bench) -> None:
    env = {"BACKEND": "inductor"}
    cold = bench.run(*PYTHON, env=env)
    assert cold.code == 0 and spoil(bench.auto) > 0
    spoiled = bench.run(*PYTHON, env=env)
    assert spoiled.code == 0 and spoiled.losses == cold.losses
    assert "compression-unknown" in spoiled.codes
    assert spoiled.boosters["compile_cache"]["state"] == "on"
    assert bench.shown("train")["refused"] == 1
    assert spoil(bench.auto) > 0
    again = bench.run(*PYTHON, env=env)
    assert again.code == 0 and again.losses == cold.losses
    assert "booster-off" in again.codes
    assert "compile_cache" in bench.shown("train")["off"]


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A disk of that size."""
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a disk of its own needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place])
    if mounted.returncode:
        pytest.skip("no disk can be made here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_disk_that_has_room_for_one_file_and_not_for_two(bench: Bench) -> None:
    """A plain save writes over the old file; one that is written behind needs both."""
    place = bench.root / "small"
    with small_disk(place, "36k"):
        first = bench.run(*PYTHON, env={"PLACE": str(place)})
        (place / "last.pt").unlink()
        second = bench.run(*PYTHON, env={"PLACE": str(place)})
    assert first.code == 0, first.output
    assert "booster-dropped" in first.codes
    assert len(first.losses) == 40
    assert first.boosters["async_save"]["why"]
    assert second.code == 0 and len(second.ledger["attempts"]) == 1
    assert second.boosters["async_save"]["state"] == "off"
    assert second.losses == first.losses


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_restarts_by_torchrun_itself(bench: Bench) -> None:
    command = (*TORCHRUN, "--max-restarts", "2", "train.py")
    done = bench.run(*command, env={"KILL": "1"})
    assert done.code == 0, done.output
    assert len(done.losses) == 40
    assert len(done.ledger["attempts"]) == 2
    assert done.ledger["attempts"][1]["resumed_from"] == 20
    assert done.boosters["restarts"]["state"] == "on"  # ours had nothing to do
    assert done.boosters["async_save"]["state"] == "acted"
