"""Real receivers in threads: an HTTP server and an SMTP server that speaks STARTTLS."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any


class Hook(ThreadingHTTPServer):
    """Takes JSON by POST; answers with `codes` one after the other, then with 204."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.codes: list[int] = []
        self.reason: str | None = None
        self.asked = 0
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.got]


class _Hook(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        self.server.hold.wait(30)
        code = self.server.codes.pop(0) if self.server.codes else 204
        if 200 <= code < 300:
            self.server.got.append(json.loads(body))
            self.server.headers.append(dict(self.headers))
        self.send_response(code, self.server.reason)
        if 300 <= code < 400:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Mail(socketserver.ThreadingTCPServer):
    """Takes mail; with a certificate it offers STARTTLS, and then AUTH."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, cert: Path | None = None, refuse: tuple[str, ...] = (), implicit: bool = False
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Mail)
        self.got: list[str] = []
        self.logins: list[tuple[str, str]] = []
        self.encrypted: list[bool] = []
        self.refuse, self.implicit = refuse, implicit
        self.context = None
        if cert is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(cert)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Mail(socketserver.BaseRequestHandler):
    server: Mail

    def handle(self) -> None:
        self.file, self.tls = self.request.makefile("rwb"), False
        try:
            with contextlib.suppress(OSError):
                if self.server.implicit:
                    self._encrypt()
                self._talk()
        finally:
            with contextlib.suppress(OSError):
                self.file.close()
            self.request.close()

    def _talk(self) -> None:
        self._say("220 here")
        while line := self.file.readline().decode().strip():
            word = line.split()[0].upper()
            if word == "EHLO":
                more = [] if self.server.context is None else ["AUTH PLAIN"]
                more = more if self.tls or not more else ["STARTTLS"]
                self._say("250-here", *(f"250-{one}" for one in more), "250 OK")
            elif word == "STARTTLS" and self.server.context is not None:
                self._say("220 go")
                self._encrypt()
            elif word == "AUTH":
                _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                self.server.logins.append((user, password))
                self._say("235 in" if password == "secret" else "535 no")
            elif word == "RCPT":
                self._say("550 no" if any(x in line for x in self.server.refuse) else "250 OK")
            elif word == "DATA":
                self._say("354 go")
                text = b""
                while (part := self.file.readline()) not in (b".\r\n", b""):
                    text += part
                self.server.got.append(text.decode())
                self.server.encrypted.append(self.tls)
                self._say("250 taken")
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 OK")

    def _encrypt(self) -> None:
        assert self.server.context is not None
        self.file.close()
        self.request = self.server.context.wrap_socket(self.request, server_side=True)
        self.file, self.tls = self.request.makefile("rwb"), True

    def _say(self, *lines: str) -> None:
        self.file.write("".join(f"{line}\r\n" for line in lines).encode())
        self.file.flush()


@contextlib.contextmanager
def served(server: Any) -> Iterator[Any]:
    """A server in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certificate(folder: Path) -> Path:
    """A key and a certificate of 127.0.0.1, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "cert.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path
