"""Render recompile advice for the terminal: cost, sources, settings, code changes, trials."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from headway.compile.recompiles import sources
from headway.compile.recompiles.advice import Advice, Cause, LimitHit
from headway.compile.recompiles.kinds import KINDS
from headway.compile.recompiles.verify import Trial, best_trial
from headway.format import count, duration, one_line, truncate_left

MAX_ROWS = 12  # per list; --json has all
MAX_MARKS = 8


def page(advice: Advice, run: str) -> Iterator[Text]:
    """Yield the lines of the report."""
    yield _headline(advice)
    for hit in advice.limit_hits[:MAX_ROWS]:
        yield from _limit_hit(hit)
    if not advice.causes:
        return
    yield Text("")
    yield Text("By source", style="bold")
    for cause in advice.causes[:MAX_ROWS]:
        yield from _row(cause)
    yield from _more(len(advice.causes))
    yield from _settings(advice)
    yield from _marks(advice.causes)
    yield from _code(advice.causes)
    yield Text("")
    verify = f"headway recompiles {shlex.quote(run)} --verify"
    yield (
        Text("  Next:  ")
        .append(verify, "bold")
        .append("   runs the first steps again and compares")
    )


def _headline(advice: Advice) -> Text:
    details = [count(advice.graphs, "graph"), f"{duration(advice.compile_ns)} compiling"]
    details += [f"torch {one_line(advice.torch, 30)}"] if advice.torch else []
    line = Text().append("headway: ", "dim")
    if not advice.recompiles and not advice.limit_hits:
        line.append("no recompiles", "bold green")
    else:
        line.append(count(advice.recompiles, "recompile"), "bold")
        line.append(f"  {duration(advice.ns)} lost", "bold")
    return line.append(f"   ({', '.join(details)}; on the rank with most)", "dim")


def _limit_hit(hit: LimitHit) -> Iterator[Text]:
    since = "" if hit.step is None else f" after step {hit.step:,}"
    details = f"{one_line(hit.limit, 40)}, {_ranks(hit.ranks)}"
    line = Text("  Warning: ", style="bold yellow")
    yield line.append(Text(f"torch stopped compiling {_place(hit.where)}{since} ({details})"))
    yield Text(
        "    Calls that fit no compiled version now run uncompiled. A higher limit only hides"
    )
    yield Text("    that; causes and fixes are listed below.")


def _row(cause: Cause) -> Iterator[Text]:
    cost = f"{cause.count} x {duration(cause.ns):>8}" if cause.count else "limit hit"
    prefix = f"  {cost:>15}  "
    line = Text(prefix).append(_source_text(cause) or KINDS[cause.kind].title, "bold")
    values = ", ".join(one_line(value, 40) for value in cause.values)
    yield line.append(f"  {values}", "cyan")
    where = f"{KINDS[cause.kind].title}; {_place(cause.where)}"
    if cause.caller:
        where += f", called from {_place(cause.caller)}"
    yield Text(" " * len(prefix)).append(where, "dim")


def _source_text(cause: Cause) -> str:
    name = one_line(cause.source, 60)
    return name if cause.dim is None else f"{name} size {cause.dim}"


def _settings(advice: Advice) -> Iterator[Text]:
    if not advice.has_new_settings:
        return
    version = sources.version(advice.torch)
    title_version = f"torch {version[0]}.{version[1]}" if version else "any torch"
    yield Text("")
    yield Text(f"Set this for the next run; no code change needed ({title_version})", style="bold")
    for name, text in advice.env.items():
        yield Text(f"  export {name}={one_line(shell_quoted(text))}")
    yield Text("  or let Headway set it:  headway run --learn -- COMMAND", style="dim")


def _marks(causes: Sequence[Cause]) -> Iterator[Text]:
    """The equivalent calls in the code, for causes that have one."""
    lines = {(cause.caller, cause.code_line): cause for cause in causes if cause.code_line}
    if not lines:
        return
    yield Text("")
    yield Text("Or in the code, before the call", style="bold")
    for (caller, code_line), cause in list(lines.items())[:MAX_MARKS]:
        yield Text(f"  {_place(caller or cause.where)}:  ").append(one_line(code_line, 200), "bold")
    yield from _more(len(lines), MAX_MARKS)


def _code(causes: Sequence[Cause]) -> Iterator[Text]:
    """Causes that no setting can fix."""
    uncured = [cause for cause in causes if not KINDS[cause.kind].marked]
    if not uncured:
        return
    yield Text("")
    yield Text("Code changes needed", style="bold")
    for cause in uncured[:MAX_ROWS]:
        line = Text(f"  {KINDS[cause.kind].title}", style="bold")
        source = sources.spelling_in_code(_source_text(cause))
        line.append(Text(f": {source}" if source else "", style="bold"))
        yield line.append(f"  ({_place(cause.line or cause.where)})", "dim")
        yield Text(f"    {one_line(cause.cure, 400)}")
    yield from _more(len(uncured))


def _more(total: int, limit: int = MAX_ROWS) -> Iterator[Text]:
    if total > limit:
        yield Text(f"  and {total - limit:,} more, see --json", style="dim")


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def _place(where: str) -> str:
    """A path such as `/long/way/model.py:10 forward`, relative to the current folder."""
    file, _, rest = where.partition(":")
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return (
        truncate_left(f"{inside if not inside.startswith('..') else file}:{rest}", 70)
        if rest
        else where
    )


def shell_quoted(text: str) -> str:
    """Quote for a shell: in double quotes if no character is special there."""
    if re.search(r'[$`"!\n]|\\[\\]|\\$', text):
        return shlex.quote(text)
    return f'"{text}"'


def trials_table(recorded: Advice, trials: Sequence[Trial], steps: int) -> Iterator[Text]:
    """A table of the trials, before and after, then the conclusion."""
    columns = "  {:<36}{:>11}{:>8}{:>12}   {}"
    titles = ("", "recompiles", "graphs", "compiling", "")
    yield Text(columns.format(*titles).rstrip(), style="dim")
    rows = [("recorded", recorded, "")]
    rows += [(f"{trial.name}, {steps} steps", trial.advice, _exit_text(trial)) for trial in trials]
    for name, advice, remark in rows:
        remark += f"{' ' if remark else ''}{_limit_hits_text(advice)}"
        cells = (name, advice.recompiles, advice.graphs, duration(advice.compile_ns), remark)
        yield Text(columns.format(*cells).rstrip())
    for trial in trials:
        if trial.failed:
            yield Text("")
            yield Text(f"The trial {trial.name!r} failed with:", style="bold red")
            yield from (Text(f"  {one_line(line, 200)}") for line in trial.log.splitlines())
    yield Text("")
    yield from _verdict(recorded, trials)


def _exit_text(trial: Trial) -> str:
    return f"failed, exit code {trial.code}" if trial.failed else ""


def _limit_hits_text(advice: Advice) -> str:
    return f"limit hit in {count(len(advice.limit_hits), 'place')}" if advice.limit_hits else ""


def _verdict(recorded: Advice, trials: Sequence[Trial]) -> Iterator[Text]:
    best = best_trial(trials)
    if trials[0].failed:
        yield Text("  The unchanged job fails in its first steps.", style="bold red")
        return
    if len(trials) < 2:
        yield Text("  No setting helps; the trial shows the current code.")
        return
    if best is trials[0]:
        yield Text("  The settings do not help.", style="bold yellow")
        return
    avoided = trials[0].advice.recompiles - best.advice.recompiles
    yield Text(f"  The settings avoid {count(avoided, 'recompile')}:", style="bold green")
    for name, text in best.env.items():
        yield Text(f"  export {name}={one_line(shell_quoted(text))}")
    if best.advice.recompiles:
        yield Text("  The remaining recompiles need code changes.")
