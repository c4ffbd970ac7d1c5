from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.errors import NewerSchema
from headway.journal import pulse, reader
from headway.journal.pulse import Pulse
from headway.journal.reader import Journal
from headway.testing import FakeJournal, FakeRun


def process() -> FakeJournal:
    fake = FakeRun().process(0)
    fake.host = fake.host.__class__(monotonic=0.0)  # times below are plain seconds
    fake.lines[0].update(t=0, begin=0)
    return fake


def parsed(fake: FakeJournal, page: Pulse | None = None) -> Journal:
    journal = reader.parse(fake.data(), "x", page)
    assert journal is not None
    return journal


def test_the_head_says_who_wrote_it() -> None:
    fake = FakeRun().process(3, rank=2, world=4, restart=1, launch="L7", argv=["a", 1], more="x")
    journal = fake.journal()
    assert (journal.rank, journal.world, journal.restart, journal.launch) == (2, 4, 1, "L7")
    assert (journal.role, journal.host, journal.boot) == ("process", "node0", "boot-0")
    assert journal.begin == journal.opened == fake.at(3)
    assert journal.argv == ("a", "1")
    assert journal.facts["more"] == "x"


def test_spans_open_close_and_stay_open() -> None:
    fake = process()
    outer = fake.open("evaluation", 1, th=3, why="asked")
    fake.span("checkpoint_save", 2, 3, path="a")
    fake.close(outer, 5, result="good")
    fake.open("compile", 6)
    fake.lines.append({"ev": "span", "t": 7 * 10**9, "end": 8 * 10**9, "name": "publish"})
    spans = [(s.name, s.start // 10**9, s.end and s.end // 10**9) for s in parsed(fake).spans]
    assert spans == [
        ("evaluation", 1, 5),
        ("checkpoint_save", 2, 3),
        ("compile", 6, None),
        ("publish", 7, 8),
    ]
    assert parsed(fake).spans[0].fields == {"why": "asked", "result": "good"}
    assert parsed(fake).spans[0].thread == 3


def test_a_span_never_ends_before_it_began() -> None:
    fake = process()
    fake.span("compile", 5, 3)
    fake.lines.append({"ev": "span", "t": 9 * 10**9, "end": 1, "name": "publish"})
    assert [(s.start, s.end) for s in parsed(fake).spans] == [
        (5 * 10**9, 5 * 10**9),
        (9 * 10**9, 9 * 10**9),
    ]


def test_the_process_group_knows_the_rank_better() -> None:
    fake = process()
    fake.event("rank", 1, rank=5, world=8)
    assert (parsed(fake).rank, parsed(fake).world) == (5, 8)


def test_a_torn_last_line_is_no_damage() -> None:
    fake = process()
    fake.event("x", 1)
    fake.event("y", 2)
    journal = reader.parse(fake.data()[:-9], "x")
    assert journal is not None
    assert [event["ev"] for event in journal.events] == ["x"]
    assert journal.damaged == 0


def test_a_last_line_that_only_lacks_its_newline_counts() -> None:
    fake = process()
    fake.event("x", 1)
    journal = reader.parse(fake.data()[:-1], "x")
    assert journal is not None
    assert [event["ev"] for event in journal.events] == ["x"]


@pytest.mark.parametrize(
    "line",
    [
        b"\0\0\0",
        b"[1,2]",
        b'"text"',
        b'{"ev":"x"}',
        b'{"ev":3,"t":1}',
        b'{"ev":"x","t":-1}',
        b'{"ev":"x","t":true}',
        b'{"ev":"x","t":1e9}',
        b'{"ev":"x","t":99999999999999999999999}',
        b'{"ev":"close","id":99,"t":1}',
        b'{"ev":"open","id":"a","t":1,"name":"compile"}',
        b'{"ev":"open","id":1,"t":1}',
        b'{"ev":"rank","t":1}',
        b'{"ev":"rank","t":1,"rank":-3}',
        b'{"ev":"exit","t":1,"code":"a"}',
        b'{"ev":"drain","t":1,"ns":"a"}',
        b'{"ev":"span","t":1,"end":2,"name":"checkpoint_save","step":"a"}',
        b'{"ev":"steps","t":1}',
        b'{"ev":"steps","t":1,"end":2,"first":1,"last":"a"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_is_passed_over_and_counted(line: bytes) -> None:
    fake = process()
    fake.train(1, 2, 1, 1)
    after = process()
    after.event("x", 5)
    journal = reader.parse(fake.data() + line + b"\n" + after.data().partition(b"\n")[2], "x")
    assert journal is not None
    assert journal.damaged == 1
    assert len(journal.windows) == 2
    assert [event["ev"] for event in journal.events] == ["x"]


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", b'{"ev":"x","t":1}\n', b'{"ev":"head"'])
def test_without_a_head_there_is_no_journal(data: bytes) -> None:
    assert reader.parse(data, "x") is None


@pytest.mark.parametrize(
    "change", [{"pid": "x"}, {"wall": None}, {"host": 3}, {"rank": -1}, {"argv": 7}]
)
def test_a_damaged_head_is_no_head(change: dict[str, Any]) -> None:
    fake = process()
    fake.lines[0].update(change)
    assert reader.parse(fake.data(), "x") is None


def test_a_newer_schema_is_refused_with_what_to_type() -> None:
    fake = process()
    fake.lines[0]["schema"] = 99
    with pytest.raises(NewerSchema, match=r"\b99\b"):
        reader.parse(fake.data(), "x")


def test_unknown_fields_and_events_are_kept_or_ignored() -> None:
    fake = process()
    fake.event("of the future", 1, shape=[1, 2])
    fake.train(1, 1, 1, 1)
    fake.lines[-1]["more"] = "x"
    journal = parsed(fake)
    assert journal.damaged == 0
    assert len(journal.windows) == 1


def test_the_code_of_a_note_is_text() -> None:
    fake = process()
    fake.event("note", 1, hook="torch", code="hook-off", text="switched off")
    fake.event("exit", 2, code=3)
    journal = parsed(fake)
    assert journal.damaged == 0
    assert [event["code"] for event in journal.events if "code" in event] == ["hook-off", 3]


def test_the_last_steps_stand_in_the_pulse_page() -> None:
    fake = process()
    fake.train(1, 3, 1, 1)
    page = Pulse(
        steps=7, last_step=9 * 10**9, window_at=5 * 10**9, wait=3, batches=9, window_batches=4
    )
    (*_, last) = parsed(fake, page).windows
    assert last == (5 * 10**9, 9 * 10**9, 4, 7, 3, 5)


def test_without_a_window_in_the_page_the_last_line_counts() -> None:
    fake = process()
    fake.train(1, 3, 1, 1)
    (*_, last) = parsed(fake, Pulse(steps=7, last_step=9 * 10**9)).windows
    assert last[:4] == (4 * 10**9, 9 * 10**9, 4, 7)


@pytest.mark.parametrize("page", [Pulse(steps=3, last_step=4 * 10**9), Pulse(steps=9), None])
def test_a_pulse_page_that_knows_no_more_adds_nothing(page: Pulse | None) -> None:
    fake = process()
    fake.train(1, 3, 1, 1)
    assert len(parsed(fake, page).windows) == 3


def test_the_last_sign_of_life() -> None:
    fake = process()
    outer = fake.open("evaluation", 1)
    for _ in range(100):
        fake.span("compile", 2, 3)
    assert parsed(fake).last_sign() == 3 * 10**9
    fake.close(outer, 7)  # opened much earlier
    assert parsed(fake).last_sign() == 7 * 10**9
    fake.event("drain", 90, ns=5)  # of the device: not a sign of life
    assert parsed(fake).last_sign() == 7 * 10**9
    fake.train(1, 2, 7, 1)
    assert parsed(fake).last_sign() == 9 * 10**9
    assert parsed(fake, Pulse(alive=11 * 10**9)).last_sign() == 11 * 10**9


def test_a_folder_of_journals(tmp_path: Path) -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(1).train(1, 3, 2, 1)
    folder = job.write(tmp_path) / "journal"
    (folder / "notes.txt").write_text("not a journal")
    (folder / "empty.jsonl").write_text("")
    (folder / "none.jsonl").mkdir()
    (folder / "odd.jsonl").write_bytes(job.journals[1].data() + b"{\n")
    journals, problems = reader.read_journals(str(folder))
    assert [j.name for j in journals] == ["launcher-L0", "node0-101-1", "odd"]
    assert journals[1].pulse is not None and journals[1].pulse.steps == 3
    assert problems == [
        "empty.jsonl was skipped: its first line cannot be read",
        "none.jsonl cannot be read: it is not a regular file",
        "odd.jsonl: 1 damaged line(s) skipped",
    ]


def test_lines_are_as_documented() -> None:
    """A line of each kind, as another writer may write it: other order, spaces, no extras."""
    fake = process()
    fake.train(1, 1, 2e-9, 3e-9)
    lines = [
        {"t": 5, "ev": "steps", "last": 4, "first": 2, "end": 9},
        {"name": "compile", "t": 6, "end": 8, "ev": "span"},
    ]
    data = fake.data() + b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    journal = reader.parse(data, "x")
    assert journal is not None
    assert journal.damaged == 0
    assert [span.name for span in journal.spans] == ["compile"]
    assert list(journal.windows) == [(0, 5, 1, 1, 0, 1), (5, 9, 2, 4, 0, 0)]


def test_cells_of_the_page_have_names_of_their_own() -> None:
    cells = [
        pulse.MAGIC_CELL, pulse.PID, pulse.STEPS, pulse.LAST_STEP, pulse.ALIVE, pulse.WINDOW,
        pulse.WINDOW_AT, pulse.BATCHES, pulse.WAIT, pulse.WAITING, pulse.SAMPLES,
        pulse.WINDOW_BATCHES,
    ]  # fmt: skip
    assert sorted(cells) == list(range(pulse.CELLS))
