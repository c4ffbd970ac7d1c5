"""Damages recorded journals of supervised runs in every way that files get damaged.

Whatever is left of them gives a ledger that balances, or one sentence:

    python -m tests.journals.fuzz 20000            # variants; a second argument is the first seed
"""

from __future__ import annotations

import gzip
import io
import json
import random
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.errors import HeadwayError
from headway.journal import pulse, reader
from headway.ledger import boosters
from headway.ledger.build import build_ledger
from headway.ledger.model import Ledger
from headway.report.terminal import print_report

RUNS = (
    "auto_second",
    "chaos_kills",
    "continued",
    "crash_loop",
    "preempted_ranks",
    "preempted_unanswered",
    "restarts_used",
    "slurm_requeue",
    "swap",
    "two_nodes_killed",
    "warm_restart",
)
SHOWN = 20  # of so many variants one is shown as text, too
LIMIT_S = 60  # for one variant
VALUES = (
    None, True, "", "text", [], {}, [[1]], {"a": {}}, 1.5, -1, 0, 1, 2**31, 2**62 - 1, 2**62,
    10**400, float("nan"), float("inf"), "\ud800",
)  # fmt: skip

Files = dict[str, bytes]


@cache
def recorded(name: str) -> dict[str, bytes]:
    """The files of a recorded run, by their names."""
    folder = Path(__file__).parent / name / "journal"
    return {
        path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes())
        for path in sorted(folder.glob("*.gz"))
    }


def variant(seed: int) -> tuple[str, Files]:
    """A run with one to four kinds of damage; the same for the same seed."""
    dice = random.Random(seed)
    name = dice.choice(RUNS)
    files = dict(recorded(name))
    for _ in range(dice.randint(1, 4)):
        dice.choice(DAMAGES)(dice, files)
    return name, files


def check(seed: int) -> None:
    """Raises where a variant is not accounted for."""
    name, files = variant(seed)
    try:
        ledger = load(name, files)
    except HeadwayError as error:
        assert str(error) and "\n" not in str(error)
        return
    for buckets in (ledger.buckets, *(rank.buckets for rank in ledger.ranks)):
        assert sum(buckets.values()) == ledger.wall
        assert all(ns > 0 for ns in buckets.values())
    for segments in (ledger.segments, *(rank.segments for rank in ledger.ranks)):
        ends = [0, *(segment.end for segment in segments)]
        assert ends == [*(segment.start for segment in segments), ledger.wall]
    assert all(ns >= 0 for ns in ledger.time_to_recover)
    json.dumps(ledger.to_dict(), allow_nan=False)
    if seed % SHOWN == 0:
        print_report(ledger, "run", Console(file=io.StringIO(), width=100))


def load(name: str, files: Files) -> Ledger:
    """As `headway.load` does it, without the files."""
    journals, problems = [], []
    for file in sorted(files):
        if not file.endswith(".jsonl"):
            continue
        page = pulse.parse(files.get(file.removesuffix(".jsonl") + ".pulse", b""))
        journal = reader.parse(files[file], file.removesuffix(".jsonl"), page)
        if journal is None:
            problems.append(f"{file} has no readable first line")
        else:
            journals.append(journal)
    ledger = build_ledger(journals, run=name, problems=problems)
    boosters.auto_run(ledger, journals)
    return ledger


def _any(dice: random.Random, files: Files, ending: str = "") -> str | None:
    names = sorted(name for name in files if name.endswith(ending) and files[name])
    return dice.choice(names) if names else None


def _lines(change: Callable[[random.Random, list[bytes]], None]) -> Any:
    def damage(dice: random.Random, files: Files) -> None:
        name = _any(dice, files, ".jsonl")
        if name is not None:
            lines = files[name].splitlines(keepends=True)
            for _ in range(dice.choice((1, 1, 1, 3, 10))):
                if lines:
                    change(dice, lines)
            files[name] = b"".join(lines)

    return damage


@_lines
def lose_a_line(dice: random.Random, lines: list[bytes]) -> None:
    del lines[dice.choice((0, -1, dice.randrange(len(lines)), dice.randrange(len(lines))))]


@_lines
def lose_lines(dice: random.Random, lines: list[bytes]) -> None:
    first = dice.randrange(len(lines))
    del lines[first : dice.randint(first, len(lines))]


@_lines
def tear_a_line(dice: random.Random, lines: list[bytes]) -> None:
    place = dice.randrange(len(lines))
    lines[place] = lines[place][: dice.randrange(len(lines[place]) + 1)]


@_lines
def swap_lines(dice: random.Random, lines: list[bytes]) -> None:
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


@_lines
def repeat_a_line(dice: random.Random, lines: list[bytes]) -> None:
    lines.insert(dice.randrange(len(lines)), dice.choice(lines))


@_lines
def change_a_value(dice: random.Random, lines: list[bytes]) -> None:
    place = dice.randrange(len(lines))
    try:
        record = json.loads(lines[place])
        holder: Any = record
        while True:
            key = dice.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            inner = holder[key]
            if not isinstance(inner, (dict, list)) or not inner or dice.random() < 0.3:
                break
            holder = inner
        numbers = [2 * inner, inner + dice.randint(-(10**10), 10**10)] if type(inner) is int else []
        holder[key] = dice.choice([*VALUES, *numbers, *numbers, *numbers])
        lines[place] = json.dumps(record).encode("utf-8", "surrogatepass") + b"\n"
    except (ValueError, TypeError, LookupError, RecursionError):
        return


@_lines
def nest_deeply(dice: random.Random, lines: list[bytes]) -> None:
    place = dice.randrange(len(lines))
    depth = dice.choice((100, 5000, 100_000))
    lines[place] = lines[place].rstrip(b"}\n") + b',"deep":' + b"[" * depth + b"]" * depth + b"}\n"


def cut(dice: random.Random, files: Files) -> None:
    name = _any(dice, files)
    if name is not None:
        files[name] = files[name][: dice.randrange(len(files[name]))]


def flip_bits(dice: random.Random, files: Files) -> None:
    name = _any(dice, files)
    if name is not None:
        content = bytearray(files[name])
        reach = len(content) if name.endswith(".jsonl") else min(len(content), pulse.CELLS * 8)
        for _ in range(dice.choice((1, 1, 5, 50))):
            content[dice.randrange(reach)] ^= 1 << dice.randrange(8)
        files[name] = bytes(content)


def lose_a_file(dice: random.Random, files: Files) -> None:
    name = _any(dice, files)
    if name is not None:
        del files[name]


def exchange_files(dice: random.Random, files: Files) -> None:
    one, other = _any(dice, files), _any(dice, files)
    if one is not None and other is not None:
        files[one], files[other] = files[other], files[one]


def copy_a_file(dice: random.Random, files: Files) -> None:
    name = _any(dice, files, ".jsonl")
    if name is not None:
        files[f"copy-{name}"] = files[name]


DAMAGES = (
    lose_a_line, lose_lines, tear_a_line, swap_lines, repeat_a_line, change_a_value,
    change_a_value, nest_deeply, cut, flip_bits, lose_a_file, exchange_files, copy_a_file,
)  # fmt: skip


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed = 0
    for seed in range(first, first + count):
        signal.alarm(LIMIT_S)
        try:
            check(seed)
        except Exception as error:
            failed += 1
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:200]} at {where}")
    signal.alarm(0)
    print(f"{count} variants, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
