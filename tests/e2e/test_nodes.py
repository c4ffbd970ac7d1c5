"""One job on two nodes, each with its own supervisor: they decide together."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.run import Run, load
from tests.e2e.namespaces import Node, missing, two_nodes
from tests.support import BIN, job, quiet_env, wait_until

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.timeout(110),
]


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    with two_nodes() as pair:
        yield pair


class Job:
    """The same command on both nodes, in a shared folder."""

    def __init__(self, folder: Path, nodes: tuple[Node, Node], *words: str) -> None:
        self.folder = folder
        env = {**os.environ, **quiet_env(folder), "HEADWAY_RUN": "both"}
        env.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
        headway = [str(BIN / "headway"), "run", "--name", "both", "--restarts", "3", "--"]
        torchrun = [str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "1"]
        where = ["--master-addr", nodes[0].address, "--master-port", "29511"]
        self.launchers = [
            node.start(
                [*headway, *torchrun, *where, "--node-rank", str(i), job("nodes"), *words],
                env,
                cwd=folder,
            )
            for i, node in enumerate(nodes)
        ]

    def wait_for_save(self) -> None:
        wait_until((self.folder / "last.pt").exists)

    def pid(self, rank: int) -> int:
        return int((self.folder / f"pid-{rank}").read_text())

    def finish(self) -> tuple[list[int], list[str]]:
        outputs = [launcher.communicate(timeout=90)[0] for launcher in self.launchers]
        return [launcher.returncode for launcher in self.launchers], outputs

    def run(self) -> Run:
        return load(self.folder / "headway" / "both")

    def decisions(self) -> list[list[tuple[str, str]]]:
        """The decisions that each supervisor recorded, by node."""
        found: dict[str, list[tuple[str, str]]] = {}
        journals = sorted((self.folder / "headway/both/journal").glob("launcher-*.jsonl"))
        for path in journals:
            records = [json.loads(line) for line in path.read_text().splitlines()]
            mine = found.setdefault(records[0]["host"], [])
            mine += [(r["action"], r["why"]) for r in records if r["ev"] == "decision"]
        return [found[host] for host in sorted(found)]


@pytest.mark.slow
def test_a_rank_that_dies_on_one_node_restarts_both(
    tmp_path: Path, nodes: tuple[Node, Node]
) -> None:
    job = Job(tmp_path, nodes)
    job.wait_for_save()
    os.kill(job.pid(1), signal.SIGKILL)
    codes, outputs = job.finish()
    assert codes == [0, 0], outputs
    ledger = job.run().ledger
    assert [a.outcome for a in ledger.attempts] == ["failed", "completed"], outputs
    assert ledger.attempts[1].resumed_from in (10, 20)
    assert ledger.steps == 100
    assert [(f.root_rank, f.node) for f in ledger.failures] == [(1, "node-1")], ledger.failures
    assert sum(ledger.buckets.values()) == ledger.wall
    first, second = job.decisions()
    assert first == second
    assert [action for action, _ in first] == ["restart"]
    assert not list((tmp_path / "headway/both/journal").glob(".ended*"))


@pytest.mark.slow
def test_a_bug_on_one_node_stops_both(tmp_path: Path, nodes: tuple[Node, Node]) -> None:
    job = Job(tmp_path, nodes, "bug")
    codes, outputs = job.finish()
    assert all(codes), outputs
    (failure,) = job.run().ledger.failures
    assert (failure.category, failure.root_rank) == ("user_code", 1), (failure, outputs)
    first, second = job.decisions()
    assert first == second
    assert [action for action, _ in first] == ["stop"]


@pytest.mark.slow
def test_a_node_that_is_gone_is_asked_to_be_replaced(
    tmp_path: Path, nodes: tuple[Node, Node]
) -> None:
    job = Job(tmp_path, nodes)
    job.wait_for_save()
    nodes[1].kill()
    codes, outputs = job.finish()
    assert codes[0] == 75, outputs
    (failure,) = job.run().ledger.failures
    assert (failure.category, failure.node) == ("node_failure", "node-1"), failure
    marker = json.loads((tmp_path / "headway/both/swap.json").read_text())
    assert marker["node"] == "node-1"
