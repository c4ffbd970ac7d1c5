from __future__ import annotations

from headway.ledger.checkpoints import async_saves
from headway.ledger.model import AsyncSave
from headway.report.checkpoints import async_save_facts
from headway.testing import FakeRun
from headway.units import NS


def job() -> FakeRun:
    run = FakeRun()
    launcher = run.launcher(begin=0)
    rank = run.process(begin=1, rank=0, world=1)
    rank.train(first=1, count=100, start=5, each=0.5)
    for at, end in ((10, 12), (20, 23)):
        told = {"path": "/a.pt", "step": 1, "bytes": 5, "blocked": NS // 10}
        rank.event("behind", at, end=rank.at(end), **told)
    rank.event("behind", 30, end=rank.at(31), path="/b", bytes=5, blocked=0, error="OSError: x")
    rank.event("behind", 40, end=rank.at(44), waited="os.listdir")
    for why in ("an open file", "a URL", "an open file"):
        rank.event("behind", 50, path="/c", why=why)
    launcher.exit(60, code=0)
    return run


def test_what_was_written_behind_is_summed_up() -> None:
    ledger = job().ledger()
    assert ledger.async_save == AsyncSave(
        saves=2,
        blocked=NS // 5,
        write=6 * NS,
        wait=4 * NS,
        failed=1,
        sync_fallbacks={"an open file": 2, "a URL": 1},
    )
    assert ledger.to_dict()["checkpoints"]["behind"] == {
        "saves": 2,
        "blocked_s": 0.2,
        "written_s": 6.0,
        "waited_s": 4.0,
        "failed": 1,
        "plain": {"an open file": 2, "a URL": 1},
    }
    asynchronous, plain = async_save_facts(ledger)
    assert asynchronous == (
        "asynchronous",
        "2 saves, 200 ms blocked, 6.0 s written in the background, 4.0 s waited, 1 failed",
    )
    assert plain == ("fallbacks", "3 saves fell back to synchronous: 2 x an open file; 1 x a URL")


def test_without_the_flag_nothing_is_said() -> None:
    run = FakeRun()
    run.launcher(begin=0).exit(9, code=0)
    ledger = run.ledger()
    assert ledger.async_save is None and async_saves([]) is None and async_save_facts(ledger) == []
    assert "behind" not in ledger.to_dict()["checkpoints"]
