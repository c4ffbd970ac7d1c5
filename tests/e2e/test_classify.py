"""`headway classify` as a person types it: any log, bad input, several ranks, pipes."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import HEADWAY, Golden

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
RESET = "torch.distributed.DistNetworkError: Connection reset by peer"
STEPS = "".join(f"step {n} | loss 2.5 | lr 1e-4\n" for n in range(9))


def call(folder: Path, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [HEADWAY, "classify", *words], cwd=folder, input=given, capture_output=True, timeout=60
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def told(folder: Path, *words: str, given: bytes = b"") -> dict[str, Any]:
    done = call(folder, *words, "--json", given=given)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_log(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "train.log").write_text(f"{STEPS}[rank3]: {OOM}\n[rank0]: {RESET}\n")
    done = call(tmp_path, "train.log")
    assert (done.returncode, done.stderr) == (0, "")
    golden("classified.txt", done.stdout)


def test_json(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"{OOM}\n")
    found = told(tmp_path, "train.log")
    assert found["schema"] == 1 and found["failed"] is True
    assert (found["category"], found["owner"], found["retry"]) == ("gpu_oom", "user", "no")
    assert (found["file"], found["line"], found["confidence"]) == ("train.log", 1, "high")
    assert len(found["fingerprint"]) == 16
    assert found["others"] == []


def test_a_clean_log(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "train.log").write_text(STEPS)
    done = call(tmp_path, "train.log")
    assert done.returncode == 0
    golden("clean_log.txt", done.stdout)
    found = told(tmp_path, "train.log")
    assert found["failed"] is False and found["category"] is None


@pytest.mark.parametrize("words", [(), ("-",)])
def test_a_pipe(tmp_path: Path, words: tuple[str, ...]) -> None:
    found = told(tmp_path, *words, given=OOM.encode())
    assert (found["category"], found["line"]) == ("gpu_oom", 1)


def test_several_ranks_by_their_names(tmp_path: Path) -> None:
    for rank in range(4):
        line = f"2025-01-01 00:00:0{9 - rank} {RESET}\n"
        (tmp_path / f"rank{rank}.log").write_text(line)
    (tmp_path / "rank2.log").write_text(f"2025-01-01 00:00:08 KeyError: 'x'\n{OOM}\n")
    names = [f"rank{rank}.log" for rank in range(4)]
    assert told(tmp_path, *names)["rank"] == 2


def test_a_folder_as_torchrun_leaves_it(tmp_path: Path) -> None:
    for attempt in (0, 1):
        for rank in (0, 1):
            folder = tmp_path / "logs" / "job_x" / f"attempt_{attempt}" / str(rank)
            folder.mkdir(parents=True)
            (folder / "stdout.log").write_text(STEPS)
            (folder / "stderr.log").write_text("")
    first = tmp_path / "logs/job_x/attempt_0/1/stderr.log"
    first.write_text("ValueError: of the first attempt\n")
    last = tmp_path / "logs/job_x/attempt_1/1/stderr.log"
    last.write_text(f"{OOM}\n")
    found = told(tmp_path, "logs")
    assert (found["category"], found["rank"]) == ("gpu_oom", 1)
    assert found["file"].endswith("attempt_1/1/stderr.log")


def test_packed(tmp_path: Path) -> None:
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(OOM.encode()))
    assert told(tmp_path, "train.log.gz")["category"] == "gpu_oom"


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b"x" * 100_000)[:60])
    (tmp_path / "run" / "journal").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    for word, code in (
        ("missing.log", "log-not-found"),
        ("empty", "folder-without-logs"),
        ("torn.gz", "log-unreadable"),
        ("run", "log-is-a-run"),
    ):
        done = call(tmp_path, word)
        assert done.returncode == 2
        assert done.stdout == ""
        assert word in done.stderr and done.stderr.endswith(f" [{code}]\n")
        assert done.stderr.count("\n") == 1


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.log"
    path.write_text("x")
    path.chmod(0)
    done = call(tmp_path, "secret.log")
    if done.returncode:  # root may read it all the same
        assert done.returncode == 2 and "[log-unreadable]" in done.stderr


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(b"ValueError: \x1b]0;title\x07\x1b[31mred\x9b5m\n")
    done = call(tmp_path, "train.log")
    assert not any(letter < " " and letter != "\n" for letter in done.stdout)
