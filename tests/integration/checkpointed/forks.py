"""Ranks and writers as real processes that cost little: forks of one that has torch already.

A writer is forked by this process when a rank asks for one, and runs the same main as ever.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from headway.checkpoint.store import commit
from headway.checkpoint.writer import client, process
from headway.checkpoint.writer.client import writer_name
from headway.storage import disk
from tests.integration.checkpointed.tiny import Life, Log, train

Hurt = Callable[[], None]  # done to a process at its start


def before(where: Any, names: Sequence[str], do: Callable[[int], None]) -> None:
    """From now on each of these calls is counted, and something is done before it."""
    calls = itertools.count(1)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            do(next(calls))
            return call(*args, **kwargs)

        return called

    for name in names:
        setattr(where, name, counted(getattr(where, name)))


def dies(where: Any, names: Sequence[str], number: int) -> Hurt:
    """The process is killed at so many of these calls."""

    def die(call: int) -> None:
        if call == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return functools.partial(before, where, names, die)


def fails(names: Sequence[str], code: int, first: int, last: int) -> Hurt:
    """Calls to the disk fail, from the first to the last of these."""

    def fail(call: int) -> None:
        if first <= call <= last:
            raise OSError(code, os.strerror(code))

    return functools.partial(before, disk, names, fail)


@dataclass
class Nursery:
    """All processes of one scenario."""

    folder: Path
    hurt_writers: dict[int, Hurt] = field(default_factory=dict)  # by rank, when they start
    trainers: dict[int, int] = field(default_factory=dict)  # process -> rank; those that live
    writers: dict[int, int] = field(default_factory=dict)
    hurt: set[int] = field(default_factory=set)  # of the writers
    codes: dict[int, int] = field(default_factory=dict)  # rank -> how it has ended
    killed: int = 0  # so many by now
    forks: set[int] = field(default_factory=set)  # all there ever were
    up: set[int] = field(default_factory=set)  # ranks that are restored
    skew_s: float = 0.0

    def __post_init__(self) -> None:
        self._asked, self._ask = os.pipe()
        self._woken, wake = os.pipe()
        for end in (self._asked, self._woken, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)
        self._lives = 0

    def start(self, life: Life, hurt: dict[int, Hurt] | None = None) -> None:
        """All ranks of a life."""
        self._lives += 1
        self.codes.clear()
        self.up.clear()
        self.skew_s = life.skew_s
        meet = str(self.folder / f"meet-{os.getpid()}-{self._lives}")
        for rank in range(life.world):
            do = functools.partial(self._train, life, rank, meet, (hurt or {}).get(rank))
            self.trainers[self._fork(do)] = rank

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Look after all of them until something is so; False if it is not in that time."""
        end = time.monotonic() + seconds
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                return False
            select.select([self._asked, self._woken], [], [], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._hear()
            self._bury()
        return True

    def kill(self, *processes: int) -> None:
        """kill -9, and wait until they are gone."""
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        gone = set(processes)
        assert self.run(lambda: not gone & {*self.trainers, *self.writers}, 10)

    def end(self) -> None:
        """Nobody is left."""
        self.kill(*self.trainers, *self.writers)

    def _fork(self, do: Callable[[], int]) -> int:
        pid = os.fork()
        if pid:
            self.forks.add(pid)
            return pid
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._become(do)

    def _become(self, do: Callable[[], int]) -> NoReturn:
        code = 70
        try:
            words = os.open(self.folder / "words", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            for stream in (1, 2):
                os.dup2(words, stream)
            code = do()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _train(self, life: Life, rank: int, meet: str, hurt: Hurt | None) -> int:
        os.environ["SLURM_JOB_ID"] = life.job
        client._start = functools.partial(self._ask_for, rank)  # type: ignore[assignment]
        if life.world > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{meet}", rank=rank, world_size=life.world
            )
        log = Log(f"{life.log}.{rank}")
        log("born")

        def told(what: str, **more: Any) -> None:
            log(what, **more)
            if what == "restored":
                self._say(up=rank)

        if hurt is not None:
            hurt()
        return train(life, rank, told)  # type: ignore[arg-type]

    def _ask_for(self, rank: int, name: str, linger_s: float) -> _Started:
        """In the place of `client._start`."""
        answer = str(self.folder / f"writer-{os.getpid()}-{time.monotonic_ns()}")
        self._say(writer=name, rank=rank, linger_s=linger_s, answer=answer)
        return _Started(answer)

    def _say(self, **what: Any) -> None:
        os.write(self._ask, json.dumps(what).encode() + b"\n")

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for line in os.read(self._asked, 1 << 16).splitlines():
                asked = json.loads(line)
                if "up" in asked:
                    self.up.add(asked["up"])
                    continue
                pid = self._fork(functools.partial(self._write, asked))
                self.writers[pid] = asked["rank"]
                if self.hurt_writers.pop(asked["rank"], None):  # the next one is spared
                    self.hurt.add(pid)
                Path(asked["answer"]).write_text(str(pid))

    def _write(self, asked: dict[str, Any]) -> int:
        os.setsid()
        if self.skew_s:
            skewed = {**(commit.commit.__kwdefaults__ or {})}
            skewed["clock"] = lambda: time.time() + self.skew_s
            commit.commit.__kwdefaults__ = skewed
        hurt = self.hurt_writers.get(asked["rank"])
        if hurt is not None:
            hurt()
        process.main(asked["writer"], asked["linger_s"])
        return 0

    def _bury(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                self.writers.pop(pid, None)
                self.hurt.discard(pid)
                if pid in self.trainers:
                    rank = self.trainers.pop(pid)
                    self.codes[rank] = os.waitstatus_to_exitcode(status)


class _Started:
    """A writer that was asked for, as subprocess.Popen shows it."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def poll(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            if not os.path.exists(f"/proc/{int(Path(self._answer).read_text())}"):
                return -9
        return None


def told(log: str, world: int) -> list[list[dict[str, Any]]]:
    """What each rank of a life has told."""
    found = []
    for rank in range(world):
        path = Path(f"{log}.{rank}")
        lines = path.read_text().splitlines() if path.exists() else []
        found.append([json.loads(line) for line in lines])
    return found


@contextlib.contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """Processes that are all gone at the end, whatever happens."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    found = Nursery(folder)
    try:
        yield found
    finally:
        found.end()


def name(store: str, rank: int, job: str) -> str:
    """Of the writer of a rank."""
    os.environ["SLURM_JOB_ID"] = job
    return writer_name(store, rank)
