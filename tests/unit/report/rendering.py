"""Renders a ledger as terminal text and as the words of its page."""

from __future__ import annotations

import io
from collections.abc import Callable
from html.parser import HTMLParser

from rich.console import Console

from headway.ledger.model import Ledger
from headway.report import html, terminal

BLOCKS = {"div", "h1", "h2", "h3", "li", "p", "section", "summary", "table", "td", "th", "tr"}


def text_of(
    ledger: Ledger,
    show: Callable[[Ledger, str, Console], None] = terminal.print_report,
    width: int = 100,
) -> str:
    out = io.StringIO()
    show(ledger, f"headway/{ledger.run}", Console(file=out, width=width, _environ={}))
    return out.getvalue()


def summary_of(ledger: Ledger) -> str:
    return text_of(ledger, terminal.print_summary)


def page_of(ledger: Ledger) -> str:
    """The words of the HTML report, without its styles, its scripts and their data."""
    return words_of(html.page(ledger))


def words_of(page: str) -> str:
    reader = _Words()
    reader.feed(page)
    lines = (" ".join(line.split()) for line in "".join(reader.text).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


class _Words(HTMLParser):
    """Text and tips, a line for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("script", "style")
        self.text.append("\n" if tag in BLOCKS else " ")
        tip = dict(attrs).get("data-tip")
        if tip:
            self.text.append(f"\n[{tip}]\n")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")
        if tag in BLOCKS:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.text.append(data)
