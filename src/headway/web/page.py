"""Templates and static files of all pages: Jinja environment, style sheet, scripts, Plotly."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headway.web.theme import named_palette

TEMPLATES: Final = Path(__file__).parent / "templates"


@cache
def template_environment() -> Environment:
    """Return the environment of the templates, compiled once, with autoescape."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def script_json(value: object) -> str:
    """Return JSON for a script element, without tags and line separators of JavaScript."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace").decode()


ASSETS = Path(__file__).parent / "assets"
CSS, JS, SVG = "text/css", "text/javascript", "image/svg+xml"
_PLOTLY_STYLE = re.compile(
    r'getElementById\("([0-9a-f]{64})"\)\)\{var \w+=document\.createElement\("style"'
)
SCRIPTS = ("theme.js", "charts.js", "page.js")


class StaticFile(NamedTuple):
    """A file in the form in which it is served."""

    kind: str
    plain: bytes
    packed: bytes
    digest: str


@cache
def static_files() -> dict[str, StaticFile]:
    contents = {
        "headway.css": (CSS, _style_sheet().encode()),
        "icon.svg": (SVG, (ASSETS / "icon.svg").read_bytes()),
        "plotly.js": (JS, _plotly().read_bytes()),
        **{name: (JS, (ASSETS / name).read_bytes()) for name in SCRIPTS},
    }
    return {name: _pack(kind, content) for name, (kind, content) in contents.items()}


def _pack(kind: str, content: bytes) -> StaticFile:
    digest = hashlib.sha256(content).hexdigest()[:12]
    return StaticFile(f"{kind}; charset=utf-8", content, gzip.compress(content, 6, mtime=0), digest)


def _plotly() -> Path:
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None  # cli.serve checks this
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def plotly_style_ids() -> tuple[str, ...]:
    """Return the ids of the style elements that Plotly adds unless they exist.

    The pages add them first, with a nonce.
    """
    maps = _PLOTLY_STYLE.findall(static_files()["plotly.js"].plain.decode("utf-8", "replace"))
    return ("plotly.js-style-global", *maps)


def _style_sheet() -> str:
    """Return the style of the report, followed by the additions of these pages."""
    report = (ASSETS / "report.css").read_text(encoding="utf-8")
    return named_palette() + report + (ASSETS / "pages.css").read_text(encoding="utf-8")


def static_url(name: str) -> str:
    """Return the URL of a file; it changes with the content, so clients may cache it forever."""
    return f"/static/{name}?v={static_files()[name].digest}"
