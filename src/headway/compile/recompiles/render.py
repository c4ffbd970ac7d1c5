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

MAX_ROWS = 12  # rows of a list; --json has all
MAX_MARKS = 8


def page(advice: Advice, run: str) -> Iterator[Text]:
    """All of it, line by line."""
    yield _headline(advice)
    for storm in advice.storms[:MAX_ROWS]:
        yield from _limit_hit(storm)
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
        Text("  Next:  ").append(verify, "bold").append("   runs the first steps again, and counts")
    )


def _headline(advice: Advice) -> Text:
    about = [count(advice.graphs, "graph"), f"{duration(advice.compile_ns)} compiling"]
    about += [f"torch {one_line(advice.torch, 30)}"] if advice.torch else []
    line = Text().append("headway: ", "dim")
    if not advice.recompiles and not advice.storms:
        line.append("no recompiles", "bold green")
    else:
        line.append(count(advice.recompiles, "recompile"), "bold")
        line.append(f"  {duration(advice.ns)} lost", "bold")
    return line.append(f"   ({', '.join(about)}; on the rank with most)", "dim")


def _limit_hit(storm: LimitHit) -> Iterator[Text]:
    since = "" if storm.step is None else f" after step {storm.step:,}"
    who = f"{one_line(storm.limit, 40)}, {_ranks(storm.ranks)}"
    line = Text("  Warning: ", style="bold yellow")
    yield line.append(Text(f"torch gave up compiling {_place(storm.where)}{since} ({who})"))
    yield Text("    Where no version of it fits it runs uncompiled, silently. A higher limit only")
    yield Text("    hides that; its causes and their cures are below.")


def _row(cause: Cause) -> Iterator[Text]:
    cost = f"{cause.times} x {duration(cause.ns):>8}" if cause.times else "gave up"
    head = f"  {cost:>15}  "
    line = Text(head).append(_source_text(cause) or KINDS[cause.kind].title, "bold")
    values = ", ".join(one_line(value, 40) for value in cause.values)
    yield line.append(f"  {values}", "cyan")
    where = f"{KINDS[cause.kind].title}; {_place(cause.where)}"
    if cause.caller:
        where += f", called from {_place(cause.caller)}"
    yield Text(" " * len(head)).append(where, "dim")


def _source_text(cause: Cause) -> str:
    name = one_line(cause.source, 60)
    return name if cause.dim is None else f"{name} size {cause.dim}"


def _settings(advice: Advice) -> Iterator[Text]:
    if not advice.helps:
        return
    known = sources.version(advice.torch)
    made_for = f"torch {known[0]}.{known[1]}" if known else "any torch"
    yield Text("")
    yield Text(f"Set this for the next run; no code changes ({made_for})", style="bold")
    for name, text in advice.env.items():
        yield Text(f"  export {name}={one_line(shell_quoted(text))}")
    yield Text("  or let Headway do it:  headway run --learn -- COMMAND", style="dim")


def _marks(causes: Sequence[Cause]) -> Iterator[Text]:
    """The same in code, where it can be said there."""
    marks = {(cause.caller, cause.mark): cause for cause in causes if cause.mark}
    if not marks:
        return
    yield Text("")
    yield Text("The same in the code, before the call", style="bold")
    for (caller, mark), cause in list(marks.items())[:MAX_MARKS]:
        yield Text(f"  {_place(caller or cause.where)}:  ").append(one_line(mark, 200), "bold")
    yield from _more(len(marks), MAX_MARKS)


def _code(causes: Sequence[Cause]) -> Iterator[Text]:
    """What no setting cures."""
    rest = [cause for cause in causes if not KINDS[cause.kind].marked]
    if not rest:
        return
    yield Text("")
    yield Text("These need a change of code", style="bold")
    for cause in rest[:MAX_ROWS]:
        line = Text(f"  {KINDS[cause.kind].title}", style="bold")
        what = sources.spelling_in_code(_source_text(cause))
        line.append(Text(f": {what}" if what else "", style="bold"))
        yield line.append(f"  ({_place(cause.line or cause.where)})", "dim")
        yield Text(f"    {one_line(cause.cure, 400)}")
    yield from _more(len(rest))


def _more(total: int, shown: int = MAX_ROWS) -> Iterator[Text]:
    if total > shown:
        yield Text(f"  and {total - shown:,} more, see --json", style="dim")


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _place(where: str) -> str:
    """`/long/way/model.py:10 forward` as seen from here."""
    file, _, rest = where.partition(":")
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return (
        truncate_left(f"{inside if not inside.startswith('..') else file}:{rest}", 70)
        if rest
        else where
    )


def shell_quoted(text: str) -> str:
    """As a shell takes it: in double quotes where nothing in it means anything there."""
    if re.search(r'[$`"!\n]|\\[\\]|\\$', text):
        return shlex.quote(text)
    return f'"{text}"'


# Trials.


def trials_table(recorded: Advice, made: Sequence[Trial], steps: int) -> Iterator[Text]:
    """Before and after, in a table; then what came of it."""
    columns = "  {:<36}{:>11}{:>8}{:>12}   {}"
    titles = ("", "recompiles", "graphs", "compiling", "")
    yield Text(columns.format(*titles).rstrip(), style="dim")
    rows = [("recorded", recorded, "")]
    rows += [(f"{t.name}, {steps} steps", t.advice, _exit_text(t)) for t in made]
    for name, advice, remark in rows:
        remark += f"{' ' if remark else ''}{_limit_hits_text(advice)}"
        cells = (name, advice.recompiles, advice.graphs, duration(advice.compile_ns), remark)
        yield Text(columns.format(*cells).rstrip())
    for trial in made:
        if trial.failed:
            yield Text("")
            yield Text(f"The trial {trial.name!r} ended like this:", style="bold red")
            yield from (Text(f"  {one_line(line, 200)}") for line in trial.log.splitlines())
    yield Text("")
    yield from _verdict(recorded, made)


def _exit_text(trial: Trial) -> str:
    return f"failed, exit code {trial.code}" if trial.failed else ""


def _limit_hits_text(advice: Advice) -> str:
    return f"gave up on {count(len(advice.storms), 'place')}" if advice.storms else ""


def _verdict(recorded: Advice, made: Sequence[Trial]) -> Iterator[Text]:
    found = best_trial(made)
    if made[0].failed:
        yield Text("  The job does not get through its first steps as it is.", style="bold red")
        return
    if len(made) < 2:
        yield Text("  No setting helps here; the trial shows the code as it is now.")
        return
    if found is made[0]:
        yield Text("  The settings do not help here.", style="bold yellow")
        return
    spared = made[0].advice.recompiles - found.advice.recompiles
    yield Text(f"  The settings spare {count(spared, 'recompile')}:", style="bold green")
    for name, text in found.env.items():
        yield Text(f"  export {name}={one_line(shell_quoted(text))}")
    if found.advice.recompiles:
        yield Text("  What is left needs a change of code, which no trial can make for you.")
