"""Show the ledger of a run.

examples:
  headway report RUN                 in the terminal
  headway report RUN --json          as JSON, the contract for other tools
  headway report RUN --html [FILE]   as one HTML file to share; RUN/report.html by default
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError
from headway.ledger.model import Ledger

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

TOP_HELP = """Watch a run live in the terminal; exits when the run ends, or on Ctrl-C.

examples:
  headway top RUN
  headway top RUN --once     print the state once; the default without a terminal
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="folder or URL of the run")
    output_format = parser.add_mutually_exclusive_group()
    output_format.add_argument("--json", action="store_true", help="print the ledger as JSON")
    output_format.add_argument(
        "--html", metavar="FILE", nargs="?", const="", help="write one HTML file"
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite FILE even if it is not a report"
    )


def run(args: argparse.Namespace) -> int:
    from headway.run import load

    path, html = _run_and_html(args.run, args.html)
    run = load(path)
    if args.json:
        _print_json(run.ledger)
    elif html is not None:
        default = Path(f"{run.name}.html") if "://" in path else run.path / "report.html"
        target = Path(html) if html else default
        _write_html(run.ledger, target, force=args.force or not html or _is_report(target))
    else:
        from headway.report.screen import console
        from headway.report.terminal import print_report

        print_report(run.ledger, path, console())
    return 0


def _run_and_html(path: str | None, html: str | None) -> tuple[str, str | None]:
    """Tell `--html RUN` from `--html FILE`: argparse takes the run for the file."""
    if path is None and html:
        return html, ""
    if path is None:
        raise UsageError(
            "no run is given; give its folder: headway report headway/NAME", code="run-not-given"
        )
    return path, html


def _print_json(ledger: Ledger) -> None:
    import json

    print(json.dumps(ledger.to_dict(), indent=2))


def _is_report(target: Path) -> bool:
    """Whether the file is an older report, which may be replaced without --force."""
    from headway.report.html import GENERATOR

    if not target.is_file():
        return False
    with target.open("rb") as file:
        return f'name="generator" content="{GENERATOR} '.encode() in file.read(500)


def _write_html(ledger: Ledger, target: Path, *, force: bool) -> None:
    from headway.report.html import page
    from headway.storage.output_file import write_output

    write_output(target, page(ledger).encode(), force=force)
    print(f"headway: wrote {target}")


def prepare_top(parser: argparse.ArgumentParser) -> None:
    parser.description = TOP_HELP
    parser.add_argument("run", metavar="RUN", help="folder or URL of the run")
    parser.add_argument("--once", action="store_true", help="print the state once and exit")
    parser.add_argument(
        "--interval", metavar="S", type=float, default=1.0, help="seconds between two updates (1)"
    )


def run_top(args: argparse.Namespace) -> int:
    from headway.report.screen import console
    from headway.run import load

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

    from headway.run import load

    with Live(render(ledger, screen), console=screen, auto_refresh=False) as live:
        try:
            while ledger.running:
                began = time.monotonic()
                time.sleep(interval)
                ledger = load(path).ledger
                live.update(render(ledger, screen), refresh=True)
                # A long run takes long to read: use at most half of a core.
                spent = time.monotonic() - began - interval
                time.sleep(max(0.0, spent - interval))
        except KeyboardInterrupt:
            pass


def render(ledger: Ledger, console: Console) -> RenderableType:
    """The summary of the run so far, and its current state."""
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
    from headway.format import duration
    from headway.report.failures import count_failures

    if not ledger.attempts:
        return "no attempt has started"
    last = ledger.attempts[-1]
    step = "no step yet" if last.last_step is None else f"step {last.last_step:,}"
    leaf = ledger.segments[-1].bucket if ledger.segments else "nothing"
    state = f"in {leaf}" if ledger.running else last.outcome
    life = f"attempt {last.index}, {duration(last.end - last.start)}"
    failed = count_failures(ledger.failures_by_owner)
    return f"now: {state}   {life}   {step}   {failed}"


def _eviction_cost_line(ledger: Ledger) -> str:
    from headway.format import count, duration
    from headway.schedule.cost import from_ledger
    from headway.units import NS

    price = from_ledger(ledger)
    unsaved, recover = (duration(round(s * NS)) for s in (price.unsaved, price.recover))
    since = "since the last save" if price.save is not None else "since the start, no save yet"
    accelerators = count(price.accelerators, "accelerator")
    return (
        f"evicted now: {price.lost:,.0f} accelerator-seconds lost   {unsaved} {since}   "
        f"{recover} to recover   {accelerators}"
    )
