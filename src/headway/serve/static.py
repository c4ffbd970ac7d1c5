"""What browsers fetch besides pages: one style sheet, our scripts, Plotly's bundle."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from headway.ledger.leaves import BUCKETS
from headway.report.words import bucket_color

ASSETS = Path(__file__).parent / "assets"
CSS, JS, SVG = "text/css", "text/javascript", "image/svg+xml"
_PLOTLY_STYLE = re.compile(
    r'getElementById\("([0-9a-f]{64})"\)\)\{var \w+=document\.createElement\("style"'
)
SCRIPTS = ("theme.js", "charts.js", "page.js")


class StaticFile(NamedTuple):
    """One file as it goes out."""

    kind: str
    plain: bytes
    packed: bytes
    digest: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All of them."""
    made = {
        "headway.css": (CSS, _style_sheet().encode()),
        "icon.svg": (SVG, (ASSETS / "icon.svg").read_bytes()),
        "plotly.js": (JS, _plotly().read_bytes()),
        **{name: (JS, (ASSETS / name).read_bytes()) for name in SCRIPTS},
    }
    return {name: _pack(kind, content) for name, (kind, content) in made.items()}


def _pack(kind: str, content: bytes) -> StaticFile:
    digest = hashlib.sha256(content).hexdigest()[:12]
    return StaticFile(f"{kind}; charset=utf-8", content, gzip.compress(content, 6, mtime=0), digest)


def _plotly() -> Path:
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None  # cli.serve has looked
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def plotly_style_ids() -> tuple[str, ...]:
    """The style elements that Plotly makes unless they are there; ours have the nonce."""
    maps = _PLOTLY_STYLE.findall(static_files()["plotly.js"].plain.decode("utf-8", "replace"))
    return ("plotly.js-style-global", *maps)


def _style_sheet() -> str:
    """The look of the report, then what only these pages have."""
    report = (ASSETS / "report.css").read_text(encoding="utf-8")
    return named_palette() + report + (ASSETS / "pages.css").read_text(encoding="utf-8")


def named_palette() -> str:
    """A variable for each leaf, `--start-pt2_compile`, light and dark."""

    def variables(dark: bool) -> str:
        return "".join(
            f"--{leaf.replace('.', '-')}:{bucket_color(leaf, dark=dark)};" for leaf in BUCKETS
        )

    light, dark = variables(dark=False), variables(dark=True)
    return (
        f":root{{{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )


def static_url(name: str) -> str:
    """Where a file is; another address once it has changed, so it may be kept for ever."""
    return f"/static/{name}?v={static_files()[name].digest}"
