"""Which checkpoint of a job is its last one, and how a publish is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UsageError
from headway.journal.file_access import file_identity
from headway.publish import after_run
from headway.publish.after_run import SavedCheckpoints, find_saved
from tests.support import has_code

S = 10**9


def journal(folder: Path, *spans: dict[str, Any], rank: int | None = 0, host: str = "a") -> None:
    head = {"ev": "head", "schema": 1, "role": "process", "t": 0, "begin": 0, "boot": "b"}
    head |= {"host": host, "wall": 100 * S, "pid": 1, "launch": "l", "rank": rank, "world": 2}
    lines = [head]
    for number, span in enumerate(spans):
        default = {"ev": "span", "t": number * S, "end": (number + 1) * S, "th": 0}
        lines.append(default | {"name": "checkpoint_save", "what": "torch.save"} | span)
    path = folder / "journal" / f"{host}-{rank}-0.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def saved(path: Path) -> dict[str, Any]:
    """A file as `torch.save` writes it, and its span."""
    path.write_text(path.name)
    return {"path": str(path), "file": file_identity(str(path))}


def dcp(path: Path) -> dict[str, Any]:
    path.mkdir()
    (path / ".metadata").write_text(path.name)
    return {"path": str(path), "file": file_identity(str(path)), "what": "dcp.save"}


def find(folder: Path) -> SavedCheckpoints:
    return find_saved(folder / "journal", "a")


def test_all_kinds_the_last_ones_first(tmp_path: Path) -> None:
    spans = [saved(tmp_path / "1.pt"), dcp(tmp_path / "d1"), {"store": "/s1", "level": "disk"}]
    spans += [{"store": "/s2", "level": "disk"}, dcp(tmp_path / "d2"), saved(tmp_path / "2.pt")]
    journal(tmp_path, *spans)
    journal(tmp_path, saved(tmp_path / "other.pt"), rank=1)
    assert find(tmp_path) == SavedCheckpoints(
        stores=("/s2", "/s1"),
        folders=(str(tmp_path / "d2"), str(tmp_path / "d1")),
        files=(str(tmp_path / "2.pt"), str(tmp_path / "1.pt")),
    )


def test_what_was_renamed_is_found_where_it_is_now(tmp_path: Path) -> None:
    file, folder = saved(tmp_path / "last.tmp"), dcp(tmp_path / "draft")
    os.rename(tmp_path / "last.tmp", tmp_path / "last.pt")
    os.rename(tmp_path / "draft", tmp_path / "step-1")
    journal(tmp_path, file, folder)
    assert find(tmp_path).files == (str(tmp_path / "last.pt"),)
    assert find(tmp_path).folders == (str(tmp_path / "step-1"),)


def test_what_is_no_checkpoint_is_passed_over(tmp_path: Path) -> None:
    gone = saved(tmp_path / "gone.pt")
    os.remove(tmp_path / "gone.pt")
    half = {"path": str(tmp_path / "half"), "what": "dcp.save", "file": None}
    (tmp_path / "half").mkdir()
    replaced = saved(tmp_path / "replaced.pt")
    (tmp_path / "replaced.pt").write_text("by something else")
    journal(
        tmp_path,
        gone,
        half,
        replaced,
        {**saved(tmp_path / "failed.pt"), "error": "OSError"},
        {**saved(tmp_path / "part.pt"), "part": True},
        {**saved(tmp_path / "weights.safetensors"), "what": "safetensors"},
        {"path": "s3://bucket/x.pt", "file": None},
    )
    assert find(tmp_path) == SavedCheckpoints()


def test_a_save_that_was_written_behind_has_no_identity(tmp_path: Path) -> None:
    journal(tmp_path, {**saved(tmp_path / "last.pt"), "file": None})
    assert find(tmp_path).files == (str(tmp_path / "last.pt"),)


def test_the_node_of_rank_0_publishes(tmp_path: Path) -> None:
    journal(tmp_path, saved(tmp_path / "1.pt"), host="b")
    journal(tmp_path, rank=1, host="a")
    assert not find(tmp_path).on_this_host


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
        after_run.parse_request("recipe.toml", "store", by)
    program = {"no-such-program": by, "slurm": "sbatch"}.get(by)
    assert error.value.fields.get("command") == program


def test_each_publish_has_a_folder_of_its_own(tmp_path: Path) -> None:
    training = tmp_path / "night"
    (tmp_path / "night-publish").mkdir()
    assert after_run._free_folder(training) == tmp_path / "night-publish-2"
