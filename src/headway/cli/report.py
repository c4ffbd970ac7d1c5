"""Show the ledger of a run.

examples:
  headway report RUN                 in the terminal
  headway report RUN --json          as JSON, the contract for other tools
  headway report RUN --html [FILE]   as one HTML file to share; RUN/report.html by default
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.errors import UsageError
from headway.ledger.model import Ledger


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headway report`."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="the folder of a run")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print the ledger as JSON")
    how.add_argument("--html", metavar="FILE", nargs="?", const="", help="write one HTML file")
    parser.add_argument("--force", action="store_true", help="overwrite FILE, whatever it is")


def run(args: argparse.Namespace) -> int:
    """Load the run and show it."""
    from headway.ledger.run import load

    path, html = _run_and_html(args.run, args.html)
    found = load(path)
    if args.json:
        _print_json(found.ledger)
    elif html is not None:
        default = Path(f"{found.name}.html") if "://" in path else found.path / "report.html"
        target = Path(html) if html else default
        _write_html(found.ledger, target, force=args.force or not html or _is_report(target))
    else:
        from headway.report.screen import console
        from headway.report.terminal import print_report

        print_report(found.ledger, path, console())
    return 0


def _run_and_html(path: str | None, html: str | None) -> tuple[str, str | None]:
    """`--html RUN` means the run, not a file: argparse cannot tell."""
    if path is None and html:
        return html, ""
    if path is None:
        raise UsageError(
            "no run is given; name its folder: headway report headway/NAME", code="run-not-given"
        )
    return path, html


def _print_json(ledger: Ledger) -> None:
    import json

    print(json.dumps(ledger.to_dict(), indent=2))


def _is_report(target: Path) -> bool:
    """An older report may be replaced; what else stands there may not."""
    from headway.report.html import GENERATOR

    if not target.is_file():
        return False
    with target.open("rb") as file:
        return f'name="generator" content="{GENERATOR} '.encode() in file.read(500)


def _write_html(ledger: Ledger, target: Path, *, force: bool) -> None:
    from headway.report.html import page
    from headway.report.target import write_output

    write_output(target, page(ledger).encode(), force=force)
    print(f"headway: wrote {target}")
