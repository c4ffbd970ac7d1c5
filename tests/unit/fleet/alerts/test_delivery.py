"""Each channel against a real receiver: taken, refused, too slow."""

from __future__ import annotations

import json
import socket
import sys
from email import message_from_string, policy
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UsageError
from headway.fleet.alerts.delivery import Command, DeliveryFailed, Email, Webhook
from headway.fleet.alerts.state import FIRING, Alert, message
from tests.support import Golden, free_port, has_code, wait_until
from tests.unit.fleet.alerts.receivers import Hook, Mail, certificate, served

pytestmark = pytest.mark.timeout(60)
ALERT = Alert("0123456789ab", "ads\ntrains", "team=ä", "critical", ("x",), FIRING, 0.0, 0.0, "bad")
MESSAGE = message(ALERT, "firing", 1)


def mail(server: Mail, **fields: Any) -> Email:
    shape = {"email": ["a@x.org", "b@x.org"], "sender": "h@x.org", "host": "127.0.0.1"}
    return Email(**{**shape, "port": server.port, "timeout_s": 5, **fields})


def test_a_webhook_gets_json_with_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "Bearer abc")
    with served(Hook()) as hook:
        hook.codes = [200, 201, 204]
        channel = Webhook(webhook=hook.url, headers={"Authorization": "env:TOKEN"})
        channel.check()
        for _ in range(3):
            assert channel.send(MESSAGE) == ""
        assert hook.got == [MESSAGE] * 3
        assert hook.headers[0]["Idempotency-Key"] == "0123456789ab.1"
        assert hook.headers[0]["Authorization"] == "Bearer abc"
        assert hook.headers[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize("code", [301, 302, 307, 400, 404, 429, 500, 503])
def test_a_webhook_that_answers_otherwise_has_not_taken_it(code: int) -> None:
    with served(Hook()) as hook:
        hook.codes = [code]
        with pytest.raises(DeliveryFailed, check=has_code("webhook-refused")) as error:
            Webhook(webhook=hook.url).send(MESSAGE)
    assert error.value.fields["status"] == code


def test_a_webhook_that_is_not_there_or_too_slow_has_not_taken_it() -> None:
    with pytest.raises(DeliveryFailed, check=has_code("webhook-not-reached")):
        Webhook(webhook=f"http://127.0.0.1:{free_port()}/").send(MESSAGE)
    with served(Hook()) as hook:
        hook.hold.clear()
        with pytest.raises(DeliveryFailed, check=has_code("webhook-not-reached")):
            Webhook(webhook=hook.url, timeout_s=0.2).send(MESSAGE)
        hook.hold.set()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(DeliveryFailed, check=has_code("webhook-not-reached")):
            Webhook(webhook=url, timeout_s=0.2).send(MESSAGE)


SECRET = "T0PSECRET"


@pytest.mark.parametrize(
    ("url", "header"),
    [
        (f"https://hooks.example/ {SECRET}", "x"),
        (f"https://hooks.example/{SECRET}\n/x", "x"),
        (f"https://hooks.example/{SECRET}\u00e4", "x"),
        (f"https://user:{SECRET}@hooks.example/", "x"),
        (f"https://hooks.example:{SECRET}/", "x"),
        (f"ftp://hooks.example/{SECRET}", "x"),
        (SECRET, "x"),
        ("https://hooks.example/", f"Bearer {SECRET}\r\nX: y"),
        ("https://hooks.example/", f"Bearer {SECRET}\u20ac"),
    ],
)
def test_a_secret_that_http_cannot_send_is_shown_to_nobody(
    url: str, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("URL", url)
    monkeypatch.setenv("TOKEN", header)
    channel = Webhook(webhook="env:URL", headers={"Authorization": "env:TOKEN"})
    for attempt in (channel.check, lambda: channel.send(MESSAGE)):
        with pytest.raises(UsageError, check=has_code("webhook-invalid")) as error:
            attempt()
        assert SECRET not in str(error.value) + str(error.value.fields)


def test_a_secret_with_a_line_end_is_sent_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Hook()) as hook:
        monkeypatch.setenv("URL", f" {hook.url}\n")
        monkeypatch.setenv("TOKEN", f"Bearer {SECRET}\n")
        channel = Webhook(webhook="env:URL", headers={"Authorization": "env:TOKEN"})
        channel.check()
        assert channel.send(MESSAGE) == ""
        assert hook.headers[0]["Authorization"] == f"Bearer {SECRET}"


def test_a_server_that_repeats_a_secret_does_not_get_it_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", f"Bearer {SECRET}")
    with served(Hook()) as hook:
        hook.codes = [403]
        hook.reason = f"Bearer {SECRET} may not"
        with pytest.raises(DeliveryFailed, check=has_code("webhook-refused")) as error:
            Webhook(webhook=hook.url, headers={"Authorization": "env:TOKEN"}).send(MESSAGE)
        assert SECRET not in str(error.value) and "may not" in str(error.value)


def test_a_secret_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    with pytest.raises(UsageError, check=has_code("environment-variable-not-set")) as error:
        Webhook(webhook="env:TOKEN").check()
    assert error.value.fields["variable"] == "TOKEN"


def test_mail_goes_through_starttls_with_the_password_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("PASSWORD", "secret")
    cert = certificate(tmp_path)
    with served(Mail(cert)) as server:
        channel = mail(server, ca=str(cert), user="me", password="env:PASSWORD")
        channel.check()
        assert channel.send(MESSAGE) == ""
        assert server.logins == [("me", "secret")] and server.encrypted == [True]
        (text,) = server.got
    found = message_from_string(text, policy=policy.default)
    assert found["Message-ID"] == "<0123456789ab.1@headway.invalid>"
    assert found["To"] == "a@x.org, b@x.org"
    body = found.get_content().replace("\r\n", "\n")
    golden("mail.txt", f"{found['Subject']}\n\n{body}")


def test_mail_goes_to_a_server_that_speaks_tls_from_the_start(tmp_path: Path) -> None:
    cert = certificate(tmp_path)
    with served(Mail(cert, implicit=True)) as server:
        assert mail(server, ca=str(cert), tls="implicit").send(MESSAGE) == ""
        assert server.encrypted == [True]


def test_no_password_and_no_mail_goes_out_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "secret")
    with served(Mail()) as server:
        with pytest.raises(DeliveryFailed, match="STARTTLS"):
            mail(server, user="me", password="env:PASSWORD").send(MESSAGE)
        assert (server.logins, server.got) == ([], [])
    with served(Mail(certificate(tmp_path))) as server:
        with pytest.raises(DeliveryFailed, match="CERTIFICATE_VERIFY_FAILED"):
            mail(server, user="me", password="env:PASSWORD").send(MESSAGE)
        assert (server.logins, server.got) == ([], [])


def test_mail_that_is_refused_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "wrong")
    with served(Mail(refuse=("a@x.org",))) as server:
        assert "a@x.org" in mail(server, tls="none").send(MESSAGE)
        assert len(server.got) == 1
        with pytest.raises(DeliveryFailed, check=has_code("mail-recipients-refused")):
            mail(server, tls="none", email=["a@x.org"]).send(MESSAGE)
    cert = certificate(tmp_path)
    with (
        served(Mail(cert)) as server,
        pytest.raises(DeliveryFailed, check=has_code("mail-refused")) as error,
    ):
        mail(server, ca=str(cert), user="me", password="env:PASSWORD").send(MESSAGE)
    assert error.value.fields["status"] == 535
    with pytest.raises(DeliveryFailed, check=has_code("mail-not-sent")):
        mail(server, tls="none").send(MESSAGE)


def test_a_command_reads_it_and_no_shell_sees_its_words(tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read() + sys.argv[2])"
    words = [sys.executable, "-c", script, str(tmp_path / "got"), "$HOME; touch x"]
    assert Command(command=words).send(MESSAGE) == ""
    assert (tmp_path / "got").read_text() == json.dumps(MESSAGE) + "$HOME; touch x"
    line = f"cat > {tmp_path}/line; exit 0"
    assert Command(command=line, shell=True).send(MESSAGE) == ""
    assert json.loads((tmp_path / "line").read_text()) == MESSAGE


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(DeliveryFailed, check=has_code("command-failed")) as error:
        Command(command="echo no such pager >&2; exit 3", shell=True).send(MESSAGE)
    assert error.value.fields == {"exit_code": 3, "output": "no such pager"}
    with pytest.raises(DeliveryFailed, check=has_code("command-not-started")):
        Command(command=["./is-not-there"]).send(MESSAGE)
    assert Command(command=["true"]).send({**MESSAGE, "text": "x" * 1_000_000}) == ""


def test_a_command_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    line = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(DeliveryFailed, check=has_code("command-timeout")):
        Command(command=line, shell=True, timeout_s=0.5).send(MESSAGE)
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child), 10)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
