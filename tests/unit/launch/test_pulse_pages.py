"""Pulse pages in memory, where the run folder is on a network file system."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from headway.journal import pulse
from headway.journal.reader import read_journals
from headway.journal.writer import Writer, head
from headway.launch import process_watch, pulse_pages, rank_tail
from headway.launch.process_watch import ProcessWatch
from headway.launch.pulse_pages import PulsePages, file_system, page_of
from headway.launch.rank_tail import RankTail
from headway.launch.run_folder import prepare
from headway.launch.supervisor import Supervisor

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:44 / /mnt/jobs rw shared:1 master:2 - nfs4 server:/jobs rw
24 22 0:45 / /mnt/jobs/fast\\040düsk rw - xfs /dev/nvme0n1 rw
25 22 0:46 / /mnt/over rw - lustre a rw
26 22 0:47 / /mnt/over rw - tmpfs tmpfs rw
damaged
"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/mnt/jobs/run", "nfs4"),
        ("/mnt/jobsite", "ext4"),
        ("/mnt/jobs/fast düsk/run", "xfs"),
        ("/mnt/over/run", "tmpfs"),  # the last one hides the first
    ],
)
def test_the_file_system_of_a_path(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS.replace("damaged\n", ""))
    assert file_system(Path(path), str(tmp_path / "mounts")) == kind


def test_where_it_cannot_be_told_it_is_not_local(tmp_path: Path) -> None:
    assert file_system(tmp_path, str(tmp_path / "none")) == ""
    (tmp_path / "mounts").write_text(MOUNTS)
    assert file_system(tmp_path, str(tmp_path / "mounts")) == ""


@pytest.mark.parametrize("kind", ["nfs4", "btrfs"])
def test_only_where_a_page_cannot_be_mapped_in_safety(
    journal: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(pulse_pages, "MEMORY", memory)
    monkeypatch.setattr(pulse_pages, "file_system", lambda path: "ext4")
    assert pulse_pages.make_pages(journal) is None
    monkeypatch.setattr(pulse_pages, "file_system", lambda path: kind)
    pages = pulse_pages.make_pages(journal)
    assert pages is not None
    pages.close()
    assert list(memory.iterdir()) == []
    monkeypatch.setattr(pulse_pages, "MEMORY", memory / "none")
    assert pulse_pages.make_pages(journal) is None


def test_pages_are_copied_and_removed(journal: Path, memory: Path) -> None:
    pages = PulsePages(journal, memory)
    writer = Writer(str(journal / "host-7-1.jsonl"), 7, str(pages.folder))
    writer.cells[pulse.STEPS] = 3
    assert pages.names() == {"host-7-1.pulse"}
    assert not (journal / "host-7-1.pulse").exists()
    pages.copy_all()
    page = pulse.read(str(journal / "host-7-1.pulse"))
    assert page is not None and page.steps == 3
    before = (journal / "host-7-1.pulse").stat().st_mtime_ns
    pages.copy_all()
    assert (journal / "host-7-1.pulse").stat().st_mtime_ns == before  # nothing new
    writer.cells[pulse.STEPS] = 4
    pages.close()
    page = pulse.read(str(journal / "host-7-1.pulse"))
    assert page is not None and page.steps == 4
    assert list(memory.iterdir()) == []
    writer.cells[pulse.STEPS] = 5  # a process that is still running is not harmed
    writer.close()


@pytest.mark.parametrize("problem", ["no folder", "no room"])
def test_a_page_that_has_no_place_in_memory_is_beside_its_journal(
    journal: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    if problem == "no room":
        create = pulse.create

        def full(path: str, pid: int) -> memoryview:
            if path.startswith(str(memory)):
                raise OSError(28, "No space left on device")
            return create(path, pid)

        monkeypatch.setattr(pulse, "create", full)
    else:
        memory.rmdir()
    writer = Writer(str(journal / "host-7-1.jsonl"), 7, str(memory))
    writer.cells[pulse.STEPS] = 3
    page = pulse.read(str(journal / "host-7-1.pulse"))
    assert page is not None and page.steps == 3
    assert writer.fault == ""
    writer.close()


def test_a_page_that_cannot_be_mapped_leaves_no_file(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(fd: int, size: int) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(pulse.mmap, "mmap", unable)
    with pytest.raises(OSError):
        pulse.create(str(memory / "x.pulse"), 7)
    assert list(memory.iterdir()) == []


def test_folders_of_killed_launchers_are_removed(journal: Path, memory: Path) -> None:
    living, dead = PulsePages(journal, memory), PulsePages(journal, memory)
    dead._lock.close()  # as its end does
    (memory / "headway-pages-other").mkdir()
    third = PulsePages(journal, memory)
    assert living.folder.exists() and not dead.folder.exists()
    assert (memory / "headway-pages-other").exists()
    living.close()
    third.close()


def test_the_launcher_sees_processes_by_their_pages(
    journal: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without listing the journal folder, and without a request for each read of a page."""
    pages = PulsePages(journal, memory)
    launcher = Writer(str(journal / "launcher-a-host-1.jsonl"), os.getpid(), str(pages.folder))
    time, listed, opened = 10**12, [], []
    monkeypatch.setattr(process_watch, "now", lambda: time)
    listdir, open_file = os.listdir, rank_tail.file_access.open_file

    def counted(path: Path) -> list[str]:
        listed.append(Path(path) == journal)
        return listdir(path)

    monkeypatch.setattr(process_watch.os, "listdir", counted)
    monkeypatch.setattr(
        rank_tail.file_access, "open_file", lambda path: opened.append(path) or open_file(path)
    )
    followed = ProcessWatch(journal, "a", launcher, pages)
    followed._find_new()
    name = f"{os.uname().nodename}-{os.getpid()}-1"
    rank = Writer(str(journal / f"{name}.jsonl"), os.getpid(), str(pages.folder))
    rank.write(head("process", rank=0, launch="a"))
    for _ in range(20):
        time += 100_000_000
        followed._find_new()
        for process in followed.ranks():
            rank.cells[pulse.STEPS] += 1
            assert process.pulse().steps == rank.cells[pulse.STEPS]
    assert [process.rank for process in followed.ranks()] == [0]
    assert sum(listed) <= 4
    assert len([path for path in opened if path.endswith(".pulse")]) == 1
    followed.start()
    followed.finish()
    page = pulse.read(str(journal / f"{name}.pulse"))
    assert page is not None and page.steps == rank.cells[pulse.STEPS] == 20
    assert followed.ranks()[0].pulse().steps == 20  # known though all is closed
    pages.close()
    launcher.close()
    rank.close()


JOB = """
import os, signal, headway
for _ in range(7): headway.step()
pages = os.environ.get("HEADWAY_PAGES", "")
print(pages, flush=True)
assert not pages or os.listdir(pages)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("room", [True, False])
def test_the_last_steps_of_a_killed_job_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], room: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    memory = tmp_path / "shm"
    if room:
        memory.mkdir()
    monkeypatch.setattr(pulse_pages, "MEMORY", memory)
    monkeypatch.setattr(pulse_pages, "file_system", lambda path: "nfs4")
    command = [sys.executable, "-c", JOB]
    target = prepare(command, output="run", name=None)
    supervisor = Supervisor(command, target)
    assert supervisor.run() == -signal.SIGKILL
    for _, part in supervisor.closing_steps(lambda: False):
        part()
    (journal,) = [j for j in read_journals(str(target.journal))[0] if j.role == "process"]
    assert journal.windows.last[-1] == 7
    folder = capfd.readouterr().out.strip()
    assert folder.startswith(str(memory)) is room
    assert not room or list(memory.iterdir()) == []


def test_a_slow_folder_is_listed_less_often(
    journal: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Writer(str(journal / "launcher-a-host-1.jsonl"), os.getpid())
    time, lists = 10**12, 0
    listdir = os.listdir

    def slow(path: Path) -> list[str]:
        nonlocal time, lists
        time += 50_000_000
        lists += 1
        return listdir(path)

    monkeypatch.setattr(process_watch, "now", lambda: time)
    pages = PulsePages(journal, memory)
    followed = ProcessWatch(journal, "a", launcher, pages)
    monkeypatch.setattr(pages, "names", set)
    monkeypatch.setattr(process_watch.os, "listdir", slow)
    begin = time
    while time < begin + 60 * 10**9:
        time += 100_000_000
        followed._find_new()
    assert lists * 50_000_000 <= (time - begin) / process_watch.MAX_LIST_SHARE + 50_000_000
    assert lists > 15
    monkeypatch.undo()
    pages.close()
    launcher.close()


def test_a_process_without_a_page_is_not_asked_again(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "create", lambda path, pid: pulse.anonymous())
    writer = Writer(str(journal / "host-7-1.jsonl"), 7)
    followed = RankTail(str(journal / "host-7-1.jsonl"), 7)
    followed.read_new()
    writer.write(head("process", rank=0))
    followed.read_new()
    opened: list[str] = []

    def missing(path: str) -> None:
        opened.append(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(rank_tail.file_access, "open_file", missing)
    assert [followed.pulse().steps for _ in range(5)] == [0] * 5
    assert opened == [page_of(journal, None, "host-7-1.jsonl")]
    followed.close()
    writer.close()
