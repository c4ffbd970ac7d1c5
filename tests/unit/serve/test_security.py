"""Authentication, rate limits and response headers."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import pages

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from headway.serve.sources import Source


pytestmark = pytest.mark.xdist_group("pages")
TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def locked(source: Source) -> TestClient:
    return pages(source, TOKEN, "fleet.example", base_url="http://fleet.example")


def test_every_response_has_the_headers(client: TestClient, locked: TestClient) -> None:
    answers = [
        *(client.get(path) for path in ("/", "/data/headline", "/nothing", "/static/page.js")),
        client.post("/"),
        client.get("/", headers={"Host": "evil.example"}),
        locked.get("/"),
        locked.get("/login"),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        for part in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert part in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers


def test_the_nonce_is_new_each_time(client: TestClient) -> None:
    nonces = {client.get("/").headers["content-security-policy"] for _ in range(3)}
    assert len(nonces) == 3


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_read_only(client: TestClient, method: str) -> None:
    for path in ("/", "/data/headline", "/runs/run000000001"):
        assert client.request(method, path).status_code == 405


def test_head_is_a_get_without_its_body(client: TestClient) -> None:
    answer = client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", ""]
)
def test_unknown_host_names_are_rejected(client: TestClient, host: str) -> None:
    assert client.get("/data/runs", headers={"Host": host}).status_code == 400


def test_cross_site_requests_for_data_are_rejected(client: TestClient) -> None:
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        answer = client.get("/data/choices", headers={"Sec-Fetch-Site": site})
        assert answer.status_code == status


def test_too_large_requests_are_rejected(client: TestClient, locked: TestClient) -> None:
    from headway.serve import security

    assert client.get("/?q=" + "x" * security.MAX_ADDRESS_BYTES).status_code == 414
    assert client.get("/", headers={"X": "x" * security.MAX_HEADER_BYTES}).status_code == 431
    large = b"token=" + b"x" * security.MAX_BODY_BYTES
    assert locked.post("/login", content=large).status_code == 413
    in_parts = locked.post("/login", content=iter([large[:3000], large[3000:]]))
    assert in_parts.status_code == 413


def test_too_many_requests_are_rejected(source: Source) -> None:
    from headway.serve import security

    client = pages(source, clock=lambda: 0.0)
    codes = [client.get("/static/theme.js").status_code for _ in range(security.BURST + 5)]
    assert codes == [200] * security.BURST + [429] * 5


def test_unauthenticated_requests_do_not_limit_authenticated_ones(source: Source) -> None:
    """All clients share the address of a proxy."""
    from headway.serve import security

    locked = pages(source, TOKEN, clock=lambda: 0.0)
    codes = [locked.get("/data/choices").status_code for _ in range(security.BURST + 5)]
    assert codes == [401] * security.BURST + [429] * 5
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert locked.get("/data/choices", headers=right).status_code == 200
    assert locked.post("/login", data={"token": TOKEN}).status_code == 303
    assert locked.get("/data/choices").status_code == 200
    codes = [locked.get("/static/theme.js").status_code for _ in range(security.BURST)]
    assert codes[-1] == 429  # a burst of their own


def test_only_the_login_is_available_without_a_token(locked: TestClient) -> None:
    answer = locked.get("/runs?q=a b&team=ads")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=/runs%3Fq%3Da%2520b%26team%3Dads"
    assert locked.get("/data/headline").status_code == 401
    assert locked.get("/runs/run000000001/report").status_code == 303
    assert locked.get("/static/headway.css").status_code == 200
    assert 'type="password"' in locked.get("/login").text


def test_the_token_is_exchanged_for_a_cookie(locked: TestClient) -> None:
    answer = locked.post("/login?next=/runs%3Fq%3Dx", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?q=x")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert locked.get("/data/choices").status_code == 200
    locked.cookies.clear()
    assert locked.get("/data/choices").status_code == 401
    answer_ = locked.get("/data/choices", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer_.status_code == 200


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "/%0d%0aX: y", "x"]
)
def test_the_login_never_redirects_to_another_site(locked: TestClient, target: str) -> None:
    answer = locked.post("/login", params={"next": target}, data={"token": TOKEN})
    assert answer.status_code == 303
    location = answer.headers["location"]
    assert location.startswith("/") and not location.startswith(("//", "/\\"))
    assert "x" not in answer.headers or answer.headers["x"] != "y"


@pytest.mark.parametrize("cookie", ["headway=", "headway=x", 'headway="', "other=1", "headway=é"])
def test_an_invalid_cookie_is_rejected(locked: TestClient, cookie: str) -> None:
    answer = locked.get("/data/choices", headers={"Cookie": cookie.encode()})
    assert answer.status_code == 401


def test_a_session_ends_with_the_server() -> None:
    from headway.serve.security import TokenAuth

    one, other = TokenAuth(TOKEN), TokenAuth(TOKEN)
    assert one.cookie != other.cookie


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.serve import security

    compared = []
    real = hmac.compare_digest

    def noted(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(security.hmac, "compare_digest", noted)
    keys = security.TokenAuth(TOKEN)
    assert not keys.check("wrong")
    assert not keys.check("\ud800")
    assert keys.check(TOKEN)
    assert len(compared) == 3


def test_wrong_tokens_are_counted(source: Source) -> None:
    from headway.serve import security

    now = 0.0
    locked = pages(source, TOKEN, clock=lambda: now)
    wrong = {"Authorization": "Bearer guess"}
    codes = [locked.post("/login", data={"token": "guess"}).status_code for _ in range(5)]
    codes += [locked.get("/", headers=wrong).status_code for _ in range(security.TOKEN_TRIES)]
    assert codes == [401] * security.TOKEN_TRIES + [429] * 5
    assert locked.post("/login", data={"token": "guess"}).status_code == 429
    now += 60.0
    assert locked.post("/login", data={"token": "guess"}).status_code == 401


def test_an_interrupted_login_is_no_error(source: Source) -> None:
    """It must not print a traceback to the log."""
    answers: list[MutableMapping[str, Any]] = []
    parts = iter([{"type": "http.request", "body": b"tok", "more_body": True}])

    async def receive() -> MutableMapping[str, Any]:
        return next(parts, {"type": "http.disconnect"})

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"9")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/login", "headers": headers}
    scope |= {"query_string": b"", "client": ("10.0.0.1", 1)}
    asyncio.run(pages(source, TOKEN).app(scope, receive, send))
    assert answers[0]["status"] == 400


def test_wrong_tokens_do_not_lock_out_the_right_one(source: Source) -> None:
    from starlette.testclient import TestClient

    app = pages(source, TOKEN, clock=lambda: 0.0).app
    clients = [
        TestClient(app, "http://localhost", client=(f"10.0.0.{n}", 1), follow_redirects=False)
        for n in range(16)
    ]
    for _ in range(10):
        for client in clients:
            client.get("/data/choices", headers={"Authorization": "Bearer guess"})
            client.post("/login", data={"token": "guess"})
    right = {"Authorization": f"Bearer {TOKEN}"}
    for client in clients:  # not even of the same address
        assert client.get("/data/choices", headers=right).status_code == 200
        assert client.post("/login", data={"token": TOKEN}).status_code == 303
        assert client.get("/data/choices").status_code == 200
