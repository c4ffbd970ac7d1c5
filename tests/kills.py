"""Kill a save at each of its file operations, in one fork of this process after the other."""

import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from headway.probe import unfinished_saves

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "tests.write"}
WRITING = os.O_WRONLY | os.O_RDWR

_count, _at = 0, 0


def _audit(event: str, args: tuple[object, ...]) -> None:
    global _count
    if event not in EVENTS or (event == "open" and not _writes(args)):
        return
    _count += 1
    if _count == _at:
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()


def _writes(args: tuple[object, ...]) -> bool:
    return isinstance(args[2], int) and bool(args[2] & WRITING)


def write_in_two_parts(path: str, text: str) -> None:
    """Write like a library in another language: a kill may happen between the writes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for part in (text[:2], text[2:]):
        sys.audit("tests.write")
        os.write(file, part.encode())
    os.close(file)


def sweep(
    save: Callable[[int], object], resume: Callable[[], str], step_of: Callable[[str], int]
) -> int:
    """Kill the third save at each operation; return the number of kills.

    `save(step)` writes below `out`. After each kill, `resume` names a checkpoint that `step_of`
    reads as complete: the second one, from which the third save is repeated, or the third.
    """
    journal = os.environ["HEADWAY_DIR"]
    os.fsync = lambda handle: None  # a kill does not lose the page cache

    def third() -> None:
        global _at
        sys.addaudithook(_audit)
        _at = at
        save(3)

    assert _forked(lambda: (save(1), save(2))) == 0
    os.rename("out", "before")
    steps, at, status = set(), 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        at += 1
        shutil.copytree("before", "out")
        status = _forked(third)
        unfinished_saves.remove_dead_saves(journal, unfinished_saves.current_attempt())
        step = step_of(resume())
        assert step in (2, 3), (at, step)
        steps.add(step)
        if step == 2:
            assert _forked(lambda: save(3)) == 0 and step_of(resume()) == 3, at
            assert not [name for name in _below("out") if name.startswith(".headway")], at
        shutil.rmtree("out")
    assert status == 0 and steps == {2, 3}, (status, steps)
    assert not [
        name for name in os.listdir(journal) if name.startswith(unfinished_saves.RECORD_PREFIX)
    ]
    return at - 1


def _below(folder: str) -> list[str]:
    return [name for _, folders, files in os.walk(folder) for name in (*folders, *files)]


def _forked(call: Callable[[], object]) -> int:
    pid = os.fork()
    if not pid:
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
