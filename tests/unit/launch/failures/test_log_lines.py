"""Prefixes of log lines."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headway.launch.failures.log_lines import MAX_CHARACTERS, parse


@pytest.mark.parametrize(
    ("raw", "text", "rank", "node"),
    [
        (b"[rank3]: Traceback", "Traceback", 3, None),
        (b"[rank0]:[rank0]: oh", "oh", 0, None),
        (b"[default7]:oh", "oh", 7, None),
        (b"[1,12]<stderr>:oh", "oh", 12, None),
        (b" 5: oh no", "oh no", 5, None),
        (b"(TrainWorker pid=88, ip=10.0.0.3) oh", "oh", None, "10.0.0.3"),
        (b"[pod/train-worker-2/pytorch] oh", "oh", None, "train-worker-2"),
        (b"worker-1: oh", "oh", None, "worker-1"),
        (b"10.1.2.3: oh", "oh", None, "10.1.2.3"),
        (b"trainer_1  | oh", "oh", None, "trainer_1"),
        (b"> oh", "oh", None, None),
        (b"\x1b[36m(raylet)\x1b[0m oh", "oh", None, None),
        (b"Feb  3 22:10:05 node14 kernel: oh", "oh", None, "node14"),
        (b"[ 9921.118301] NVRM: oh", "NVRM: oh", None, None),
        (b"RuntimeError: boom", "RuntimeError: boom", None, None),
        (b"python3: can't open file", "python3: can't open file", None, None),
        (b'"message": "RendezvousError: x",', "RendezvousError: x", None, None),
        (b"\xff\xfe oh", "\ufffd\ufffd oh", None, None),
    ],
)
def test_prefixes(raw: bytes, text: str, rank: int | None, node: str | None) -> None:
    line = parse(raw)
    assert (line.text, line.rank, line.node) == (text, rank, node)


def test_levels_of_torch() -> None:
    line = parse(b"[rank1]:[E712 06:01:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog")
    assert (line.text, line.rank, line.level) == ("[Rank 1] Watchdog", 1, "error")
    assert parse(b"W0902 00:42:50.212000 13 torch/x/api.py:858] Sending").level == "warning"


@pytest.mark.parametrize(
    ("raw", "moment"),
    [
        (b"2025-03-04T05:06:07.5Z oh", datetime(2025, 3, 4, 5, 6, 7, 500000, UTC)),
        (b"[2025-03-04 05:06:07,250] oh", datetime(2025, 3, 4, 5, 6, 7, 250000)),
        (b"2025-03-04 05:06:07 oh", datetime(2025, 3, 4, 5, 6, 7)),
        (b"[Tue Mar  4 05:06:07 2025] oh", datetime(2025, 3, 4, 5, 6, 7)),
    ],
)
def test_times(raw: bytes, moment: datetime) -> None:
    line = parse(raw)
    assert line.text == "oh"
    assert line.at == pytest.approx(moment.timestamp())


def test_a_time_that_is_none_does_not_matter() -> None:
    assert parse(b"2025-13-45 05:06:07 oh").at is None


def test_a_line_of_json() -> None:
    line = parse(b'{"level": "error", "rank": 4, "ts": "2025-03-04T05:06:07Z", "msg": "out of it"}')
    assert (line.text, line.rank, line.level) == ("out of it", 4, "error")
    assert line.at == datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC).timestamp()
    assert parse(b'{"torn": ').text == '{"torn":'


def test_a_very_long_line_is_cut() -> None:
    assert len(parse(b"x" * 1_000_000).text) == MAX_CHARACTERS
