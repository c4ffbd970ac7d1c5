"""Reading a journal while it grows."""

from __future__ import annotations

from pathlib import Path

from headway.journal.writer import Writer, head
from headway.launch.rank_tail import RankTail


def test_what_is_known_grows_with_the_journal(tmp_path: Path) -> None:
    path = str(tmp_path / "host-7-1.jsonl")
    writer = Writer(path, 7)
    followed = RankTail(path, 7)
    followed.read_new()
    assert followed.rank is None
    writer.write(head("process", rank=3, restart=1, max_restarts=1))
    writer.write({"ev": "open", "t": 10, "id": 1, "name": "checkpoint_save", "step": 5})
    followed.read_new()
    assert (followed.rank, followed.restart) == (3, 1)
    assert followed.ends_attempt
    assert [span["name"] for span in followed.open_spans.values()] == ["checkpoint_save"]
    assert followed.saves == []
    writer.write({"ev": "close", "t": 40, "id": 1, "file": "a"})
    writer.write({"ev": "open", "t": 50, "id": 2, "name": "checkpoint_save", "step": 6})
    writer.write({"ev": "close", "t": 60, "id": 2, "error": "OSError"})
    writer.write({"ev": "span", "t": 70, "end": 90, "name": "checkpoint_load", "file": "a"})
    followed.read_new()
    assert [(save["step"], save["file"]) for save in followed.saves] == [(5, "a")]
    assert [load["file"] for load in followed.loads] == ["a"]
    assert followed.longest_spans == {"checkpoint_save": 30, "checkpoint_load": 20}
    assert not followed.open_spans
    writer.write(
        {"ev": "span", "t": 91, "end": 92, "name": "checkpoint_save", "step": 9, "path": "p"}
    )
    writer.write({"ev": "saving", "t": 93, "path": "p", "step": 9})
    followed.read_new()
    assert [save["step"] for save in followed.saves] == [5]  # it continues in the background
    fields = {"background": True, "step": 9, "path": "p"}
    writer.write({"ev": "span", "t": 93, "end": 95, "name": "checkpoint_save", **fields})
    followed.read_new()
    assert [save["step"] for save in followed.saves] == [5, 9]
    writer.write({"ev": "exit", "t": 100})
    followed.read_new()
    assert not followed.failed
    writer.write({"ev": "error", "t": 101, "type": "ValueError", "message": "x"})
    followed.read_new()
    assert followed.failed
    followed.code = 0
    assert not followed.failed
    followed.close()


def test_torn_and_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "host-7-1.jsonl"
    path.write_bytes(b'not json\n[1]\n{"ev":"open"}\n{"ev":"rank","t":1,"ra')
    followed = RankTail(str(path), 7)
    followed.read_new()
    assert followed.rank is None
    with path.open("ab") as file:
        file.write(b'nk":2}\n')
    followed.read_new()
    assert followed.rank == 2
    followed.close()


def test_an_agent_that_restarts_by_itself_makes_no_death_fatal(tmp_path: Path) -> None:
    path = str(tmp_path / "host-7-1.jsonl")
    Writer(path, 7).write(head("process", rank=3, restart=0, max_restarts=1))
    followed = RankTail(path, 7)
    followed.read_new()
    assert not followed.ends_attempt
    followed.close()


def test_steps_come_from_the_journal_where_no_page_can_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "host-7-1.jsonl"
    writer = Writer(str(path), 7)
    line = {"ev": "steps", "t": 10, "end": 30, "first": 1, "last": 4, "wait": 0, "batches": 4}
    writer.write(line)
    with_page, without = RankTail(str(path), 7), RankTail(str(path), 7)
    with_page.read_new()
    with_page.close()
    assert with_page.pulse().steps == 0
    path.with_suffix(".pulse").unlink()
    without.read_new()
    without.close()
    assert (without.pulse().steps, without.pulse().last_step) == (4, 30)
