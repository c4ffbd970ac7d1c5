"""The sections of the full report in a terminal, one function each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from rich.console import Console
from rich.text import Text

from headway.format import count, duration, one_line, percent, truncate_left
from headway.ledger import compiles as ledger_compiles
from headway.ledger.buckets import EFFECTIVE, GROUP_MEANING, MEANING, stage_of
from headway.ledger.checkpoints import blocked_each
from headway.ledger.model import Attempt, Failure, Gap, Ledger, StageGraph
from headway.report import (
    boosters,
    checkpoints,
    communication,
    compiles,
    failures,
    overview,
    publish,
    startup_stages,
)
from headway.report.screen import GROUP_STYLES, ascii_only

SHOWN = 5  # items per list; the HTML report has more
PLANNED = 20  # planned faults, which are the subject of such a run


def describe_failure(failure: Failure) -> str:
    """Return the rank and the category of a failure."""
    rank = "" if failure.root_rank is None else f"rank {failure.root_rank} "
    if failure.category == "unknown":  # the evidence has more information
        return one_line(failure.evidence, 80)
    return f"{rank}{failure.category}"


def describe_gap(gap: Gap) -> str:
    """Describe unknown time by its neighbors."""
    return f"{duration(gap.end - gap.start)} between {gap.after} and {gap.before}"


def sections(ledger: Ledger, console: Console) -> Iterator[tuple[str, Iterable[Text]]]:
    """Yield title and lines of each section that is not empty."""
    yield "Where the time went", _buckets(ledger, console)
    yield f"Attempts ({len(ledger.attempts)})", chain(_attempts(ledger), _starts(ledger))
    for graph in ledger.stages[:1]:
        yield f"Start-up stages ({len(graph.rows)})", _stages(graph)
    if ledger.failures:
        yield f"Failures ({_by_owner(ledger)})", _failures(ledger)
    if ledger.faults:
        yield f"Planned faults ({len(ledger.faults)})", _faults(ledger)
    if ledger.outcomes:
        yield f"Checkpoints ({ledger.saves})", _checkpoints(ledger)
    elif ledger.saves or ledger.checkpoints:
        yield f"Saves ({ledger.saves})", _saves(ledger)
    if ledger.async_save:
        yield "Asynchronous saves", [_fact(*fact) for fact in checkpoints.async_save_facts(ledger)]
    if boosted := boosters.booster_facts(ledger):
        yield f"Boosters ({len(boosted)})", [_fact(*fact) for fact in boosted]
    if published := publish.publish_facts(ledger):
        yield "Publish", [_fact(*fact) for fact in published]
    if ledger.compiles or ledger.recompile_limit_hits or compiles.describe_cache_loads(ledger):
        yield f"Compiles ({len(ledger.compiles)} over all ranks)", _compiles(ledger)
    if ledger.process_groups or ledger.pre_step_collectives:
        yield "Communication before the first step", _communication(ledger)
    if len(ledger.ranks) > 1:
        yield f"Ranks ({len(ledger.ranks)})", _ranks(ledger)
    if ledger.gaps:
        yield f"Largest unknown gaps ({len(ledger.gaps)})", _gaps(ledger)
    if ledger.notes:
        yield f"Notes ({len(ledger.notes)})", [Text(f"  {one_line(n)}") for n in ledger.notes]


def _buckets(ledger: Ledger, console: Console) -> Iterator[Text]:
    for name, total, buckets in overview.bucket_groups(ledger):
        if len(buckets) == 1:
            bucket, ns = buckets[0]
            yield _bucket(ledger, console, f"  {bucket}", ns, MEANING[bucket], name, bold=True)
            continue
        yield _bucket(ledger, console, f"  {name}", total, GROUP_MEANING[name], name, bold=True)
        for bucket, ns in buckets:
            yield _bucket(ledger, console, f"    {stage_of(bucket)}", ns, MEANING[bucket], name)
    yield Text(f"  {'wall time':<24}{duration(ledger.wall):>9}", style="bold")


def _bucket(
    ledger: Ledger, console: Console, label: str, ns: int, meaning: str, name: str,
    bold: bool = False,
) -> Text:  # fmt: skip
    width, color = 20, GROUP_STYLES[name]
    filled = round(width * ns / ledger.wall) if ledger.wall else 0
    bar = ("#" if ascii_only(console) else "\u2588") * filled or (
        "." if ascii_only(console) else "\u258f"
    )
    line = Text().append(f"{label:<26}", f"bold {color}" if bold else "")
    line.append(f"{duration(ns):>9}  {percent(ledger.percent(ns)):>7}  ")
    return line.append(f"{bar:<{width}}", color).append(f"  {meaning}", "dim")


_ATTEMPT_COLUMNS = "  {:>7}  {:>9}  {:>9}  {:>5}  {:>15}  {:>{}}   {}"


def _attempts(ledger: Ledger) -> Iterator[Text]:
    width = 20 if any(a.resumed_by for a in ledger.attempts) else 12  # step 1,000,000, memory
    titles = ("attempt", "start", "duration", "ranks", "steps", "resumed from", width, "outcome")
    yield Text(_ATTEMPT_COLUMNS.format(*titles), style="dim")
    for a in _ends(ledger.attempts):
        if a is None:
            yield Text("      ...")
            continue
        resumed = checkpoints.describe_resume(a.resumed_from, a.resumed_by)
        lasted = duration(a.end - a.start)
        row = (a.index, duration(a.start), lasted, len(a.ranks), _steps(a), resumed, width)
        yield Text(_ATTEMPT_COLUMNS.format(*row, a.outcome))


def _ends(attempts: tuple[Attempt, ...]) -> tuple[Attempt | None, ...]:
    """Return up to 20 attempts; of more, the first and the last ones with None between."""
    return attempts if len(attempts) <= 20 else (*attempts[:5], None, *attempts[-10:])


def _steps(attempt: Attempt) -> str:
    if attempt.first_step is None or attempt.last_step is None:
        return "none"
    return f"{attempt.first_step:,}-{attempt.last_step:,}"


def _starts(ledger: Ledger) -> Iterator[Text]:
    started = ledger.time_to_start
    yield _fact("time to start", "never" if started is None else duration(started))
    if ledger.time_to_recover:
        yield _fact("time to recover", ", ".join(map(duration, ledger.time_to_recover)))
    if ledger.queue_capacity is not None:
        yield _fact("queued for capacity", f"{duration(ledger.queue_capacity)} (not counted)")
    if ledger.paused:
        yield _fact("paused", f"{duration(ledger.paused)} (not counted)")
    hidden = sum(ledger.hidden.values())
    if hidden:
        longest = max(ledger.hidden, key=lambda bucket: ledger.hidden[bucket])
        yield _fact("hidden by overlap", f"{duration(hidden)} (not counted), most in {longest}")


def _fact(name: str, value: str) -> Text:
    return Text().append(f"  {name:<20}", "dim").append(value)


def _by_owner(ledger: Ledger) -> str:
    nonzero = {owner: number for owner, number in ledger.failures_by_owner.items() if number}
    return ", ".join(f"{number:,} {owner}" for owner, number in nonzero.items())


def _failures(ledger: Ledger) -> Iterator[Text]:
    for failure in ledger.failures[:SHOWN]:
        step = failures.last_step_before(ledger, failure)
        after = "" if step is None else f", after step {step:,}"
        yield Text(f"  attempt {failure.attempt}, at {duration(failure.at)}{after}: ").append(
            Text(one_line(describe_failure(failure)), style="bold red")
        )
        yield _fact("  owner", f"{failure.owner}; retry: {failure.retry}")
        yield _fact("  evidence", one_line(failure.evidence, 400))
        if notice := failures.notice_of_attempt(ledger, failure.attempt):
            yield _fact("  notice", notice)
        if failure.decision:
            yield _fact("  decision", one_line(failure.decision, 200))
    yield from _more(len(ledger.failures))


def _stages(graph: StageGraph) -> Iterator[Text]:
    """Yield the stages of the first attempt, on the rank that finished last."""
    start = min(row.start for row in graph.rows)
    for row in sorted(graph.rows, key=lambda row: (row.start, row.end)):
        line = Text(f"  {'*' if row.name in graph.critical else ' '} {one_line(row.name, 28):<28}")
        line.append(f" {row.where:<8}{duration(row.start - start):>9} -> ", "dim")
        yield line.append(f"{duration(row.end - start):>9}").append(
            f"  {duration(row.end - row.start)}"
        )
    yield _fact("* critical path", startup_stages.describe_stages(graph))


def _faults(ledger: Ledger) -> Iterator[Text]:
    """Yield planned faults with what was detected, and the decision."""
    for fault in ledger.faults[:PLANNED]:
        where = f"attempt {fault.attempt}, at {duration(fault.at)}"
        where += "" if fault.step is None else f", after its step {fault.step:,}"
        yield Text(f"  {where}: ").append(Text(one_line(fault.planned, 200), style="bold"))
        detected, decision = failures.outcome_of(ledger, fault)
        yield _fact("  target", truncate_left(fault.who, 100))
        yield _fact("  detected", one_line(detected, 200))
        if decision:
            yield _fact("  decision", one_line(decision, 200))
    yield from _more(len(ledger.faults), PLANNED)


def _saves(ledger: Ledger) -> Iterator[Text]:
    blocked = ledger.buckets.get("waste.checkpoint_block", 0)
    if (each := blocked_each(ledger)) is not None:
        yield _fact("blocked", f"{duration(blocked)}, {duration(each)} each")
    if ledger.save_interval is not None:
        every = f"every {duration(ledger.save_interval)}"
        if ledger.recommended_interval is not None:
            every += f"; recommended: {duration(ledger.recommended_interval)}"
        yield _fact("interval", every)
    saves = checkpoints.merged_saves(ledger)
    if saves:
        longest = max(saves, key=lambda save: save.blocked)
        where = f" ({truncate_left(longest.path, 60)})" if longest.path else ""
        yield _fact("longest", f"{duration(longest.blocked)}, step {longest.step:,}{where}")
    written = [save.written for save in saves if save.written is not None]
    if written:
        yield _fact("until durable", f"at most {duration(max(written))}")


def _checkpoints(ledger: Ledger) -> Iterator[Text]:
    blocked = ledger.buckets.get("waste.checkpoint_block", 0)
    yield _fact("blocked", f"{duration(blocked)}, {percent(ledger.percent(blocked))} of the run")
    for name, value in checkpoints.checkpoint_facts(ledger):
        yield _fact(name, value)
    failed = checkpoints.failed_saves(ledger)
    for text in failed[:SHOWN]:
        yield Text("  failed              ", style="bold red").append(Text(text))
    yield from _more(len(failed))


def _compiles(ledger: Ledger) -> Iterator[Text]:
    first = ledger_compiles.first_compiles(ledger)
    cached = sum(c.cached for c in first)
    recompiles = compiles.group_recompiles(ledger)
    yield _fact("first compiles", f"{len(first) - cached} cold, {cached} from the cache")
    split = sorted(compiles.compile_split(ledger), key=lambda part: -part[1])
    if split:
        yield _fact("torch.compile", ", ".join(f"{name} {duration(ns)}" for name, ns in split))
    if texts := compiles.describe_torch_caches(ledger):
        yield _fact("torch caches", "; ".join(texts))
    for reason, times in compiles.cache_bypasses(ledger)[:SHOWN]:
        yield _fact("  bypassed", f"{count(times, 'time')}: {one_line(reason, 120)}")
    yield from limit_hit_warnings(ledger)
    for text in compiles.describe_cache_loads(ledger):
        yield _fact("compile cache", text)
    missed = compiles.precompile_misses(ledger)
    for miss in missed[:SHOWN]:
        yield _fact("compiled ahead", miss.text)
        yield Text(f"      {truncate_left(miss.where, 60)}", style="dim")
        yield Text(f"      {one_line(miss.cure, 400)}", style="dim")
    yield from _more(len(missed))
    yield _fact("recompiles", str(sum(row.times for row in recompiles)))
    for row in recompiles[:SHOWN]:
        yield Text(
            f"  {row.times} x {truncate_left(row.where, 60)}, {duration(row.ns)} over all ranks"
        )
        if row.reason:
            yield Text(f"      {one_line(row.reason, 200)}", style="dim")
    yield from _more(len(recompiles))


def limit_hit_warnings(ledger: Ledger) -> Iterator[Text]:
    """Yield a warning for each code location that torch no longer compiles."""
    for where, limit, ranks in compiles.limit_hits_by_place(ledger)[:SHOWN]:
        who = "all ranks" if len(ranks) == len(ledger.ranks) > 1 else f"rank {ranks[0]}"
        text = f"torch stopped compiling {truncate_left(where, 60)} ({one_line(limit, 40)}, {who})"
        text += ", which runs uncompiled; see `headway recompiles RUN`"
        yield Text("  Warning: ", style="bold yellow").append(Text(text))


def _communication(ledger: Ledger) -> Iterator[Text]:
    """Yield the cost, and the locations with the largest shares."""
    for name, value in communication.communication_facts(ledger):
        yield _fact(name, value)
    for rows in (
        communication.process_group_findings(ledger),
        communication.collective_findings(ledger),
    ):
        for row in rows[:SHOWN]:
            yield Text(
                f"  {row.cost:>9}  {one_line(row.what, 110)}, {truncate_left(row.where, 60)}"
            )
            if row.advice:
                yield Text(f"{'':13}{row.advice}", style="dim")
        yield from _more(len(rows))


def _ranks(ledger: Ledger) -> Iterator[Text]:
    """Yield the ranks that differ from the median rank, with the bucket."""
    spread = overview.rank_spread(ledger)
    assert spread is not None
    most, least = (r.buckets.get(EFFECTIVE, 0) for r in spread)
    own = overview.own_losses(ledger)
    if not own:
        yield Text(f"  effective time differs by at most {duration(most - least)}")
    for rank, bucket, ns in own[:SHOWN]:
        host = f" on {one_line(rank.hosts[0], 40)}" if rank.hosts else ""
        yield Text(
            f"  rank {rank.rank}{host}: {duration(ns)} more of {bucket} than the median rank"
        )
    yield from _more(len(own))


def _gaps(ledger: Ledger) -> Iterator[Text]:
    for gap in sorted(ledger.gaps, key=lambda g: g.start - g.end)[:SHOWN]:
        where = f"rank {gap.rank}, attempt {gap.attempt}, at {duration(gap.start)}"
        yield Text(f"  {one_line(describe_gap(gap), 120)} ({where})")
    yield from _more(len(ledger.gaps))
    yield Text('  Name this code:  with headway.stage("pre_train"): ...', style="dim")


def _more(total: int, shown: int = SHOWN) -> Iterator[Text]:
    if total > shown:
        yield Text(f"  and {total - shown:,} more in the HTML report", style="dim")
