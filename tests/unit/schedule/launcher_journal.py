from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.journal.writer import Writer, head
from headway.units import NS


def write_active_run(folder: Path, *, over: bool = False, **extra: Any) -> None:
    """Write a run that is active now, with an eviction cost from its launcher."""
    (folder / "journal").mkdir(parents=True)
    writer = Writer(str(folder / "journal" / "launcher-L0-node0-7.jsonl"), 7)
    first = head("launcher", launch="L0", index=0)
    writer.write({**first, "host": "trainer-0", **extra})
    fields = {"accelerators": 8, "since": first["t"] - 600 * NS, "saved": True, "save_s": 20.0}
    fields |= {"recover_s": 100.0, "preemptions": 2, "lost_s": 5600.0}
    writer.write({"ev": "price", "t": first["t"], **fields})
    if over:
        writer.write({"ev": "exit", "t": first["t"] - 60 * NS, "code": 0})
    writer.close()
