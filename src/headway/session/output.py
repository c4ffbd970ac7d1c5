"""What `headway run` prints to standard error, and writes at the end: ledger and report."""

from __future__ import annotations

import json
import os
import select
import sys
import traceback
from pathlib import Path
from typing import TextIO

STDERR_WAIT_S = 0.2  # for standard error to become writable


def log_fault(consequence: str, error: Exception) -> None:
    """Report an internal fault of Headway and its consequence for the job."""
    log_warning(
        f"internal fault, {type(error).__name__}: {error}; {consequence}", code="launcher-fault"
    )
    if os.environ.get("HEADWAY_DEBUG"):
        log("".join(traceback.format_exception(error)))


def log_warning(text: str, *, code: str) -> None:
    from headway.errors import with_code

    log(with_code(f"headway: {text}", code=code))


def log(text: str) -> None:
    """Print one line to standard error, if it is open and writable."""
    from headway import redact

    try:
        if sys.stderr is not None and _is_writable(sys.stderr):
            print(redact.text(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # closed, full, or a broken pipe
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _is_writable(stream: TextIO) -> bool:
    """False for a full pipe whose reader has stopped.

    The launcher must not block on it: the job would not start, or would not receive its signals.
    """
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # closed, or no file
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(STDERR_WAIT_S * 1000))


def write_results(path: Path, *, quiet: bool) -> None:
    """Write ledger.json and report.html, and print the summary."""
    from headway.journal import run_files
    from headway.run import load
    from headway.storage import atomic_write

    loaded = load(path)
    contract = json.dumps(loaded.to_dict(), indent=1) + "\n"
    atomic_write.write_atomically(path / run_files.LEDGER_JSON, contract)
    try:
        from headway.report import html, screen, terminal
    except ImportError as error:  # on a machine without rich, ledger.json is still written
        log_warning(
            f"ETT {loaded.ett_percent:.1f} % of {loaded.ledger.wall / 1e9:.1f} s, see "
            f"{path / run_files.LEDGER_JSON} (no report: {error.name} is not installed here)",
            code="report-not-written",
        )
        return
    atomic_write.write_atomically(path / run_files.REPORT_HTML, html.page(loaded.ledger))
    if not quiet and sys.stderr is not None and _is_writable(sys.stderr):
        terminal.print_summary(loaded.ledger, path, screen.console(stderr=True))
