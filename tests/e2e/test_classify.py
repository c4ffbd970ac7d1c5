"""`headway classify` as a user runs it: any log, bad input, several ranks, pipes."""

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


def call(folder: Path, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    completed = subprocess.run(
        [HEADWAY, "classify", *words], cwd=folder, input=stdin, capture_output=True, timeout=60
    )
    return subprocess.CompletedProcess(
        completed.args, completed.returncode, completed.stdout.decode(), completed.stderr.decode()
    )


def told(folder: Path, *words: str, stdin: bytes = b"") -> dict[str, Any]:
    completed = call(folder, *words, "--json", stdin=stdin)
    assert (completed.returncode, completed.stderr) == (0, "")
    content: dict[str, Any] = json.loads(completed.stdout)
    return content


def test_one_log(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "train.log").write_text(f"{STEPS}[rank3]: {OOM}\n[rank0]: {RESET}\n")
    completed = call(tmp_path, "train.log")
    assert (completed.returncode, completed.stderr) == (0, "")
    golden("classified.txt", completed.stdout)


def test_json(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"{OOM}\n")
    content = told(tmp_path, "train.log")
    assert content["schema"] == 1 and content["failed"] is True
    assert (content["category"], content["owner"], content["retry"]) == ("gpu_oom", "user", "no")
    assert (content["file"], content["line"], content["confidence"]) == ("train.log", 1, "high")
    assert len(content["fingerprint"]) == 16
    assert content["others"] == []


def test_a_clean_log(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "train.log").write_text(STEPS)
    completed = call(tmp_path, "train.log")
    assert completed.returncode == 0
    golden("clean_log.txt", completed.stdout)
    content = told(tmp_path, "train.log")
    assert content["failed"] is False and content["category"] is None


@pytest.mark.parametrize("words", [(), ("-",)])
def test_a_pipe(tmp_path: Path, words: tuple[str, ...]) -> None:
    content = told(tmp_path, *words, stdin=OOM.encode())
    assert (content["category"], content["line"]) == ("gpu_oom", 1)


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
    content = told(tmp_path, "logs")
    assert (content["category"], content["rank"]) == ("gpu_oom", 1)
    assert content["file"].endswith("attempt_1/1/stderr.log")


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
        completed = call(tmp_path, word)
        assert completed.returncode == 2
        assert completed.stdout == ""
        assert word in completed.stderr and completed.stderr.endswith(f" [{code}]\n")
        assert completed.stderr.count("\n") == 1


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.log"
    path.write_text("x")
    path.chmod(0)
    completed = call(tmp_path, "secret.log")
    if completed.returncode:  # root may read it anyway
        assert completed.returncode == 2 and "[log-unreadable]" in completed.stderr


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(b"ValueError: \x1b]0;title\x07\x1b[31mred\x9b5m\n")
    completed = call(tmp_path, "train.log")
    assert not any(letter < " " and letter != "\n" for letter in completed.stdout)
