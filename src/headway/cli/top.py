"""Watch a run live in the terminal; ends when the run ends, or on Ctrl-C.

examples:
  headway top RUN
  headway top RUN --once     one picture, then exit; also when the output is no terminal
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from headway.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headway.ledger.model import Ledger


def prepare_top(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headway top`."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--once", action="store_true", help="show it once and exit")
    parser.add_argument(
        "--interval", metavar="S", type=float, default=1.0, help="seconds between two looks (1)"
    )


def run_top(args: argparse.Namespace) -> int:
    """Show the run, again and again while it is going on."""
    from headway.ledger.run import load
    from headway.report.screen import console

    if not 0.05 <= args.interval <= 3600:
        raise UsageError(
            f"--interval is {args.interval:g}; give seconds from 0.05 to 3600",
            code="interval-out-of-range",
        )
    screen = console()
    ledger = load(args.run).ledger
    if args.once or not screen.is_terminal:
        screen.print(render(ledger, screen))
        return 0
    _refresh(args.run, ledger, screen, args.interval)
    return 0


def _refresh(path: str, ledger: Ledger, screen: Console, interval: float) -> None:
    from rich.live import Live

    from headway.ledger.run import load

    with Live(render(ledger, screen), console=screen, auto_refresh=False) as live:
        try:
            while ledger.running:
                began = time.monotonic()
                time.sleep(interval)
                ledger = load(path).ledger
                live.update(render(ledger, screen), refresh=True)
                # A long run takes long to read: never spend more than half of a core on it.
                spent = time.monotonic() - began - interval
                time.sleep(max(0.0, spent - interval))
        except KeyboardInterrupt:
            pass


def render(ledger: Ledger, console: Console) -> RenderableType:
    """The causes as in the summary, and where the run is right now."""
    from rich.console import Group
    from rich.text import Text

    from headway.report.terminal import overview_lines

    lines = [*overview_lines(ledger, console), Text(f"  {_state_line(ledger)}", style="dim")]
    if ledger.running and ledger.attempts:
        lines.append(Text(f"  {_eviction_cost_line(ledger)}", style="dim"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis" if console.color_system else "crop"
    return Group(*lines)


def _state_line(ledger: Ledger) -> str:
    from headway.report.words import count_failures, duration

    if not ledger.attempts:
        return "no attempt has begun"
    last = ledger.attempts[-1]
    step = "no step yet" if last.last_step is None else f"step {last.last_step:,}"
    leaf = ledger.segments[-1].leaf if ledger.segments else "nothing"
    state = f"in {leaf}" if ledger.running else last.outcome
    life = f"attempt {last.index}, {duration(last.end - last.start)}"
    failed = count_failures(ledger.failures_by_owner)
    return f"now: {state}   {life}   {step}   {failed}"


def _eviction_cost_line(ledger: Ledger) -> str:
    from headway.ledger.model import NS
    from headway.report.words import count, duration
    from headway.schedule.cost import from_ledger

    price = from_ledger(ledger)
    unsaved, recover = (duration(round(s * NS)) for s in (price.unsaved, price.recover))
    since = "since the last save" if price.save is not None else "since its start, no save yet"
    held = count(price.accelerators, "accelerator")
    return (
        f"evicted now: {price.lost:,.0f} accelerator-seconds lost   {unsaved} {since}   "
        f"{recover} to recover   {held}"
    )
