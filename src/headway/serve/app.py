"""The web application: each page is sent at once, the data of its panels on separate requests."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headway import __version__, redact
from headway.errors import HeadwayError, with_code
from headway.fleet.queries.releases import RELEASES
from headway.serve.pages import PAGES, PANELS, alerts
from headway.serve.pages.panel import Page
from headway.serve.pages.run import RUN_PAGE
from headway.serve.query import AGES, FILTERS, SPLITS, BadQuery, PageQuery
from headway.serve.security import (
    LOGIN,
    MAX_BODY_BYTES,
    SecurityConfig,
    SecurityMiddleware,
    TokenAuth,
    too_many_guesses,
)
from headway.serve.sources import NotFound, Source
from headway.web.page import plotly_style_ids, static_files, static_url

RUN_ID = re.compile(r"[\w.-]{1,80}", re.ASCII)
_SHARED_PARAMETERS = ("since", "until", "by", *SPLITS)  # kept in links between pages
_SCRIPT = re.compile(r"script-src (?:'|&#39;)(sha256-[A-Za-z0-9+/=]+)")
_YEAR = 31_536_000

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def application(
    source: Source,
    auth: TokenAuth,
    host_names: frozenset[str] = frozenset(),
    clock: Callable[[], float] = time.monotonic,
) -> ASGIApp:
    """All routes, wrapped in the security middleware."""
    app = Starlette(
        routes=[
            *(Route(page.path, _page_route(page)) for page in PAGES),
            Route("/runs/{run_id}", run_page),
            Route("/runs/{run_id}/report", report),
            Route("/data/{panel}", data),
            Route("/static/{name}", static_file),
            Route(LOGIN, login, methods=["GET", "POST"]),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
        exception_handlers={
            404: _not_found,
            BadQuery: _bad_query,
            NotFound: _not_found,
            HeadwayError: _store_error,
            Exception: _internal_error,
        },
    )
    app.state.source, app.state.auth = source, auth
    return SecurityMiddleware(app, SecurityConfig(auth, host_names, clock))


def _render(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    text = _templates.get_template(template).render(
        status=status,
        address=static_url,
        nonce=request.state.nonce,
        version=__version__,
        pages=PAGES,
        store=request.app.state.source.store_cache.store.url.rstrip("/").rpartition("/")[2],
        **context,
    )
    return HTMLResponse(text.encode("utf-8", "replace"), status)


def _page_route(page: Page) -> Any:
    async def show(request: Request) -> Response:  # async: never queued behind slow data requests
        return _page(request, page, PageQuery.parse(request.query_params))

    return show


def _page(request: Request, page: Page, query: PageQuery, **context: Any) -> Response:
    """Render a page without reading the store."""
    return _render(
        request,
        "page.html",
        sheets=plotly_style_ids(),
        page=page,
        query=query,
        shared=query.only(*_SHARED_PARAMETERS),
        ages=AGES,
        filters=FILTERS,
        splits=[(name, name) for name in SPLITS],
        releases=[(name, name) for name in RELEASES],
        extra=[pair for pair in query.where if pair[0] not in FILTERS and pair[0] != "run_id"],
        **{"run_id": "", "reported": False, **context},
    )


def run_page(request: Request) -> Response:
    """One run, with its report if its folder is available."""
    run_id = _run_id(request)
    query = PageQuery.parse(request.query_params).only(*_SHARED_PARAMETERS).with_(run_id=run_id)
    reported = request.app.state.source.folders.find(run_id) is not None
    page = RUN_PAGE._replace(panels=RUN_PAGE.panels[:1]) if reported else RUN_PAGE
    return _page(request, page, query, run_id=run_id, reported=reported)


def _run_id(request: Request) -> str:
    run_id: str = request.path_params["run_id"]
    if not RUN_ID.fullmatch(run_id):
        raise NotFound("there is no such run", code="run-not-found")
    return run_id


def report(request: Request) -> Response:
    """The report of `headway report` for the current state of the run, with a strict policy."""
    html = request.app.state.source.folders.report(_run_id(request))
    if html is None:
        raise NotFound(
            "the folder of this run is not available; see --runs", code="run-folder-not-found"
        )
    script = _SCRIPT.search(html)
    scripts = f"'{script[1]}'" if script else "'none'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    headers = {"Content-Security-Policy": policy, "X-Frame-Options": "SAMEORIGIN"}
    return HTMLResponse(html, headers=headers)


def data(request: Request) -> Response:
    """The data of one panel, as JSON."""
    source: Source = request.app.state.source
    name, query = request.path_params["panel"], PageQuery.parse(request.query_params)
    if name == "choices":
        return _json({"choices": source.choices(), "about": source.store_cache.summary()._asdict()})
    if name == "marks":
        return _json(alerts.change_marks(source, query))
    panel = PANELS.get(name)
    if panel is None:
        raise NotFound("there is no such panel", code="panel-not-found")
    if panel.live:
        return _json(panel.load(source, query))
    panel_data = source.get_or_compute((name, query), lambda: panel.load(source, query))
    return _json(panel_data)


def _json(content: dict[str, Any]) -> Response:
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, default=str)
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


async def static_file(request: Request) -> Response:
    """Serve a known file; no other files can be read."""
    file = static_files().get(request.path_params["name"])
    if file is None:
        raise NotFound("there is no such file", code="file-not-found")
    headers = {"Cache-Control": f"public, max-age={_YEAR}, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, media_type=file.kind, headers=headers)
    return Response(file.plain, media_type=file.kind, headers=headers)


async def login(request: Request) -> Response:
    """Exchange the token for a cookie; the only route that accepts POST."""
    auth: TokenAuth = request.app.state.auth
    target = _local_path(request.query_params.get("next", "/"))
    if request.method != "POST":
        if auth.authorizes(request.headers):
            return RedirectResponse(target, 303)
        return _render(request, "login.html", wrong=False, target=target)
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return PlainTextResponse("the request is too large\n", 413)
    except ClientDisconnect:  # no client reads this response
        return PlainTextResponse("the request is incomplete\n", 400)
    token = parse_qs(body.decode("utf-8", "replace"), max_num_fields=4).get("token", [""])[0]
    if not auth.check(token):
        if request.state.guesses_too_often():
            return too_many_guesses()
        return _render(request, "login.html", 401, wrong=True, target=target)
    return RedirectResponse(target, 303, headers={"Set-Cookie": auth.cookie})


def _local_path(target: str) -> str:
    """The target if it is on this site, else `/`."""
    fits = re.fullmatch(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*", target)
    return target if fits else "/"


def _bad_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadQuery)
    return _error_page(request, 400, str(error), error.code)


def _not_found(request: Request, error: Exception) -> Response:
    if not isinstance(error, NotFound):
        error = NotFound("there is no such page", code="page-not-found")
    return _error_page(request, 404, str(error), error.code)


def _store_error(request: Request, error: Exception) -> Response:
    """Log the reason instead of sending it, because it contains paths of this machine."""
    assert isinstance(error, HeadwayError)
    print(with_code(redact.text(f"headway: {error}"), code=error.code), file=sys.stderr)
    text = "the store cannot be read; see the log of the server"
    return _error_page(request, 503, text, "store-unreadable")


def _internal_error(request: Request, error: Exception) -> Response:
    """Starlette logs the traceback; clients do not see it."""
    text = "an internal error; see the log of the server"
    return _error_page(request, 500, text, "internal-fault")


def _error_page(request: Request, status: int, text: str, code: str) -> Response:
    if request.url.path.startswith("/data/"):
        body = json.dumps({"error": text, "code": code})
        return Response(body, status, media_type="application/json")
    return _render(request, "error.html", status, text=text)
