"""A log as a stream: which facts are kept, and which errors were survived."""

from __future__ import annotations

import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.launch.failures import classify, failed, log_reader, read_log
from headway.launch.failures.log_reader import CHUNK, MAX_FACT_TEXT, MAX_OF_A_KIND
from headway.launch.failures.model import Fact

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def read(text: str | bytes, **more: object) -> list[Fact]:
    raw = text if isinstance(text, bytes) else text.encode()
    return read_log(io.BytesIO(raw), **more)  # type: ignore[arg-type]


def steps(first: int, count: int) -> str:
    return "".join(f"step {n} | loss 2.5 | lr 1e-4\n" for n in range(first, first + count))


def test_what_training_survived_is_no_cause() -> None:
    assert [fact.survived for fact in read(steps(1, 3) + OOM + "\n" + steps(4, 2))] == [False]
    assert [fact.survived for fact in read(steps(1, 3) + OOM + "\n" + steps(4, 3))] == [True]
    assert not failed(read(steps(1, 3) + OOM + "\n" + steps(4, 3)))


def test_one_step_told_by_many_ranks_is_one_step() -> None:
    again = "".join(f"[rank{rank}] step 4 | loss 2.5 | lr 1e-4\n" for rank in range(8))
    assert [fact.survived for fact in read(OOM + "\n" + again)] == [False]


def test_a_schedulers_word_is_not_survived_by_some_steps() -> None:
    word = (
        "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    )
    assert classify(read(word + steps(1, 20))).category == "time_limit"
    assert read(word + steps(1, 200)) == []


def test_only_some_of_a_kind_are_kept() -> None:
    text = "".join(f"{n} {OOM}\n" for n in range(500))
    facts = read(text)
    assert len(facts) == MAX_OF_A_KIND
    assert [fact.line for fact in facts] == [1, 2, 499, 500]


def test_bars_write_over_their_line() -> None:
    bars = "\r".join(f" {n}%|##  | {n}/100 [00:{n:02d}<01:00, 5.1it/s]" for n in range(30))
    facts = read(f"start\n{bars}\r\n{OOM}\n")
    assert [fact.line for fact in facts] == [3]


def test_an_error_behind_a_bar() -> None:
    text = " 4%|4  | 211/5000 [12:01<4:31:10, 3.40s/it]Traceback (most recent call last):\n"
    facts = read(text + '  File "a.py", line 1, in f\n' + OOM + "\n")
    assert [fact.source for fact in facts] == ["exception"]


def test_any_encoding() -> None:
    assert [fact.text for fact in read(f"äöü\n{OOM}\n".encode("utf-16"))] == [OOM]
    assert [fact.text for fact in read(b"\xe4\xf6\xfc\n" + OOM.encode("latin-1"))] == [OOM]


@pytest.mark.parametrize("mark", [b"", b"\n"])
def test_a_line_longer_than_memory_should_be(mark: bytes) -> None:
    facts = read(b"x" * (3 * CHUNK) + mark + OOM.encode() + b"\n")
    assert len(facts) == (1 if mark else 0)


def test_a_line_that_is_cut_by_a_piece() -> None:
    filler = b"plain words\n" * (CHUNK // 12)
    for shift in (-5, 0, 5):
        facts = read(filler[: CHUNK - 20 + shift] + b"\n" + OOM.encode() + b"\n")
        assert [fact.text for fact in facts] == [OOM]


@example(b"\r", "")
@example(b"\r\r\n\r", "\r")
@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=400), st.text(max_size=400))
def test_nothing_breaks_it(raw: bytes, text: str) -> None:
    facts = read(raw + b"\n" + text.encode("utf-8", "replace") + b"\nTraceback (most recent call")
    classify(facts)
    failed(facts)


def test_many_ranks_and_long_words_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "MAX_KINDS", 40)
    lines = "".join(f"[rank{n}]: {OOM} {'x' * 5000}\n" for n in range(60))
    facts = read(lines)
    assert len(facts) == 40
    assert max(len(fact.text) for fact in facts) == MAX_FACT_TEXT


def test_the_table_of_torchrun() -> None:
    text = (
        "[0]:\n  time      : 2025-03-11_22:31:13\n  host      : n1\n"
        "  rank      : 6 (local_rank: 6)\n"
        "  exitcode  : -11 (pid: 10)\n  error_file: <N/A>\n"
        "  traceback : Signal 11 (SIGSEGV) received by PID 10\n"
    )
    (fact,) = read(text)
    assert (fact.rank, fact.node, fact.code) == (6, "n1", -11)
    assert fact.at is not None


def test_a_traceback_in_a_line_of_json() -> None:
    text = (
        '{"py_callstack": "Traceback (most recent call last):\\n  File \\"a.py\\", line 1, in f\\n'
        'OSError: [Errno 28] No space left on device\\n", "timestamp": "1"}\n'
    )
    assert classify(read(text)).category == "disk_full"


def test_rank_and_node_where_the_log_names_none() -> None:
    (fact,) = read(OOM, rank=3, node="n7", file="rank3.log")
    assert (fact.rank, fact.node, fact.file) == (3, "n7", "rank3.log")
    (fact,) = read("[rank5]: " + OOM, rank=3)
    assert fact.rank == 5


def test_what_is_read_is_told() -> None:
    sizes: list[int] = []
    read_log(io.BytesIO(b"x\n" * CHUNK), on_read=sizes.append)
    assert sum(sizes) == 2 * CHUNK and len(sizes) > 1
