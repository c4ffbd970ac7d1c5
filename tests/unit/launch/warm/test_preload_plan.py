"""What to import, from the journals of an earlier attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.launch.warm.preload_plan import (
    STATE_FILE,
    PreloadPlan,
    WarmState,
    combine_plans,
    find_plan,
    unfold_names,
)
from headway.probe.import_log import fold

NAMES = ["torch", "torch._C", "torch.nn", "torch.nn.modules", "torch.nn.modules.x", "torch.fx", "a"]


def test_names_are_shortened_and_told_again() -> None:
    folded = list(fold(NAMES))
    assert folded == ["torch", "torch._C", ".nn", ".nn.modules", ".modules.x", "torch.fx", "a"]
    assert list(unfold_names(folded)) == NAMES


def journal(folder: Path, name: str, head: dict[str, Any], **event: Any) -> None:
    (folder / "journal").mkdir(exist_ok=True)
    lines: list[dict[str, Any]] = [{"ev": "head", "host": "h", **head}, {"ev": "steps", "t": 1}]
    if event:
        lines.append({"ev": "imported", "t": 1, **event})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (folder / "journal" / f"{name}.jsonl").write_text(text)


def test_nothing_is_known_before_an_attempt_has_told(tmp_path: Path) -> None:
    assert find_plan(tmp_path, "h") is None
    journal(tmp_path, "h-1-1", {"launch": "L", "wall": 1})
    assert find_plan(tmp_path, "h") is None


def test_the_newest_launch_counts_and_ranks_come_first(tmp_path: Path) -> None:
    journal(tmp_path, "h-1-1", {"launch": "old", "wall": 1}, modules=["stale"])
    journal(
        tmp_path, "h-2-1", {"launch": "new", "wall": 2, "rank": None}, modules=["agent", "torch"]
    )
    for rank in range(2):
        head = {"launch": "new", "wall": 3, "rank": rank, "local_rank": rank}
        fields = {"modules": ["torch", ".x"], "main": "/m.py", "file": "1"} if rank == 0 else {}
        journal(tmp_path, f"h-{3 + rank}-1", head, **fields)
    plan = find_plan(tmp_path, "h")
    assert plan == PreloadPlan(
        modules=["torch", ".x", "agent"], mains={"/m.py": "1"}, ranked=True, workers=2
    )


def test_an_agent_alone_tells_too_little(tmp_path: Path) -> None:
    journal(tmp_path, "h-1-1", {"launch": "L", "wall": 1, "rank": None}, modules=["agent"])
    head = {"launch": "L", "wall": 2, "rank": 0, "local_rank": 0}
    journal(tmp_path, "h-2-1", head)
    assert find_plan(tmp_path, "h") is None
    journal(tmp_path, "h-2-1", head, modules=["torch"])
    plan = find_plan(tmp_path, "h")
    assert plan is not None and plan.modules == ["torch", "agent"]


def test_a_torn_journal_is_passed_over(tmp_path: Path) -> None:
    journal(tmp_path, "h-1-1", {"launch": "L", "wall": 1}, modules=["torch"])
    (tmp_path / "journal" / "h-2-1.jsonl").write_text('{"ev":"head"')
    (tmp_path / "journal" / "h-3-1.jsonl").write_text("")
    plan = find_plan(tmp_path, "h")
    assert plan is not None and plan.modules == ["torch"]


@pytest.mark.parametrize(
    ("values", "preset", "mains"),
    [
        (["1", "1"], {"A": "1"}, {"/m.py": "i"}),
        (["1", "2"], {}, {}),  # each rank sets it differently
        ([None, None], {}, {}),  # a secret, or removed
    ],
)
def test_what_scripts_set(
    values: list[str | None], preset: dict[str, str], mains: dict[str, str]
) -> None:
    reports = [({}, {"set": {"A": value}, "main": "/m.py", "file": "i"}) for value in values]
    plan = combine_plans(reports)
    assert (plan.preset, plan.mains) == (preset, mains)


def test_no_code_comes_from_a_journal() -> None:
    settings = {
        "LD_PRELOAD": "x.so",
        "PYTHONPATH": "x",
        "PYTHONSTARTUP": "x",
        "OMP_NUM_THREADS": "1",
    }
    plan = combine_plans([({"rank": 0}, {"set": settings, "main": "train.py"})])
    assert plan.preset == {"OMP_NUM_THREADS": "1"}
    assert plan.mains == {"train.py": ""}


def test_the_seconds_of_imports(tmp_path: Path) -> None:
    journal(tmp_path, "h-1-1", {"launch": "L", "wall": 1, "rank": 0}, modules=["torch"])
    path = tmp_path / "journal" / "h-1-1.jsonl"
    head, _, event = path.read_text().splitlines()
    spans = [
        '{"ev":"open","t":1000000000,"id":1,"name":"import","th":0}',
        '{"ev":"span","t":1500000000,"end":2500000000,"name":"import","th":0}',
        '{"ev":"close","t":2000000000,"id":1}',
        '{"ev":"open","t":3000000000,"id":2,"name":"compile_import","th":0}',
        '{"ev":"close","t":4000000000,"id":2}',
        '{"ev":"open","t":4000000000,"id":3,"name":"compile","th":0}',
        '{"ev":"close","t":9000000000,"id":3}',
    ]
    path.write_text("\n".join([head, *spans, event]) + "\n")
    plan = find_plan(tmp_path, "h")
    assert plan is not None and plan.seconds == 2.5
    reports = [
        ({"rank": None}, {"seconds": 1.0}),
        ({"rank": 0}, {"seconds": 2.0}),
        ({"rank": 1}, {}),
    ]
    assert combine_plans(reports).seconds == 3.0


def test_memory(tmp_path: Path) -> None:
    assert WarmState.read(tmp_path) == WarmState()
    WarmState(off="why", left_out={"a": "b"}, good=["c"], seconds=1.5).write(tmp_path)
    assert WarmState.read(tmp_path) == WarmState(
        off="why", left_out={"a": "b"}, good=["c"], seconds=1.5
    )
    WarmState(left_out={"d": "e"}).write(tmp_path)  # by another node
    assert WarmState.read(tmp_path).off == "why"
    assert WarmState.read(tmp_path).left_out == {"a": "b", "d": "e"}
    (tmp_path / STATE_FILE).write_text("[]")
    assert WarmState.read(tmp_path) == WarmState()
    WarmState().write(tmp_path / "gone")  # no error
