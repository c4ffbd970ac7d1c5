"""A ledger as text for a terminal: the result, the causes, and the next command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from headway.format import count, duration, one_line, percent, truncate_left
from headway.ledger.buckets import (
    BUCKETS,
    EFFECTIVE,
    GROUPS,
    LABELS,
    LOST,
    MEANING,
    UNKNOWN,
    group,
    stage_of,
)
from headway.ledger.checkpoints import blocked_each
from headway.ledger.model import Ledger
from headway.report import boosters, compiles, failures, overview
from headway.report.failures import RunFailure, count_failures, failure_facts, run_failure
from headway.report.overview import hint
from headway.report.screen import GROUP_STYLES, ascii_only, print_line
from headway.report.terminal_sections import (
    describe_failure,
    describe_gap,
    limit_hit_warnings,
    sections,
)
from headway.units import NS

SHOWN = 5  # causes in the summary; the others are one row


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the summary: a cause, its time and details."""

    name: str
    group: str
    ns: int
    detail: tuple[str, ...]  # by importance; details that do not fit are omitted


def print_summary(ledger: Ledger, run_path: Path | str, console: Console) -> None:
    """Print the summary at the end of `headway run`: five to ten lines."""
    for line in overview_lines(ledger, console):
        print_line(console, line)
    for text in _advice(ledger):
        print_line(console, Text(f"  {text}"))
    for line in limit_hit_warnings(ledger):
        print_line(console, line)
    for line in _injected_faults(ledger):
        print_line(console, line)
    for text in boosters.booster_lines(ledger):
        print_line(console, Text(f"  {text}"))
    print_line(console, _next(run_path))


def print_report(ledger: Ledger, run_path: Path | str, console: Console) -> None:
    """Print the full report, as `headway report RUN`."""
    print_line(console, headline(ledger))
    for line in _failure_lines(run_failure(ledger)):
        print_line(console, line)
    print_line(console, Text(f"  {_identity(ledger)}", style="dim"))
    print_line(console, Text("  ").append(_stacked(ledger, console, console.width - 4)))
    for text in _advice(ledger):
        print_line(console, Text(f"  {text}"))
    for title, lines in sections(ledger, console):
        print_line(console, Text(""))
        print_line(console, Text(title, style="bold"))
        for line in lines:
            print_line(console, line)
    print_line(console, Text(""))
    if ledger.steps:
        print_line(
            console, Text("  Advice:  ").append(f"headway advise {_quoted(run_path)}", "bold")
        )
    print_line(console, _next(run_path))


def headline(ledger: Ledger) -> Text:
    """Return the first line: ETT, wall time, and numbers of ranks, attempts and steps."""
    about = [count(len(ledger.ranks), "rank"), count(len(ledger.attempts), "attempt")]
    about.append(count(ledger.steps, "step"))
    if ledger.running:
        about.append("still running")
    elif ledger.exit_code is not None:
        about.append(f"exit {ledger.exit_code}")
    line = Text().append("headway: ", "dim")
    if ledger.attempts and ledger.attempts[-1].outcome == "failed" and not ledger.running:
        line.append("FAILED, " if ledger.steps else "FAILED ", "bold red")
    if ledger.steps:
        style = "bold green" if ledger.ett_percent >= 90 else "bold"
        line.append(Text(f"ETT {percent(ledger.ett_percent)}", style=style))
        line.append(Text(f"  of {duration(ledger.wall)}", style="bold"))
    elif ledger.publishes_run is not None:
        what = "not published" if ledger.publishes_run.error else "published"
        line.append(Text(f"{what}, in {duration(ledger.wall)}", style="bold"))
    else:
        line.append(Text(f"{_without_steps(ledger)} {duration(ledger.wall)}", style="bold yellow"))
    return line.append(Text(f"   ({', '.join(about)})", style="dim"))


def overview_lines(ledger: Ledger, console: Console) -> Iterator[Text]:
    """Yield the headline and the causes, the largest first; the rows sum to the wall time."""
    yield headline(ledger)
    yield from _failure_lines(run_failure(ledger))
    rows = _rows(ledger)
    width = max(len(row.name) for row in rows)
    for row in rows:
        line = Text("  ").append(Text(f"{row.name:<{width}}", style=GROUP_STYLES[row.group]))
        line.append(f"  {duration(row.ns):>9}  {percent(ledger.percent(row.ns)):>7}  ")
        if row.name == "effective":
            line.append(_stacked(ledger, console, 40))
        else:
            line.append(_fitting(row.detail, max(console.width - len(line), 12)))
        yield line


def _without_steps(ledger: Ledger) -> str:
    return "before the first step, after" if run_failure(ledger) else "no training step detected in"


def _failure_lines(end: RunFailure | None) -> Iterator[Text]:
    if end is None:
        return
    for name, value in failure_facts(end):
        yield Text(f"  {name:<10}").append(Text(value, style="bold"))
    yield Text(f"  {end.todo}:  ").append(end.command, "bold")


def _injected_faults(ledger: Ledger) -> Iterator[Text]:
    """Yield planned faults with their outcome."""
    for fault in ledger.faults[:SHOWN]:
        injected = ", ".join(filter(None, failures.outcome_of(ledger, fault)))
        yield Text(f"  Planned:  {one_line(fault.planned, 100)} -> {one_line(injected, 160)}")
    if len(ledger.faults) > SHOWN:
        yield Text(f"  and {len(ledger.faults) - SHOWN:,} more planned faults in the report")


def _identity(ledger: Ledger) -> str:
    began = datetime.fromtimestamp(ledger.started_at // NS, UTC)
    command = f": {shlex.join(ledger.command)}" if ledger.command else ""
    return f"{one_line(ledger.run, 60)}, {began:%Y-%m-%d %H:%M} UTC{one_line(command, 400)}"


def _fitting(items: tuple[str, ...], room: int) -> str:
    """Join the first item and as many others as fit into `room` characters."""
    text = one_line(items[0], room) if items else ""
    for item in items[1:]:
        longer = f"{text}, {one_line(item)}"
        if len(longer) > room:
            break
        text = longer
    return text


def _next(run_path: Path | str) -> Text:
    return Text("  Next:  ").append(f"headway report {_quoted(run_path)} --html", "bold")


def _quoted(run_path: Path | str) -> str:
    path = os.fspath(run_path)
    return shlex.quote(path if path.isprintable() else one_line(path))


def _stacked(ledger: Ledger, console: Console, width: int) -> Text:
    """Draw all groups as one bar, effective time first; without color as `#` and `.`."""
    if ascii_only(console):
        filled = round(width * ledger.ett_percent / 100)
        return Text("#" * filled + "." * (width - filled))
    totals = {name: ns for name, ns, _ in overview.bucket_groups(ledger)}
    order = ("train", *(name for name in GROUPS if name != "train"))
    bar, drawn, so_far = Text(), 0, 0
    for name in order:
        so_far += totals.get(name, 0)
        end = round(width * so_far / ledger.wall) if ledger.wall else 0
        bar.append(Text("\u2588" * (end - drawn), style=GROUP_STYLES[name]))
        drawn = end
    return bar


# The summary: one row per cause.


def _rows(ledger: Ledger) -> list[Row]:
    totals = {name: ns for name, ns, _ in overview.bucket_groups(ledger)}
    causes = [
        Row("start", "start", totals.get("start", 0), _stages(ledger, "start")),
        Row("recovery", "recover", totals.get("recover", 0), _recovery(ledger)),
        Row("lost training", "failure", ledger.buckets.get(LOST, 0), (_rolled_back(ledger),)),
        Row("stop", "stop", totals.get("stop", 0), _stages(ledger, "stop")),
        Row("unknown", "unknown", ledger.buckets.get(UNKNOWN, 0), (_largest_gap(ledger),)),
    ]
    single = [x for x in BUCKETS if group(x) == "waste" or x == "failure.hang"]
    for bucket in single:
        detail = (_detail(ledger, bucket),)
        causes.append(Row(LABELS[bucket], group(bucket), ledger.buckets.get(bucket, 0), detail))
    causes = sorted((row for row in causes if row.ns), key=lambda row: -row.ns)
    rows = [Row("effective", "train", ledger.buckets.get(EFFECTIVE, 0), ()), *causes[:SHOWN]]
    rest = causes[SHOWN:]
    if len(rest) == 1:
        rows += rest
    elif rest:
        names = tuple(row.name for row in rest)
        rows.append(Row("other", "unknown", sum(row.ns for row in rest), names))
    return rows


def _detail(ledger: Ledger, bucket: str) -> str:
    if bucket == "waste.checkpoint_block" and ledger.saves:
        each = blocked_each(ledger)
        saves = count(ledger.saves, "save")
        return saves if each is None else f"{saves}, {duration(each)} blocked each"
    if bucket == "waste.recompile" and (recompiles := compiles.group_recompiles(ledger)):
        most = truncate_left(recompiles[0].where, 50)
        return f"{sum(r.times for r in recompiles)} over all ranks; most in {most}"
    return MEANING[bucket]


def _stages(ledger: Ledger, name: str) -> tuple[str, ...]:
    buckets = [
        (ns, bucket) for bucket, ns in ledger.buckets.items() if group(bucket) == name and ns
    ]
    top = sorted(buckets, key=lambda pair: -pair[0])[:3]
    return tuple(f"{stage_of(bucket)} {duration(ns)}" for ns, bucket in top)


def _recovery(ledger: Ledger) -> tuple[str, ...]:
    if not ledger.failures:
        return _stages(ledger, "recover")
    first = ledger.failures[0]
    text = f"{count_failures(ledger.failures_by_owner)}: {describe_failure(first)}"
    step = failures.last_step_before(ledger, first)
    return (text,) if step is None else (text, f"after step {step:,}")


def _rolled_back(ledger: Ledger) -> str:
    stretches = failures.rolled_back_steps(ledger)
    if not stretches:
        return MEANING[LOST]
    ranges = [f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in stretches]
    single = len(stretches) == 1 and stretches[0][0] == stretches[0][1]
    return f"step{'' if single else 's'} {', '.join(ranges)} rolled back"


def _largest_gap(ledger: Ledger) -> str:
    most = ledger.buckets.get(UNKNOWN, 0)  # longer gaps of a rank are in another bucket of the run
    known = [gap for gap in ledger.gaps if gap.end - gap.start <= most]
    gap = max(known, key=lambda g: g.end - g.start, default=None)
    return MEANING[UNKNOWN] if gap is None else f"largest: {describe_gap(gap)}"


def _advice(ledger: Ledger) -> list[str]:
    if not ledger.steps:
        return [] if ledger.publishes_run or run_failure(ledger) else _no_steps_help(ledger)
    loss = overview.largest_loss(ledger)
    if loss is None or ledger.percent(loss.ns) < 0.5:
        return []
    share = f"{duration(loss.ns)}, {percent(ledger.percent(loss.ns))}"
    without = f"without it ETT would be {percent(overview.ett_without(ledger, loss.ns))}"
    todo = hint(ledger, loss)
    lines = [f"Largest loss: {loss.stage} ({share}); {without}."]
    return [*lines, f"  Try: {todo}."] if todo else lines


def _no_steps_help(ledger: Ledger) -> list[str]:
    first = "If the job is training" if ledger.running else "If the job did train"
    return [
        f"{first}, Headway did not detect its loop. Add one of these lines:",
        "  headway.step()                       in the loop, once per training step",
        "  for batch in headway.track(loader):  around the data loader",
        "  import headway.auto                  first line of the script, if the environment is",
        "                                       replaced (python -I, env -i, another PYTHONPATH)",
        "To show what Headway detects in a child process:  headway doctor",
    ]
