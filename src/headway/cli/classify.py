"""Find the cause of a failed job in its logs, who owns it, and whether to restart.

examples:
  headway classify train.log                 one log
  headway classify logs/rank*.log            the logs of several ranks of one job
  headway classify logs/                     every log in a folder
  kubectl logs trainer-0 | headway classify  standard input
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import gzip
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from headway.errors import UsageError
from headway.launch.failures import Fact, Verdict

LOGS = re.compile(
    r"(?:\.(?:log|out|err|txt|jsonl?)|^(?:stdout|stderr|output|log)\S*?)(?:\.\d+)?(?:\.gz)?$"
)
RANK = re.compile(
    r"(?:^|[/_.-])(?:local_?)?rank[_.=-]?(\d+)|/(\d+)/std(?:err|out)\S*$|[/_.-]worker[_.-](\d+)\b"
)
ATTEMPT = re.compile(r"(?:^|/)attempt_(\d+)/")
GZIP_MAGIC = b"\x1f\x8b"
# Bytes to inspect, and the share of them that may be binary.
SNIFF_BYTES, MAX_BINARY_SHARE = 8192, 0.2
PROGRESS_BYTES = 64 << 20  # bytes between two progress messages


class Source(NamedTuple):
    """One log: the name to show, and its path; None for standard input."""

    name: str
    path: Path | None


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logs", metavar="FILE", nargs="*", help="logs or folders; - for standard input"
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def run(args: argparse.Namespace) -> int:
    from headway.launch.failures import classify, failed, read_log

    sources = [source for word in args.logs or ["-"] for source in _sources(word)]
    facts: list[Fact] = []
    with _Progress() as progress:
        for name, path in sources:
            with _open_log(path) as stream:
                _check(stream, name)
                facts += read_log(stream, rank=_rank(path), file=name, on_read=progress.add)
    verdict = classify(facts) if failed(facts) else None
    if args.json:
        _print_json(verdict)
    else:
        _print_words(verdict, [source.name for source in sources])
    return 0


def _check(stream: BinaryIO, name: str) -> None:
    """Reject binary files, which may contain any words by chance."""
    head = stream.peek(SNIFF_BYTES)[:SNIFF_BYTES]  # type: ignore[attr-defined]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return
    text = head.replace(b"\0", b"").decode("utf-8", "replace")  # a failed disk leaves zeros
    odd = sum(c == "\ufffd" or (c < " " and c not in "\a\b\t\n\f\r\x1b") for c in text)
    if odd > MAX_BINARY_SHARE * len(text):
        raise UsageError(
            f"{name} is not a text log; give the output of the job", code="log-not-text"
        )


def _sources(word: str) -> list[Source]:
    if word == "-":
        if sys.stdin.isatty():
            print("headway: reading from the terminal; end the input with Ctrl-D", file=sys.stderr)
        return [Source("standard input", None)]
    path = Path(word)
    if not path.exists():
        raise UsageError(
            f"there is no log at {word}; give a file, a folder, or - for standard input",
            code="log-not-found",
        )
    if not path.is_dir():
        return [Source(word, path)]
    if (path / "journal").is_dir() and (path / "run.json").exists():
        raise UsageError(
            f"{word} is a run folder; type `headway report {word}`", code="log-is-a-run"
        )
    logs = _last_attempt([log for log in sorted(path.rglob("*")) if _is_log(log)])
    if not logs:
        raise UsageError(
            f"there are no logs in {word}; give the files: headway classify {word}/*",
            code="folder-without-logs",
        )
    return [Source(str(log), log) for log in logs]


def _is_log(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and LOGS.search(path.name) is not None


def _last_attempt(paths: list[Path]) -> list[Path]:
    """Of torchrun's folders per attempt, only the logs of the last attempt."""
    numbers = {path: hit[1] for path in paths if (hit := ATTEMPT.search(str(path)))}
    last = max(map(int, numbers.values()), default=0)
    return [path for path in paths if int(numbers.get(path, last)) == last]


def _rank(path: Path | None) -> int | None:
    """The rank in a file name, if any."""
    match = RANK.search(str(path)) if path else None
    return int(next(filter(None, match.groups()))) if match else None


@contextlib.contextmanager
def _open_log(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdin.buffer
        return
    try:
        kind = path.stat().st_mode
        if stat.S_ISBLK(kind) or stat.S_ISSOCK(kind) or (stat.S_ISCHR(kind) and not _is_tty(path)):
            raise UsageError(
                f"{path} is a device; give a file, a folder, or - for standard input",
                code="log-not-text",
            )
        with path.open("rb") as file:
            if not file.peek(2).startswith(GZIP_MAGIC):
                yield file
                return
            with gzip.open(file) as unpacked:
                yield unpacked  # type: ignore[misc]
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path} cannot be read: {reason}", code="log-unreadable") from None


def _is_tty(path: Path) -> bool:
    """Whether the device is a terminal, such as /dev/stdin."""
    return path.resolve().is_relative_to("/dev/pts") or path.name in ("stdin", "tty")


class _Progress:
    """Show on a terminal how much of a long log has been read."""

    def __init__(self) -> None:
        self.bytes = 0
        self.shown = 0
        self.tty = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def add(self, size: int) -> None:
        self.bytes += size
        if self.tty and self.bytes - self.shown >= PROGRESS_BYTES:
            self.shown = self.bytes
            print(f"\rheadway: read {self.bytes >> 20:,} MB", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print_json(verdict: Verdict | None) -> None:
    import json
    from dataclasses import asdict, fields

    empty: dict[str, Any] = {field.name: None for field in fields(Verdict)}
    values = {**empty, "others": []} if verdict is None else asdict(verdict)
    print(json.dumps({"schema": 1, "failed": verdict is not None, **values}, indent=2))


def _print_words(verdict: Verdict | None, names: list[str]) -> None:
    from headway.format import one_line
    from headway.taxonomy import CATEGORIES, RETRIES

    if verdict is None:
        source = names[0] if len(names) == 1 else f"{len(names)} logs"
        print(f"no failure found in {source}")
        return
    print(f"{verdict.category}: {CATEGORIES[verdict.category].meaning}")
    place = f"{verdict.file}:{verdict.line}" if verdict.line else verdict.file
    rows = {
        "owner": verdict.owner,
        "next": f"{RETRIES[verdict.retry]} (retry: {verdict.retry})",
        "where": _where(verdict.rank, verdict.node),
        "evidence": verdict.evidence,
        "": place,
        "certainty": f"{verdict.confidence}, by {verdict.signature}",
    }
    for name, text in rows.items():
        if text:
            print(f"  {name:<10} {one_line(text)}")
    if verdict.others:
        print("  other findings")
    for other in verdict.others:
        rank = "" if other.rank is None else f"rank {other.rank}: "
        label = other.role if other.category == "unknown" else f"{other.role}, {other.category}"
        print(f"    {label:<24} {one_line(rank + other.evidence, 100)}")


def _where(rank: int | None, node: str | None) -> str:
    parts = ["" if rank is None else f"rank {rank}", "" if node is None else f"node {node}"]
    return ", ".join(filter(None, parts))
