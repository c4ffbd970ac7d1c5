"""The guard around hooks, and the journal of a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

import headway
from headway import probe, sdk
from headway.journal import pulse, reader
from headway.journal.run_files import JOURNAL
from headway.probe import recorder as module
from headway.probe import step_clock
from headway.probe.recorder import Recorder, guard, guard_end


class Process:
    """The recorder of another process, in this one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        monkeypatch.setenv("HEADWAY_DIR", str(folder))
        monkeypatch.setenv("HEADWAY_LAUNCH", "L0")
        monkeypatch.delenv("HEADWAY_STRICT", raising=False)
        monkeypatch.delenv("HEADWAY_OWNER", raising=False)
        monkeypatch.setattr(module, "_at_process_end", lambda call: None)
        monkeypatch.setattr(module, "_offer_stacks", lambda emit: None)
        monkeypatch.setattr(module, "_disabled_hooks", set())
        lists = ("on_first_step", "on_step", "on_read", "on_wait", "on_evaluation", "before_flush")
        for name in lists:
            monkeypatch.setattr(step_clock, name, [])
        monkeypatch.setattr(sdk, "_step_clock", None)
        self.begin()

    def begin(self) -> None:
        step_clock.reset_after_fork()
        self.recorder = Recorder()
        self.monkeypatch.setattr(module, "recorder", self.recorder)
        open_journal = lambda: self.recorder.start(trains=True)  # noqa: E731
        bound = {"_emit": self.recorder.emit, "_open": open_journal, "_guard": guard}
        for name, value in {**bound, "_thread": self.recorder.thread}.items():
            self.monkeypatch.setattr(step_clock, name, value)

    def journal(self) -> reader.Journal:
        journals, problems = reader.read_journals(str(self.folder))
        assert problems == []
        (journal,) = journals
        return journal


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    yield Process(tmp_path / JOURNAL, monkeypatch)
    step_clock.reset_after_fork()


def test_a_failing_hook_is_noted_once_and_switched_off(process: Process) -> None:
    process.recorder.start()
    calls: list[int] = []
    assert guard("hook", lambda: calls.append(1) or 5) == 5
    for _ in range(3):
        assert guard("hook", process.recorder.end) is None
    assert guard("hook", calls.append, 2) is None
    assert guard("other", lambda: 6) == 6
    assert calls == [1]
    (note,) = process.journal().named("note")
    assert (note["hook"], note["code"]) == ("hook", "hook-off")


def test_what_a_hook_has_begun_is_ended_though_it_is_off(process: Process) -> None:
    process.recorder.start()
    span = guard("hook", process.recorder.begin, "blocked")
    guard("hook", process.recorder.end)
    guard_end("hook", process.recorder.end, span)
    guard_end("hook", process.recorder.end)
    journal = process.journal()
    assert [entry.end is not None for entry in journal.spans] == [True]
    assert len(list(journal.named("note"))) == 1


def test_a_device_that_fails_costs_no_batch(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.recorder.start()
    monkeypatch.setattr(
        step_clock, "mark_device", process.recorder.end
    )  # raises an exception in code of Headway
    assert list(headway.track([1, 2])) == [1, 2]
    assert [note["hook"] for note in process.journal().named("note")] == ["device"]


def test_in_tests_a_failing_hook_raises(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    with pytest.raises(TypeError):
        guard("hook", process.recorder.end)


def test_spans_of_several_threads_have_numbers_of_their_own(process: Process) -> None:
    process.recorder.start()
    spans: list[int] = []
    ready = threading.Barrier(8)

    def work() -> None:
        ready.wait(10)
        for _ in range(200):
            spans.append(process.recorder.begin("blocked"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(spans)) == len(spans) == 1600


def test_a_program_in_the_place_of_another_has_a_journal_of_its_own(process: Process) -> None:
    for _ in range(2):  # the same pid and start time
        process.begin()
        headway.step()
        process.recorder.finish()
        assert process.recorder.writer is not None
        process.recorder.writer.close()
    journals, problems = reader.read_journals(str(process.folder))
    assert [len(journal.windows) for journal in journals] == [1, 1]
    assert problems == []


def test_steps_count_in_an_environment_that_was_cleared(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_launcher_env", {})
    probe.remember_environment()
    before = dict(os.environ)
    os.environ.clear()
    try:
        for _ in range(3):
            headway.step()
        process.recorder.finish()
    finally:
        os.environ.update(before)
    journal = process.journal()
    assert (journal.launch, journal.windows.last[-1]) == ("L0", 3)


def test_without_a_launcher_nothing_is_counted(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_launcher_env", {})
    monkeypatch.delenv("HEADWAY_DIR")
    headway.step()
    headway.progress(samples=1, step=1)
    assert step_clock.steps == 0 and not process.folder.exists()


@pytest.mark.parametrize(
    ("samples", "cell"), [(-5, 0), (7, 7), (1 << 80, pulse.LIMIT - 1), (2.5, 2)]
)
def test_progress_fits_into_its_cell(process: Process, samples: Any, cell: int) -> None:
    process.recorder.start()
    headway.progress(samples=samples, step=samples)
    page = process.journal().pulse
    assert page is not None and page.samples == cell
    (event,) = process.journal().named("progress")
    assert event["step"] == cell


def test_progress_that_is_no_number_costs_nothing(process: Process) -> None:
    process.recorder.start()
    headway.progress(samples=float("nan"))  # type: ignore[arg-type]
    headway.step()
    assert [note["hook"] for note in process.journal().named("note")] == ["progress"]


VALUES = st.one_of(
    st.integers(),
    st.text(max_size=5),
    st.none(),
    st.floats(),
    st.dictionaries(st.one_of(st.text(max_size=2), st.tuples(st.integers())), st.none()),
)
FIELDS = st.sampled_from(["step", "id", "t", "ev", "end", "th", "path", "code", "x"])
ACTS = st.one_of(
    st.just(("step",)),
    st.tuples(st.just("progress"), st.integers(), st.integers()),
    st.tuples(
        st.just("span"),
        st.sampled_from(["evaluation", "checkpoint_save", "data_stall", "own", "\udcff\n"]),
        st.dictionaries(FIELDS, VALUES, max_size=3),
    ),
    st.tuples(st.just("track"), st.booleans()),
)


@for_all(acts=st.lists(ACTS, max_size=30))
def test_the_reader_takes_all_that_the_writer_writes(
    acts: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        process = Process(tmp_path_factory.mktemp("acts") / JOURNAL, monkeypatch)
        steps = 0
        for act, *args in acts:
            if act == "step":
                steps += 1
                headway.step()
                step_clock.force_slow_path()  # each step has a line
            elif act == "progress":
                headway.progress(samples=args[0], step=args[1])
            elif act == "span":
                with headway.span(args[0], **args[1]):
                    pass
            else:
                read(ends_well=args[0])
        process.recorder.start()
        process.recorder.finish()
        journal = process.journal()
        assert process.recorder.writer is not None
        process.recorder.writer.close()
        step_clock.reset_after_fork()
    assert journal.damaged == 0
    assert list(journal.named("note")) == []
    assert all(span.end is not None for span in journal.spans)
    assert (journal.windows.last[-1] if journal.windows else 0) == steps


def read(*, ends_well: bool) -> None:
    def batches() -> Iterator[int]:
        yield 1
        if not ends_well:
            raise OSError

    try:
        for _ in headway.track(batches()):
            pass
    except OSError:
        pass
