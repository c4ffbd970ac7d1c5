"""What browsers fetch besides pages: one style sheet, our scripts, Plotly's bundle."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from headway.ledger.leaves import LEAVES
from headway.report.words import colour

_STATIC = Path(__file__).parent / "assets"
CSS, JS, SVG = "text/css", "text/javascript", "image/svg+xml"
_MAPS = re.compile(
    r'getElementById\("([0-9a-f]{64})"\)\)\{var \w+=document\.createElement\("style"'
)
SCRIPTS = ("theme.js", "charts.js", "page.js")


class File(NamedTuple):
    """One file as it goes out."""

    kind: str
    plain: bytes
    packed: bytes
    digest: str


@cache
def files() -> dict[str, File]:
    """All of them."""
    made = {
        "headway.css": (CSS, _sheet().encode()),
        "icon.svg": (SVG, (_STATIC / "icon.svg").read_bytes()),
        "plotly.js": (JS, _plotly().read_bytes()),
        **{name: (JS, (_STATIC / name).read_bytes()) for name in SCRIPTS},
    }
    return {name: _file(kind, content) for name, (kind, content) in made.items()}


def _file(kind: str, content: bytes) -> File:
    digest = hashlib.sha256(content).hexdigest()[:12]
    return File(f"{kind}; charset=utf-8", content, gzip.compress(content, 6, mtime=0), digest)


def _plotly() -> Path:
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None  # cli.serve has looked
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def sheets() -> tuple[str, ...]:
    """The style elements that Plotly makes unless they are there; ours have the nonce."""
    maps = _MAPS.findall(files()["plotly.js"].plain.decode("utf-8", "replace"))
    return ("plotly.js-style-global", *maps)


def _sheet() -> str:
    """The look of the report, then what only these pages have."""
    report = (_STATIC / "report.css").read_text(encoding="utf-8")
    return _palette() + report + (_STATIC / "pages.css").read_text(encoding="utf-8")


def _palette() -> str:
    """A variable for each leaf, `--start-pt2_compile`, light and dark."""

    def variables(dark: bool) -> str:
        return "".join(f"--{leaf.replace('.', '-')}:{colour(leaf, dark=dark)};" for leaf in LEAVES)

    light, dark = variables(dark=False), variables(dark=True)
    return (
        f":root{{{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )


def address(name: str) -> str:
    """Where a file is; another address once it has changed, so it may be kept for ever."""
    return f"/static/{name}?v={files()[name].digest}"
