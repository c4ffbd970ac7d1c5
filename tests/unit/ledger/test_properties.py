"""Whatever a run does, and whatever happens to its files: the ledger balances."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headway
from headway.errors import HeadwayError
from headway.journal import pulse
from headway.ledger.buckets import BUCKETS
from headway.ledger.build import build_ledger
from headway.ledger.model import COMPILE_PARTS, Ledger
from headway.ledger.segments import Segment
from headway.testing import FakeJournal, FakeRun, Host
from headway.units import NS
from tests.support import examples
from tests.truth.interruptions import killed_before_a_background_save_was_durable
from tests.truth.interruptions import the_elastic_agent_sees_a_worker_fail as elastic
from tests.truth.loops import short_waits_of_two_ranks_fall_together, the_run_is_still_going

QUICK = settings(
    deadline=None,
    max_examples=examples(250),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
NAMES = (
    "import", "compile", "compile_import", "data_wait", "data_iter", "checkpoint_load",
    "checkpoint_save", "evaluation", "publish", "process_group_init", "train_module_creation",
    "device_init", "background", "of no known name", "compile_cache", "compile_autotune",
)  # fmt: skip
HOSTS = (
    Host(),
    Host("node1", "boot-1", monotonic=3.0, wall=-400.0),
    Host("node2", "boot-2", monotonic=9e5, wall=50.0),
    Host(wall=-7200.0),
)
times = st.integers(0, 400).map(lambda quarter: quarter / 4)
fields = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["a", "b"]),
        "step": st.integers(0, 20),
        "background": st.booleans(),
        "module": st.just("torch"),
        "error": st.just("OSError"),
        "reason": st.just("size"),
        "parts_us": st.fixed_dictionaries(
            {}, optional={part: st.integers(0, 60) for part in ("dynamo", "inductor", "triton")}
        ).map(lambda parts: {name: seconds * 1_000_000 for name, seconds in parts.items()}),
        "cache": st.just({"aot": [1, 0], "fx": [2, 1]}),
        "trigger": st.sampled_from(["DYNAMO", "LAZY_BACKWARD"]),
        "compile_id": st.sampled_from(["0/0", "0/1"]),
        "file": st.just("1:2:3"),
    },
)


@st.composite
def processes(draw: st.DrawFn, job: FakeRun, launch: str) -> FakeJournal:
    """A process with spans, steps and events anywhere, on any host."""
    made = job.process(
        draw(times),
        rank=draw(st.sampled_from([0, 0, 1, 2, None])),
        world=draw(st.sampled_from([1, 3, None])),
        restart=draw(st.integers(0, 2)),
        launch=launch,
        host=draw(st.sampled_from(HOSTS)),
        pid=draw(st.integers(1, 4)),
        helper=draw(st.booleans()),
    )
    for _ in range(draw(st.integers(0, 5))):
        name, start, length = draw(st.sampled_from(NAMES)), draw(times), draw(times)
        span = made.open(name, start, th=draw(st.sampled_from([0, 0, 7])), **draw(fields))
        if draw(st.booleans()):
            made.close(span, start + length)
    at = draw(times)
    for _ in range(draw(st.integers(0, 3))):
        wait = draw(st.sampled_from([0.0, 0.25, 30.0]))
        count, each = draw(st.integers(1, 12)), draw(st.sampled_from([0.25, 1.0, 3.0]))
        at = made.train(made.steps + 1, count, at, each, wait=wait) + draw(times)
    events = st.sampled_from(["drain", "error", "exit", "stepping", "progress", "worker_failed"])
    for _ in range(draw(st.integers(0, 3))):
        made.event(
            draw(events), draw(times), ns=draw(st.integers(0, 90)) * NS, th=7, pid=1, code=-9,
            step=draw(st.integers(0, 30)), type="ValueError",
        )  # fmt: skip
    if draw(st.booleans()):
        made.cells[pulse.WAITING] = made.at(draw(times))
    return made


@st.composite
def runs(draw: st.DrawFn) -> FakeRun:
    """Up to three launches, with or without a launcher's journal."""
    job = FakeRun()
    for index in range(draw(st.integers(1, 3))):
        launch = f"L{index}"
        for _ in range(draw(st.integers(0, 2))):  # one on each node
            begin = draw(times)
            head = draw(
                st.sampled_from([{}, {"allocated": NS}, {"queued": 5 * NS, "allocated": 7 * NS}])
            )
            launcher = job.launcher(
                begin, launch=launch, index=index, host=draw(st.sampled_from(HOSTS)), **head
            )
            _end_launcher(draw, launcher)
        for _ in range(draw(st.integers(0, 3))):
            draw(processes(job, launch))
    return job


def _end_launcher(draw: st.DrawFn, launcher: FakeJournal) -> None:
    if draw(st.booleans()):
        launcher.event("signal", draw(times), signal=draw(st.sampled_from([2, 15])))
    if draw(st.booleans()):
        launcher.event("death", draw(times), pid=draw(st.integers(1, 4)), code=-9)
    if draw(st.booleans()):
        launcher.exit(draw(times), code=draw(st.sampled_from([0, 1, 137, None])))


@QUICK
@given(runs())
def test_any_run_balances(job: FakeRun) -> None:
    _check(job.ledger())


@QUICK
@given(runs(), st.randoms(use_true_random=False))
def test_the_order_of_the_files_does_not_matter(job: FakeRun, random: Any) -> None:
    journals = [made.journal() for made in job.journals]
    expected = build_ledger(journals)
    random.shuffle(journals)
    assert build_ledger(journals) == expected


@settings(QUICK, max_examples=examples(100))
@given(runs())
def test_from_disk_it_balances_too(job: FakeRun) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _check(headway.load(job.write(Path(folder))).ledger)


SAMPLES = (
    killed_before_a_background_save_was_durable,
    elastic,
    short_waits_of_two_ranks_fall_together,
    the_run_is_still_going,
)


@settings(QUICK, max_examples=examples(400))
@given(st.data())
def test_a_damaged_file_gives_a_ledger_or_one_sentence(data: st.DataObject) -> None:
    job = data.draw(st.sampled_from(SAMPLES))()
    with tempfile.TemporaryDirectory() as temporary:
        folder = job.write(Path(temporary))
        files = sorted(folder.glob("journal/*"))
        for _ in range(data.draw(st.integers(1, 3))):
            path = data.draw(st.sampled_from(files))
            path.write_bytes(_damaged(data, path.read_bytes()))
        _load(folder)


def _damaged(data: st.DataObject, content: bytes) -> bytes:
    """Cut short, or with one to three bits turned."""
    if not content or data.draw(st.booleans()):
        return content[: data.draw(st.integers(0, len(content)))]
    turned = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        turned[position] ^= 1 << data.draw(st.integers(0, 7))
    return bytes(turned)


@settings(QUICK, max_examples=examples(200))
@given(
    st.lists(st.binary(max_size=60), max_size=4),
    st.dictionaries(
        st.sampled_from(["ev", "t", "id", "name", "end", "rank", "code", "ns", "th", "step"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        | st.lists(st.integers(), max_size=2),
    ),
)  # fmt: skip
def test_lines_of_any_content_are_passed_over(junk: list[bytes], record: dict[str, Any]) -> None:
    job = the_run_is_still_going()
    with tempfile.TemporaryDirectory() as temporary:
        folder = job.write(Path(temporary))
        for path in folder.glob("journal/*.jsonl"):
            for ev in ("steps", "open", "close", "span", "rank", "exit", "drain", "x"):
                junk.append(json.dumps({"ev": ev, **record}).encode())
                junk.append(json.dumps({"ev": ev, "t": 1, **record, "id": 1}).encode())
            path.write_bytes(path.read_bytes() + b"\n".join(junk))
        _load(folder)


def test_every_single_byte_may_be_lost() -> None:
    """The shortest journal, cut at each of its bytes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = the_run_is_still_going().write(Path(temporary))
        (path,) = folder.glob("journal/node0-*.jsonl")
        content = path.read_bytes()
        for length in range(0, len(content), 7):
            path.write_bytes(content[:length])
            _load(folder)


def _load(folder: Path) -> None:
    try:
        ledger = headway.load(folder).ledger
    except HeadwayError as error:
        assert str(error) and "\n" not in str(error)
        return
    _check(ledger)


def _check(ledger: Ledger) -> None:
    _check_account(ledger.segments, dict(ledger.buckets), ledger.wall)
    for rank in ledger.ranks:
        _check_account(rank.segments, dict(rank.buckets), ledger.wall)
    assert all(ttr >= 0 for ttr in ledger.time_to_recover)
    assert all(ns > 0 for ns in ledger.hidden.values())
    assert ledger.time_to_start is None or 0 <= ledger.time_to_start <= ledger.wall
    total = ledger.ett_percent + ledger.idleness_percent + ledger.failure_percent
    assert not ledger.wall or abs(total - 100) < 1e-6
    json.dumps(ledger.to_dict(), allow_nan=False)
    _check_parts(ledger.compile_parts, ledger.buckets)
    buckets = {rank.rank: rank.buckets for rank in ledger.ranks}
    for one in ledger.rank_compiles:
        _check_parts(one.parts, buckets[one.rank])


def _check_parts(parts: Mapping[str, int], buckets: Mapping[str, int]) -> None:
    assert set(parts) <= set(COMPILE_PARTS)
    assert all(ns > 0 for ns in parts.values())
    compiling = ("start.pt2_compile", "recover.pt2_compile")
    assert sum(parts.values()) == sum(buckets.get(leaf, 0) for leaf in compiling)


def _check_account(segments: tuple[Segment, ...], buckets: dict[str, int], wall: int) -> None:
    assert sum(buckets.values()) == wall
    assert all(ns > 0 for ns in buckets.values())
    assert set(buckets) <= set(BUCKETS)
    at = 0
    for segment in segments:
        assert segment.start == at < segment.end
        at = segment.end
    assert at == wall
