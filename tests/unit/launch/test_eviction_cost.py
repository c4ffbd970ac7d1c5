"""The eviction cost in the launcher's journal: when it is reported, and its parts."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from headway.journal.pulse import Pulse
from headway.journal.writer import Writer, head
from headway.launch import eviction_cost
from headway.launch.eviction_cost import EarlierLaunches, EvictionCostReporter, earlier_launches
from headway.launch.progress import durable_saves
from headway.launch.rank_tail import RankTail
from headway.schedule.cost import from_ledger
from headway.testing import FakeRun
from headway.units import NS


class Rank(RankTail):
    """A rank whose pulse is set by the test."""

    def __init__(self, rank: int | None = 0, world: int | None = 4, restart: int = 0) -> None:
        super().__init__("none", 1)
        self.rank, self.world, self.head = rank, world, {"restart": restart}
        self.steps = 0

    def pulse(self) -> Pulse:
        return Pulse(steps=self.steps)

    def line(self, **record: Any) -> None:
        self._apply(record)


class Launcher:
    """An attempt, its watch and its writer in one, with a clock set by the test."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
        self.now = 1000 * NS
        monkeypatch.setattr(eviction_cost, "now", lambda: self.now)
        monkeypatch.setattr(eviction_cost, "process_begin", lambda: self.now)
        self.number, self.watch, self.writer = number, self, self
        self.found: list[Rank] = [Rank()]
        self.told: list[dict[str, Any]] = []
        self.on_round: list[Any] = []
        self.pricing = EvictionCostReporter(path, "L0")
        self.pricing.attempt_started(self)  # type: ignore[arg-type]

    def ranks(self) -> list[Rank]:
        return self.found

    def write(self, record: dict[str, Any]) -> None:
        self.told.append(record)

    def later(self, seconds: float) -> None:
        self.now += round(seconds * NS)
        for each in self.on_round:
            each(self)


def test_every_half_minute_and_at_each_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Launcher(tmp_path, monkeypatch)
    (rank,) = job.found
    job.later(8)
    rank.steps = 1
    job.later(2)
    assert job.told == [], "nothing is new"
    job.later(20)
    assert job.told == [
        {
            "ev": "price",
            "t": 1030 * NS,
            "accelerators": 4,
            "since": 1000 * NS,
            "saved": False,
            "save_s": None,
            "recover_s": 10.0,
            "preemptions": 0,
            "lost_s": 4 * (30.0 + 10.0),
        }
    ], "from the begin of the attempt, as it has not saved"
    save = {"ev": "span", "name": "checkpoint_save", "step": 5, "path": "a"}
    rank.line(**save, t=1031 * NS, end=1033 * NS)
    job.later(4)
    assert [job.told[-1][key] for key in ("since", "saved", "save_s")] == [1031 * NS, True, 2.0]
    assert job.told[-1]["lost_s"] == 4 * (3.0 + 10.0)
    rank.line(**{**save, "step": 6}, t=1034 * NS, end=1034 * NS)
    job.later(0.5)
    assert len(job.told) == 2, "saves that follow each other at once share a line"
    job.later(0.5)
    assert len(job.told) == 3 and job.told[-1]["since"] == 1034 * NS
    job.later(29)
    assert len(job.told) == 3
    job.later(1)
    assert len(job.told) == 4


def test_a_run_that_comes_back_tells_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(str(tmp_path / "launcher-L9-n0-7.jsonl"), 7)
    first = head("launcher", launch="L9")
    writer.write(first)
    writer.write({"ev": "price", "t": first["t"], "save_s": 2.0, "recover_s": 30.0})
    writer.write({"ev": "preempted", "t": first["t"], "step": 7})
    writer.close()
    job = Launcher(tmp_path, monkeypatch)
    job.later(1)
    (event,) = job.told
    assert [event[key] for key in ("preemptions", "save_s", "recover_s")] == [1, 2.0, 30.0]
    job.later(29)
    assert len(job.told) == 1
    job.later(1)
    assert len(job.told) == 2


def test_the_node_of_rank_0_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Launcher(tmp_path, monkeypatch)
    job.found = [Rank(2), Rank(3)]
    job.later(60)
    assert job.told == []
    job.found = [Rank(None, None), Rank(None, None)]
    job.later(1)
    assert job.told[-1]["accelerators"] == 2, "a job without ranks: each process is one"


def test_a_restart_by_torchrun_is_a_start_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Launcher(tmp_path, monkeypatch)
    job.found[0].steps = 1
    job.later(40)
    job.found = [Rank(restart=1)]
    job.later(5)
    job.found[0].steps = 1
    job.later(30)
    assert job.told[-1]["since"] == 1045 * NS
    assert job.told[-1]["recover_s"] == 30.0, "the first start of a run is no recovery"
    assert job.told[-2] == {"ev": "recovered", "t": 1075 * NS, "s": 30.0}


def test_the_ledger_has_the_same_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold start of 60 s, restarts of 11, 10 and 12 s, saves of 2 and of 8 s."""
    job = Launcher(tmp_path, monkeypatch)
    run = FakeRun()
    at = 0.0
    for number, (start, took) in enumerate(((60.0, 2.0), (11.0, 2.0), (10.0, 8.0), (12.0, 0.0))):
        launch = f"L0.{number}" if number else "L0"
        launcher = run.launcher(begin=at, launch=launch, index=number)
        rank = run.process(begin=at + 1, rank=0, world=4, launch=launch)
        rank.train(first=1, count=80, start=at + start, each=0.5)
        if number:
            job.now, job.found, job.number = round((1000 + at) * NS), [Rank()], number
            job.pricing.attempt_started(job)  # type: ignore[arg-type]
        job.later(start)
        job.found[0].steps = 1
        job.later(0)
        if took:
            begin = at + start + 10
            rank.span("checkpoint_save", begin, begin + took, th=5, path="a", step=20)
            times = {"t": round((1000 + begin) * NS), "end": round((1000 + begin + took) * NS)}
            job.found[0].line(ev="span", name="checkpoint_save", step=20, path="a", **times)
        job.later(40)
        at += start + 40
        if number < 3:
            rank.exit(at, code=1)
            launcher.exit(at + 3, code=1)  # the death is noticed 3 s later
            job.now += 3 * NS
            job.pricing.attempt_ended(job.found)
            at += 30  # and waits before the next attempt
    last = [event for event in job.told if event["ev"] == "price"][-1]
    price = from_ledger(run.ledger())
    assert price.save == last["save_s"] == 8.0, "of the newest attempt that saved"
    assert last["recover_s"] == 11.0
    assert price.recover == pytest.approx(11.0, abs=0.6)
    assert price.accelerators == last["accelerators"] == 4


def test_what_counts_as_durable() -> None:
    rank, other = Rank(0), Rank(1)
    save = {"name": "checkpoint_save", "path": "p"}
    rank.line(ev="span", **save, step=1, t=10, end=12)
    other.line(ev="span", **save, step=1, t=11, end=15)
    assert durable_saves([rank, other]) == [(10, 15)], "of both ranks, until the last one has it"
    rank.line(ev="open", id=1, **save, step=2, t=20)
    rank.line(ev="saving", t=21, path="p", step=2)
    rank.line(ev="close", id=1, t=22)
    assert durable_saves([rank, other]) == [(10, 15)], "its write goes on"
    rank.line(ev="span", **save, step=2, t=23, end=30, background=True)
    assert durable_saves([rank, other])[-1] == (20, 30), "the state is as old as the call"
    rank.line(ev="span", **save, step=3, t=40, end=41, level="disk")
    rank.line(ev="span", **save, step=3, t=40, end=41, part=True)
    rank.line(ev="checkpoint", t=3 * NS, level="memory", step=3, durable_s=0.1)
    rank.line(ev="checkpoint", t=3 * NS, level="disk", step=3, durable_s=0.1, error="disk full")
    assert len(durable_saves([rank, other])) == 2
    rank.line(ev="checkpoint", t=5 * NS, level="disk", step=3, durable_s=2.0)
    assert durable_saves([rank, other])[-1] == (3 * NS, 5 * NS), "a Checkpointer tells it itself"


def test_ranks_that_were_told_to_go_where_the_launcher_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Launcher(tmp_path, monkeypatch)
    job.found = [Rank(0), Rank(1)]
    job.found[0].line(ev="preempted", t=5, step=7, saved=True, left_s=9.0)
    job.pricing.attempt_ended(job.found)
    assert job.told == [], "one of two may have died"
    job.found[1].line(ev="preempted", t=6, step=7, saved=True, left_s=9.0)
    job.pricing.attempt_ended([job.found[1]])
    assert job.told == [], "the node of rank 0 speaks"
    job.pricing.attempt_ended([])
    job.pricing.attempt_ended(job.found)
    assert job.told == [{"ev": "preempted", "t": job.now, "step": 7}]


def test_what_earlier_launches_have_told(tmp_path: Path) -> None:
    assert earlier_launches(tmp_path, "L9") == EarlierLaunches()
    for number, sent in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)):
        for host in ("n0", "n1"):
            writer = Writer(str(tmp_path / f"launcher-L{number}-{host}-7.jsonl"), 7)
            first = head("launcher", launch=f"L{number}")
            writer.write(first)
            writer.write(
                {
                    "ev": "price",
                    "t": first["t"] + number * NS,
                    "save_s": 2.0,
                    "recover_s": 30.0 + number,
                }
            )
            writer.write({"ev": "signal", "t": 9, "signal": int(sent), "from": 1})
            writer.close()
    writer = Writer(str(tmp_path / "launcher-L3-n0-7.jsonl"), 7)
    writer.write(head("launcher", launch="L3"))
    writer.write({"ev": "preempted", "t": 9, "step": 7})
    writer.close()
    torn = json.dumps({"ev": "head", "wall": 1, "t": 1}) + '\n{"ev":"signal","t"'
    (tmp_path / "launcher-L7-n0-7.jsonl").write_text(torn)
    earlier = earlier_launches(tmp_path, "L9")
    assert earlier.preemptions == 3, "on two nodes it is one; Ctrl-C is none"
    assert (earlier.save_s, earlier.recover_s) == (2.0, 32.0)
    assert earlier_launches(tmp_path, "L2").preemptions == 2, "this launch is not among them"
